"""Arrays in a mapped file whose values are not aligned to their size, as in Marian's and CTranslate2's models.

Rows are copied to aligned memory when they are read, a part at a time. Quantized rows become float32 at that moment. So a model
is never in memory as a whole.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dragoman.conversion.checkpoint_reader import damaged
from dragoman.errors import BundleError, DataError

Array = npt.NDArray[Any]


class MappedArray:
    """Array of a mapped file. The first index is a row.

    Args:
        values: the values, a view of the file; bfloat16 as int16
        dtype: type of the tensors that reading returns
        scale: divisor of each row of integers (rows,), or of all rows (); None for floating-point values
    """

    def __init__(self, values: Array, dtype: torch.dtype, scale: Array | None = None) -> None:
        self.values = values
        self.dtype = dtype
        self.scale = scale

    @property
    def shape(self) -> torch.Size:
        """Shape of the array."""
        return torch.Size(self.values.shape)

    @property
    def transposed(self) -> MappedArray:
        """Return the transposed matrix, which shares the values."""
        return MappedArray(self.values.T, self.dtype)

    @property
    def vector(self) -> MappedArray:
        """Return the values as a vector, which shares them."""
        return MappedArray(self.values.reshape(-1), self.dtype)

    def dim(self) -> int:
        """Return the number of dimensions."""
        return self.values.ndim

    def numel(self) -> int:
        """Return the number of values."""
        return self.values.size

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.values)

    def __getitem__(self, rows: slice) -> Tensor:
        """Return some rows in memory of their own. Integers are divided by their scale."""
        tensor = torch.from_numpy(np.array(self.values[rows], order="C"))
        if self.scale is not None:
            scale = torch.from_numpy(np.array(self.scale[rows] if self.scale.ndim else self.scale))
            return tensor.to(self.dtype) / scale.reshape(-1, *[1] * (tensor.dim() - 1))
        return tensor if tensor.dtype == self.dtype else tensor.view(self.dtype)

    def select(self, start: int, stop: int) -> MappedArray:
        """Return the rows from `start` to `stop`, which share the values."""
        has_scales = self.scale is not None and self.scale.ndim
        return MappedArray(self.values[start:stop], self.dtype, self.scale[start:stop] if has_scales else self.scale)  # type: ignore[index]

    def load(self) -> Tensor:
        """Return the whole array."""
        return self[:]

    def item(self) -> int | float | None:
        """Return the only value of a number; None for several values."""
        return self.values.item() if self.numel() == 1 else None


class MappedArrays(Mapping[str, MappedArray]):
    """Arrays of a file by name, and a record of those that were read.

    location: file that error messages name
    """

    def __init__(self, arrays: Mapping[str, MappedArray], mapping: mmap.mmap, location: Path) -> None:
        self._arrays = arrays
        self._mapping = mapping
        self.location = location
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> MappedArray:
        self.used.add(name)
        try:
            return self._arrays[name]
        except KeyError:
            raise DataError(f"{self.location}: has no weights {name}; copy the file again", code="source-damaged") from None

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def find(self, name: str) -> MappedArray | None:
        """Return an array; None if it is missing."""
        return self[name] if name in self._arrays else None

    def matrix(self, name: str) -> MappedArray:
        """Return an array of two dimensions. Raise DataError if it has another number of them, or is missing."""
        array = self[name]
        if array.dim() != 2:
            raise damaged(self.location, f"{name} has the shape {tuple(array.shape)}, but is a matrix")
        return array

    def release(self) -> None:
        """Release the memory that reading has filled."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._mapping.madvise(mmap.MADV_DONTNEED)

    def check_all_used(self, family: str) -> None:
        """Raise BundleError if the file has an array that was not read."""
        if unknown := sorted(self._arrays.keys() - self.used):
            raise BundleError(
                f"{self.location}: has the weights {unknown[0][:100]!r}, a feature of {family} that dragoman does not have; "
                "this model cannot be converted",
                code="conversion-unsupported",
            )


def view_values(mapping: mmap.mmap, dtype: str, shape: tuple[int, ...], start: int) -> Array:
    """Return values of a mapped file without a copy. The caller has checked that they lie inside of it."""
    count = int(np.prod(shape, dtype=np.int64)) if shape else 1
    return np.frombuffer(mapping, dtype=dtype, count=count, offset=start).reshape(shape) if count else np.empty(shape, dtype)
