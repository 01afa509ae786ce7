"""Bytes of a file in memory: mapped from the file itself, or from a copy that nothing on disk can change.

A program that overwrites a file changes the bytes that are mapped from it. A program that cuts it ends the processes that read
them. So what is used for longer than a moment is mapped from a copy.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self

CHUNK_BYTES = 2**25
"""Bytes of a copy whose digest is computed at once, after which their memory is released."""


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
        if isinstance(self.content, mmap.mmap):
            release_mapping(self.content)


def _copy_to_disk(source: FileIO) -> tuple[mmap.mmap | bytearray, str]:
    with TemporaryFile() as target:
        if sys.platform == "linux":
            # The system copies in small blocks, and later maps as little around an address that is read.
            with suppress(OSError):  # a file system without this call
                while os.sendfile(target.fileno(), source.fileno(), None, CHUNK_BYTES):
                    pass
        shutil.copyfileobj(source, target)
        target.flush()
        content = mmap.mmap(target.fileno(), 0, access=mmap.ACCESS_COPY)
    digest = hashlib.sha256()
    with memoryview(content) as view:
        for start in range(0, len(view), CHUNK_BYTES):
            digest.update(view[start : start + CHUNK_BYTES])
            release_mapping(content)
    return content, digest.hexdigest()


def release_mapping(content: mmap.mmap) -> None:
    """Release the memory that reading has filled, where the system can."""
    if hasattr(mmap, "MADV_DONTNEED"):
        content.madvise(mmap.MADV_DONTNEED)


def _read_into_memory(source: FileIO) -> tuple[mmap.mmap | bytearray, str]:
    content = bytearray(os.fstat(source.fileno()).st_size)
    num_bytes = 0
    while count := source.readinto(memoryview(content)[num_bytes:]):
        num_bytes += count
    del content[num_bytes:]
    return content, hashlib.sha256(content).hexdigest()
