"""Zip files of a source, read with limits: the size of the directory, and how much an entry may grow when it is unpacked."""

from __future__ import annotations

import io
import mmap
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dragoman.conversion.mapped_arrays import damaged

MAX_DIRECTORY_BYTES = 2**22
"""Size of the longest directory that is read, which suffices for tens of thousands of entries."""
MAX_GROWTH, MIN_BYTES = 20, 2**24
"""All entries that are unpacked have at most `MAX_GROWTH` times the bytes of the file, or `MIN_BYTES`."""
CHUNK_BYTES = 2**20
END_MAGIC, LOCATOR64_MAGIC, END64_MAGIC, ENTRY_MAGIC = b"PK\x05\x06", b"PK\x06\x07", b"PK\x06\x06", b"PK\x03\x04"
ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    ValueError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    EOFError,
    OSError,
)
"""Errors that the standard library raises for damaged files. RuntimeError includes encrypted entries."""


class _MappedReader(io.RawIOBase):
    """File of a mapping. Nothing is left open, because the mapping outlives the descriptor."""

    def __init__(self, mapping: mmap.mmap) -> None:
        super().__init__()
        self._mapping = mapping

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def seekable(self) -> bool:
        """Return that it can be read from anywhere."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place. Raises ValueError for one outside of the file."""
        self._mapping.seek(offset, whence)  # type: ignore[arg-type]
        return self._mapping.tell()

    def tell(self) -> int:
        """Return the place."""
        return self._mapping.tell()

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from here, and return the number of bytes."""
        data = self._mapping.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class ZipArchive:
    """Open zip file.

    Args:
        path: the file, for error messages
        mapping: its bytes

    Raises:
        DataError: it is no zip file, or its directory is damaged or too large.
    """

    def __init__(self, path: Path, mapping: mmap.mmap) -> None:
        self.path = path
        self.mapping = mapping
        try:
            self._check_directory()
            self._zip = zipfile.ZipFile(_MappedReader(mapping))
        except ZIP_ERRORS:
            raise damaged(path, "is not a zip file, or is damaged") from None
        self.entries = {entry.filename: entry for entry in self._zip.infolist() if not entry.is_dir()}
        self._remaining_bytes = max(MIN_BYTES, MAX_GROWTH * len(self.mapping))

    def _check_directory(self) -> None:
        """Raise DataError for a directory that would fill the memory."""
        end = self.mapping.rfind(END_MAGIC, max(0, len(self.mapping) - 2**16 - 22))
        if end < 0:
            raise damaged(self.path, "is not a zip file, or is cut short")
        (size,) = struct.unpack_from("<L", self.mapping, end + 12)
        if end >= 20 and self.mapping[end - 20 : end - 16] == LOCATOR64_MAGIC:
            (end64,) = struct.unpack_from("<Q", self.mapping, end - 12)
            if self.mapping[end64 : end64 + 4] == END64_MAGIC:
                size = max(size, struct.unpack_from("<Q", self.mapping, end64 + 40)[0])
        if size > MAX_DIRECTORY_BYTES:
            raise damaged(self.path, f"its zip directory has {size:,} bytes, more than {MAX_DIRECTORY_BYTES:,}")

    def find_stored(self, name: str) -> tuple[int, int]:
        """Return the offset and the size of an entry that is stored without compression.

        Raises:
            DataError: the entry is compressed, or cut short.
        """
        entry = self.entries[name]
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size or entry.flag_bits & 1:
            raise damaged(self.path, f"its entry {name[:80]!r} is compressed, which neither PyTorch nor Marian does")
        header = self.mapping[entry.header_offset : entry.header_offset + 30]
        if entry.header_offset < 0 or len(header) < 30 or header[:4] != ENTRY_MAGIC:
            raise damaged(self.path, f"its entry {name[:80]!r} is damaged")
        start = entry.header_offset + 30 + sum(struct.unpack_from("<2H", header, 26))
        if start + entry.file_size > len(self.mapping):
            raise damaged(self.path, f"its entry {name[:80]!r} is cut short")
        return start, entry.file_size

    def iter_chunks(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of an entry, unpacked part by part.

        Raises:
            DataError: the entry is damaged, or the unpacked entries have more than `MAX_GROWTH` times the bytes of the file.
        """
        self._remaining_bytes -= self.entries[name].file_size
        if self._remaining_bytes < 0:
            raise damaged(self.path, f"unpacks to more than {MAX_GROWTH} times its size, so it is no model")
        try:
            with self._zip.open(name) as stream:
                while chunk := stream.read(CHUNK_BYTES):
                    yield chunk
        except ZIP_ERRORS:
            raise damaged(self.path, f"its entry {name[:80]!r} is damaged") from None
