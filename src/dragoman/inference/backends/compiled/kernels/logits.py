"""Log-sum-exp over the vocabulary, and the best few tokens without a sort.

N rows    B sentences of R hypotheses    V vocabulary    X best tokens
"""

from __future__ import annotations

import numpy as np

from dragoman.inference.backends.compiled.kernels.memory import (
    load_f32,
    load_f32x16,
    load_i64,
    load_partial,
    store_f32,
    store_f64,
    store_i64,
)
from dragoman.inference.backends.compiled.kernels.simd import (
    any_greater,
    exp_f32x16,
    export,
    kernel,
    maximum,
    reduce_max,
    reduce_sum,
    splat,
)
from dragoman.inference.backends.compiled.kernels.structs import LANES, LOGIT_BLOCK

NEG_INF = -np.inf


@kernel
def compute_max(logits, start, width):
    """Return the greatest of `width` logits."""
    full_width = width // (2 * LANES) * (2 * LANES)
    lane_max = other_max = splat(NEG_INF)  # two, so that neither waits for the other
    for offset in range(0, full_width, 2 * LANES):
        lane_max = maximum(load_f32x16(logits, start + offset), lane_max)
        other_max = maximum(load_f32x16(logits, start + offset + LANES), other_max)
    for offset in range(full_width, width, LANES):
        lane_max = maximum(load_partial(width - offset, logits, start + offset, splat(NEG_INF)), lane_max)
    return reduce_max(maximum(lane_max, other_max))


@kernel
def compute_exp_sum(logits, start, width, max_value):
    """Return Σ exp of `width` logits less their maximum."""
    full_width, max_vector = width // LANES * LANES, splat(max_value)
    lane_sums = exp_f32x16(load_partial(width - full_width, logits, start + full_width, splat(NEG_INF)) - max_vector)
    for offset in range(0, full_width, LANES):
        lane_sums = lane_sums + exp_f32x16(load_f32x16(logits, start + offset) - max_vector)
    return np.float64(reduce_sum(lane_sums))


@kernel
def merge_exp_sums(max_value, sum_, other_max, other_sum):
    """Return the maximum and the Σ exp of two sets of logits together."""
    if other_max == NEG_INF:
        return max_value, sum_
    merged_max = max(max_value, other_max)
    rescaled_sum = sum_ * np.exp(np.float64(max_value) - np.float64(merged_max))
    return merged_max, rescaled_sum + other_sum * np.exp(np.float64(other_max) - np.float64(merged_max))


@kernel
def compute_logsumexp(logits, start, width):
    """Return log Σ exp of `width` logits in double precision, block by block."""
    row_max, row_sum = np.float32(NEG_INF), 0.0
    for column in range(0, width, LOGIT_BLOCK):
        count = min(LOGIT_BLOCK, width - column)
        block_max = compute_max(logits, start + column, count)
        row_max, row_sum = merge_exp_sums(
            row_max, row_sum, block_max, compute_exp_sum(logits, start + column, count, block_max)
        )
    return np.float64(row_max) + np.log(row_sum)


@export(int, int, int, int)
def logsumexp(logits, num_rows, width, sums):
    """Write log Σ exp of logits (N, V) into sums (N,)."""
    for row in range(num_rows):
        store_f64(sums, row, compute_logsumexp(logits, row * width, width))
    return 0


@kernel
def insert_candidate(value, index, first, num_filled, count, values, indices):
    """Insert a candidate into a sorted list that begins at `first`. Among equals the earlier one stays ahead. A full list
    drops its last candidate."""
    rank = first + min(num_filled, count - 1)
    while rank > first and load_f32(values, rank - 1) < value:
        store_f32(values, rank, load_f32(values, rank - 1))
        store_i64(indices, rank, load_i64(indices, rank - 1))
        rank -= 1
    store_f32(values, rank, value)
    store_i64(indices, rank, index)


@export(int, int, int, int, int, int, int, int)
def topk(logits, num_sentences, beam_size, width, shift, indices, values, count):
    """Write the indices and values (B, X) of the greatest logits (B, R, V) plus shift (B, R), best first."""
    for sentence in range(num_sentences):
        num_filled, first = 0, sentence * count
        last = first + count - 1
        for row in range(beam_size):
            row_shift = load_f32(shift, sentence * beam_size + row)
            start = (sentence * beam_size + row) * width
            for lane_start in range(0, width, LANES):
                lane_end = min(lane_start + LANES, width)
                is_full_vector = num_filled == count and lane_end == lane_start + LANES
                if is_full_vector and not any_greater(
                    load_f32x16(logits, start + lane_start) + splat(row_shift), splat(load_f32(values, last))
                ):
                    continue
                for token in range(lane_start, lane_end):
                    value = load_f32(logits, start + token) + row_shift
                    if num_filled < count or value > load_f32(values, last):
                        insert_candidate(value, row * width + token, first, num_filled, count, values, indices)
                        num_filled = min(num_filled + 1, count)
    return 0
