"""Bytes of a file in memory: mapped from the file itself, or from a copy that nothing on disk can change.

A program that overwrites a file changes the bytes that are mapped from it. A program that cuts it ends the processes that read
them. So what is used for longer than a moment is mapped from a copy.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self

from dragoman.io.storage import CHUNK_BYTES, write_chunks


@dataclass(frozen=True)
class MappedFile:
    """Bytes of a file. Writing to them changes them for this process alone.

    Attributes:
        path: the file
        content: its bytes
        checksum: size and SHA-256 of the bytes of a copy, as a manifest has them
    """

    path: Path
    content: mmap.mmap | bytearray
    checksum: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def map(cls, path: Path) -> Self:
        """Map a file, which all processes that map it share. Raise OSError or ValueError if it cannot be read or is empty."""
        with path.open("rb") as file:
            return cls(path, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))

    @classmethod
    def copy(cls, path: Path) -> Self:
        """Map a copy in a temporary file without a name, or read the file into memory where there is no room for one.

        Raise OSError if the file cannot be read.
        """
        with path.open("rb", buffering=0) as source:
            try:
                content, digest = _copy_to_disk(source)
            except (OSError, ValueError):  # no temporary folder, no room in it, or an empty file
                source.seek(0)
                content, digest = _read_into_memory(source)
        return cls(path, content, {"bytes": len(content), "sha256": digest})

    def release(self) -> None:
        """Release the memory that reading has filled. A later use reads the bytes again; changes to them are lost."""
        if isinstance(self.content, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            self.content.madvise(mmap.MADV_DONTNEED)


def _copy_to_disk(source: FileIO) -> tuple[mmap.mmap | bytearray, str]:
    with TemporaryFile(buffering=0) as target:
        digest = write_chunks(target, iter(lambda: source.read(CHUNK_BYTES), b""))
        return mmap.mmap(target.fileno(), 0, access=mmap.ACCESS_COPY), digest


def _read_into_memory(source: FileIO) -> tuple[mmap.mmap | bytearray, str]:
    content = bytearray(os.fstat(source.fileno()).st_size)
    num_bytes = 0
    while count := source.readinto(memoryview(content)[num_bytes:]):
        num_bytes += count
    del content[num_bytes:]
    return content, hashlib.sha256(content).hexdigest()
