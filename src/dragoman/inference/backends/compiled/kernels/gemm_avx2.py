"""Sums of products of bytes with AVX2, which has no instruction for sums of four products.

`vpmaddubsw` sums two products in 16 bits, and another instruction sums two of those in 32 bits. Two inputs and the next two are
added in 16 bits between them, which saves work. They fit if the magnitudes of a lane's four inputs do not exceed
`MAX_LANE_SUM` together. Few inputs are so large. Those are moved into a list of splits, and added one by one, while the weights
of their quads are in the first cache.

    quad    four inputs side by side, of which each lane of 16 bits reads two
"""

from __future__ import annotations

import numpy as np

from dragoman.inference.backends.compiled.kernels.memory import (
    load_i8x64,
    load_i32,
    load_i32x16,
    load_splat_i8x4,
    load_u8,
    prefetch,
    store_i32,
    store_i32x16,
)
from dragoman.inference.backends.compiled.kernels.simd import (
    any_large_lane,
    dot_accumulate,
    dot_accumulate_two,
    inline_kernel,
    kernel,
    splat_i32,
)
from dragoman.inference.backends.compiled.kernels.structs import (
    ACCUMULATOR_STRIDE,
    ADD_RESIDUAL_U8,
    LANES,
    MAX_LANE_SUM,
    SPLITS_PER_QUAD,
    VECTOR_BYTES,
)

# Quads whose weights for 64 outputs take 16 KiB, half of the smallest first cache.
CHUNK_QUADS = 64
# Quad behind the last split of a row.
NO_QUAD = 0x7FFFFFFF
# Bytes of a quad: all, or the second one of each lane.
ALL_BYTES, ODD_BYTES = 0xFFFFFFFF, 0xFF00FF00


