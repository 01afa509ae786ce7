"""Bytes of a file in memory: mapped from the file itself, or from a copy that nothing on disk can change.

A program that overwrites a file changes the bytes that are mapped from it. A program that cuts it ends the processes that read
them. So what is used for longer than a moment is mapped from a copy.
"""

from __future__ import annotations

import mmap
import os
import shutil
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Self

from dragoman.io.checksums import CHECKSUMS

CHUNK_BYTES = 2**25
"""Bytes of a copy whose checksum is computed at once; their memory is released afterwards."""


@dataclass(frozen=True)
class MappedFile:
    """Bytes of a file. Writing to them changes them for this process alone.

    Attributes:
        path: the file
        content: its bytes
        checksum: size and checksum of a copy, as a manifest has them, which a thread computes; None for a file mapped itself
    """

    path: Path
    content: mmap.mmap | bytearray
    checksum: Future[dict[str, Any]] | None = None

    @classmethod
    def map(cls, path: Path) -> Self:
        """Map a file, which all processes that map it share. Raise OSError or ValueError if it cannot be read or is empty."""
        with path.open("rb") as file:
            return cls(path, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))

    @classmethod
    def copy(cls, path: Path, algorithm: str) -> Future[Self]:
        """Map a copy in a temporary file without a name, or read the file into memory where there is no room for one.

        A thread copies. The files are opened before, so that it does not wait for the caller's thread before it copies.
        algorithm: name of the checksum, see `CHECKSUMS`

        Raise OSError if the file cannot be opened. The future raises it if the file cannot be read.
        """
        source = path.open("rb", buffering=0)
        target = _map_new_file(os.fstat(source.fileno()).st_size)
        executor = ThreadPoolExecutor(1, "copies")
        future = executor.submit(cls._copy, path, source, target, algorithm)
        executor.shutdown(wait=False)
        return future

    @classmethod
    def _copy(cls, path: Path, source: FileIO, target: tuple[IO[bytes], mmap.mmap] | None, algorithm: str) -> Self:
        executor = ThreadPoolExecutor(1, "checksum")
        try:
            with source:
                if target is not None:
                    with suppress(OSError), target[0]:  # no room
                        return cls(path, target[1], _copy_to_disk(source, *target, algorithm, executor))
                    source.seek(0)
                return cls(path, *_read_into_memory(source, algorithm, executor))
        finally:
            executor.shutdown(wait=False)

    def release(self) -> None:
        """Release the memory that reading has filled. A later use reads the bytes again; changes to them are lost."""
        if isinstance(self.content, mmap.mmap):
            release_mapping(self.content)


def _map_new_file(size: int) -> tuple[IO[bytes], mmap.mmap] | None:
    """Return a temporary file without a name, and its bytes; None without a temporary folder, without room, or for no bytes."""
    with suppress(OSError, ValueError), ExitStack() as opened:
        file = opened.enter_context(TemporaryFile())
        file.truncate(size)
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        opened.pop_all()
        return file, content
    return None


def _copy_to_disk(
    source: FileIO, target: IO[bytes], content: mmap.mmap, algorithm: str, executor: ThreadPoolExecutor
) -> Future[dict[str, Any]]:
    """Copy a file; the checksum follows the copy. Chunks are large, because this thread waits for the caller's after each."""
    checksum = CHECKSUMS[algorithm]()
    num_bytes = 0
    if sys.platform == "linux":
        # The system copies in small blocks, and later maps as little around an address that is read.
        with suppress(OSError):  # a file system without this call
            while count := os.sendfile(target.fileno(), source.fileno(), None, CHUNK_BYTES):
                executor.submit(_update_checksum, checksum, content, num_bytes, num_bytes + count)
                num_bytes += count
    shutil.copyfileobj(source, target)
    target.flush()
    for start in range(num_bytes, len(content), CHUNK_BYTES):
        executor.submit(_update_checksum, checksum, content, start, start + CHUNK_BYTES)
    return executor.submit(_list_checksum, content, algorithm, checksum)


def _update_checksum(checksum: Any, content: mmap.mmap, start: int, stop: int) -> None:
    with memoryview(content) as view:
        checksum.update(view[start:stop])
    release_mapping(content)


def _list_checksum(content: mmap.mmap | bytearray, algorithm: str, checksum: Any) -> dict[str, Any]:
    return {"bytes": len(content), algorithm: checksum.hexdigest()}


def release_mapping(content: mmap.mmap) -> None:
    """Release the memory that reading has filled, where the system can."""
    if hasattr(mmap, "MADV_DONTNEED"):
        content.madvise(mmap.MADV_DONTNEED)


def _read_into_memory(source: FileIO, algorithm: str, executor: ThreadPoolExecutor) -> tuple[bytearray, Future[dict[str, Any]]]:
    content = bytearray(os.fstat(source.fileno()).st_size)
    num_bytes = 0
    while count := source.readinto(memoryview(content)[num_bytes:]):
        num_bytes += count
    del content[num_bytes:]
    checksum = CHECKSUMS[algorithm]()
    executor.submit(checksum.update, content)
    return content, executor.submit(_list_checksum, content, algorithm, checksum)
