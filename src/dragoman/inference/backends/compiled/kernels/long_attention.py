"""Self-attention of a long sentence, head by head, as two products of matrices: equation 1 for a block of queries at once.

Lanes are queries. A key's scores, its weights and an output number are a vector or two each, so that maximum and sum of the
softmax need no sum across lanes. Keys and values of a head are packed before its blocks, in groups that one product reads.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dragoman.inference.backends.compiled.kernels.attention import MIN_SCORE, make_sum_functions
from dragoman.inference.backends.compiled.kernels.compile_target import INSTRUCTION_SET
from dragoman.inference.backends.compiled.kernels.instruction_sets import AVX512_VNNI
from dragoman.inference.backends.compiled.kernels.memory import (
    element_pointer,
    load_f32,
    load_f32x16,
    store_f32,
    store_f32x16,
)
from dragoman.inference.backends.compiled.kernels.simd import (
    F32,
    F32X16,
    I64,
    divide,
    exp_f32x16,
    f32x16,
    kernel,
    maximum,
    splat,
)
from dragoman.inference.backends.compiled.kernels.structs import LANES

# Length from which on packing pays.
MIN_LENGTH = 256
# Least heads and least numbers of a head, for which the caches' memory holds a packed head in 32 bits.
MIN_HEADS, MIN_HEAD_WIDTH = 4, 8
# Rows (keys or output numbers) and vectors of queries whose sums fit into the registers.
ROWS, VECTORS = (8, 2) if INSTRUCTION_SET is AVX512_VNNI else (4, 1)
QUERIES = VECTORS * LANES
F32_BYTES = 4

SUMS = types.UniTuple(f32x16, ROWS * VECTORS)
make_zero_sums, add_products, _ = make_sum_functions(ROWS, VECTORS, has_float32=True, has_lanes=False)


@intrinsic
def store_sums(typing, sums, address, index):
    """Store the vectors of all rows, one behind the other."""

    def codegen(context, builder, signature, args):
        for number, vector in enumerate(cgutils.unpack_tuple(builder, args[0])):
            offset = builder.add(args[2], I64(number * LANES))
            builder.store(vector, element_pointer(builder, args[1], offset, F32, F32X16), align=1)
        return context.get_dummy_value()

    return types.void(SUMS, types.int64, types.int64), codegen


@kernel
def multiply_rows(rows, num_rows, vectors, depth, output):
    """Write the products of packed rows and vectors: for each row, Σ over the depth of its number times the vectors.

    rows: (num_rows / ROWS, depth, ROWS), with num_rows padded
    vectors: (depth, QUERIES)
    output: (num_rows, QUERIES)
    """
    for row in range(0, num_rows, ROWS):
        sums = make_zero_sums()
        for index in range(depth):
            sums = add_products(sums, rows, row * depth + index * ROWS, 1, vectors, index * QUERIES)
        store_sums(sums, output, row * QUERIES)


@kernel
def pack_keys(projections, offset, stride, step, length, width, packed, num_rows):
    """Copy the keys of a head into blocks of this many rows: (length / num_rows, width, num_rows).

    offset, stride, step: the first number, and distances of keys and of numbers
    """
    for key in range((length + num_rows - 1) // num_rows * num_rows):
        source, target = offset + min(key, length - 1) * stride, key // num_rows * width * num_rows + key % num_rows
        for index in range(width):
            store_f32(packed, target + index * num_rows, load_f32(projections, source + index * step))


@kernel
def pack_values(projections, offset, stride, step, length, width, packed, num_rows):
    """Copy the values of a head so that each row has one number of all values; see `pack_keys`."""
    for key in range(length):
        source = offset + key * stride
        for first in range(0, width, num_rows):
            for index in range(num_rows):
                number = load_f32(projections, source + min(first + index, width - 1) * step)
                store_f32(packed, first * length + key * num_rows + index, number)


@kernel
def compute_weights(scores, length):
    """Replace scores by exp(score − maximum), and write the inverse of each query's sum behind them."""
    for vector in range(0, QUERIES, LANES):
        max_score, sum_ = splat(MIN_SCORE), splat(0.0)
        for key in range(length):
            max_score = maximum(max_score, load_f32x16(scores, key * QUERIES + vector))
        for key in range(length):
            weight = exp_f32x16(load_f32x16(scores, key * QUERIES + vector) - max_score)
            store_f32x16(scores, key * QUERIES + vector, weight)
            sum_ = sum_ + weight
        store_f32x16(scores, length * QUERIES + vector, divide(splat(1.0), sum_))


