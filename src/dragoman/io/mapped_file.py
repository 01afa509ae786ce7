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
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self

FIRST_CHUNK_BYTES, CHUNK_BYTES = 2**18, 2**25
"""Bytes of a copy whose digest is computed at once, at first and at most; their memory is released afterwards."""


@dataclass(frozen=True)
class MappedFile:
    """Bytes of a file. Writing to them changes them for this process alone.

    Attributes:
        path: the file
        content: its bytes
        digest: SHA-256 of the bytes of a copy, which a thread computes; None for a file that is mapped itself
    """

    path: Path
    content: mmap.mmap | bytearray
    digest: Future[str] | None = None

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
        executor = ThreadPoolExecutor(1, "digest")
        try:
            with path.open("rb", buffering=0) as source:
                try:
                    return cls(path, *_copy_to_disk(source, executor))
                except (OSError, ValueError):  # no temporary folder, no room in it, or an empty file
                    source.seek(0)
                    return cls(path, *_read_into_memory(source, executor))
        finally:
            executor.shutdown(wait=False)

    @property
    def checksum(self) -> dict[str, Any] | None:
        """Size and SHA-256 of the bytes of a copy, as a manifest has them; None for a file that is mapped itself."""
        return None if self.digest is None else {"bytes": len(self.content), "sha256": self.digest.result()}

    def release(self) -> None:
        """Release the memory that reading has filled. A later use reads the bytes again; changes to them are lost."""
        if isinstance(self.content, mmap.mmap):
            release_mapping(self.content)


def _copy_to_disk(source: FileIO, executor: ThreadPoolExecutor) -> tuple[mmap.mmap, Future[str]]:
    """Copy a file; the digest follows the copy. It takes twice the time of copying, so each chunk is twice the one before."""
    digest = hashlib.sha256()
    num_bytes, chunk_bytes = 0, FIRST_CHUNK_BYTES
    with TemporaryFile() as target:
        target.truncate(os.fstat(source.fileno()).st_size)
        content = mmap.mmap(target.fileno(), 0, access=mmap.ACCESS_COPY)
        if sys.platform == "linux":
            # The system copies in small blocks, and later maps as little around an address that is read.
            with suppress(OSError):  # a file system without this call
                while count := os.sendfile(target.fileno(), source.fileno(), None, chunk_bytes):
                    executor.submit(_update_digest, digest, content, num_bytes, num_bytes + count)
                    num_bytes, chunk_bytes = num_bytes + count, min(2 * chunk_bytes, CHUNK_BYTES)
        shutil.copyfileobj(source, target)
        target.flush()
    for start in range(num_bytes, len(content), CHUNK_BYTES):
        executor.submit(_update_digest, digest, content, start, start + CHUNK_BYTES)
    return content, executor.submit(digest.hexdigest)


def _update_digest(digest: hashlib._Hash, content: mmap.mmap, start: int, stop: int) -> None:
    with memoryview(content) as view:
        digest.update(view[start:stop])
    release_mapping(content)


def release_mapping(content: mmap.mmap) -> None:
    """Release the memory that reading has filled, where the system can."""
    if hasattr(mmap, "MADV_DONTNEED"):
        content.madvise(mmap.MADV_DONTNEED)


def _read_into_memory(source: FileIO, executor: ThreadPoolExecutor) -> tuple[bytearray, Future[str]]:
    content = bytearray(os.fstat(source.fileno()).st_size)
    num_bytes = 0
    while count := source.readinto(memoryview(content)[num_bytes:]):
        num_bytes += count
    del content[num_bytes:]
    return content, executor.submit(lambda: hashlib.sha256(content).hexdigest())
