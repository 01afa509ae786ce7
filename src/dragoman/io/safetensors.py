"""Tensors on disk, in safetensors' format: written with their digest, and mapped into memory rather than read."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dragoman.io.storage import write_with_digest

# What the format calls the types of numbers, in the order in which it holds their tensors.
DTYPE_CODES = {
    torch.int64: "I64", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32", torch.bfloat16: "BF16",
    torch.float16: "F16", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write a new safetensors file, byte for byte as its library would, and return the SHA-256 of what was to be written.

    The library tells neither the digest nor the number of an error, and copies all tensors first. Raises OSError.
    """
    return write_with_digest(path, _serialize(tensors))


def _serialize(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Header and tensors: the widest numbers first, then by name, so that each stands at a multiple of its width."""
    ordered = sorted(tensors.items(), key=lambda item: (list(DTYPE_CODES).index(item[1].dtype), item[0]))
    header, end = {}, 0
    for name, tensor in ordered:
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPE_CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    header_bytes = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    header_bytes += b" " * (-len(header_bytes) % 8)
    yield len(header_bytes).to_bytes(8, "little") + header_bytes
    for _, tensor in ordered:
        yield tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


class MappedTensors(Mapping[str, Tensor]):
    """The tensors of a safetensors file as its bytes on disk: all processes that map one file share its memory.

    They may be written to, which no other process and not the file will see. They stand at any multiple of eight bytes.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError where the file cannot be read, and SafetensorError where it is not of this format."""
        with safe_open(path, framework="pt"):  # the library checks the header, which is only looked up here
            pass
        with path.open("rb") as file:
            self._mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        size = int.from_bytes(self._mapping[:8], "little")
        header = json.loads(self._mapping[8 : 8 + size])
        header.pop("__metadata__", None)
        dtypes = {code: dtype for dtype, code in DTYPE_CODES.items()}
        if unknown_codes := [entry["dtype"] for entry in header.values() if entry["dtype"] not in dtypes]:
            raise SafetensorError(f"holds numbers of type {unknown_codes[0]}")
        self._entries = {
            name: (dtypes[entry["dtype"]], entry["shape"], 8 + size + entry["data_offsets"][0])
            for name, entry in header.items()
        }

    def __getitem__(self, name: str) -> Tensor:
        dtype, shape, start = self._entries[name]
        if 0 in shape:
            return torch.empty(shape, dtype=dtype)
        count = torch.Size(shape).numel()
        return torch.frombuffer(self._mapping, dtype=dtype, count=count, offset=start).view(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def release(self) -> None:
        """Give the memory back that reading has filled; what is asked for again is read again. Loses what was written."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._mapping.madvise(mmap.MADV_DONTNEED)
