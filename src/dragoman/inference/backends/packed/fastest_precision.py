"""Precision in which PyTorch multiplies a model's weights fastest, measured once for each processor and shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor

from dragoman.inference.backends.packed.matmul import pack_matmul
from dragoman.inference.backends.protocol import PRECISIONS, Precision
from dragoman.model.layers import DecoderLayer
from dragoman.model.transformer import Transformer
from dragoman.runtime.autotuner import choose_cached, measure_seconds, select_fastest
from dragoman.runtime.cpu_support import has_bf16_matmul, has_int8_matmul

# Rows of the timed products: one hypothesis, a few, a batch.
TIMED_ROWS = (1, 8, 128)
TRIALS = 9
# Rows of the matrix before the softmax that are timed in place of all of them.
SAMPLE_ROWS = 4096
# A lower precision must be this much faster than float32, whose results are those of training.
MIN_SPEEDUP = 1.25


def measure_fastest_precision(transformer: Transformer) -> Precision:
    """Return the precision in which this processor multiplies the decoder's weights fastest.

    The first use measures it in a fraction of a second, and the autotuner caches it for models of this shape. The inner matrix
    of one feed-forward layer represents the matrices of all layers, and `SAMPLE_ROWS` rows represent the matrix before the
    softmax.
    """
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
