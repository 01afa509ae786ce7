"""Reader of text lines in UTF-8 from plain and compressed files."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import sys
import unicodedata
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from dragoman.errors import DataError, MissingDependencyError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_LINE_BYTES = 2**24
"""Largest number of bytes in a line, or in a unit of a format without lines. Longer ones raise an error while they are read."""
COMPRESSED_SUFFIXES = (".gz", ".xz", ".bz2", ".zst")
READ_ERRORS = (EOFError, OSError, lzma.LZMAError, zlib.error)
"""Exceptions that reading the bytes of a file may raise."""

_CHUNK_BYTES = 2**17
_COMPRESSED_CHUNK_BYTES = 2**13  # small, because each part of an archive copies the bytes behind it, and a part may be empty
_XZ_MEMORY_LIMIT = 2**28  # bytes; xz -9 needs 2**26, and a hostile file may ask for any amount


@dataclass
class ByteCounter:
    """Number of bytes that this process has read from corpus files, before decompression."""

    num_bytes: int = 0


BYTE_COUNTER = ByteCounter()


def describe_path(path: Path | None) -> str:
    """Return the name of a file in messages; None is standard input."""
    return "standard input" if path is None else str(path)


def is_blank(text: str) -> bool:
    """Return whether a text is empty, or has spaces, controls and characters without width only."""
    return all(unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Zs") for character in text)


def quote_names(names: Sequence[str]) -> str:
    """Return names from a file in quotes, at most ten of them and 40 characters of each."""
    quoted = ", ".join(repr(name) if len(name) <= 40 else f"{name[:40]!r}…" for name in names[:10])
    return (quoted or "nothing") + (", …" if len(names) > 10 else "")


def open_bytes(path: Path | None) -> IO[bytes]:
    """Open a file for reading, and decompress it by its ending. None is standard input."""
    if path is None:
        return sys.stdin.buffer
    if path.suffix in COMPRESSED_SUFFIXES and path.is_file() and not path.stat().st_size:
        raise EOFError(f"the file is empty, so it is not a {path.suffix} archive")
    match path.suffix:
        case ".gz":
            return cast(IO[bytes], io.BufferedReader(_GzipReader(_open_raw(path)), _CHUNK_BYTES))
        case ".xz":
            make_decompressor = partial(lzma.LZMADecompressor, memlimit=_XZ_MEMORY_LIMIT)
            reader = _MultiStreamReader(_open_raw(path), make_decompressor, padding=b"\0")
            return cast(IO[bytes], io.BufferedReader(reader, _CHUNK_BYTES))
        case ".bz2":
            reader = _MultiStreamReader(_open_raw(path), bz2.BZ2Decompressor)
            return cast(IO[bytes], io.BufferedReader(reader, _CHUNK_BYTES))
        case ".zst":
            return cast(IO[bytes], io.BufferedReader(_ZstdReader(_open_raw(path)), _CHUNK_BYTES))
        case _:
            return _open_raw(path)


def _open_raw(path: Path) -> IO[bytes]:
    return cast(IO[bytes], io.BufferedReader(_CountingFile(path), _CHUNK_BYTES))


class _CountingFile(io.FileIO):
    """Raw file that adds the bytes it reads to `BYTE_COUNTER`."""

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        count = super().readinto(buffer) or 0
        BYTE_COUNTER.num_bytes += count
        return count


class _GzipReader(gzip.GzipFile):
    """Reader of a gzip archive that closes the stream it reads from."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(fileobj=stream, mode="rb")
        self._stream = stream

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._stream.close()


class _ZstdReader(io.RawIOBase):
    """Reader of a zstd archive, whose errors are OSError as those of the standard library."""

    def __init__(self, stream: IO[bytes]) -> None:
        try:
            import pyarrow as pa  # takes a quarter of a second, and few programs read such files
        except ModuleNotFoundError:
            raise MissingDependencyError("pyarrow", "parquet", "reading a zstd archive") from None

        self._reader, self._error = pa.CompressedInputStream(stream, "zstd"), pa.ArrowException

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        try:
            return cast(int, self._reader.readinto(buffer))
        except self._error as error:
            raise OSError(str(error)) from error

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._reader.close()


