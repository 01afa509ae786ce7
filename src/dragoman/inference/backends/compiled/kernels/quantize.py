"""Quantization of weights to int8, with a step for each output, four inputs of 16 outputs side by side.

O, I  outputs and inputs, the latter padded to whole vectors
"""

from __future__ import annotations

import numpy as np

from dragoman.inference.backends.compiled.kernels.memory import load_f32x16, store_f32, store_i8_quads, store_i32
from dragoman.inference.backends.compiled.kernels.simd import (
    absolute,
    divide,
    export,
    maximum,
    reduce_max,
    reduce_sum_i32,
    round_f32_to_i32,
    splat,
    splat_i32,
)
from dragoman.inference.backends.compiled.kernels.structs import INT8_MAX, LANES, MIN_SCALE, VECTOR_BYTES


@export(int, int, int, int, int, int, int)
def pack_weights(weights, num_outputs, num_inputs, panel, scale, compensation, input_offset):
    """Write the weights (O, I) as panels of bytes, and the step of each output as its scale.

    panel: address of the first panel
    compensation: address of each output's sum times `input_offset`
    input_offset: offset of the quantized inputs
    """
    # Between four inputs of an output and the next four are those of the 15 other outputs.
    panel_size = -(-num_inputs // VECTOR_BYTES) * VECTOR_BYTES * LANES
    for output in range(num_outputs):
        start = output * num_inputs
        max_abs = splat(0.0)
        for offset in range(0, num_inputs, LANES):
            max_abs = maximum(max_abs, absolute(load_f32x16(weights, start + offset)))
        step_size = max(reduce_max(max_abs) / np.float32(INT8_MAX), np.float32(MIN_SCALE))
        store_f32(scale, output, step_size)
        step_sizes, sum_ = splat(step_size), splat_i32(0)
        panel_address = panel + output // LANES * panel_size
        for offset in range(0, num_inputs, LANES):
            quantized_values = round_f32_to_i32(divide(load_f32x16(weights, start + offset), step_sizes))
            store_i8_quads(panel_address, (offset // 4) * LANES + output % LANES, quantized_values)
            sum_ = sum_ + quantized_values
        store_i32(compensation, output, np.int32(reduce_sum_i32(sum_) * input_offset))
    return 0
