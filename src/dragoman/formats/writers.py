"""Pairs into files of any format but trees: there whole or not at all, and read back as they were."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TextIO, cast

import pyarrow as pa

from dragoman.config import Format
from dragoman.errors import DataError
from dragoman.formats.jsonl import jsonl_of, written_keys
from dragoman.formats.pair import Pair, one_line
from dragoman.formats.parquet import write_parquet
from dragoman.formats.po import po_of
from dragoman.formats.readers import ENDINGS, SIDE_ENDINGS, ending_of
from dragoman.formats.sgm import sgm_of
from dragoman.formats.text import ARCHIVES
from dragoman.formats.tmx import tmx_of
from dragoman.formats.tsv import lines_of, tsv_of
from dragoman.formats.xliff import xliff_of
from dragoman.io.storage import new_file

_ENDINGS = ENDINGS | SIDE_ENDINGS
_BLOCK = 2**16  # characters
_CODE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Written:
    """What came of writing: the file, or that of the source and that of the target, and how many pairs each holds."""

    files: tuple[Path, ...]
    pairs: int


def write_pairs(
    path: Path,
    pairs: Iterable[Pair],
    *,
    format: Format = "auto",
    source_language: str = "",
    target_language: str = "",
    overwrite: bool = False,
) -> Written:
    """Write pairs as they come, compressed as the ending says; `auto` takes the format from the ending beneath that.

    A path without an ending is given the format's. `lines` and `sgm` make two files: of `a.gz`, `a.en.gz` and `a.de.gz`; of
    `a.sgm`, `a-src.en.sgm` and `a-ref.de.sgm`. A line break becomes a space, and so does a tab in a TSV. Raises DataError with
    the pair's origin for what the format cannot hold, and OutputError where a file cannot be written.
    """
    format = _format(path, format, source_language, target_language)
    files = _files(path, format, written_keys(source_language, target_language))
    count = 0

    def held() -> Iterator[Pair]:
        nonlocal count
        for count, pair in enumerate(pairs, start=1):
            yield _fit(pair, count)

    with ExitStack() as stack:
        streams = [stack.enter_context(_new_bytes(file, overwrite=overwrite)) for file in files]
        match format:
            case "lines":
                _write(streams, lines_of(held()))
            case "sgm":
                _write(streams, sgm_of(held(), source_language, target_language))
            case "tsv":
                _write(streams, zip(tsv_of(held())))
            case "jsonl":
                _write(streams, zip(jsonl_of(held(), written_keys(source_language, target_language))))
            case "tmx":
                _write(streams, zip(tmx_of(held(), source_language, target_language)))
            case "xliff":
                _write(streams, zip(xliff_of(held(), source_language, target_language)))
            case "po":
                _write(streams, zip(po_of(held(), target_language)))
            case "parquet":
                write_parquet(streams[0], held(), written_keys(source_language, target_language))
    return Written(files, count)


def _format(path: Path, given: Format, source_language: str, target_language: str) -> Format:
    """The format to write. Raises DataError where it cannot be told, or cannot be written so."""
    if not path.name:
        raise DataError(f"{path}: is a folder; give a name for the file")
    if given == "auto" and ending_of(path) not in _ENDINGS:
        raise DataError(f"{path}: its ending tells no format; known are {' '.join(_ENDINGS)}; name the format")
    format = _ENDINGS[ending_of(path)] if given == "auto" else given
    if format == "brackets":
        raise DataError(f"{path}: trees cannot be written from pairs; choose another format than brackets")
    if format in ("tmx", "xliff") and not (source_language and target_language):
        raise DataError(f"{path}: {format} names its languages; give task.source_language and task.target_language")
    if format == "parquet" and path.suffix in ARCHIVES:
        raise DataError(f"{path}: Parquet is compressed in itself and is not put into an archive; leave {path.suffix} away")
    return format


def _files(path: Path, format: Format, sides: tuple[str, str]) -> tuple[Path, ...]:
    """The files to write: one, or one for each side, named for its language."""
    archive = path.suffix if path.suffix in ARCHIVES else ""
    stem, ending = os.path.splitext(path.name.removesuffix(archive))
    ending = ending or next((usual for usual, its in _ENDINGS.items() if its == format), "")
    if format not in ("lines", "sgm"):
        return (path.with_name(f"{stem}{ending}{archive}"),)
    if wrong := [side for side in sides if not _CODE.fullmatch(side)]:
        raise DataError(f"{path}: {wrong[0]!r} is no language code, and so no part of a file's name")
    if format == "lines":
        return tuple(path.with_name(f"{stem}{ending}.{side}{archive}") for side in sides)
    roles = zip(("src", "ref"), sides, strict=True)
    return tuple(path.with_name(f"{stem}-{role}.{side}{ending}{archive}") for role, side in roles)


def _fit(pair: Pair, number: int) -> Pair:
    """A pair as it can be written: of one line each, in characters that UTF-8 has, and with an origin to name."""
    fitting = Pair(one_line(pair.source), one_line(pair.target), pair.origin or f"pair {number}")
    try:
        fitting.source.encode()
        fitting.target.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{fitting.origin}: holds half a surrogate pair (\\u{ord(error.object[error.start]):04x})") from None
    return fitting


@contextmanager
def _new_bytes(path: Path, *, overwrite: bool) -> Iterator[IO[bytes]]:
    """A file that appears whole or not at all, compressed as its ending says."""
    with new_file(path, overwrite=overwrite) as text:
        plain = cast(TextIO, text).buffer
        match path.suffix:
            case ".gz":
                # Neither time nor name within, so that equal pairs make equal files.
                with gzip.GzipFile("", "wb", fileobj=plain, mtime=0) as packed:
                    yield cast(IO[bytes], packed)
            case ".xz":
                with lzma.LZMAFile(plain, "wb") as packed:
                    yield packed
            case ".bz2":
                with bz2.BZ2File(plain, "wb") as packed:
                    yield packed
            case ".zst":
                # It closes what it writes into, and new_file has yet to see that all of it is on the disk.
                with os.fdopen(os.dup(plain.fileno()), "wb") as twin, pa.CompressedOutputStream(twin, "zstd") as packed:
                    yield packed
            case _:
                yield plain


def _write(streams: Sequence[IO[bytes]], pieces: Iterable[tuple[str, ...]]) -> None:
    """Write each piece's parts into their streams, some thousand characters at once."""
    waiting: list[tuple[str, ...]] = []
    size = 0
    for parts in pieces:
        waiting.append(parts)
        size += len(parts[0])
        if size > _BLOCK:
            _flush(streams, waiting)
            size = 0
    _flush(streams, waiting)


def _flush(streams: Sequence[IO[bytes]], waiting: list[tuple[str, ...]]) -> None:
    for stream, parts in zip(streams, zip(*waiting, strict=True), strict=False):
        stream.write("".join(parts).encode())
    waiting.clear()
