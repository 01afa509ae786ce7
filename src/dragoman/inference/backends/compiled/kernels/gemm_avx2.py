"""Sums of products of bytes with AVX2, which has no instruction for sums of four products.

`vpmaddubsw` sums two products in 16 bits, and another instruction sums two of those in 32 bits. Two inputs and the next two are
added in 16 bits between them, which saves work. No such sum overflows, because the weights are limited when they are packed
(`quantize.compute_step_size`).

    quad    four inputs side by side, of which each lane of 16 bits reads two
"""

from __future__ import annotations

from dragoman.inference.backends.compiled.kernels.memory import (
    load_i8x64,
    load_i32x16,
    load_splat_i8x4,
    prefetch,
    store_i32x16,
)
from dragoman.inference.backends.compiled.kernels.simd import dot_accumulate_two, inline_kernel, kernel, splat_i32
from dragoman.inference.backends.compiled.kernels.structs import ACCUMULATOR_STRIDE, LANES, VECTOR_BYTES

# Quads whose weights for 64 outputs take 16 KiB, half of the smallest first cache.
CHUNK_QUADS = 64


@kernel
def multiply_chunks(linear, first, workspace, row, num_rows, num_quads):
    """Compute the sums of up to 32 rows and 64 outputs. All rows read some weights before any reads the next ones.

    The first rows prefetch the weights of the next 64 outputs. The loop of the other rows has no instruction for it.

    first: index of the first weight of these outputs
    """
    start, stop = row, row + num_rows
    num_prefetching = min(num_rows, 4 if num_rows >= 4 else 2) if row == 0 else 0
    start += num_prefetching
    for first_quad in range(0, num_quads, CHUNK_QUADS):
        end_quad = min(first_quad + CHUNK_QUADS, num_quads)
        if num_prefetching == 4:
            multiply_first_four(linear, first, workspace, row, row, start, first_quad, end_quad, num_quads)
        elif num_prefetching > 0:
            multiply_first_two(linear, first, workspace, row, row, start, first_quad, end_quad, num_quads)
        if start < stop:
            multiply_other_rows(linear, first, workspace, row, start, stop, first_quad, end_quad, num_quads)


def _make_rows_kernel(num_prefetched):
    """Return a kernel for some quads.

    num_prefetched: panels of the next 64 outputs that each row prefetches: 0, 1 or 2. Row 0 prefetches the first ones.
    """

    @kernel
    def multiply_chunk_rows(linear, first, workspace, first_row, start, stop, first_quad, end_quad, num_quads):
        """Add the products of some quads to the sums of rows `start` to `stop`. first_row: row of the first sums"""
        weights, sums, panel_size = linear.weights + first, workspace.accumulators, num_quads * VECTOR_BYTES
        for row in range(start, stop):
            input_start, index = row * workspace.input_stride, (row - first_row) * LANES
            prefetch_offset = (4 + num_prefetched * row) * panel_size
            a = b = c = d = splat_i32(0)
            if first_quad > 0:
                a, b = load_i32x16(sums, index), load_i32x16(sums, index + ACCUMULATOR_STRIDE)
                c, d = load_i32x16(sums, index + 2 * ACCUMULATOR_STRIDE), load_i32x16(sums, index + 3 * ACCUMULATOR_STRIDE)
            for quad in range(first_quad, end_quad, 2):
                offset, input_offset = quad * VECTOR_BYTES, input_start + 4 * quad
                inputs = load_splat_i8x4(workspace.quantized_inputs, input_offset)
                next_inputs = load_splat_i8x4(workspace.quantized_inputs, input_offset + 4)
                for panel in range(num_prefetched):
                    panel_offset = prefetch_offset + panel * panel_size
                    prefetch(weights, panel_offset + quad * VECTOR_BYTES)
                    prefetch(weights, panel_offset + (quad + 1) * VECTOR_BYTES)
                a = _accumulate(a, inputs, next_inputs, weights, offset)
                b = _accumulate(b, inputs, next_inputs, weights, offset + panel_size)
                c = _accumulate(c, inputs, next_inputs, weights, offset + 2 * panel_size)
                d = _accumulate(d, inputs, next_inputs, weights, offset + 3 * panel_size)
            store_i32x16(sums, index, a)
            store_i32x16(sums, index + ACCUMULATOR_STRIDE, b)
            store_i32x16(sums, index + 2 * ACCUMULATOR_STRIDE, c)
            store_i32x16(sums, index + 3 * ACCUMULATOR_STRIDE, d)

    return multiply_chunk_rows


multiply_other_rows, multiply_first_four, multiply_first_two = (_make_rows_kernel(count) for count in range(3))


@inline_kernel
def _accumulate(sum_, inputs, next_inputs, weights, offset):
    quad_weights, next_weights = load_i8x64(weights, offset), load_i8x64(weights, offset + VECTOR_BYTES)
    return dot_accumulate_two(sum_, inputs, quad_weights, next_inputs, next_weights)
