"""Matrix products: int8 weights and inputs that are quantized row by row, or weights in float32 (`gemm_f32`).

In int8, each row has a scale of its own, and sums of products of bytes are exact. So the number of rows and the instructions
never change a result.

    N rows    I, O inputs and outputs    L layers
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dragoman.inference.backends.compiled.kernels.amx import (
    configure_tiles,
    load_tile,
    multiply_tiles,
    release_tiles,
    store_tile,
    zero_tile,
)
from dragoman.inference.backends.compiled.kernels.barrier import barrier, thread_range
from dragoman.inference.backends.compiled.kernels.compile_target import INSTRUCTION_SET
from dragoman.inference.backends.compiled.kernels.epilogue import store_outputs
from dragoman.inference.backends.compiled.kernels.gemm_avx2 import multiply_chunks
from dragoman.inference.backends.compiled.kernels.gemm_f32 import multiply_floats
from dragoman.inference.backends.compiled.kernels.memory import (
    element_pointer,
    load_f32,
    load_f32x16,
    load_i32x16,
    make_sum_storer,
    prefetch,
    store_f32,
    store_i8x16,
)
from dragoman.inference.backends.compiled.kernels.simd import (
    I8,
    I32,
    I32X16,
    I64,
    absolute,
    convert_i32_to_f32,
    emit_dot_product,
    i32x16,
    keep_separate,
    kernel,
    make_zeros,
    maximum,
    minimum,
    reduce_max,
    round_f32_to_i32,
    splat,
    splat_i32,
    splat_lanes,
)
from dragoman.inference.backends.compiled.kernels.structs import (
    ACCUMULATOR_STRIDE,
    ADD_RESIDUAL_U8,
    AMX_MIN_ROWS,
    INT8_MAX,
    LANES,
    MIN_SCALE,
    OUTPUT_BLOCK,
    TILE_ROWS,
    VECTOR_BYTES,
)

SIGNED_OFFSET, NONNEGATIVE_OFFSET = (INSTRUCTION_SET.get_input_offset(nonnegative) for nonnegative in (False, True))


@kernel
def quantize_rows(x, num_rows, width, workspace, nonnegative):
    """Quantize each row of x (N, I) to 0 … 255 or to -127 … 127, with its step, and add the offset of its bytes."""
    for row in range(num_rows):
        start = row * width
        max_abs = other_max_abs = splat(0.0)  # two, so that neither waits for the other
        for column in range(0, width - LANES, 2 * LANES):
            max_abs = maximum(max_abs, absolute(load_f32x16(x, start + column)))
            other_max_abs = maximum(other_max_abs, absolute(load_f32x16(x, start + column + LANES)))
        max_abs = maximum(maximum(max_abs, other_max_abs), absolute(load_f32x16(x, start + width - LANES)))
        step_size = max(reduce_max(max_abs) / (2 * INT8_MAX + 1 if nonnegative else INT8_MAX), MIN_SCALE)
        store_f32(workspace.row_scales, row, np.float32(step_size))
        scale, offset = splat(1.0 / step_size), splat_i32(NONNEGATIVE_OFFSET if nonnegative else SIGNED_OFFSET)
        for column in range(0, width, LANES):
            quantized = round_f32_to_i32(load_f32x16(x, start + column) * scale) + offset
            store_i8x16(workspace.quantized_inputs, row * workspace.input_stride + column, quantized)


@kernel
def quantize_by_step(x, num_rows, width, workspace, nonnegative, step_size):
    """Quantize each row of x (N, I) by this step, limit the result to 127 of each sign, and add the offset of its bytes."""
    scale, offset = splat(1.0 / step_size), splat_i32(NONNEGATIVE_OFFSET if nonnegative else SIGNED_OFFSET)
    limit, least = splat(INT8_MAX), splat(-INT8_MAX)
    for row in range(num_rows):
        store_f32(workspace.row_scales, row, np.float32(step_size))
        for column in range(0, width, LANES):
            steps = load_f32x16(x, row * width + column) * scale
            quantized = round_f32_to_i32(maximum(minimum(steps, limit), least)) + offset
            store_i8x16(workspace.quantized_inputs, row * workspace.input_stride + column, quantized)


@kernel
def dequantize_block(linear, layer, y, row_stride, row, num_rows, column, num_columns, workspace):
    """Convert the accumulators to outputs, in these rows and columns of y."""
    num_outputs, first = linear.num_outputs, layer * linear.padded_outputs
    for row_offset in range(num_rows):
        row_start, row_scale = (row + row_offset) * row_stride, splat(load_f32(workspace.row_scales, row + row_offset))
        for output in range(column, min(column + num_columns, num_outputs), LANES):
            scale, bias = load_f32x16(linear.scale, first + output), load_f32x16(linear.bias, first + output)
            panel = (output - column) // LANES * ACCUMULATOR_STRIDE
            sums = load_i32x16(workspace.accumulators, panel + row_offset * LANES)
            sums = sums - load_i32x16(linear.compensation, first + output)
            result, index = convert_i32_to_f32(sums) * (scale * row_scale) + bias, row_start + output
            store_outputs(result, linear, output, y, index, workspace)


# Panels of 16 outputs in a block.
PANELS = OUTPUT_BLOCK // LANES
ROWS_AT_ONCE = INSTRUCTION_SET.rows_at_once


def _make_multiplier(num_rows, num_panels):
    """Return a kernel for this many rows, which computes the sums of so many panels of outputs in registers."""
    tuple_type = types.UniTuple(i32x16, num_rows * num_panels)
    make_zero_sums, store_sums = make_zeros(tuple_type), make_sum_storer(tuple_type, num_panels)

    @intrinsic
    def add_products(typing, sums, inputs, input_stride, weights, panel_size):
        """Add the products of four inputs of each row and of their weights."""

        def codegen(context, builder, signature, args):
            sums, inputs, input_stride, weights, panel_size = args
            panels = []
            for panel in range(num_panels):
                offset = builder.mul(panel_size, I64(panel))
                panels.append(builder.load(element_pointer(builder, weights, offset, I8, I32X16), align=1))
            new_sums, old_sums = [], cgutils.unpack_tuple(builder, sums)
            for row in range(num_rows):
                offset = builder.mul(input_stride, I64(row))
                quad = splat_lanes(builder, builder.load(element_pointer(builder, inputs, offset, I8, I32), align=1))
                for panel, panel_weights in enumerate(panels):
                    new_sums.append(emit_dot_product(builder, old_sums[row * num_panels + panel], quad, panel_weights))
            return context.make_tuple(builder, tuple_type, new_sums)

        return tuple_type(tuple_type, *[types.int64] * 4), codegen

    @kernel
    def multiply_some_rows(inputs, input_stride, weights, num_quads, next_weights, prefetch_step, accumulators):
        """Compute the sums of these rows and 64 outputs. The memory of inputs holds all these rows, even if fewer are used.

        inputs, weights: addresses of the first ones
        next_weights: address of the first weights that are prefetched. prefetch_step: bytes from those of a quad to the next
        """
        keep_separate()
        panel_size = num_quads * VECTOR_BYTES
        for first_panel in range(0, PANELS, num_panels):
            sums, quad_inputs, offset = make_zero_sums(), inputs, first_panel * panel_size
            quad_weights, prefetched = weights + offset, next_weights + offset
            for _ in range(num_quads):
                sums = add_products(sums, quad_inputs, input_stride, quad_weights, panel_size)
                for panel in range(num_panels):
                    prefetch(prefetched, panel * panel_size)
                quad_inputs += 4
                quad_weights += VECTOR_BYTES
                prefetched += prefetch_step
            store_sums(sums, accumulators + 4 * first_panel * ACCUMULATOR_STRIDE)

    return multiply_some_rows


multiply_one_row, multiply_two_rows = _make_multiplier(1, 4), _make_multiplier(2, 2)
multiply_four_rows, multiply_six_rows = _make_multiplier(4, 4), _make_multiplier(6, 4)


@kernel
def multiply_rows(num_rows, *arguments):
    """Compute the sums of some of the rows and 64 outputs in registers, and return their number."""
    if num_rows == 1:
        multiply_one_row(*arguments)
        return 1
    if ROWS_AT_ONCE == 2:
        multiply_two_rows(*arguments)
        return 2
    if num_rows > 8 or 5 <= num_rows <= 6:
        multiply_six_rows(*arguments)
        return min(num_rows, 6)
    multiply_four_rows(*arguments)
    return min(num_rows, 4)


@kernel
def multiply_vectors(linear, layer, y, row_stride, column, end_column, num_rows, width, workspace):
    """Multiply by vectors, some rows at once. Together they prefetch the weights of the next block."""
    num_blocks, num_quads = linear.padded_outputs // OUTPUT_BLOCK, -(-width // VECTOR_BYTES) * LANES
    block_size = PANELS * num_quads * VECTOR_BYTES
    num_groups = -(-num_rows // ROWS_AT_ONCE)
    prefetch_step = -(-VECTOR_BYTES // num_groups)
    for block in range(column // OUTPUT_BLOCK, end_column // OUTPUT_BLOCK):
        first, row = (layer * num_blocks + block) * block_size, np.int64(0)
        next_weights = linear.weights + first + block_size
        while row < num_rows:
            num_done = min(num_rows - row, 2 * TILE_ROWS)
            if ROWS_AT_ONCE == 1 and num_done > 1:
                multiply_chunks(linear, first, workspace, row, num_done, num_quads)
            else:
                num_done = multiply_rows(
                    num_rows - row,
                    workspace.quantized_inputs + row * workspace.input_stride,
                    workspace.input_stride,
                    linear.weights + first,
                    num_quads,
                    next_weights,
                    prefetch_step,
                    workspace.accumulators,
                )
            dequantize_block(
                linear, layer, y, row_stride, row, num_done, block * OUTPUT_BLOCK, np.int64(OUTPUT_BLOCK), workspace
            )
            row += num_done
            next_weights += num_quads * prefetch_step


@kernel
def multiply_amx(linear, layer, y, row_stride, column, end_column, num_rows, width, workspace):
    """Multiply by tiles, 32 rows and 32 outputs at once."""
    num_pairs, num_input_blocks = linear.padded_outputs // (2 * LANES), -(-width // VECTOR_BYTES)
    tile_bytes = TILE_ROWS * VECTOR_BYTES
    panel_size, input_stride = num_input_blocks * tile_bytes, workspace.input_stride
    weights, quantized_inputs, accumulators = linear.weights, workspace.quantized_inputs, workspace.accumulators
    for pair in range(column // (2 * LANES), end_column // (2 * LANES)):
        first = (layer * num_pairs + pair) * 2 * panel_size
        for row in range(0, num_rows, 2 * TILE_ROWS):
            has_second_tile = row + TILE_ROWS < num_rows
            zero_tile(0)
            zero_tile(1)
            zero_tile(2)
            zero_tile(3)
            for input_block in range(num_input_blocks):
                input_offset, offset = row * input_stride + input_block * VECTOR_BYTES, first + input_block * tile_bytes
                load_tile(4, quantized_inputs, input_offset, input_stride)
                load_tile(6, weights, offset, VECTOR_BYTES)
                load_tile(7, weights, offset + panel_size, VECTOR_BYTES)
                multiply_tiles(0, 4, 6)
                multiply_tiles(1, 4, 7)
                if has_second_tile:
                    load_tile(5, quantized_inputs, input_offset + TILE_ROWS * input_stride, input_stride)
                    multiply_tiles(2, 5, 6)
                    multiply_tiles(3, 5, 7)
            store_tile(0, accumulators, 0, VECTOR_BYTES)
            store_tile(1, accumulators, 4 * ACCUMULATOR_STRIDE, VECTOR_BYTES)
            if has_second_tile:
                store_tile(2, accumulators, 4 * TILE_ROWS * LANES, VECTOR_BYTES)
                store_tile(3, accumulators, 4 * (ACCUMULATOR_STRIDE + TILE_ROWS * LANES), VECTOR_BYTES)
            count = min(2 * TILE_ROWS, num_rows - row)
            dequantize_block(linear, layer, y, row_stride, row, count, pair * 2 * LANES, np.int64(2 * LANES), workspace)


@kernel
def multiply(x, linear, layer, y, num_rows, width, workspace):
    """Write x·Wᵀ + b (N, O) into y, after the epilogue: an activation, or the sum with the workspace's x.

    Each thread computes some outputs, and all wait for each other at the end.
    """
    prepare_inputs(x, linear, layer, num_rows, width, workspace)
    first_block, end_block = thread_range(linear.padded_outputs // OUTPUT_BLOCK, workspace.group)
    first, end, row_stride = OUTPUT_BLOCK * first_block, OUTPUT_BLOCK * end_block, linear.num_outputs
    multiply_prepared(x, linear, layer, y, row_stride, first, end, num_rows, width, workspace)
    barrier(workspace.group)


@kernel
def prepare_inputs(x, linear, layer, num_rows, width, workspace):
    """Quantize the rows of x (N, I) if the weights are in int8."""
    nonnegative = linear.epilogue == ADD_RESIDUAL_U8
    if linear.input_steps:
        quantize_by_step(x, num_rows, width, workspace, nonnegative, load_f32(linear.input_steps, layer))
    elif not linear.is_float32:
        quantize_rows(x, num_rows, width, workspace, nonnegative)


@kernel
def multiply_prepared(x, linear, layer, y, row_stride, column, end_column, num_rows, width, workspace):
    """Multiply rows that `prepare_inputs` has read, for whole blocks of outputs.

    y: address of output 0
    row_stride: distance between the rows of y
    """
    if linear.is_float32:
        multiply_floats(x, linear, layer, y, row_stride, column, end_column, num_rows, width, workspace)
    elif workspace.tile_config and num_rows >= AMX_MIN_ROWS:
        multiply_amx(linear, layer, y, row_stride, column, end_column, num_rows, width, workspace)
    else:
        multiply_vectors(linear, layer, y, row_stride, column, end_column, num_rows, width, workspace)


@kernel
def configure_amx(workspace):
    """Configure the tiles, before the first product of an exported kernel."""
    if workspace.tile_config:
        configure_tiles(workspace.tile_config)


@kernel
def release_amx(workspace):
    """Release the tiles, after the last product of an exported kernel."""
    if workspace.tile_config:
        release_tiles()
