"""The device and the precision of a model: checks the caller's choice and makes the choices that the caller leaves open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast, get_args

import torch
from torch import Tensor

from dragoman.errors import DeviceError
from dragoman.inference.backends.compiled.backend import CompiledBackend
from dragoman.inference.backends.packed.backend import PackedBackend
from dragoman.inference.backends.packed.matmul import pack_matmul
from dragoman.inference.backends.protocol import SUPPORTED, Precision, Support
from dragoman.inference.backends.select import supports_compiled
from dragoman.inference.backends.trained_model import TrainedModel
from dragoman.model.layers import DecoderLayer
from dragoman.runtime.autotuner import choose_cached, measure_seconds, select_fastest
from dragoman.runtime.cpu_support import has_bf16_matmul, has_int8_matmul

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
# Rows of the timed products: one hypothesis, a few, a batch.
TIMED_ROWS = (1, 8, 128)
TRIALS = 9
# Rows of the matrix before the softmax that are timed in place of all of them.
SAMPLE_ROWS = 4096
# A lower precision must be this much faster than float32, whose results are those of training.
MIN_SPEEDUP = 1.25
MAX_WORKERS = 1024
"""Most batches in parallel, and most threads of each."""


@dataclass(frozen=True)
class DeviceChoice:
    """Device and precision of a model.

    precision: None if the fastest one is to be measured
    """

    device: torch.device
    precision: Precision | None


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
    torch_device = _parse_device(str(device))
    if resolved_precision is not None and torch_device.type == "cpu":
        support = _check_processor(resolved_precision)
        if not support.is_supported:
            choices = [name for name in PRECISIONS if _check_processor(name).is_supported]
            raise DeviceError(
                f"precision: {precision!r} is not available, because {support.reason}; choose {' or '.join(choices)}",
                code="precision-unsupported",
            )
    if torch_device.type == "cuda" and resolved_precision == "int8":
        raise DeviceError(
            f"precision: 'int8' is not available on {device}; choose bfloat16 or float32, or device cpu",
            code="precision-unsupported",
        )
    if torch_device.type == "cuda" and resolved_precision is None:
        resolved_precision = "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return DeviceChoice(torch_device, resolved_precision)


def _check_processor(precision: Precision) -> Support:
    """Return whether a back end for processors computes in this precision here. The packed one gives the reason if not."""
    if precision == "int8" and CompiledBackend().check_machine(precision).is_supported:
        return SUPPORTED
    return PackedBackend().check_machine(precision)


def choose_fastest_precision(model: TrainedModel) -> Precision:
    """Return the precision in which this processor multiplies the decoder's weights fastest.

    It is float32 for unusual layers, and int8 if the compiled back end runs the model. Otherwise the first use measures it in a
    fraction of a second, and the autotuner caches it for models of this shape. The inner matrix of one feed-forward layer
    represents the matrices of all layers, and `SAMPLE_ROWS` rows represent the matrix before the softmax.
    """
    if model.config.find_unusual_layers():
        return "float32"
    if supports_compiled(model.config, "int8"):
        return "int8"
    transformer = model.get_transformer()
    layers, output_VD = transformer.decoder.layers, transformer.output
    inner_OI = cast(DecoderLayer, layers[0]).feed_forward.inner.weight
    num_layer_weights = sum(weight.numel() for weight in layers.parameters() if weight.dim() == 2)
    sample_VD = output_VD[:SAMPLE_ROWS]
    weights = [(inner_OI, num_layer_weights / inner_OI.numel()), (sample_VD, len(output_VD) / len(sample_VD))]
    key = f"precision, {num_layer_weights:,} weights {inner_OI.shape[1]} x {inner_OI.shape[0]}, {len(output_VD):,} tokens"
    return choose_cached(key, PRECISIONS, lambda: _measure_fastest(weights))


def _measure_fastest(weights: Sequence[tuple[Tensor, float]]) -> Precision:
    """Return the clearly fastest precision. Each weight has the number of times that a step multiplies by it."""
    precisions: list[Precision] = ["float32"]
    if has_bf16_matmul():
        precisions.append("bfloat16")
    if has_int8_matmul():
        precisions.append("int8")
    costs = dict.fromkeys(precisions, 0.0)
    timings = [(_time_products(weight_OI, precisions), num_uses) for weight_OI, num_uses in weights]
    for rows in TIMED_ROWS:
        step_seconds = {
            precision: sum(num_uses * seconds[precision, rows] for seconds, num_uses in timings) for precision in precisions
        }
        for precision in precisions:
            costs[precision] += step_seconds[precision] / step_seconds["float32"]
    return select_fastest(costs, default="float32", min_speedup=MIN_SPEEDUP)


@torch.no_grad()
def _time_products(weight_OI: Tensor, precisions: Sequence[Precision]) -> dict[tuple[Precision, int], float]:
    """Return the seconds of a product with these weights, by precision and number of rows."""
    products = {precision: pack_matmul(weight_OI, None, precision) for precision in precisions}
    seconds: dict[tuple[Precision, int], float] = {}
    for rows in TIMED_ROWS:
        x_XI = torch.randn(rows, weight_OI.shape[1], generator=torch.Generator().manual_seed(rows))
        candidates: dict[Precision, Callable[[], object]] = {
            precision: partial(product, x_XI) for precision, product in products.items()
        }
        timings = measure_seconds(candidates, rounds=TRIALS)
        seconds |= {(precision, rows): timings[precision] for precision in precisions}
    return seconds


def _parse_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device_type, separator, index = name.partition(":")
    if device_type not in ("cpu", "cuda") or (separator and not (device_type == "cuda" and index.isdecimal())):
        raise DeviceError(f"device: {name!r} is not known; choose auto, cpu, cuda, or a GPU by its number, such as cuda:0")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device_type == "cuda" and int(index or 0) >= count:
        raise DeviceError(f"device: {name!r} does not exist, the number of GPUs is {count}; choose cpu or a lower number")
    return torch.device(name)


def validate_count(name: str, value: int | None) -> int | None:
    """Return a number of workers or threads. Raises DeviceError unless it is None or from 1 to `MAX_WORKERS`."""
    if value is not None and not (type(value) is int and 1 <= value <= MAX_WORKERS):
        raise DeviceError(
            f"{name}: {value!r} is out of range; give a whole number from 1 to {MAX_WORKERS}", code="invalid-thread-count"
        )
    return value
