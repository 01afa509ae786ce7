"""Memory of arrays that kernels know by their addresses. Each array begins a cache line, as kernels read whole lines.

The arrays of a search are in one block, because one allocation takes less time than many small ones.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dragoman.inference.backends.compiled.kernels.structs import VECTOR_BYTES

# Bytes of the numbers that kernels read and write.
F16_BYTES, F32_BYTES, F64_BYTES, I32_BYTES, I64_BYTES = 2, 4, 8, 4, 8


def allocate(shape: tuple[int, ...], dtype: DTypeLike, *, make: Callable[..., NDArray[np.uint8]] = np.empty) -> NDArray[Any]:
    """Return an array at the start of a cache line. make: `np.empty` or `np.zeros`"""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    block = make(size + VECTOR_BYTES, np.uint8)
    start = -get_address(block) % VECTOR_BYTES
    return block[start : start + size].view(dtype).reshape(shape)


def get_address(array: NDArray[Any]) -> int:
    """Return the address of an array's first number, in less time than `array.ctypes.data` takes."""
    address: int = array.__array_interface__["data"][0]
    return address


class Arena:
    """Arrays in one block of memory, each at the start of a cache line.

    addresses: address of each array, by its name. They are valid as long as the arena.
    """

    def __init__(self, sizes: Mapping[str, int], zeros: Collection[str] = ()) -> None:
        """Allocate arrays of these numbers of bytes. The content of those that are not in `zeros` is undefined."""
        self.sizes = sizes
        self._block = np.empty(sum(sizes.values()) + (len(sizes) + 1) * VECTOR_BYTES, np.uint8)
        self._start = get_address(self._block)
        address = self._start + VECTOR_BYTES - 1 & -VECTOR_BYTES
        self.addresses: dict[str, int] = {}
        for name, size in sizes.items():
            self.addresses[name] = address
            address += size + VECTOR_BYTES - 1 & -VECTOR_BYTES
        for name in zeros:
            ctypes.memset(self.addresses[name], 0, sizes[name])

    def view(self, name: str, dtype: type[np.generic], *shape: int) -> NDArray[Any]:
        """Return an array in this type and shape, one-dimensional by default. It shares the memory and keeps it alive."""
        start = self.addresses[name] - self._start
        return self._block[start : start + self.sizes[name]].view(dtype).reshape(shape or (-1,))
