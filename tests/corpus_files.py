"""Writers of corpus files of every format for tests, those that dragoman only reads included."""

from __future__ import annotations

import bz2
import gzip
import itertools
import lzma
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa

from dragoman.config import Format
from dragoman.formats.pair import Pair
from dragoman.formats.writers import WritableFormat, WrittenFiles, write_pairs

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda content: content,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": lambda content: cast(bytes, pa.compress(content, codec="zstd", asbytes=True)),
}
FORMAT_SUFFIXES: dict[Format, str] = {
    "lines": "", "tsv": ".tsv", "jsonl": ".jsonl", "tmx": ".tmx", "xliff": ".xlf", "po": ".po", "sgm": ".sgm",
    "parquet": ".parquet",
}  # fmt: skip
READ_ONLY_FORMATS: tuple[Format, ...] = ("xliff", "po", "sgm")


def write_corpus(folder: Path, pairs: Iterable[Pair], file_format: Format, ending: str = "", **settings: Any) -> WrittenFiles:
    """Write pairs into files of any format but trees, compressed by the ending of an archive."""
    path = folder / f"corpus{FORMAT_SUFFIXES[file_format]}{ending}"
    if file_format not in READ_ONLY_FORMATS:
        return write_pairs(path, pairs, file_format=cast(WritableFormat, file_format), overwrite=True, **settings)
    match file_format:
        case "xliff":
            pieces: Iterator[tuple[str, ...]] = zip(format_xliff(pairs))
        case "po":
            pieces = zip(format_po(pairs))
        case _:
            pieces = format_sgm(pairs)
    paths = (path, folder / f"corpus-ref{path.name.removeprefix('corpus')}")[: 2 if file_format == "sgm" else 1]
    num_pieces = itertools.count()
    with ExitStack() as stack:
        streams = [stack.enter_context(open_archive(file)) for file in paths]
        for parts, _ in zip(pieces, num_pieces, strict=False):
            for stream, part in zip(streams, parts, strict=True):
                stream.write(part.encode())
    return WrittenFiles(paths, next(num_pieces) - 2)  # without head and end


def open_archive(path: Path) -> IO[bytes]:
    """Open a file for writing, compressed by its ending."""
    match path.suffix:
        case ".gz":
            return cast(IO[bytes], gzip.open(path, "wb"))
        case ".xz":
            return cast(IO[bytes], lzma.open(path, "wb"))
        case ".bz2":
            return cast(IO[bytes], bz2.open(path, "wb"))
        case ".zst":
            return cast(IO[bytes], pa.CompressedOutputStream(str(path), "zstd"))
        case _:
            return path.open("wb")


def format_xliff(pairs: Iterable[Pair]) -> Iterator[str]:
    """Yield an XLIFF 1.2 file in pieces: head, units and end. It has no languages."""
    yield '<?xml version="1.0"?>\n<xliff version="1.2"><file original="a.txt" datatype="plaintext">\n<body>\n'
    for number, pair in enumerate(pairs, start=1):
        source, target = escape_markup(pair.source), escape_markup(pair.target)
        yield f'<trans-unit id="{number}"><source>{source}</source><target>{target}</target></trans-unit>\n'
    yield "</body></file></xliff>\n"


def format_po(pairs: Iterable[Pair]) -> Iterator[str]:
    """Yield a PO file in pieces: head, messages and end. The number of a message is its context."""
    yield 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n'
    for number, pair in enumerate(pairs, start=1):
        yield f'\nmsgctxt "{number}"\nmsgid "{escape_string(pair.source)}"\nmsgstr "{escape_string(pair.target)}"\n'
    yield "\n# the end\n"


def format_sgm(pairs: Iterable[Pair]) -> Iterator[tuple[str, str]]:
    """Yield the two files of WMT's SGM in pieces: heads, segments and ends."""
    yield '<srcset srclang="en">\n<doc docid="a">\n', '<refset srclang="en" trglang="de">\n<doc docid="a" sysid="ref">\n'
    for number, pair in enumerate(pairs, start=1):
        source, target = (f'<seg id="{number}">{encode_outer_spaces(text)}</seg>\n' for text in (pair.source, pair.target))
        yield source, target
    yield "</doc>\n</srcset>\n", "</doc>\n</refset>\n"


def escape_markup(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def escape_string(text: str) -> str:
    for character, escape in {"\\": "\\\\", '"': '\\"', "\t": "\\t", "\n": "\\n", "\r": "\\r"}.items():
        text = text.replace(character, escape)
    return text


def encode_outer_spaces(text: str) -> str:
    """Return a text with references in place of markup and of outer white space, which a reader strips."""
    stripped = text.strip(" \t")
    start = len(text) - len(text.lstrip(" \t"))
    outer_spaces = text[:start], text[start + len(stripped) :]
    leading, trailing = (spaces.replace(" ", "&#32;").replace("\t", "&#9;") for spaces in outer_spaces)
    return f"{leading}{escape_markup(stripped)}{trailing}"
