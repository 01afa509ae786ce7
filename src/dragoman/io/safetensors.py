"""Tensors on disk in the safetensors format: written with their digest, and mapped into memory for reading as NumPy arrays."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from dragoman.io.bfloat16 import BFLOAT16, widen
from dragoman.io.mapped_file import MappedFile
from dragoman.io.storage import write_with_digest

# Type names of the format, in the order in which a file stores tensors of these types.
DTYPE_CODES = {
    "int64": "I64", "float64": "F64", "float32": "F32", "int32": "I32", "bfloat16": "BF16",
    "float16": "F16", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


class StoredTensor(Protocol):
    """Array of NumPy or tensor of PyTorch."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True)
class TensorStream:
    """Tensor that is computed while it is written, so that it is never in memory as a whole.

    Attributes:
        shape: its shape
        dtype: its type, of NumPy or of PyTorch
        iter_chunks: returns its parts, in order; together they have as many values as the shape
        release: is called after each part was written, so that mapped memory can be released
    """

    shape: tuple[int, ...]
    dtype: Any
    iter_chunks: Callable[[], Iterator[Any]]
    release: Callable[[], None] = lambda: None

    @classmethod
    def of(cls, array: NDArray[Any]) -> TensorStream:
        """Return the stream of an array in memory."""
        return cls(array.shape, array.dtype, lambda: iter([array]))

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the whole tensor in bytes."""
        return self.size * int(self.dtype.itemsize)


def get_dtype_name(tensor: StoredTensor) -> str:
    """Return the name of a tensor's type, such as "float32"."""
    name = str(tensor.dtype).removeprefix("torch.")
    return "bfloat16" if name == str(BFLOAT16) else name


def is_floating_point(tensor: StoredTensor) -> bool:
    """Return whether a tensor holds floating-point numbers."""
    kind = getattr(tensor.dtype, "kind", "")  # the names of NumPy's types take time
    return kind == "f" or (kind not in ("b", "i", "u") and "float" in get_dtype_name(tensor))


def save_tensors(path: Path, tensors: Mapping[str, StoredTensor], *, metadata: Mapping[str, str] | None = None) -> str:
    """Write a new safetensors file and return the SHA-256 of its intended content. Raise OSError if it cannot be written.

    The bytes equal those of the safetensors library, which returns no digest, hides `errno` and copies all tensors first.
    """
    return write_with_digest(path, _serialize(tensors, metadata or {}))


def _serialize(tensors: Mapping[str, StoredTensor], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """Yield the header, then the tensors by descending item size and by name, so that each is aligned to its item size."""
    ordered = sorted(tensors.items(), key=lambda item: (list(DTYPE_CODES).index(get_dtype_name(item[1])), item[0]))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": DTYPE_CODES[get_dtype_name(tensor)], "shape": list(tensor.shape), "data_offsets": [start, end]
        }  # fmt: skip
    header_bytes = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    header_bytes += b" " * (-len(header_bytes) % 8)
    yield len(header_bytes).to_bytes(8, "little") + header_bytes
    for _, tensor in ordered:
        if not isinstance(tensor, TensorStream):
            yield _get_bytes(tensor)
            continue
        for chunk in tensor.iter_chunks():
            yield _get_bytes(chunk)
            tensor.release()


def _get_bytes(tensor: Any) -> memoryview:
    if isinstance(tensor, np.ndarray):
        return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data
    import torch  # only a program that has tensors of PyTorch comes here

    contents: memoryview = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
    return contents


class TensorFile:
    """Header of a mapped safetensors file. A tensor starts at a multiple of its item size after the header.

    metadata: texts of the header
    entries: name of the type, shape, and first byte of each tensor
    """

    def __init__(self, file: MappedFile) -> None:
        """Read the header. Raise OSError if the file cannot be read, and SafetensorError if it does not follow the format."""
        with safe_open(file.path, framework="np"):  # the library checks the header
            pass
        self.file = file
        size = int.from_bytes(file.content[:8], "little")
        try:
            header = json.loads(file.content[8 : 8 + size])
        except ValueError:
            raise SafetensorError("the file has changed while it was read") from None
        self.metadata: dict[str, str] = header.pop("__metadata__", None) or {}
        names = {code: name for name, code in DTYPE_CODES.items()}
        if unknown_codes := [entry["dtype"] for entry in header.values() if entry["dtype"] not in names]:
            raise SafetensorError(f"holds numbers of the unknown type {unknown_codes[0]}")
        self.entries: dict[str, tuple[str, tuple[int, ...], int]] = {
            name: (names[entry["dtype"]], tuple(entry["shape"]), 8 + size + entry["data_offsets"][0])
            for name, entry in header.items()
        }

    def release(self) -> None:
        """Release the memory that reading has filled. A later use reads the file again; changes to tensors are lost."""
        self.file.release()


class StoredArrays(Mapping[str, NDArray[Any]]):
    """Arrays of a mapped safetensors file. NumPy has no bfloat16, so its numbers are copied as float32.

    keeps_bfloat16: its numbers are of the type `BFLOAT16`, without a copy
    """

    def __init__(self, file: MappedFile, *, keeps_bfloat16: bool = False) -> None:
        """Read the header; see `TensorFile`."""
        self._file = TensorFile(file)
        self._keeps_bfloat16 = keeps_bfloat16
        self.release = self._file.release

    def __getitem__(self, name: str) -> NDArray[Any]:
        dtype_name, shape, start = self._file.entries[name]
        dtype = BFLOAT16 if dtype_name == "bfloat16" else np.dtype(dtype_name)
        count = math.prod(shape)
        values = np.frombuffer(self._file.file.content, dtype, count, start) if count else np.empty(0, dtype)
        array = values.reshape(shape)
        return widen(array) if dtype == BFLOAT16 and not self._keeps_bfloat16 else array

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.entries)

    def __len__(self) -> int:
        return len(self._file.entries)
