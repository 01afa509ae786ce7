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
from dragoman.inference.backends.packed.matmul import Precision, multiplies_int8, pack_product, packs_bfloat16
from dragoman.inference.parallel.scheduler import MOST
from dragoman.model.layers import DecoderLayer
from dragoman.model.linear import multiplies_bfloat16
from dragoman.model.transformer import Transformer
from dragoman.runtime.autotune_cache import recall, remember

PRECISIONS: tuple[str, ...] = get_args(Precision)
# What is multiplied at once: one hypothesis, a few, a batch.
ROWS = (1, 8, 128)
ROUNDS = 9
# Rows of the matrix before the softmax that stand for all of them.
PIECES = 4096
# So much faster other numbers have to be than float32, whose results are training's own.
CLEARLY = 1.25


@dataclass(frozen=True)
class Placement:
    """precision: none where the fastest is to be found out."""

    device: torch.device
    precision: Precision | None


def place(device: str, precision: str) -> Placement:
    """Raises DeviceError for a device that is not here, or numbers that it does not compute with."""
    if precision not in ("auto", *PRECISIONS):
        raise DeviceError(f"precision = {precision!r}: auto, {', '.join(PRECISIONS)} are allowed")
    found = _device(str(device))
    if found.type == "cpu" and precision == "int8" and not multiplies_int8():
        raise DeviceError(
            "precision = 'int8': this build of PyTorch does not have its products; bfloat16 and float32 are there"
        )
    if found.type == "cpu" and precision == "bfloat16" and not packs_bfloat16():
        raise DeviceError(
            "precision = 'bfloat16': oneDNN does not compute with it on this processor; float32 and int8 are there"
        )
    if found.type == "cuda" and precision == "int8":
        raise DeviceError(f"precision = 'int8' on {device}: a GPU computes in bfloat16 or float32; int8 is a processor's")
    chosen: Precision | None = next((one for one in get_args(Precision) if one == precision), None)
    if found.type == "cuda" and chosen is None:
        chosen = "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return Placement(found, chosen)


def compiles(model: Transformer) -> bool:
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


def fastest_precision(model: Transformer) -> Precision:
    """In which numbers this processor multiplies by the decoder's weights in clearly the least time; int8 where that is
    compiled, which for one thread nothing else comes near.

    The inner matrix of a feed-forward stands for those of all layers, and some rows for the whole matrix before the softmax.
    Measured at first use, in a fraction of a second, and remembered for models of this shape.
    """
    if compiles(model):
        return "int8"
    layers, output_VD = model.decoder.layers, model.output
    inner_OI = cast(DecoderLayer, layers[0]).feed_forward.inner.weight
    in_layers = sum(weight.numel() for weight in layers.parameters() if weight.dim() == 2)
    question = f"precision, {in_layers:,} weights {inner_OI.shape[1]} x {inner_OI.shape[0]}, {len(output_VD):,} pieces"
    known: Precision | None = next((one for one in get_args(Precision) if one == recall(question)), None)
    if known is None:
        part_VD = output_VD[:PIECES]
        known = _fastest([(inner_OI, in_layers / inner_OI.numel()), (part_VD, len(output_VD) / len(part_VD))])
        remember(question, known)
    return known


def _fastest(weights: Sequence[tuple[Tensor, float]]) -> Precision:
    """weights: each with the number of times that a step multiplies by it."""
    able: list[Precision] = ["float32"]
    if multiplies_bfloat16():
        able.append("bfloat16")
    if multiplies_int8():
        able.append("int8")
    costs = dict.fromkeys(able, 0.0)
    found = [(_seconds(weight_OI, able), times) for weight_OI, times in weights]
    for rows in ROWS:
        step = {one: sum(times * seconds[one, rows] for seconds, times in found) for one in able}
        for one in able:
            costs[one] += step[one] / step["float32"]
    best = min(able, key=lambda one: costs[one])
    return best if costs[best] * CLEARLY <= costs["float32"] else "float32"


@torch.no_grad()
def _seconds(weight_OI: Tensor, able: Sequence[Precision]) -> dict[tuple[Precision, int], float]:
    """What a product with these weights takes, in all numbers by turns."""
    products = {precision: pack_product(weight_OI, None, precision) for precision in able}
    seconds: dict[tuple[Precision, int], float] = {}
    for rows in ROWS:
        x_XI = torch.randn(rows, weight_OI.shape[1], generator=torch.Generator().manual_seed(rows))
        turns: dict[Precision, list[float]] = {precision: [] for precision in able}
        for _ in range(ROUNDS):
            for precision, product in products.items():
                product(x_XI)
                began = time.perf_counter()
                product(x_XI)
                turns[precision].append(time.perf_counter() - began)
        seconds |= {(precision, rows): median(turns[precision]) for precision in able}
    return seconds


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, colon, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (colon and not (kind == "cuda" and number.isdecimal())):
        raise DeviceError(f"device = {name!r}: auto, cpu, cuda and cuda:0, cuda:1, … are allowed")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "cuda" and int(number or 0) >= count:
        raise DeviceError(f"device = {name!r}: the number of GPUs here is {count}")
    return torch.device(name)


def checked_count(name: str, value: int | None) -> int | None:
    """Raises DeviceError for less than one thread or replica, or more than any machine has."""
    if value is not None and not (type(value) is int and 1 <= value <= MOST):
        raise DeviceError(f"{name} = {value!r}: a whole number from 1 to {MOST} is allowed")
    return value