class _MultiStreamReader(io.RawIOBase):
    """Reader of an archive with one part or several.

    The readers of the standard library take damage after the first part for the end of the file.
    """

    def __init__(
        self,
        stream: IO[bytes],
        make_decompressor: Callable[[], lzma.LZMADecompressor | bz2.BZ2Decompressor],
        *,
        padding: bytes = b"",
    ) -> None:
        self._stream = stream
        self._make_decompressor = make_decompressor
        self._padding = padding
        self._decompressor = make_decompressor()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer)
        while True:
            compressed = b""
            if self._decompressor.eof:
                compressed = self._decompressor.unused_data.lstrip(self._padding) or self._read_past_padding()
                if not compressed:
                    return 0
                self._decompressor = self._make_decompressor()
            elif self._decompressor.needs_input and not (compressed := self._stream.read(_COMPRESSED_CHUNK_BYTES)):
                raise EOFError("the archive is cut short")
            data = self._decompressor.decompress(compressed, max_length=len(view))
            if data:
                view[: len(data)] = data
                return len(data)

    def _read_past_padding(self) -> bytes:
        """Return the first bytes after a part that are not padding."""
        while compressed := self._stream.read(_COMPRESSED_CHUNK_BYTES):
            if compressed := compressed.lstrip(self._padding):
                return compressed
        return b""

    def close(self) -> None:
        self._stream.close()
        super().close()


UTF8_HINT = "convert the text to UTF-8, as by iconv -f WINDOWS-1252 -t UTF-8 FILE"


def read_lines(path: Path | None, *, hint: str = UTF8_HINT, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the lines of a file without their ends. Only \\n and \\r\\n end a line. A path of None is standard input.

    hint: advice at the end of the error message for bytes that are not of the encoding
    encoding: Python's name of an encoding whose line breaks are those of ASCII

    Raises DataError, which names file and line, for a missing file, a damaged archive, a line over MAX_LINE_BYTES, or bytes
    that are not of the encoding.
    """
    name = describe_path(path)
    number = 0
    try:
        with open_bytes(path) as stream:
            for lines, has_newline in _read_line_blocks(cast(io.BufferedReader, stream)):
                previous_lines = number
                for number, line in enumerate(lines, start=previous_lines + 1):
                    if len(line) > MAX_LINE_BYTES:
                        raise DataError(
                            f"{name}, line {number}: longer than {MAX_LINE_BYTES >> 20} MiB; split the line",
                            code="input-too-long",
                        )
                    text = line.decode(encoding)
                    if has_newline:
                        text = text.removesuffix("\r")
                    yield text.removeprefix("\ufeff") if number == 1 else text
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        if number == 1 and error.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            hint = "the file is UTF-16; convert it, such as by iconv -f UTF-16 -t UTF-8"
        raise DataError(
            f"{name}, line {number}: not {encoding.upper()} (byte 0x{byte:02x} at column {error.start + 1}); {hint}",
            code="invalid-encoding",
        ) from None
    except READ_ERRORS as error:
        raise to_data_error(path, error, last_position=f"line {number}" if number else "") from None


def _read_line_blocks(stream: io.BufferedReader) -> Iterator[tuple[list[bytes], bool]]:
    """Yield blocks of lines without \\n, and whether each line of the block ended with \\n.

    A block holds the lines that one read of the file completes. A line over MAX_LINE_BYTES is cut and ends the file.
    """
    pending: list[bytes] = []
    size = 0
    while size <= MAX_LINE_BYTES and (chunk := stream.read1(_CHUNK_BYTES)):
        *complete_lines, incomplete_line = chunk.split(b"\n")
        if complete_lines:
            complete_lines[0] = b"".join((*pending, complete_lines[0]))
            pending, size = [], 0
            yield complete_lines, True
        pending.append(incomplete_line)
        size += len(incomplete_line)
    if size:
        yield [b"".join(pending)], False


def to_data_error(path: Path | None, error: Exception, *, last_position: str = "") -> DataError:
    """Return the DataError for an exception of `READ_ERRORS`.

    last_position: last line, row or unit that could be read, such as `line 7`; empty if there was none
    """
    name = describe_path(path)
    match error:
        case FileNotFoundError():
            return DataError(f"{name}: there is no such file; check its name and its folder", code="file-not-found")
        case IsADirectoryError():
            return DataError(f"{name}: is a folder; give a file", code="file-unreadable")
        case PermissionError():
            return DataError(f"{name}: no permission to read it", code="file-unreadable")
    reason = format_reason(str(getattr(error, "strerror", None) or error)) or type(error).__name__
    return DataError(
        f"{name}: {f'damaged after {last_position}' if last_position else 'cannot be read'}: {reason}",
        code="invalid-format" if last_position else "file-unreadable",
    )


def format_reason(message: str) -> str:
    """Return a library's message about a damaged file as one printable line, since it may quote the damage."""
    line = " ".join(message.split())[:160]
    return "".join(character if character.isprintable() else "\ufffd" for character in line)
