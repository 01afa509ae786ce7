"""Lines of text from files, compressed or not: UTF-8 or a clear no."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import pyarrow as pa

from dragoman.errors import DataError


def open_bytes(path: Path) -> IO[bytes]:
    """The file's bytes, uncompressed as its ending says."""
    match path.suffix:
        case ".gz":
            return cast(IO[bytes], gzip.open(path, "rb"))
        case ".xz":
            return cast(IO[bytes], lzma.open(path, "rb"))
        case ".bz2":
            return cast(IO[bytes], bz2.open(path, "rb"))
        case ".zst":
            return cast(IO[bytes], io.BufferedReader(pa.CompressedInputStream(path.open("rb"), "zstd")))
        case _:
            return path.open("rb")


def read_lines(path: Path | None) -> Iterator[str]:
    """The lines of a file (standard input for None) without their ends. A line ends with \\n or \\r\\n and nothing else.

    Raises DataError naming file and line for a missing file, a broken archive, or bytes that are not UTF-8.
    """
    name = "standard input" if path is None else str(path)
    number = 0
    try:
        stream = sys.stdin.buffer if path is None else open_bytes(path)
        with stream:
            for number, line in enumerate(stream, start=1):
                text = line.decode("utf-8")
                text = text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")
                yield text.removeprefix("\ufeff") if number == 1 else text
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise DataError(f"{name}, line {number}: not UTF-8 (byte 0x{byte:02x} at column {error.start + 1})") from None
    except FileNotFoundError:
        raise DataError(f"{name}: there is no such file") from None
    except IsADirectoryError:
        raise DataError(f"{name}: is a folder, not a file") from None
    except PermissionError:
        raise DataError(f"{name}: may not be read") from None
    except (EOFError, OSError, lzma.LZMAError, zlib.error, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{name}: {f'broken after line {number}' if number else 'cannot be read'}: {reason}") from None
