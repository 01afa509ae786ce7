"""Weights of an export as streams: each is read part by part from the mapped bundle, and is never in memory as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from numpy.typing import NDArray

from dragoman.io.safetensors import TensorStream

CHUNK_VALUES = 2**20
"""Values that are in memory at once."""


def stream_weight(
    weight: NDArray[Any],
    release: Callable[[], None],
    *,
    rows: NDArray[Any] | None = None,
    columns: NDArray[Any] | None = None,
    zero_row: int | None = None,
) -> TensorStream:
    """Return the stream of a weight.

    Args:
        weight: (R, …), or a number
        release: releases the mapped memory of the bundle
        rows, columns: the row of the weight that each row of the stream has, and the same for columns; None keeps the order
        zero_row: row of the stream that is zero
    """

    def iter_chunks() -> Iterator[NDArray[Any]]:
        if not weight.ndim:
            yield weight
            return
        for start, chunk in iter_rows(weight if rows is None else rows):
            chunk = chunk if rows is None else weight[chunk]
            chunk = chunk if columns is None else chunk[:, columns]
            if zero_row is not None and start <= zero_row < start + len(chunk):
                chunk = chunk.copy()
                chunk[zero_row - start] = 0.0
            yield chunk

    shape = weight.shape if rows is None else (len(rows), *weight.shape[1:])
    return TensorStream(shape, weight.dtype, iter_chunks, release)


def iter_rows(array: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the first row of each part of an array, and the part. A part has at most `CHUNK_VALUES` values, or one row."""
    step = max(1, CHUNK_VALUES * len(array) // max(1, array.size))
    for start in range(0, len(array), step):
        yield start, array[start : start + step]
