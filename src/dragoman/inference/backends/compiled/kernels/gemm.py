"""Matrix products of int8 weights and inputs that are quantized row by row.

Each row has a scale of its own, and sums of products of bytes are exact. So the number of rows and the instructions never
change a result.

    N rows    I, O inputs and outputs    L layers
"""

from __future__ import annotations

import numpy as np

from dragoman.inference.backends.compiled.kernels.amx import (
    configure_tiles,
    load_tile,
    multiply_tiles,
    release_tiles,
    store_tile,
    zero_tile,
)
from dragoman.inference.backends.compiled.kernels.barrier import barrier, thread_range
from dragoman.inference.backends.compiled.kernels.memory import (
    load_f32,
    load_f32x16,
    load_i8x64,
    load_i32x16,
    load_partial,
    load_splat_u8x4,
    store_f32,
    store_f32x16,
    store_i32x16,
    store_partial,
    store_u8x16,
)
from dragoman.inference.backends.compiled.kernels.simd import (
    absolute,
    convert_i32_to_f32,
    dot_accumulate_u8i8,
    inline_kernel,
    kernel,
    maximum,
    reduce_max,
    round_f32_to_i32,
    splat,
    splat_i32,
)
from dragoman.inference.backends.compiled.kernels.structs import (
    ACCUMULATOR_STRIDE,
    ADD_RESIDUAL,
    ADD_RESIDUAL_U8,
    AMX_MIN_ROWS,
    INT8_MAX,
    LANES,
    MIN_SCALE,
    OUTPUT_BLOCK,
    RELU,
    TILE_ROWS,
    UINT8_OFFSET,
    VECTOR_BYTES,
)


@kernel
def quantize_rows(x, num_rows, width, workspace, nonnegative):
    """Quantize each row of x (N, I) to 0 … 255, with its step. Signed values, -127 … 127, have 128 added."""
    input_stride = workspace.input_stride
    for row in range(num_rows):
        start = row * width
        max_abs = splat(0.0)
        for column in range(0, width, LANES):
            max_abs = maximum(max_abs, absolute(load_f32x16(x, start + column)))
        step_size = max(reduce_max(max_abs) / (2 * INT8_MAX + 1 if nonnegative else INT8_MAX), MIN_SCALE)
        store_f32(workspace.row_scales, row, np.float32(step_size))
        scale, zero_point = splat(1.0 / step_size), splat_i32(0 if nonnegative else UINT8_OFFSET)
        for column in range(0, width, LANES):
            store_u8x16(
                workspace.quantized_inputs,
                row * input_stride + column,
                round_f32_to_i32(load_f32x16(x, start + column) * scale) + zero_point,
            )


@kernel
def dequantize_block(linear, layer, y, row_stride, row, num_rows, column, num_columns, workspace):
    """Convert the accumulators to outputs, in these rows and columns of y."""
    num_outputs = linear.num_outputs
    first = layer * linear.padded_outputs
    for output in range(column, min(column + num_columns, num_outputs), LANES):
        scale, bias = load_f32x16(linear.scale, first + output), load_f32x16(linear.bias, first + output)
        compensation = load_i32x16(linear.compensation, first + output)
        panel = (output - column) // LANES * ACCUMULATOR_STRIDE
        for row_offset in range(num_rows):
            accumulated = convert_i32_to_f32(load_i32x16(workspace.accumulators, panel + row_offset * LANES) - compensation)
            result = accumulated * (scale * splat(load_f32(workspace.row_scales, row + row_offset))) + bias
            index = (row + row_offset) * row_stride + output
            if linear.epilogue == RELU:
                result = maximum(result, splat(0.0))
            if output + LANES > num_outputs:
                if linear.epilogue >= ADD_RESIDUAL:
                    result = result + load_partial(num_outputs - output, workspace.x, index, splat(0.0))
                store_partial(num_outputs - output, y, index, result)
            elif linear.epilogue >= ADD_RESIDUAL:
                store_f32x16(y, index, result + load_f32x16(workspace.x, index))
            else:
                store_f32x16(y, index, result)


