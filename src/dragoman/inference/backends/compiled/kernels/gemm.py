"""Matrix products: int8 weights and inputs that are quantized row by row, or weights in float32 (`gemm_f32`).

In int8, each row has a scale of its own, and sums of products of bytes are exact. So the number of rows and the instructions
never change a result.

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
from dragoman.inference.backends.compiled.kernels.compile_target import INSTRUCTION_SET
from dragoman.inference.backends.compiled.kernels.epilogue import store_outputs
from dragoman.inference.backends.compiled.kernels.gemm_avx2 import multiply_chunks
from dragoman.inference.backends.compiled.kernels.gemm_f32 import multiply_floats
from dragoman.inference.backends.compiled.kernels.memory import (
    load_f32,
    load_f32x16,
    load_i8x64,
    load_i32x16,
    load_splat_i8x4,
    prefetch,
    store_f32,
    store_i8x16,
    store_i32x16,
)
from dragoman.inference.backends.compiled.kernels.simd import (
    absolute,
    convert_i32_to_f32,
    dot_accumulate,
    inline_kernel,
    kernel,
    maximum,
    minimum,
    reduce_max,
    round_f32_to_i32,
    splat,
    splat_i32,
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
        max_abs = splat(0.0)
        for column in range(0, width, LANES):
            max_abs = maximum(max_abs, absolute(load_f32x16(x, start + column)))
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


@kernel
def multiply_four_rows(linear, first, workspace, row, num_rows, num_quads):
    """Compute the sums of up to four rows and 64 outputs, and prefetch the weights of the next 64 outputs.

    num_rows: rows from `row` on. If there are less than four, the last one takes the places of the others.
        The first four rows prefetch all these weights, or half of them if four others follow.
    """
    panel_size, input_stride = num_quads * VECTOR_BYTES, workspace.input_stride
    weights, accumulators = linear.weights, workspace.accumulators
    prefetch_offset = first + (4 + min(row // 2, 2)) * panel_size
    prefetch_step = VECTOR_BYTES if row < 8 else 0
    later_offset, later_step = first + 6 * panel_size, VECTOR_BYTES if row == 0 and num_rows < 8 else 0
    last = num_rows - 1
    second, third, fourth = min(last, 1) * input_stride, min(last, 2) * input_stride, min(last, 3) * input_stride
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
        prefetch(weights, prefetch_offset + quad * prefetch_step)
        prefetch(weights, prefetch_offset + panel_size + quad * prefetch_step)
        prefetch(weights, later_offset + quad * later_step)
        prefetch(weights, later_offset + panel_size + quad * later_step)
        a = _accumulate_four(a, load_splat_i8x4(workspace.quantized_inputs, input_offset), panel_weights)
        b = _accumulate_four(b, load_splat_i8x4(workspace.quantized_inputs, input_offset + second), panel_weights)
        c = _accumulate_four(c, load_splat_i8x4(workspace.quantized_inputs, input_offset + third), panel_weights)
        d = _accumulate_four(d, load_splat_i8x4(workspace.quantized_inputs, input_offset + fourth), panel_weights)
    for row_offset, row_sums in enumerate((a, b, c, d)):
        for panel in range(4):
            store_i32x16(accumulators, panel * ACCUMULATOR_STRIDE + row_offset * LANES, row_sums[panel])


@kernel
def multiply_two_rows(linear, first, workspace, row, num_quads):
    """Compute the sums of two rows and 64 outputs, for 32 outputs at a time.

    The first four rows prefetch the weights of the next 64 outputs.
    """
    panel_size, input_stride = num_quads * VECTOR_BYTES, workspace.input_stride
    weights, accumulators = linear.weights, workspace.accumulators
    zero = splat_i32(0)
    for panel in range(0, 4, 2):
        a = b = (zero, zero)
        prefetch_offset = first + (4 + min(row + panel // 2, 3)) * panel_size
        prefetch_step = VECTOR_BYTES if row < 4 else 0
        for quad in range(num_quads):
            offset, input_offset = first + panel * panel_size + quad * VECTOR_BYTES, row * input_stride + 4 * quad
            panel_weights = load_i8x64(weights, offset), load_i8x64(weights, offset + panel_size)
            prefetch(weights, prefetch_offset + quad * prefetch_step)
            a = _accumulate_two(a, load_splat_i8x4(workspace.quantized_inputs, input_offset), panel_weights)
            b = _accumulate_two(b, load_splat_i8x4(workspace.quantized_inputs, input_offset + input_stride), panel_weights)
        for row_offset, row_sums in enumerate((a, b)):
            for next_panel in range(2):
                index = (panel + next_panel) * ACCUMULATOR_STRIDE + row_offset * LANES
                store_i32x16(accumulators, index, row_sums[next_panel])


@kernel
def multiply_one_row(linear, first, workspace, row, num_quads):
    """Compute the sums of one row and 64 outputs, and prefetch the weights of the next 64 outputs."""
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
        for panel in range(4, 8):
            prefetch(weights, offset + panel * panel_size)
        inputs = load_splat_i8x4(workspace.quantized_inputs, row * workspace.input_stride + 4 * quad)
        a = _accumulate_four(a, inputs, panel_weights)
    for panel in range(4):
        store_i32x16(workspace.accumulators, panel * ACCUMULATOR_STRIDE, a[panel])


@inline_kernel
def _accumulate_two(sums, x, weights):
    return dot_accumulate(sums[0], x, weights[0]), dot_accumulate(sums[1], x, weights[1])


@inline_kernel
def _accumulate_four(sums, x, weights):
    return (
        dot_accumulate(sums[0], x, weights[0]),
        dot_accumulate(sums[1], x, weights[1]),
        dot_accumulate(sums[2], x, weights[2]),
        dot_accumulate(sums[3], x, weights[3]),
    )


@inline_kernel
def multiply_rows_by_fours(linear, first, workspace, row, num_rows, num_quads):
    """Compute the sums of some of the rows and 64 outputs, and return their number. The sums of four rows stay in registers."""
    if num_rows == 1:
        multiply_one_row(linear, first, workspace, row, num_quads)
        return 1
    multiply_four_rows(linear, first, workspace, row, num_rows, num_quads)
    return min(num_rows, 4)


@inline_kernel
def multiply_rows_by_twos(linear, first, workspace, row, num_rows, num_quads):
    """Compute the sums of some of the rows and 64 outputs, and return their number. The sums of two rows stay in registers."""
    if num_rows >= 2:
        multiply_two_rows(linear, first, workspace, row, num_quads)
        return 2
    multiply_one_row(linear, first, workspace, row, num_quads)
    return 1


@inline_kernel
def multiply_rows_in_chunks(linear, first, workspace, row, num_rows, num_quads):
    """Compute the sums of some of the rows and 64 outputs, and return their number. One row's sums stay in registers."""
    num_done = min(num_rows, 2 * TILE_ROWS)
    if num_done == 1:
        multiply_one_row(linear, first, workspace, row, num_quads)
    else:
        multiply_chunks(linear, first, workspace, row, num_done, num_quads)
    return num_done


multiply_rows_in_registers = multiply_rows_by_fours if INSTRUCTION_SET.rows_at_once == 4 else multiply_rows_by_twos
multiply_rows = multiply_rows_in_chunks if INSTRUCTION_SET.rows_at_once == 1 else multiply_rows_in_registers


@kernel
def multiply_vectors(linear, layer, y, row_stride, column, end_column, num_rows, width, workspace):
    """Multiply by vectors, some rows at once."""
    num_blocks, num_quads = linear.padded_outputs // OUTPUT_BLOCK, -(-width // VECTOR_BYTES) * LANES
    for block in range(column // OUTPUT_BLOCK, end_column // OUTPUT_BLOCK):
        first = (layer * num_blocks + block) * OUTPUT_BLOCK * 4 * num_quads
        row = np.int64(0)
        while row < num_rows:
            num_done = multiply_rows(linear, first, workspace, row, num_rows - row, num_quads)
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
