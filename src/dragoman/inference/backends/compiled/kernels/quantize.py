"""Weights as the bytes that products take, compiled: each output's in steps of its own, four inputs of 16 outputs side by side.

O, I  outputs and inputs, whole vectors of the latter
"""

from __future__ import annotations

import numpy as np

from dragoman.inference.backends.compiled.kernels.memory import load, put, put_whole, store_quads
from dragoman.inference.backends.compiled.kernels.simd import (
    entered,
    greater,
    greatest,
    quotient,
    same,
    same_sums,
    size,
    to_sums,
    whole_total,
)
from dragoman.inference.backends.compiled.kernels.structs import ADDED, BYTES, LANES, LEVELS, TINY


@entered(int, int, int, int, int, int)
def put_in_order(weights, outputs, inputs, panel, scale, shift):
    """weights (O, I) become panels of bytes, and the step of each output its scale.

    panel: where the first is to stand. shift: where each output's sum goes, if anywhere
    """
    # An output's four inputs are as far from the next four as 16 outputs' are long.
    panel_size = -(-inputs // BYTES) * BYTES * LANES
    for output in range(outputs):
        start = output * inputs
        highest = same(0.0)
        for at in range(0, inputs, LANES):
            highest = greater(highest, size(load(weights, start + at)))
        step = max(greatest(highest) / np.float32(LEVELS), np.float32(TINY))
        put(scale, output, step)
        steps, sum_ = same(step), same_sums(0)
        place = panel + output // LANES * panel_size
        for at in range(0, inputs, LANES):
            whole = to_sums(quotient(load(weights, start + at), steps))
            store_quads(place, (at // 4) * LANES + output % LANES, whole)
            sum_ = sum_ + whole
        if shift:
            put_whole(shift, output, np.int32(whole_total(sum_) * ADDED))
    return 0
