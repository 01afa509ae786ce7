"""Activations in NumPy and float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]

BLOCK_SIZE = 1 << 15
"""Numbers of a block of activations, whose temporary arrays stay in a processor's cache."""
ERF_STEPS, ERF_END = 4096, 4
"""Steps of erf's table between two integers, and the number from which erf is 1 in float32."""


def relu(x: FloatArray) -> FloatArray:
    """Return max(0, x), in place."""
    return np.maximum(x, 0, out=x)


def sigmoid(x: FloatArray) -> FloatArray:
    """Return σ(x) = 1/(1 + exp(−x))."""
    y: FloatArray = np.tanh(x * 0.5)  # because exp(−x) overflows
    y += 1
    y *= 0.5
    return y


def silu(x: FloatArray) -> FloatArray:
    """Return x·σ(x)."""
    y = sigmoid(x)
    y *= x
    return y


def gelu(x: FloatArray) -> FloatArray:
    """Return x·Φ(x) = x·(1 + erf(x/√2))/2."""
    y = erf(x * np.float32(math.sqrt(0.5)))
    y += 1
    y *= x * 0.5
    return y


def gelu_tanh(x: FloatArray) -> FloatArray:
    """Return GELU in the form with tanh, x·σ(√(8/π)·(x + 0.044715·x³))."""
    y = sigmoid((x + np.float32(0.044715) * x * x * x) * np.float32(math.sqrt(8 / math.pi)))
    y *= x
    return y


def erf(x: FloatArray) -> FloatArray:
    """Return the error function by linear interpolation, with an error below 1e-8 before rounding.

    NumPy has none, and calls of `math.erf` are 50 times slower.
    """
    value_P, slope_P = _build_erf_table()
    position = np.minimum(np.abs(x) * ERF_STEPS, np.float32(ERF_END * ERF_STEPS))
    index = position.astype(np.int32)
    y: FloatArray = np.copysign(value_P[index] + slope_P[index] * (position - index.astype(np.float32)), x)
    return y


@lru_cache(maxsize=1)
def _build_erf_table() -> tuple[FloatArray, FloatArray]:
    """Return erf at each step from 0 to its end, and the difference to the next step."""
    values = np.array([math.erf(step / ERF_STEPS) for step in range(ERF_END * ERF_STEPS + 1)])
    return values.astype(np.float32), np.diff(values, append=values[-1]).astype(np.float32)


ACTIVATIONS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "relu": relu,
    "silu": silu,
    "gelu": gelu,
    "geglu": gelu_tanh,
    "swiglu": silu,
}
"""Activations of feed-forward networks, or of their gates, by their name in the recipe."""


def activate(x: FloatArray, activation: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """Return x with its numbers replaced by their activations, block by block. x: contiguous, in any shape"""
    x_N = x.reshape(-1)
    for start in range(0, len(x_N), BLOCK_SIZE):
        block = x_N[start : start + BLOCK_SIZE]
        block[:] = activation(block)
    return x
