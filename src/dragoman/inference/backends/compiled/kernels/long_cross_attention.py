"""Cross-attention to a long source, head by head, as two products of matrices: equation 1 for the queries of a whole beam.

The lanes of scores are keys, and those of outputs are numbers of a value. Queries read the cache once and in order. A head's
keys are stored as (S / COLUMNS, key width, COLUMNS), and its values as (value width / COLUMNS, S, COLUMNS), both with padding.
"""

from __future__ import annotations

import numpy as np

from dragoman.inference.backends.compiled.kernels.attention import MIN_SCORE, make_sum_functions, write_numbers
from dragoman.inference.backends.compiled.kernels.barrier import thread_range
from dragoman.inference.backends.compiled.kernels.compile_target import INSTRUCTION_SET
from dragoman.inference.backends.compiled.kernels.instruction_sets import AVX512_VNNI
from dragoman.inference.backends.compiled.kernels.logits import compute_max
from dragoman.inference.backends.compiled.kernels.long_attention import (
    F32_BYTES,
    can_pack_heads,
    get_head_offsets,
    get_head_widths,
    pack_keys,
    pack_values,
)
from dragoman.inference.backends.compiled.kernels.memory import load_f32, load_f32x16, store_f32, store_f32x16
from dragoman.inference.backends.compiled.kernels.simd import exp_f32x16, kernel, reduce_sum, splat
from dragoman.inference.backends.compiled.kernels.structs import LANES, MAX_LONG_COLUMNS

# Queries, and vectors of keys or values, whose sums fit into the registers.
LONG_QUERIES_AT_ONCE, VECTORS = 5, 2 if INSTRUCTION_SET is AVX512_VNNI else 1
COLUMNS = VECTORS * LANES


@kernel
def round_up(count):
    """Return the number of keys, or of numbers of a value, with the padding that is the same for all instruction sets."""
    return (count + MAX_LONG_COLUMNS - 1) // MAX_LONG_COLUMNS * MAX_LONG_COLUMNS


@kernel
def is_long_source(head_layout, length):
    """Return whether the cache holds a source of this length head by head."""
    if not can_pack_heads(head_layout, length):
        return False
    _, value_width = get_head_widths(head_layout)
    return round_up(value_width) * head_layout.num_used_heads <= head_layout.value_width


@kernel
def write_long_source(head_layout, offset, length, caches, first_row, workspace):
    """Write this thread's share of the heads of a source into the cache.

    offset: the source's first number in `projections`, whose rows are keys and values
    first_row: the source's first row in the cache
    """
    (keys, values), (key_width, value_width) = caches, get_head_widths(head_layout)
    stride, step = head_layout.key_width + head_layout.value_width, head_layout.num_heads
    has_float32 = head_layout.has_float32_kv
    first_key, first_value = first_row * head_layout.key_width, first_row * head_layout.value_width
    key_size, value_size = round_up(length) * key_width, round_up(value_width) * length
    for head in range(*thread_range(head_layout.num_used_heads, workspace.group)):
        key_offset, value_offset = get_head_offsets(head_layout, head)
        source = offset + key_offset
        pack_keys(workspace.projections, source, stride, step, length, key_width, workspace.keys, COLUMNS)
        write_numbers(workspace.keys, 0, keys, first_key + head * key_size, key_size, has_float32)
        source = offset + head_layout.key_width + value_offset
        pack_values(workspace.projections, source, stride, step, length, value_width, workspace.values, COLUMNS)
        write_numbers(workspace.values, 0, values, first_value + head * value_size, value_size, has_float32)


