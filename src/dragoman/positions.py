"""Sinusoids (section 3.5) in the orders of the paper, of its code and of MarianMT, and relative and rotary positions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray


def interleaved_sinusoids(length: int, d_model: int) -> NDArray[np.float32]:
    """Return PE(p, 2i) = sin(p / 10000^(2i/d)) and PE(p, 2i+1) = cos(p / 10000^(2i/d)) (section 3.5). → (length, d_model)"""
    angle = _compute_angles(length, np.arange(0, d_model, 2) / d_model)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(length, d_model).astype(np.float32)


def concatenated_sinusoids(length: int, d_model: int) -> NDArray[np.float32]:
    """Return [sin …, cos …] with exponent i / (d/2 − 1), as tensor2tensor 1.0.3 computes them. → (length, d_model)"""
    half = d_model // 2
    angle = _compute_angles(length, np.arange(half) / max(half - 1, 1))
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=-1).astype(np.float32)


def halved_sinusoids(length: int, d_model: int) -> NDArray[np.float32]:
    """Return [sin …, cos …] with the exponents of the paper, as MarianMT of Hugging Face computes them. → (length, d_model)"""
    table_PD = interleaved_sinusoids(length, d_model)
    return np.concatenate([table_PD[:, 0::2], table_PD[:, 1::2]], axis=-1)


def _compute_angles(length: int, exponent: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.arange(length)[:, None] / 10000.0**exponent


SINUSOIDS: dict[str, Callable[[int, int], NDArray[np.float32]]] = {
    "interleaved": interleaved_sinusoids,
    "concatenated": concatenated_sinusoids,
    "halves": halved_sinusoids,
}
"""Functions (number of positions, d_model) → table of sinusoids, by their name in the recipe."""


def rotate(x_BHTK: NDArray[np.float32], rotation_TK: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return queries or keys turned by rotary positions, in NumPy; see `dragoman.model.rotary_positions.rotate`."""
    sin_TX, cos_TX = np.split(rotation_TK, 2, axis=-1)
    first_BHTX, second_BHTX = np.split(x_BHTK, 2, axis=-1)
    return np.concatenate([first_BHTX * cos_TX - second_BHTX * sin_TX, second_BHTX * cos_TX + first_BHTX * sin_TX], axis=-1)


def relative_position_buckets(
    distances: NDArray[np.int64], *, num_buckets: int, max_distance: int, bidirectional: bool
) -> NDArray[np.int64]:
    """Return the bucket of each distance from a query to a key (Raffel et al. 2020, section 2.1).

    Half of a direction's buckets hold one distance each. Those of the other half are wider, by the logarithm of the distance.

    distances: positions of the keys less those of the queries, in any shape
    max_distance: distance from which on all keys are in the last bucket
    bidirectional: half of the buckets are for keys behind the query; otherwise those keys are in the first bucket
    """
    direction_size = num_buckets // 2 if bidirectional else num_buckets
    first = np.where(distances > 0, direction_size, 0) if bidirectional else 0
    steps = np.abs(distances) if bidirectional else np.maximum(-distances, 0)
    num_exact = direction_size // 2
    share = np.log(np.maximum(steps, num_exact).astype(np.float32) / num_exact) / np.float32(math.log(max_distance / num_exact))
    wide = num_exact + (share * np.float32(direction_size - num_exact)).astype(np.int64)
    return first + np.where(steps < num_exact, steps, np.minimum(wide, direction_size - 1))
