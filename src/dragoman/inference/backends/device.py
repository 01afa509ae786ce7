"""Where a model runs and in which numbers: what the caller asked for, checked against what is here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import median
from typing import cast, get_args

import torch
from torch import Tensor

from dragoman.errors import DeviceError
from dragoman.inference.backends.packed.matmul import Precision, has_int8_matmul, has_packed_bf16_matmul, pack_matmul
from dragoman.inference.parallel.scheduler import MAX_WORKERS
from dragoman.model.layers import DecoderLayer
from dragoman.model.linear import has_bf16_matmul
from dragoman.model.transformer import Transformer
from dragoman.runtime.autotune_cache import get_measurement, put_measurement

PRECISIONS: tuple[str, ...] = get_args(Precision)
# What is multiplied at once: one hypothesis, a few, a batch.
TIMED_ROWS = (1, 8, 128)
TRIALS = 9
# Rows of the matrix before the softmax that stand for all of them.
SAMPLE_ROWS = 4096
# So much faster other numbers have to be than float32, whose results are training's own.
MIN_SPEEDUP = 1.25


@dataclass(frozen=True)
class DeviceChoice:
    """precision: none where the fastest is to be found out."""

    device: torch.device
    precision: Precision | None


def resolve_device(device: str, precision: str) -> DeviceChoice:
    """Raises DeviceError for a device that is not here, or numbers that it does not compute with."""
    if precision not in ("auto", *PRECISIONS):
        raise DeviceError(f"precision = {precision!r}: auto, {', '.join(PRECISIONS)} are allowed")
    torch_device = _parse_device(str(device))
    if torch_device.type == "cpu" and precision == "int8" and not has_int8_matmul():
        raise DeviceError(
            "precision = 'int8': this build of PyTorch does not have its products; bfloat16 and float32 are there"
        )
    if torch_device.type == "cpu" and precision == "bfloat16" and not has_packed_bf16_matmul():
        raise DeviceError(
            "precision = 'bfloat16': oneDNN does not compute with it on this processor; float32 and int8 are there"
        )
    if torch_device.type == "cuda" and precision == "int8":
        raise DeviceError(f"precision = 'int8' on {device}: a GPU computes in bfloat16 or float32; int8 is a processor's")
    resolved_precision: Precision | None = next(
        (candidate for candidate in get_args(Precision) if candidate == precision), None
    )
    if torch_device.type == "cuda" and resolved_precision is None:
        resolved_precision = "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return DeviceChoice(torch_device, resolved_precision)


def supports_compiled(model: Transformer) -> bool:
    """Whether this model in int8 is compiled here (`kernels.transformer`): Numba is installed and works here, the processor
    multiplies bytes in vectors of 512 bits, and the model has nothing that kernels do not know.
    """
    if model.decoder.pointer is not None or find_spec("numba") is None:
        return False
    try:
        from dragoman.inference.backends.compiled.pack import can_compile  # only here, since Numba is an extra

        return can_compile(model)
    except Exception:  # whatever a Numba raises that does not go with what else is installed
        return False


def choose_fastest_precision(model: Transformer) -> Precision:
    """In which numbers this processor multiplies by the decoder's weights in clearly the least time; int8 where that is
    compiled, which for one thread nothing else comes near.

    The inner matrix of a feed-forward stands for those of all layers, and some rows for the whole matrix before the softmax.
    Measured at first use, in a fraction of a second, and remembered for models of this shape.
    """
    if supports_compiled(model):
        return "int8"
    layers, output_VD = model.decoder.layers, model.output
    inner_OI = cast(DecoderLayer, layers[0]).feed_forward.inner.weight
    num_layer_weights = sum(weight.numel() for weight in layers.parameters() if weight.dim() == 2)
    cache_key = f"precision, {num_layer_weights:,} weights {inner_OI.shape[1]} x {inner_OI.shape[0]}, {len(output_VD):,} pieces"
    fastest: Precision | None = next(
        (candidate for candidate in get_args(Precision) if candidate == get_measurement(cache_key)), None
    )
    if fastest is None:
        sample_VD = output_VD[:SAMPLE_ROWS]
        fastest = _measure_fastest(
            [(inner_OI, num_layer_weights / inner_OI.numel()), (sample_VD, len(output_VD) / len(sample_VD))]
        )
        put_measurement(cache_key, fastest)
    return fastest


def _measure_fastest(weights: Sequence[tuple[Tensor, float]]) -> Precision:
    """weights: each with the number of times that a step multiplies by it."""
    precisions: list[Precision] = ["float32"]
    if has_bf16_matmul():
        precisions.append("bfloat16")
    if has_int8_matmul():
        precisions.append("int8")
    costs = dict.fromkeys(precisions, 0.0)
    timings = [(_time_products(weight_OI, precisions), num_uses) for weight_OI, num_uses in weights]
    for rows in TIMED_ROWS:
        step_seconds = {
            precision: sum(times * seconds[precision, rows] for seconds, times in timings) for precision in precisions
        }
        for precision in precisions:
            costs[precision] += step_seconds[precision] / step_seconds["float32"]
    fastest = min(precisions, key=lambda precision: costs[precision])
    return fastest if costs[fastest] * MIN_SPEEDUP <= costs["float32"] else "float32"


@torch.no_grad()
def _time_products(weight_OI: Tensor, precisions: Sequence[Precision]) -> dict[tuple[Precision, int], float]:
    """What a product with these weights takes, in all numbers by turns."""
    products = {precision: pack_matmul(weight_OI, None, precision) for precision in precisions}
    seconds: dict[tuple[Precision, int], float] = {}
    for rows in TIMED_ROWS:
        x_XI = torch.randn(rows, weight_OI.shape[1], generator=torch.Generator().manual_seed(rows))
        samples: dict[Precision, list[float]] = {precision: [] for precision in precisions}
        for _ in range(TRIALS):
            for precision, product in products.items():
                product(x_XI)
                start_time = time.perf_counter()
                product(x_XI)
                samples[precision].append(time.perf_counter() - start_time)
        seconds |= {(precision, rows): median(samples[precision]) for precision in precisions}
    return seconds


def _parse_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device_type, separator, index = name.partition(":")
    if device_type not in ("cpu", "cuda") or (separator and not (device_type == "cuda" and index.isdecimal())):
        raise DeviceError(f"device = {name!r}: auto, cpu, cuda and cuda:0, cuda:1, … are allowed")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device_type == "cuda" and int(index or 0) >= count:
        raise DeviceError(f"device = {name!r}: the number of GPUs here is {count}")
    return torch.device(name)


def validate_count(name: str, value: int | None) -> int | None:
    """Raises DeviceError for less than one thread or replica, or more than any machine has."""
    if value is not None and not (type(value) is int and 1 <= value <= MAX_WORKERS):
        raise DeviceError(f"{name} = {value!r}: a whole number from 1 to {MAX_WORKERS} is allowed")
    return value
