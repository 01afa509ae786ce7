"""Quantization of weights to int8, with a step for each output, four inputs of 16 outputs side by side.

With AVX2, four products are added in 16 bits. The steps are so large there that no such sum overflows (`compute_step_size`).

    O, I    outputs and inputs, the latter padded to whole vectors
"""

from __future__ import annotations

import numpy as np

from dragoman.inference.backends.compiled.kernels.compile_target import INSTRUCTION_SET
from dragoman.inference.backends.compiled.kernels.memory import (
    load_f32,
    load_f32x16,
    load_i8x16,
    store_f32,
    store_i8_quads,
    store_i32,
)
from dragoman.inference.backends.compiled.kernels.simd import (
    absolute,
    divide,
    export,
    kernel,
    maximum,
    reduce_max,
    reduce_sum_i32,
    round_f32_to_i32,
    splat,
    splat_i32,
    sum_lane_weights,
)
from dragoman.inference.backends.compiled.kernels.structs import INT8_MAX, LANES, MIN_SCALE, VECTOR_BYTES

# Whether products are added in lanes of 16 bits, and the limit of a lane's four weights of one sign before they are rounded.
# Rounding adds up to half a step to each.
HAS_LANES = INSTRUCTION_SET.max_lane_weights is not None
MAX_LANE_STEPS = (INSTRUCTION_SET.max_lane_weights or 0) - 2


@kernel
def load_weights(weights, steps, factors, output, index):
    """Return 16 weights of an output, which are floats, or integers times the step and the factor of the output."""
    if steps == 0:
        return load_f32x16(weights, index)
    return load_i8x16(weights, index) * splat(load_f32(steps, output)) * splat(load_f32(factors, output))


@kernel
def compute_step_size(weights, steps, factors, output, num_inputs):
    """Return the smallest step with which an output's weights are at most 127 steps, and within the limit of a lane.

    Integers keep their own step, if it is within the limit.
    """
    zero = splat(0.0)
    max_abs = max_lane = zero
    if steps:
        max_abs = splat(INT8_MAX) * splat(load_f32(steps, output)) * splat(load_f32(factors, output))
    if HAS_LANES or not steps:
        for offset in range(0, num_inputs, LANES):
            values = load_weights(weights, steps, factors, output, output * num_inputs + offset)
            max_abs = maximum(max_abs, absolute(values))
            if HAS_LANES:
                positive, negative = maximum(values, zero), maximum(zero - values, zero)
                max_lane = maximum(max_lane, maximum(sum_lane_weights(positive), sum_lane_weights(negative)))
    step_size = max(reduce_max(max_abs) / np.float32(INT8_MAX), np.float32(MIN_SCALE))
    if HAS_LANES:
        step_size = max(step_size, reduce_max(max_lane) / np.float32(MAX_LANE_STEPS))
    return step_size


@export(int, int, int, int, int, int, int, int, int)
def pack_weights(weights, steps, factors, num_outputs, num_inputs, panel, scale, compensation, input_offset):
    """Write the weights (O, I) as panels of bytes, and the step of each output as its scale.

    steps, factors: addresses of what integer weights of each output are multiplied by, or 0 if the weights are floats
    panel: address of the first panel
    compensation: address of each output's sum times `input_offset`
    input_offset: offset of the quantized inputs
    """
    # Between four inputs of an output and the next four are those of the 15 other outputs.
    panel_size = -(-num_inputs // VECTOR_BYTES) * VECTOR_BYTES * LANES
    for output in range(num_outputs):
        step_size = compute_step_size(weights, steps, factors, output, num_inputs)
        store_f32(scale, output, step_size)
        step_sizes, sum_ = splat(step_size), splat_i32(0)
        # Integers whose step stays are quantized already.
        keeps_integers = steps != 0 and not HAS_LANES and step_size > np.float32(MIN_SCALE)
        panel_address = panel + output // LANES * panel_size
        for offset in range(0, num_inputs, LANES):
            index = output * num_inputs + offset
            if keeps_integers:
                values = load_i8x16(weights, index)
            else:
                values = divide(load_weights(weights, steps, factors, output, index), step_sizes)
            quantized_values = round_f32_to_i32(values)
            store_i8_quads(panel_address, (offset // 4) * LANES + output % LANES, quantized_values)
            sum_ = sum_ + quantized_values
        store_i32(compensation, output, np.int32(reduce_sum_i32(sum_) * input_offset))
    return 0
