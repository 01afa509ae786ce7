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

LONGEST = 2**24
"""Bytes of the longest line, or unit of a format without lines; what is longer is refused before it is read to its end."""
ARCHIVES = (".gz", ".xz", ".bz2", ".zst")
UNREADABLE = (EOFError, OSError, lzma.LZMAError, zlib.error, pa.ArrowException)
"""What reading a file's bytes may raise."""

_CHUNK = 2**17
_PACKED = 2**13  # no more, since what follows a part is copied for each part, and parts may hold nothing
_XZ_MEMORY = 2**28  # bytes; xz -9 asks for 2**26 of its reader, and a hostile file for whatever it likes


def name_of(path: Path | None) -> str:
    """A file's name in messages; standard input for None."""
    return "standard input" if path is None else str(path)


def shown(names: Sequence[str]) -> str:
    """Names from a file, as far as a line of a message bears."""
    told = ", ".join(repr(name) if len(name) <= 40 else f"{name[:40]!r}…" for name in names[:10])
    return (told or "nothing") + (", …" if len(names) > 10 else "")


def open_bytes(path: Path | None) -> IO[bytes]:
    """The file's bytes (standard input's for None), uncompressed as its ending says."""
    if path is None:
        return sys.stdin.buffer
    if path.suffix in ARCHIVES and path.is_file() and not path.stat().st_size:
        raise EOFError(f"an empty file is no {path.suffix} archive")
    match path.suffix:
        case ".gz":
            return cast(IO[bytes], io.BufferedReader(gzip.GzipFile(path, "rb"), _CHUNK))
        case ".xz":
            unxz = partial(lzma.LZMADecompressor, memlimit=_XZ_MEMORY)
            return cast(IO[bytes], io.BufferedReader(_Parts(path.open("rb"), unxz, padding=b"\0"), _CHUNK))
        case ".bz2":
            return cast(IO[bytes], io.BufferedReader(_Parts(path.open("rb"), bz2.BZ2Decompressor), _CHUNK))
        case ".zst":
            return cast(IO[bytes], io.BufferedReader(pa.CompressedInputStream(path.open("rb"), "zstd"), _CHUNK))
        case _:
            return path.open("rb")


class _Parts(io.RawIOBase):
    """An archive of one part or several, unpacked. The standard library takes damage from the second part on for the end."""

    def __init__(
        self, packed: IO[bytes], part: Callable[[], lzma.LZMADecompressor | bz2.BZ2Decompressor], *, padding: bytes = b""
    ) -> None:
        self._packed = packed
        self._new_part = part
        self._padding = padding
        self._part = part()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        room = memoryview(buffer)
        while True:
            packed = b""
            if self._part.eof:
                packed = self._part.unused_data.lstrip(self._padding) or self._after_part()
                if not packed:
                    return 0
                self._part = self._new_part()
            elif self._part.needs_input and not (packed := self._packed.read(_PACKED)):
                raise EOFError("the archive is cut short")
            unpacked = self._part.decompress(packed, max_length=len(room))
            if unpacked:
                room[: len(unpacked)] = unpacked
                return len(unpacked)

    def _after_part(self) -> bytes:
        """The first bytes behind a part that are no padding."""
        while packed := self._packed.read(_PACKED):
            if packed := packed.lstrip(self._padding):
                return packed
        return b""

    def close(self) -> None:
        self._packed.close()
        super().close()


def read_lines(path: Path | None, *, hint: str = "") -> Iterator[str]:
    """The lines of a file (standard input for None) without their ends. A line ends with \\n or \\r\\n and nothing else.

    Raises DataError naming file and line for a missing file, a broken archive, a line longer than `LONGEST`, or bytes that are
    not UTF-8, where `hint` says what to do.
    """
    name = name_of(path)
    number = 0
    try:
        with open_bytes(path) as stream:
            for lines, ended in _blocks(cast(io.BufferedReader, stream)):
                done = number
                for number, line in enumerate(lines, start=done + 1):
                    if len(line) > LONGEST:
                        raise DataError(f"{name}, line {number}: longer than {LONGEST >> 20} MiB, which no sentence is")
                    text = line.decode("utf-8")
                    if ended:
                        text = text.removesuffix("\r")
                    yield text.removeprefix("\ufeff") if number == 1 else text
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise DataError(
            f"{name}, line {number}: not UTF-8 (byte 0x{byte:02x} at column {error.start + 1}){hint and '; '}{hint}"
        ) from None
    except UNREADABLE as error:
        raise unreadable(path, error, after=f"line {number}" if number else "") from None


def _blocks(stream: io.BufferedReader) -> Iterator[tuple[list[bytes], bool]]:
    """The lines of a file without \\n, as many at once as one reading of it completes, and whether they had one.

    A line longer than `LONGEST` comes cut, as the last.
    """
    begun: list[bytes] = []
    size = 0
    while size <= LONGEST and (chunk := stream.read1(_CHUNK)):
        *whole, rest = chunk.split(b"\n")
        if whole:
            whole[0] = b"".join((*begun, whole[0]))
            begun, size = [], 0
            yield whole, True
        begun.append(rest)
        size += len(rest)
    if size:
        yield [b"".join(begun)], False


def unreadable(path: Path | None, error: Exception, *, after: str = "") -> DataError:
    """The answer to an error of `UNREADABLE`; `after` names the last thing that could be read."""
    name = name_of(path)
    match error:
        case FileNotFoundError():
            return DataError(f"{name}: there is no such file")
        case IsADirectoryError():
            return DataError(f"{name}: is a folder, not a file")
        case PermissionError():
            return DataError(f"{name}: may not be read")
    reason = reason_of(str(getattr(error, "strerror", None) or error)) or type(error).__name__
    return DataError(f"{name}: {f'broken after {after}' if after else 'cannot be read'}: {reason}")


def reason_of(message: str) -> str:
    """What a library says of a damaged file, fit for one line: it may quote the damage."""
    line = " ".join(message.split())[:160]
    return "".join(character if character.isprintable() else "\ufffd" for character in line)


def read_beside(first: Path, second: Path) -> tuple[list[str], list[str]]:
    """The lines of two files that belong together, line by line. Raises DataError where one has more."""
    lines, others = list(read_lines(first)), list(read_lines(second))
    if len(lines) != len(others):
        raise DataError(
            f"{first} has {len(lines)} lines but {second} has {len(others)}: line n of one belongs to line n of the other"
        )
    return lines, others