@kernel
def multiply_four_rows(linear, first, workspace, row, num_quads):
    """Compute the sums of four rows and 64 outputs."""
    panel_size, input_stride = num_quads * VECTOR_BYTES, workspace.input_stride
    weights, quantized_inputs, accumulators = linear.weights, workspace.quantized_inputs, workspace.accumulators
    zero = splat_i32(0)
    a = b = c = d = (zero, zero, zero, zero)
    for quad in range(num_quads):
        offset, input_offset = first + quad * VECTOR_BYTES, row * input_stride + 4 * quad
        panel_weights = (
            load_i8x64(weights, offset),
            load_i8x64(weights, offset + panel_size),
            load_i8x64(weights, offset + 2 * panel_size),
            load_i8x64(weights, offset + 3 * panel_size),
        )
        a = _accumulate_four(a, load_splat_u8x4(quantized_inputs, input_offset), panel_weights)
        b = _accumulate_four(b, load_splat_u8x4(quantized_inputs, input_offset + input_stride), panel_weights)
        c = _accumulate_four(c, load_splat_u8x4(quantized_inputs, input_offset + 2 * input_stride), panel_weights)
        d = _accumulate_four(d, load_splat_u8x4(quantized_inputs, input_offset + 3 * input_stride), panel_weights)
    for row_offset, row_sums in enumerate((a, b, c, d)):
        for panel in range(4):
            store_i32x16(accumulators, panel * ACCUMULATOR_STRIDE + row_offset * LANES, row_sums[panel])


@kernel
def multiply_one_row(linear, first, workspace, row, num_quads):
    """Compute the sums of one row and 64 outputs."""
    panel_size = num_quads * VECTOR_BYTES
    weights = linear.weights
    zero = splat_i32(0)
    a = (zero, zero, zero, zero)
    for quad in range(num_quads):
        offset = first + quad * VECTOR_BYTES
        panel_weights = (
            load_i8x64(weights, offset),
            load_i8x64(weights, offset + panel_size),
            load_i8x64(weights, offset + 2 * panel_size),
            load_i8x64(weights, offset + 3 * panel_size),
        )
        a = _accumulate_four(
            a, load_splat_u8x4(workspace.quantized_inputs, row * workspace.input_stride + 4 * quad), panel_weights
        )
    for panel in range(4):
        store_i32x16(workspace.accumulators, panel * ACCUMULATOR_STRIDE, a[panel])


@inline_kernel
def _accumulate_four(sums, x, weights):
    return (
        dot_accumulate_u8i8(sums[0], x, weights[0]),
        dot_accumulate_u8i8(sums[1], x, weights[1]),
        dot_accumulate_u8i8(sums[2], x, weights[2]),
        dot_accumulate_u8i8(sums[3], x, weights[3]),
    )


@kernel
def multiply_vnni(linear, layer, y, row_stride, column, end_column, num_rows, width, workspace):
    """Multiply by vectors, four rows at once."""
    num_blocks, num_quads = linear.padded_outputs // OUTPUT_BLOCK, -(-width // VECTOR_BYTES) * LANES
    for block in range(column // OUTPUT_BLOCK, end_column // OUTPUT_BLOCK):
        first = (layer * num_blocks + block) * OUTPUT_BLOCK * 4 * num_quads
        row = np.int64(0)
        while row < num_rows:
            if num_rows - row >= 4:
                multiply_four_rows(linear, first, workspace, row, num_quads)
            else:
                multiply_one_row(linear, first, workspace, row, num_quads)
            num_done = 4 if num_rows - row >= 4 else 1
            dequantize_block(
                linear, layer, y, row_stride, row, num_done, block * OUTPUT_BLOCK, np.int64(OUTPUT_BLOCK), workspace
            )
            row += num_done


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
    """Write x·Wᵀ + b (N, O) into y, after the epilogue: a ReLU, or the sum with the workspace's x.

    Each thread computes some outputs, and all wait for each other at the end.
    """
    quantize_rows(x, num_rows, width, workspace, linear.epilogue == ADD_RESIDUAL_U8)
    first_block, end_block = thread_range(linear.padded_outputs // OUTPUT_BLOCK, workspace.group)
    multiply_quantized(
        linear, layer, y, linear.num_outputs, OUTPUT_BLOCK * first_block, OUTPUT_BLOCK * end_block, num_rows, width, workspace
    )
    barrier(workspace.group)


@kernel
def multiply_quantized(linear, layer, y, row_stride, column, end_column, num_rows, width, workspace):
    """Multiply rows that `quantize_rows` has quantized, for whole blocks of outputs.

    y: address of output 0
    row_stride: distance between the rows of y
    """
    if workspace.tile_config and num_rows >= AMX_MIN_ROWS:
        multiply_amx(linear, layer, y, row_stride, column, end_column, num_rows, width, workspace)
    else:
        multiply_vnni(linear, layer, y, row_stride, column, end_column, num_rows, width, workspace)


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
