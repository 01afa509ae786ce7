"""Lines of text from files, compressed or not: UTF-8 or a clear no."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import pyarrow as pa

from dragoman.errors import DataError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_LINE_BYTES = 2**24
"""Bytes of the longest line, or unit of a format without lines; what is longer is refused before it is read to its end."""
COMPRESSED_SUFFIXES = (".gz", ".xz", ".bz2", ".zst")
READ_ERRORS = (EOFError, OSError, lzma.LZMAError, zlib.error, pa.ArrowException)
"""What reading a file's bytes may raise."""

_CHUNK_BYTES = 2**17
_COMPRESSED_CHUNK_BYTES = 2**13  # no more, since what follows a part is copied for each part, and parts may hold nothing
_XZ_MEMORY_LIMIT = 2**28  # bytes; xz -9 asks for 2**26 of its reader, and a hostile file for whatever it likes


def describe_path(path: Path | None) -> str:
    """A file's name in messages; standard input for None."""
    return "standard input" if path is None else str(path)


def quote_names(names: Sequence[str]) -> str:
    """Names from a file, as far as a line of a message bears."""
    quoted = ", ".join(repr(name) if len(name) <= 40 else f"{name[:40]!r}…" for name in names[:10])
    return (quoted or "nothing") + (", …" if len(names) > 10 else "")


def open_bytes(path: Path | None) -> IO[bytes]:
    """The file's bytes (standard input's for None), uncompressed as its ending says."""
    if path is None:
        return sys.stdin.buffer
    if path.suffix in COMPRESSED_SUFFIXES and path.is_file() and not path.stat().st_size:
        raise EOFError(f"an empty file is no {path.suffix} archive")
    match path.suffix:
        case ".gz":
            return cast(IO[bytes], io.BufferedReader(gzip.GzipFile(path, "rb"), _CHUNK_BYTES))
        case ".xz":
            make_decompressor = partial(lzma.LZMADecompressor, memlimit=_XZ_MEMORY_LIMIT)
            return cast(
                IO[bytes],
                io.BufferedReader(_MultiStreamReader(path.open("rb"), make_decompressor, padding=b"\0"), _CHUNK_BYTES),
            )
        case ".bz2":
            return cast(IO[bytes], io.BufferedReader(_MultiStreamReader(path.open("rb"), bz2.BZ2Decompressor), _CHUNK_BYTES))
        case ".zst":
            return cast(IO[bytes], io.BufferedReader(pa.CompressedInputStream(path.open("rb"), "zstd"), _CHUNK_BYTES))
        case _:
            return path.open("rb")


class _MultiStreamReader(io.RawIOBase):
    """An archive of one part or several, unpacked. The standard library takes damage from the second part on for the end."""

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
        """The first bytes behind a part that are no padding."""
        while compressed := self._stream.read(_COMPRESSED_CHUNK_BYTES):
            if compressed := compressed.lstrip(self._padding):
                return compressed
        return b""

    def close(self) -> None:
        self._stream.close()
        super().close()


def read_lines(path: Path | None, *, hint: str = "") -> Iterator[str]:
    """The lines of a file (standard input for None) without their ends. A line ends with \\n or \\r\\n and nothing else.

    Raises DataError naming file and line for a missing file, a broken archive, a line longer than `LONGEST`, or bytes that are
    not UTF-8, where `hint` says what to do.
    """
    name = describe_path(path)
    number = 0
    try:
        with open_bytes(path) as stream:
            for lines, has_newline in _read_line_blocks(cast(io.BufferedReader, stream)):
                previous_lines = number
                for number, line in enumerate(lines, start=previous_lines + 1):
                    if len(line) > MAX_LINE_BYTES:
                        raise DataError(f"{name}, line {number}: longer than {MAX_LINE_BYTES >> 20} MiB, which no sentence is")
                    text = line.decode("utf-8")
                    if has_newline:
                        text = text.removesuffix("\r")
                    yield text.removeprefix("\ufeff") if number == 1 else text
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise DataError(
            f"{name}, line {number}: not UTF-8 (byte 0x{byte:02x} at column {error.start + 1}){hint and '; '}{hint}"
        ) from None
    except READ_ERRORS as error:
        raise to_data_error(path, error, last_position=f"line {number}" if number else "") from None


def _read_line_blocks(stream: io.BufferedReader) -> Iterator[tuple[list[bytes], bool]]:
    """The lines of a file without \\n, as many at once as one reading of it completes, and whether they had one.

    A line longer than `LONGEST` comes cut, as the last.
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
    """The answer to an error of `UNREADABLE`; `after` names the last thing that could be read."""
    name = describe_path(path)
    match error:
        case FileNotFoundError():
            return DataError(f"{name}: there is no such file")
        case IsADirectoryError():
            return DataError(f"{name}: is a folder, not a file")
        case PermissionError():
            return DataError(f"{name}: may not be read")
    reason = format_reason(str(getattr(error, "strerror", None) or error)) or type(error).__name__
    return DataError(f"{name}: {f'broken after {last_position}' if last_position else 'cannot be read'}: {reason}")


def format_reason(message: str) -> str:
    """What a library says of a damaged file, fit for one line: it may quote the damage."""
    line = " ".join(message.split())[:160]
    return "".join(character if character.isprintable() else "\ufffd" for character in line)


def read_parallel_lines(first_path: Path, second_path: Path) -> tuple[list[str], list[str]]:
    """The lines of two files that belong together, line by line. Raises DataError where one has more."""
    first_lines, second_lines = list(read_lines(first_path)), list(read_lines(second_path))
    if len(first_lines) != len(second_lines):
        raise DataError(
            f"{first_path} has {len(first_lines)} lines but {second_path} has {len(second_lines)}: line n of one belongs to line n of the other"
        )
    return first_lines, second_lines
