"""Mapped files of a source, and arrays in them that are not aligned, as in Marian's and CTranslate2's models.

Rows are copied to aligned memory when they are read, a part at a time. Quantized rows become float32 at that moment. So a model
is never in memory as a whole.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dragoman.errors import BundleError, DataError

Array = npt.NDArray[Any]
ArrayT = TypeVar("ArrayT")


def damaged(path: Path, problem: str, advice: str = "") -> DataError:
    """Return the error of a damaged source file. advice: what else to do than to copy it again"""
    return DataError(f"{path}: {problem}; copy the file again{advice}", code="source-damaged")


def unreadable(path: Path, error: OSError) -> DataError:
    """Return the error of a source file that the system does not read."""
    code = "file-not-found" if isinstance(error, FileNotFoundError) else "file-unreadable"
    return DataError(f"{path}: cannot be read: {error.strerror or error}", code=code)


def map_file(path: Path) -> mmap.mmap:
    """Return the bytes of a file. Raise DataError if it is missing, empty or unreadable."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise damaged(path, "is empty") from None
    except OSError as error:
        raise unreadable(path, error) from None


class MappedArray:
    """Array of a mapped file. The first index is a row.

    Args:
        values: the values, a view of the file
        scale: divisor of each row of integers (rows,), or of all rows (); None for floating-point values
    """

    def __init__(self, values: Array, scale: Array | None = None) -> None:
        self.values = values
        self.scale = scale

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the arrays that reading returns."""
        return self.values.dtype if self.scale is None else np.dtype(np.float32)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.values.ndim

    @property
    def size(self) -> int:
        """Number of values."""
        return self.values.size

    @property
    def transposed(self) -> MappedArray:
        """Return the transposed matrix, which shares the values."""
        return MappedArray(self.values.T)

    @property
    def vector(self) -> MappedArray:
        """Return the values as a vector, which shares them."""
        return MappedArray(self.values.reshape(-1))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.values)

    def __getitem__(self, rows: slice) -> Array:
        """Return some rows in memory of their own. Integers are divided by their scale."""
        values = np.array(self.values[rows], order="C")
        if self.scale is None:
            return values
        scale = np.array(self.scale[rows] if self.scale.ndim else self.scale, np.float32)
        return np.asarray(values.astype(np.float32) / scale.reshape(-1, *[1] * (values.ndim - 1)))

    def select(self, start: int, stop: int) -> MappedArray:
        """Return the rows from `start` to `stop`, which share the values."""
        has_scales = self.scale is not None and self.scale.ndim
        return MappedArray(self.values[start:stop], self.scale[start:stop] if has_scales else self.scale)  # type: ignore[index]

    def load(self) -> Array:
        """Return the whole array."""
        return self[:]

    def item(self) -> int | float | None:
        """Return the only value of a number; None for several values."""
        return self.values.item() if self.size == 1 else None


class NamedArrays(Mapping[str, ArrayT]):
    """Arrays of a source by name, and a record of those that were read.

    Args:
        arrays: the arrays
        release: releases the mapped memory
        location: file that error messages name
        settings: place of the settings that tell which arrays there are, for the error of a missing one
    """

    def __init__(
        self, arrays: Mapping[str, ArrayT], release: Callable[[], None], location: Path, *, settings: str = ""
    ) -> None:
        self._arrays = arrays
        self.release = release
        self.location = location
        self.settings = settings
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> ArrayT:
        self.used.add(name)
        try:
            return self._arrays[name]
        except KeyError:
            advice = f", or check {self.settings}" if self.settings else ""
            raise damaged(self.location, f"tensor {name} is missing", advice) from None

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def check_all_used(self, family: str) -> None:
        """Raise BundleError if the source has an array that was not read."""
        if unknown := sorted(self._arrays.keys() - self.used):
            raise BundleError(
                f"{self.location}: has the tensor {unknown[0][:100]!r}, a feature of {family} that dragoman does not have; "
                "this model cannot be converted",
                code="conversion-unsupported",
            )


class MappedArrays(NamedArrays[MappedArray]):
    """Arrays of a mapped file by name."""

    def find(self, name: str) -> MappedArray | None:
        """Return an array; None if it is missing."""
        return self[name] if name in self._arrays else None

    def matrix(self, name: str) -> MappedArray:
        """Return an array of two dimensions. Raise DataError if it has another number of them, or is missing."""
        array = self[name]
        if array.ndim != 2:
            raise damaged(self.location, f"{name} has the shape {tuple(array.shape)}, but is a matrix")
        return array


def view_values(mapping: mmap.mmap, dtype: npt.DTypeLike, shape: tuple[int, ...], start: int) -> Array:
    """Return values of a mapped file without a copy. The caller has checked that they lie inside of it."""
    count = math.prod(shape)
    return np.frombuffer(mapping, dtype, count, start).reshape(shape) if count else np.empty(shape, dtype)
