"""The device and the precision of a model: checks the caller's choice and makes the choices that the caller leaves open."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.errors import DeviceError
from dragoman.inference.backends.compiled import backend
from dragoman.inference.backends.protocol import PRECISIONS, Precision
from dragoman.platform_features import has_nvidia_driver

MAX_WORKERS = 1024
"""Most batches in parallel, and most threads of each."""


@dataclass(frozen=True)
class DeviceChoice:
    """Device and precision of a model.

    device: "cpu", "cuda", or "cuda" with a number
    precision: None if the model determines it
    """

    device: str
    precision: Precision | None

    @property
    def device_type(self) -> str:
        """Device without its number."""
        return self.device.partition(":")[0]


def resolve_device(device: str, precision: str) -> DeviceChoice:
    """Return the device and the precision. Raises DeviceError for a missing device or an unsupported precision.

    device: auto, cpu, cuda, or cuda with a number
    precision: auto or one of `PRECISIONS`
    """
    resolved_precision = next((name for name in PRECISIONS if name == precision), None)
    if resolved_precision is None and precision != "auto":
        raise DeviceError(
            f"precision: {precision!r} is not known; choose auto, {', '.join(PRECISIONS)}", code="precision-unsupported"
        )
    device = _parse_device(str(device))
    if device == "cpu" and resolved_precision == "bfloat16":
        raise DeviceError(
            "precision: 'bfloat16' is not available on cpu; choose float32 or int8, or a GPU", code="precision-unsupported"
        )
    if device == "cpu" and resolved_precision == "int8":
        obstacle = backend.find_kernel_obstacle()
        if obstacle is not None and not obstacle.code:
            raise DeviceError(
                f"precision: 'int8' is not available, because {obstacle.reason}; choose float32", code="precision-unsupported"
            )
    if device != "cpu" and resolved_precision == "int8":
        raise DeviceError(
            f"precision: 'int8' is not available on {device}; choose bfloat16 or float32, or device cpu",
            code="precision-unsupported",
        )
    if device != "cpu" and resolved_precision is None:
        import torch

        resolved_precision = "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return DeviceChoice(device, resolved_precision)


def _parse_device(name: str) -> str:
    if name == "auto":
        return "cuda" if _count_gpus() else "cpu"
    device_type, separator, index = name.partition(":")
    if device_type not in ("cpu", "cuda") or (separator and not (device_type == "cuda" and index.isdecimal())):
        raise DeviceError(f"device: {name!r} is not known; choose auto, cpu, cuda, or a GPU by its number, such as cuda:0")
    if device_type == "cuda" and int(index or 0) >= (count := _count_gpus()):
        raise DeviceError(f"device: {name!r} does not exist, the number of GPUs is {count}; choose cpu or a lower number")
    return name


def _count_gpus() -> int:
    """Return the number of GPUs that PyTorch finds. It is imported on a machine with a driver only."""
    if not has_nvidia_driver():
        return 0
    try:
        import torch
    except ImportError:
        return 0
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def validate_count(name: str, value: int | None) -> int | None:
    """Return a number of workers or threads. Raises DeviceError unless it is None or from 1 to `MAX_WORKERS`."""
    if value is not None and not (type(value) is int and 1 <= value <= MAX_WORKERS):
        raise DeviceError(
            f"{name}: {value!r} is out of range; give a whole number from 1 to {MAX_WORKERS}", code="invalid-thread-count"
        )
    return value