@kernel
def attend_block(projections, query_offset, stride, num_queries, head, length, workspace):
    """Write the attention of up to `QUERIES` queries of a head, whose keys and values are packed, into `scores`.

    head: heads in a group, and width of the head's keys and values

    Returns the address of the output (value width, QUERIES).
    """
    num_heads, key_width, value_width = head
    buffer = workspace.scores + F32_BYTES * QUERIES * (length + ROWS)
    for query in range(QUERIES):
        source = query_offset + min(query, num_queries - 1) * stride
        for index in range(key_width):
            store_f32(buffer, index * QUERIES + query, load_f32(projections, source + index * num_heads))
    multiply_rows(workspace.keys, length, buffer, key_width, workspace.scores)
    compute_weights(workspace.scores, length)
    multiply_rows(workspace.values, value_width, workspace.scores, length, buffer)
    for vector in range(0, QUERIES, LANES):
        inverse_sum = load_f32x16(workspace.scores, length * QUERIES + vector)
        for index in range(vector, value_width * QUERIES, QUERIES):
            store_f32x16(buffer, index, load_f32x16(buffer, index) * inverse_sum)
    return buffer


@kernel
def get_head_widths(head_layout):
    """Return the widths of a head's keys and values."""
    num_heads = head_layout.num_groups * head_layout.num_heads
    return head_layout.key_width // num_heads, head_layout.value_width // num_heads


@kernel
def get_head_offsets(head_layout, head):
    """Return the indices of a head's first number in keys and in values of all heads. The others are `num_heads` apart."""
    group, lane = head // head_layout.num_heads, head % head_layout.num_heads
    key_width, value_width = head_layout.key_width // head_layout.num_groups, head_layout.value_width // head_layout.num_groups
    return group * key_width + lane, group * value_width + lane


@kernel
def can_attend_in_blocks(head_layout, layers, length):
    """Return whether `attend_in_blocks` computes a sentence of this length."""
    return layers.window >= length and not layers.relative_bias and can_pack_heads(head_layout, length)


@kernel
def can_pack_heads(head_layout, length):
    """Return whether packing the heads of a sentence of this length pays, and whether the workspace holds a packed head."""
    if length < MIN_LENGTH:
        return False
    num_heads, (key_width, value_width) = head_layout.num_groups * head_layout.num_heads, get_head_widths(head_layout)
    is_packable = num_heads >= MIN_HEADS and min(key_width, value_width) >= MIN_HEAD_WIDTH
    return is_packable and max(key_width, value_width) + 2 * ROWS <= length


@kernel
def attend_in_blocks(head_layout, sentence_start, sentence_end, start, stop, workspace):
    """Attend from rows `start` to `stop` to all rows of their sentence. Heads that only pad a group have zeros as outputs."""
    num_heads, (key_width, value_width) = head_layout.num_heads, get_head_widths(head_layout)
    row_stride, length = 2 * head_layout.key_width + head_layout.value_width, sentence_end - sentence_start
    head_widths = num_heads, key_width, value_width
    for head in range(head_layout.num_groups * num_heads):
        query_offset, output_offset = get_head_offsets(head_layout, head)
        key_offset = sentence_start * row_stride + head_layout.key_width + query_offset
        value_offset = sentence_start * row_stride + 2 * head_layout.key_width + output_offset
        is_used = head < head_layout.num_used_heads
        if is_used:
            pack_keys(workspace.projections, key_offset, row_stride, num_heads, length, key_width, workspace.keys, ROWS)
            pack_values(workspace.projections, value_offset, row_stride, num_heads, length, value_width, workspace.values, ROWS)
        for row in range(start, stop, QUERIES):
            num_queries, buffer = min(QUERIES, stop - row), np.int64(0)
            if is_used:
                first = row * row_stride + query_offset
                buffer = attend_block(workspace.projections, first, row_stride, num_queries, head_widths, length, workspace)
            for query in range(num_queries):
                output = (row + query) * head_layout.value_width + output_offset
                for index in range(value_width):
                    number = load_f32(buffer, index * QUERIES + query) if is_used else np.float32(0.0)
                    store_f32(workspace.attention_output, output + index * num_heads, number)