def _make_multiply(num_queries, has_float32):
    """Return the function that `multiply_columns` describes, for this many queries and a cache in 32 or 16 bits."""
    make_zero_sums, add_products, _ = make_sum_functions(num_queries, VECTORS, has_float32, has_lanes=False)

    @kernel
    def multiply(numbers, depth, stride, kv, offset, num_columns, output):
        for column in range(0, num_columns, COLUMNS):
            sums = make_zero_sums()
            for index in range(depth):
                sums = add_products(sums, numbers, index, stride, kv, offset + column * depth + index * COLUMNS)
            for number, sum_ in enumerate(sums):
                store_f32x16(output, number // VECTORS * num_columns + column + number % VECTORS * LANES, sum_)

    return multiply


multiply_one_f32, multiply_one_f16 = _make_multiply(1, True), _make_multiply(1, False)
multiply_all_f32, multiply_all_f16 = (_make_multiply(LONG_QUERIES_AT_ONCE, has_float32) for has_float32 in (True, False))


@kernel
def multiply_columns(num_queries, has_float32, *arguments):
    """Write the products of the numbers of each query and packed columns (num_columns / COLUMNS, depth, COLUMNS) of a cache.

    numbers: (num_queries, stride), of which the first `depth` of each query count
    output: (num_queries, num_columns)
    """
    if num_queries == 1:
        if has_float32:
            multiply_one_f32(*arguments)
        else:
            multiply_one_f16(*arguments)
    elif has_float32:
        multiply_all_f32(*arguments)
    else:
        multiply_all_f16(*arguments)


@kernel
def compute_weights(scores, start, length, padded_length):
    """Replace a query's scores by exp(score − maximum), and return the inverse of their sum. Padding has almost no weight."""
    for key in range(length, padded_length):
        store_f32(scores, start + key, np.float32(MIN_SCORE))
    max_score, sum_ = splat(compute_max(scores, start, length)), splat(0.0)
    for key in range(start, start + padded_length, LANES):
        weight = exp_f32x16(load_f32x16(scores, key) - max_score)
        store_f32x16(scores, key, weight)
        sum_ = sum_ + weight
    return np.float32(1.0) / reduce_sum(sum_)


@kernel
def attend_head(head_layout, caches, first_row, length, head, num_queries, queries, outputs, workspace):
    """Write the products of weights and values of a head into `outputs`, and the inverses of their sums into `accumulators`.

    queries: (num_queries, key width)
    outputs: (num_queries, value width), with padding
    """
    (keys, values), (key_width, value_width) = caches, get_head_widths(head_layout)
    has_float32, scores = head_layout.has_float32_kv, workspace.scores
    num_keys, num_columns = round_up(length), round_up(value_width)
    offset = first_row * head_layout.key_width + head * num_keys * key_width
    multiply_columns(num_queries, has_float32, queries, key_width, key_width, keys, offset, num_keys, scores)
    for query in range(num_queries):
        store_f32(workspace.accumulators, query, compute_weights(scores, query * num_keys, length, num_keys))
    offset = first_row * head_layout.value_width + head * length * num_columns
    multiply_columns(num_queries, has_float32, scores, length, num_keys, values, offset, num_columns, outputs)


@kernel
def attend_to_long_source(head_layout, caches, first_row, length, row, count, workspace):
    """Write `count` rows of `attention_output` from this row on, whose queries read the same source.

    first_row: the source's first row in the cache
    """
    num_queries, step = 1 if count == 1 else LONG_QUERIES_AT_ONCE, head_layout.num_heads
    key_width, value_width = get_head_widths(head_layout)
    num_columns, queries = round_up(value_width), workspace.scores + F32_BYTES * num_queries * round_up(length)
    outputs = queries + F32_BYTES * num_queries * key_width
    for head in range(head_layout.num_groups * head_layout.num_heads):
        key_offset, value_offset = get_head_offsets(head_layout, head)
        is_used = head < head_layout.num_used_heads
        if is_used:
            for query in range(num_queries):  # the last one stands for those that lack
                source = (row + min(query, count - 1)) * head_layout.key_width + key_offset
                for index in range(key_width):
                    store_f32(queries, query * key_width + index, load_f32(workspace.projections, source + index * step))
            attend_head(head_layout, caches, first_row, length, head, num_queries, queries, outputs, workspace)
        for query in range(count):
            target, inverse_sum = (
                (row + query) * head_layout.value_width + value_offset,
                load_f32(workspace.accumulators, query),
            )
            for index in range(value_width):
                number = load_f32(outputs, query * num_columns + index) * inverse_sum if is_used else np.float32(0.0)
                store_f32(workspace.attention_output, target + index * step, number)
