"""Arrays of a search in one block of memory, because one allocation takes less time than many small tensors.

Kernels know the arrays by their addresses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.inference.backends.compiled.kernels.structs import VECTOR_BYTES

# Bytes of the numbers that kernels read and write.
F16_BYTES, F32_BYTES, F64_BYTES, I32_BYTES, I64_BYTES = 2, 4, 8, 4, 8


class Arena:
    """Arrays in one block of memory, each at the start of a cache line.

    addresses: address of each array, by its name. They are valid as long as the arena.
    """

    def __init__(self, sizes: Mapping[str, int], zeros: Collection[str] = ()) -> None:
        """Allocate arrays of these numbers of bytes. The content of those that are not in `zeros` is undefined."""
        self.sizes = sizes
        self._block = np.empty(sum(sizes.values()) + (len(sizes) + 1) * VECTOR_BYTES, np.uint8)
        self._start: int = self._block.__array_interface__["data"][0]
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
