"""Writer of pairs into text, TSV, JSON lines, TMX and Parquet. A file appears only when all of it is written."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Literal, TextIO, cast, get_args

from dragoman.errors import DataError, MissingDependencyError
from dragoman.formats.jsonl import choose_output_keys, format_jsonl
from dragoman.formats.pair import Pair, to_single_line
from dragoman.formats.readers import SIDE_SUFFIX_FORMATS, SUFFIX_FORMATS, get_format_suffix
from dragoman.formats.text import COMPRESSED_SUFFIXES
from dragoman.formats.tmx import format_tmx
from dragoman.formats.tsv import format_lines, format_tsv
from dragoman.io.storage import atomic_write

WritableFormat = Literal["lines", "tsv", "jsonl", "tmx", "parquet"]
"""Format of written pairs. The other formats are only read."""
_WRITABLE_FORMATS: tuple[WritableFormat, ...] = get_args(WritableFormat)
_ALL_SUFFIX_FORMATS = SUFFIX_FORMATS | SIDE_SUFFIX_FORMATS
_WRITABLE_SUFFIXES = {suffix: name for suffix, name in SUFFIX_FORMATS.items() if name in _WRITABLE_FORMATS}
_BLOCK_CHARACTERS = 2**16  # characters
_LANGUAGE_CODE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class WrittenFiles:
    """Written files, one or one for each side, and the number of pairs."""

    files: tuple[Path, ...]
    num_pairs: int


def write_pairs(
    path: Path,
    pairs: Iterable[Pair],
    *,
    file_format: WritableFormat | Literal["auto"] = "auto",
    source_language: str = "",
    target_language: str = "",
    overwrite: bool = False,
) -> WrittenFiles:
    """Write a stream of pairs, and compress it by its ending.

    The format `auto` is that of the ending without the ending of an archive. A path without an ending gets that of the format.
    The format `lines` makes two files: `a.en.gz` and `a.de.gz` for `a.gz`. A line break becomes a space, and so does a tab in
    a TSV.

    Raises DataError for a format that is only read, and for characters that the format cannot hold. The latter names the
    pair's origin. Raises OutputError if a file cannot be written.
    """
    chosen_format = _choose_format(path, file_format, source_language, target_language)
    if (chosen_format == "parquet" or path.suffix == ".zst") and find_spec("pyarrow") is None:
        raise MissingDependencyError("pyarrow", "parquet", f"{path}: this format")
    paths = _choose_paths(path, chosen_format, choose_output_keys(source_language, target_language))
    count = 0

    def iter_clean_pairs() -> Iterator[Pair]:
        nonlocal count
        for count, pair in enumerate(pairs, start=1):
            yield _clean_pair(pair, count)

    with ExitStack() as stack:
        streams = [stack.enter_context(_open_output(file, overwrite=overwrite)) for file in paths]
        match chosen_format:
            case "lines":
                _write_pieces(streams, format_lines(iter_clean_pairs()))
            case "tsv":
                _write_pieces(streams, zip(format_tsv(iter_clean_pairs())))
            case "jsonl":
                _write_pieces(
                    streams, zip(format_jsonl(iter_clean_pairs(), choose_output_keys(source_language, target_language)))
                )
            case "tmx":
                _write_pieces(streams, zip(format_tmx(iter_clean_pairs(), source_language, target_language)))
            case "parquet":
                from dragoman.formats.parquet import write_parquet

                write_parquet(streams[0], iter_clean_pairs(), choose_output_keys(source_language, target_language))
    return WrittenFiles(paths, count)


def _choose_format(
    path: Path, requested_format: WritableFormat | Literal["auto"], source_language: str, target_language: str
) -> WritableFormat:
    """Return the format to write. Raises DataError if the ending names none, or if the path does not suit the format."""
    if not path.name:
        raise DataError(f"{path}: is a folder; give a file name")
    if requested_format == "auto" and get_format_suffix(path) not in _ALL_SUFFIX_FORMATS:
        raise DataError(
            f"{path}: its ending does not name a format; known are {' '.join(_WRITABLE_SUFFIXES)}; give a format",
            code="unknown-format",
        )
    file_format = _ALL_SUFFIX_FORMATS[get_format_suffix(path)] if requested_format == "auto" else requested_format
    if file_format not in _WRITABLE_FORMATS:
        raise DataError(
            f"{path}: {file_format} files can be read but not written; choose one of {', '.join(_WRITABLE_FORMATS)}",
            code="unknown-format",
        )
    if file_format == "tmx" and not (source_language and target_language):
        raise DataError(f"{path}: TMX files name both languages; give task.source_language and task.target_language")
    if file_format == "parquet" and path.suffix in COMPRESSED_SUFFIXES:
        raise DataError(f"{path}: Parquet is already compressed; drop the ending {path.suffix}")
    return file_format


def _choose_paths(path: Path, file_format: WritableFormat, side_names: tuple[str, str]) -> tuple[Path, ...]:
    """Return the files to write: one, or one for each side with its language in the name."""
    compression_suffix = path.suffix if path.suffix in COMPRESSED_SUFFIXES else ""
    stem, suffix = os.path.splitext(path.name.removesuffix(compression_suffix))
    suffix = suffix or next(
        (known_suffix for known_suffix, suffix_format in _WRITABLE_SUFFIXES.items() if suffix_format == file_format), ""
    )
    if file_format != "lines":
        return (path.with_name(f"{stem}{suffix}{compression_suffix}"),)
    if invalid_names := [side for side in side_names if not _LANGUAGE_CODE.fullmatch(side)]:
        raise DataError(f"{path}: {invalid_names[0]!r} is not a language code for a file name; use letters, digits, - and _")
    return tuple(path.with_name(f"{stem}{suffix}.{side}{compression_suffix}") for side in side_names)


def _clean_pair(pair: Pair, number: int) -> Pair:
    """Return a pair with one line on each side and with an origin. Raises DataError for text that UTF-8 cannot hold."""
    clean_pair = Pair(to_single_line(pair.source), to_single_line(pair.target), pair.origin or f"pair {number}")
    try:
        clean_pair.source.encode()
        clean_pair.target.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{clean_pair.origin}: holds half a surrogate pair (\\u{ord(error.object[error.start]):04x})",
            code="invalid-encoding",
        ) from None
    return clean_pair


@contextmanager
def _open_output(path: Path, *, overwrite: bool) -> Iterator[IO[bytes]]:
    """Open a file that appears when the context ends without an error, and compress it by its ending."""
    with atomic_write(path, overwrite=overwrite) as text:
        raw_stream = cast(TextIO, text).buffer
        match path.suffix:
            case ".gz":
                # Without time and name, equal pairs make equal files.
                with gzip.GzipFile("", "wb", fileobj=raw_stream, mtime=0) as compressed_stream:
                    yield cast(IO[bytes], compressed_stream)
            case ".xz":
                with lzma.LZMAFile(raw_stream, "wb") as compressed_stream:
                    yield compressed_stream
            case ".bz2":
                with bz2.BZ2File(raw_stream, "wb") as compressed_stream:
                    yield compressed_stream
            case ".zst":
                import pyarrow as pa

                # The compressor closes its stream, but atomic_write still has to flush the file to the disk.
                with (
                    os.fdopen(os.dup(raw_stream.fileno()), "wb") as duplicate_stream,
                    pa.CompressedOutputStream(duplicate_stream, "zstd") as compressed_stream,
                ):
                    yield compressed_stream
            case _:
                yield raw_stream


def _write_pieces(streams: Sequence[IO[bytes]], pieces: Iterable[tuple[str, ...]]) -> None:
    """Write the parts of each piece into their streams, in blocks of _BLOCK_CHARACTERS."""
    pending: list[tuple[str, ...]] = []
    size = 0
    for parts in pieces:
        pending.append(parts)
        size += len(parts[0])
        if size > _BLOCK_CHARACTERS:
            _flush(streams, pending)
            size = 0
    _flush(streams, pending)


def _flush(streams: Sequence[IO[bytes]], pending: list[tuple[str, ...]]) -> None:
    for stream, parts in zip(streams, zip(*pending, strict=True), strict=False):
        stream.write("".join(parts).encode())
    pending.clear()
