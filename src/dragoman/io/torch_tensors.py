"""Tensors of PyTorch in safetensors files: streams to write, and mapped tensors to read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.io.mapped_file import MappedFile
from dragoman.io.safetensors import TensorFile


@dataclass(frozen=True)
class TensorStream:
    """Tensor that is computed while it is written, so that it is never in memory as a whole.

    Attributes:
        shape: its shape
        dtype: its type
        iter_chunks: returns its parts, in order; together they have as many values as the shape
        release: is called after each part was written, so that mapped memory can be released
    """

    shape: torch.Size
    dtype: torch.dtype
    iter_chunks: Callable[[], Iterator[Tensor]]
    release: Callable[[], None] = lambda: None

    def numel(self) -> int:
        """Return the number of values."""
        return self.shape.numel()

    def element_size(self) -> int:
        """Return the size of a value in bytes."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Size of the whole tensor in bytes."""
        return self.numel() * self.element_size()

    def load(self) -> Tensor:
        """Return the whole tensor."""
        return torch.cat([chunk.flatten() for chunk in self.iter_chunks()]).view(self.shape)


class MappedTensors(Mapping[str, Tensor]):
    """Tensors of a mapped safetensors file.

    metadata: texts of the header
    """

    def __init__(self, file: MappedFile) -> None:
        """Read the header; see `TensorFile`."""
        self._file = TensorFile(file)
        self.metadata, self.release = self._file.metadata, self._file.release

    def __getitem__(self, name: str) -> Tensor:
        dtype_name, shape, start = self._file.entries[name]
        dtype: torch.dtype = getattr(torch, dtype_name)
        if 0 in shape:
            return torch.empty(shape, dtype=dtype)
        count = torch.Size(shape).numel()
        return torch.frombuffer(self._file.file.content, dtype=dtype, count=count, offset=start).view(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.entries)

    def __len__(self) -> int:
        return len(self._file.entries)
