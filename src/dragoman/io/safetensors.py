"""Tensors on disk in the safetensors format: written with their digest, and mapped into memory for reading."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dragoman.io.mapped_file import MappedFile
from dragoman.io.storage import write_with_digest

# Type names of the format, in the order in which a file stores tensors of these types.
DTYPE_CODES = {
    torch.int64: "I64", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32", torch.bfloat16: "BF16",
    torch.float16: "F16", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


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

    def load(self) -> Tensor:
        """Return the whole tensor."""
        return torch.cat([chunk.flatten() for chunk in self.iter_chunks()]).view(self.shape)


def save_tensors(path: Path, tensors: Mapping[str, Tensor | TensorStream], *, metadata: Mapping[str, str] | None = None) -> str:
    """Write a new safetensors file and return the SHA-256 of its intended content. Raise OSError if it cannot be written.

    The bytes equal those of the safetensors library, which returns no digest, hides `errno` and copies all tensors first.
    """
    return write_with_digest(path, _serialize(tensors, metadata or {}))


def _serialize(tensors: Mapping[str, Tensor | TensorStream], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """Yield the header, then the tensors by descending item size and by name, so that each is aligned to its item size."""
    ordered = sorted(tensors.items(), key=lambda item: (list(DTYPE_CODES).index(item[1].dtype), item[0]))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPE_CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    header_bytes = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    header_bytes += b" " * (-len(header_bytes) % 8)
    yield len(header_bytes).to_bytes(8, "little") + header_bytes
    for _, tensor in ordered:
        if isinstance(tensor, Tensor):
            yield _get_bytes(tensor)
            continue
        for chunk in tensor.iter_chunks():
            yield _get_bytes(chunk)
            tensor.release()


def _get_bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


class MappedTensors(Mapping[str, Tensor]):
    """Tensors of a mapped safetensors file. A tensor starts at a multiple of its item size after the header.

    metadata: texts of the header
    """

    def __init__(self, file: MappedFile) -> None:
        """Read the header. Raise OSError if the file cannot be read, and SafetensorError if it does not follow the format."""
        with safe_open(file.path, framework="pt"):  # the library checks the header
            pass
        self._file = file
        size = int.from_bytes(file.content[:8], "little")
        try:
            header = json.loads(file.content[8 : 8 + size])
        except ValueError:
            raise SafetensorError("the file has changed while it was read") from None
        self.metadata: dict[str, str] = header.pop("__metadata__", None) or {}
        dtypes = {code: dtype for dtype, code in DTYPE_CODES.items()}
        if unknown_codes := [entry["dtype"] for entry in header.values() if entry["dtype"] not in dtypes]:
            raise SafetensorError(f"holds numbers of the unknown type {unknown_codes[0]}")
        self._entries = {
            name: (dtypes[entry["dtype"]], entry["shape"], 8 + size + entry["data_offsets"][0])
            for name, entry in header.items()
        }

    def __getitem__(self, name: str) -> Tensor:
        dtype, shape, start = self._entries[name]
        if 0 in shape:
            return torch.empty(shape, dtype=dtype)
        count = torch.Size(shape).numel()
        return torch.frombuffer(self._file.content, dtype=dtype, count=count, offset=start).view(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def release(self) -> None:
        """Release the memory that reading has filled. A later use reads the file again; changes to tensors are lost."""
        self._file.release()