@kernel
def split_large_inputs(row, width, workspace):
    """Move the inputs of a row that are too large into its splits, which are in the order of their quads."""
    start, num_splits = row * workspace.input_stride, np.int64(0)
    for column in range(0, width, VECTOR_BYTES):
        if any_large_lane(load_i8x64(workspace.quantized_inputs, start + column)):
            for quad in range(column // 4, column // 4 + LANES, 2):
                num_splits = split_two_quads(row, quad, num_splits, workspace)
    store_i32(workspace.split_quads, first_split(row, workspace) + num_splits, np.int32(NO_QUAD))


@inline_kernel
def first_split(row, workspace):
    """Return the index of a row's first split."""
    return row * (workspace.input_stride // 4) * SPLITS_PER_QUAD


@kernel
def split_two_quads(row, quad, num_splits, workspace):
    """Move inputs of a quad and the next one, if they are too large together. Return the row's number of splits."""
    low, high = sum_lanes(row, quad, workspace)
    next_low, next_high = sum_lanes(row, quad + 1, workspace)
    if max(low + next_low, high + next_high) <= MAX_LANE_SUM:
        return num_splits
    if max(low, high) > MAX_LANE_SUM:
        num_splits = add_split(row, quad, ODD_BYTES, num_splits, workspace)
    if max(next_low, next_high) > MAX_LANE_SUM:
        num_splits = add_split(row, quad + 1, ODD_BYTES, num_splits, workspace)
    return add_split(row, quad + 1, ALL_BYTES, num_splits, workspace)


@kernel
def sum_lanes(row, quad, workspace):
    """Return the sums of the two inputs of each lane of a quad."""
    inputs, index = workspace.quantized_inputs, row * workspace.input_stride + 4 * quad
    return load_u8(inputs, index) + load_u8(inputs, index + 1), load_u8(inputs, index + 2) + load_u8(inputs, index + 3)


@kernel
def add_split(row, quad, mask, num_splits, workspace):
    """Move the bytes of a mask from a quad to the end of the row's splits, and return their number."""
    quad_index = row * (workspace.input_stride // 4) + quad
    inputs = load_i32(workspace.quantized_inputs, quad_index)
    split_index = first_split(row, workspace) + num_splits
    store_i32(workspace.split_quads, split_index, np.int32(quad))
    store_i32(workspace.split_inputs, split_index, np.int32(inputs & mask))
    store_i32(workspace.quantized_inputs, quad_index, np.int32(inputs & ~mask))
    return num_splits + 1


@kernel
def multiply_chunks(linear, first, workspace, row, num_rows, num_quads):
    """Compute the sums of up to 32 rows and 64 outputs. All rows read some weights before any reads the next ones.

    first: index of the first weight of these outputs
    """
    for first_quad in range(0, num_quads, CHUNK_QUADS):
        end_quad = min(first_quad + CHUNK_QUADS, num_quads)
        if linear.epilogue != ADD_RESIDUAL_U8:
            multiply_signed_chunk(linear, first, workspace, row, num_rows, first_quad, end_quad, num_quads)
        else:
            multiply_unsigned_chunk(linear, first, workspace, row, num_rows, first_quad, end_quad, num_quads)


def _make_rows_kernel(has_signs, num_prefetched):
    """Return a kernel for inputs with signs, or for inputs that are never negative.

    num_prefetched: panels of the next 64 outputs that each row prefetches: 0, 1 or 2. Row 0 prefetches the first ones.
    """

    @kernel
    def multiply_chunk_rows(linear, first, workspace, first_row, start, stop, first_quad, end_quad, num_quads):
        """Add the products of some quads to the sums of rows `start` to `stop`. first_row: row of the first sums"""
        weights, sums, panel_size = linear.weights + first, workspace.accumulators, num_quads * VECTOR_BYTES
        for row in range(start, stop):
            input_start, index = row * workspace.input_stride, (row - first_row) * LANES
            prefetch_offset = (4 + num_prefetched * row) * panel_size
            split = first_split(row, workspace)
            a = b = c = d = splat_i32(load_i32(workspace.missing_sums, row))
            if first_quad > 0:
                split = load_i32(workspace.split_cursors, row)
                a, b = load_i32x16(sums, index), load_i32x16(sums, index + ACCUMULATOR_STRIDE)
                c, d = load_i32x16(sums, index + 2 * ACCUMULATOR_STRIDE), load_i32x16(sums, index + 3 * ACCUMULATOR_STRIDE)
            for quad in range(first_quad, end_quad, 2):
                offset, input_offset = quad * VECTOR_BYTES, input_start + 4 * quad
                inputs = load_splat_i8x4(workspace.quantized_inputs, input_offset)
                next_inputs = load_splat_i8x4(workspace.quantized_inputs, input_offset + 4)
                signs = load_splat_i8x4(workspace.input_signs, input_offset) if has_signs else splat_i32(0)
                next_signs = load_splat_i8x4(workspace.input_signs, input_offset + 4) if has_signs else splat_i32(0)
                for panel in range(num_prefetched):
                    panel_offset = prefetch_offset + panel * panel_size
                    prefetch(weights, panel_offset + quad * VECTOR_BYTES)
                    prefetch(weights, panel_offset + (quad + 1) * VECTOR_BYTES)
                a = _accumulate(a, inputs, signs, next_inputs, next_signs, weights, offset)
                b = _accumulate(b, inputs, signs, next_inputs, next_signs, weights, offset + panel_size)
                c = _accumulate(c, inputs, signs, next_inputs, next_signs, weights, offset + 2 * panel_size)
                d = _accumulate(d, inputs, signs, next_inputs, next_signs, weights, offset + 3 * panel_size)
            quad = load_i32(workspace.split_quads, split)
            while quad < end_quad:
                offset, inputs = quad * VECTOR_BYTES, load_splat_i8x4(workspace.split_inputs, 4 * split)
                signs = load_splat_i8x4(workspace.input_signs, input_start + 4 * quad) if has_signs else splat_i32(0)
                a = dot_accumulate(a, inputs, signs, load_i8x64(weights, offset))
                b = dot_accumulate(b, inputs, signs, load_i8x64(weights, offset + panel_size))
                c = dot_accumulate(c, inputs, signs, load_i8x64(weights, offset + 2 * panel_size))
                d = dot_accumulate(d, inputs, signs, load_i8x64(weights, offset + 3 * panel_size))
                split += 1
                quad = load_i32(workspace.split_quads, split)
            store_i32(workspace.split_cursors, row, np.int32(split))
            store_i32x16(sums, index, a)
            store_i32x16(sums, index + ACCUMULATOR_STRIDE, b)
            store_i32x16(sums, index + 2 * ACCUMULATOR_STRIDE, c)
            store_i32x16(sums, index + 3 * ACCUMULATOR_STRIDE, d)

    return multiply_chunk_rows


def _make_chunk_kernel(has_signs):
    """Return a kernel that adds the products of some quads to the sums of up to 32 rows.

    The first rows prefetch the weights of the next 64 outputs. The loop of the other rows has no instruction for it.
    """
    multiply_other_rows, multiply_first_four, multiply_first_two = (_make_rows_kernel(has_signs, count) for count in range(3))

    @kernel
    def multiply_chunk(linear, first, workspace, row, num_rows, first_quad, end_quad, num_quads):
        start, stop = row, row + num_rows
        if row == 0 and num_rows >= 4:
            start = np.int64(4)
            multiply_first_four(linear, first, workspace, row, row, start, first_quad, end_quad, num_quads)
        elif row == 0:
            start = min(num_rows, 2)
            multiply_first_two(linear, first, workspace, row, row, start, first_quad, end_quad, num_quads)
        if start < stop:
            multiply_other_rows(linear, first, workspace, row, start, stop, first_quad, end_quad, num_quads)

    return multiply_chunk


multiply_signed_chunk, multiply_unsigned_chunk = _make_chunk_kernel(True), _make_chunk_kernel(False)


@inline_kernel
def _accumulate(sum_, inputs, signs, next_inputs, next_signs, weights, offset):
    quad_weights, next_weights = load_i8x64(weights, offset), load_i8x64(weights, offset + VECTOR_BYTES)
    return dot_accumulate_two(sum_, inputs, signs, quad_weights, next_inputs, next_signs, next_weights)


@kernel
def add_splits(linear, first, workspace, row, num_quads):
    """Add the products of one row's splits to its sums of 64 outputs, which are the first ones."""
    panel_size, sums = num_quads * VECTOR_BYTES, workspace.accumulators
    split = first_split(row, workspace)
    quad = load_i32(workspace.split_quads, split)
    while quad < num_quads:
        inputs = load_splat_i8x4(workspace.split_inputs, 4 * split)
        signs = load_splat_i8x4(workspace.input_signs, row * workspace.input_stride + 4 * quad)
        for panel in range(4):
            weights = load_i8x64(linear.weights, first + panel * panel_size + quad * VECTOR_BYTES)
            sum_ = load_i32x16(sums, panel * ACCUMULATOR_STRIDE)
            store_i32x16(sums, panel * ACCUMULATOR_STRIDE, dot_accumulate(sum_, inputs, signs, weights))
        split += 1
        quad = load_i32(workspace.split_quads, split)
