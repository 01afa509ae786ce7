"""Rank correlation of two lists of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DataError


def spearman_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's rank correlation: Pearson's of the ranks, equal values sharing the mean of their ranks.

    Return 0 if all values of one list are equal. Raises DataError for lists of different lengths or of fewer than two numbers.
    """
    if len(first) != len(second) or len(first) < 2:
        raise DataError(
            f"rank correlation: {len(first)} and {len(second)} numbers; give two lists of equal length, at least two numbers",
            code="length-mismatch",
        )
    a, b = (_rank(np.asarray(values, dtype=np.float64)) for values in (first, second))
    a, b = a - a.mean(), b - b.mean()
    norm = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / norm) if norm > 0 else 0.0


def _rank(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank of each value, from 1. (N,)"""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last_rank = counts.cumsum()
    mean_rank: NDArray[np.float64] = (last_rank - (counts - 1) / 2)[inverse]
    return mean_rank
