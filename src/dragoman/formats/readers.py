"""Pairs from a corpus of the recipe, whatever format its files have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dragoman.config import STANDARD_INPUT, CorpusConfig, Format, Recipe, listed, shipped_recipe
from dragoman.errors import DataError
from dragoman.formats.jsonl import read_jsonl
from dragoman.formats.pair import Pair
from dragoman.formats.parquet import read_parquet
from dragoman.formats.po import read_po
from dragoman.formats.sgm import read_sgm
from dragoman.formats.text import ARCHIVES, name_of
from dragoman.formats.tmx import read_tmx
from dragoman.formats.treebank import read_brackets
from dragoman.formats.tsv import read_aligned, read_tsv
from dragoman.formats.xliff import read_xliff

PIPE = Path(STANDARD_INPUT)
"""Standard input, where a path is asked for."""
ENDINGS: dict[str, Format] = {
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".tmx": "tmx",
    ".xlf": "xliff",
    ".xliff": "xliff",
    ".po": "po",
    ".parquet": "parquet",
    ".mrg": "brackets",
    ".ptb": "brackets",
}
SIDE_ENDINGS: dict[str, Format] = {".sgm": "sgm", ".sgml": "sgm"}
"""Of files that hold one side. Any other ending of such a file means lines."""
_WITH_FIELDS = ("tsv", "jsonl", "parquet")


def corpus_files(corpus: CorpusConfig, root: Path) -> list[Path]:
    """The files that a corpus is made of, in a fixed order: first those of the source. Standard input is `PIPE`.

    A * in a file's name stands for any name that does not begin with a dot. Raises DataError where it stands for none.
    """
    return _side(corpus.source, root) + _side(corpus.target, root) + _whole(corpus, root)


def refuse_missing(recipe: Recipe, corpora: Iterable[CorpusConfig]) -> None:
    """Raise DataError at the first file of them that is not there, with where it is looked for and what says how to get it."""
    root, shipped = Path(recipe.data.root), shipped_recipe(recipe.name)
    origin = "" if shipped is None else f"; the first lines of {shipped} say how to get it"
    for path in (path for corpus in corpora for path in corpus_files(corpus, root)):
        if path == PIPE:
            continue
        try:
            path.stat()
        except FileNotFoundError:
            where = f" (data.root = {recipe.data.root!r} says where to look)" if path.is_relative_to(root) else ""
            raise DataError(f"{path}: there is no such file{where}{origin}") from None
        except OSError:
            continue  # which who reads it tells of


def _whole(corpus: CorpusConfig, root: Path) -> list[Path]:
    """The files that hold both sides."""
    found: list[Path] = []
    for name in listed(corpus.file):
        found += [PIPE] if name == STANDARD_INPUT else _matching(root, name)
    return found


def _side(names: str | list[str] | None, root: Path) -> list[Path]:
    return [path for name in listed(names) for path in _matching(root, name)]


def _matching(root: Path, name: str) -> list[Path]:
    """The files that a name stands for, sorted."""
    path = root / name
    if "*" not in path.name:
        return [_named_in_unicode(path)]
    pattern = re.compile(".*".join(re.escape(part) for part in path.name.split("*")), re.DOTALL)
    try:
        found = [entry for entry in path.parent.iterdir() if pattern.fullmatch(entry.name) and entry.is_file()]
    except OSError as error:
        raise DataError(f"{path.parent}: cannot be looked through for {path.name!r}: {error.strerror}") from None
    if not path.name.startswith("."):
        found = [entry for entry in found if not entry.name.startswith(".")]
    if not found:
        raise DataError(f"{path}: there is no such file; * stands for any name, but in the last part of a path alone")
    return [_named_in_unicode(entry) for entry in sorted(found)]


def _named_in_unicode(path: Path) -> Path:
    """The path, whose name goes into every pair's origin. Raises DataError where no text can hold it."""
    if not str(path).isprintable() and any("\ud800" <= letter <= "\udfff" for letter in str(path)):
        raise DataError(f"{str(path)!a}: this file's name is not UTF-8; rename the file")
    return path


def format_of(path: Path, given: Format = "auto", *, one_side: bool = False) -> Format:
    """The format of a file: as given, or else by its ending, beneath that of an archive. `one_side` is of files for one side.

    Raises DataError for an ending that tells none.
    """
    if given != "auto":
        return given
    ending = ending_of(path)
    if one_side:
        return SIDE_ENDINGS.get(ending, "lines")
    if path == PIPE:
        raise DataError("standard input has no ending that tells its format: give data.….format, such as 'tsv' or 'jsonl'")
    if ending in SIDE_ENDINGS:
        raise DataError(f"{path}: an SGM file holds one side: give data.….source and target instead of file")
    if ending not in ENDINGS:
        what = f"the ending {ending!r}" if ending else "a name without an ending"
        raise DataError(f"{path}: {what} tells no format; known are {' '.join(ENDINGS)}; give data.….format")
    return ENDINGS[ending]


def ending_of(path: Path) -> str:
    """A file's ending beneath that of an archive."""
    return (path.with_suffix("") if path.suffix in ARCHIVES else path).suffix.lower()


def read_pairs(corpus: CorpusConfig, root: Path, *, source_language: str = "", target_language: str = "") -> Iterator[Pair]:
    """Stream the pairs of a corpus, two for the sides before one for both. Raises DataError naming file and place."""
    sources, targets = _side(corpus.source, root), _side(corpus.target, root)
    if len(sources) != len(targets):
        raise DataError(
            f"{corpus.source} stands for {len(sources)} files but {corpus.target} for {len(targets)}; "
            "the n-th of one must be the translation of the n-th of the other"
        )
    for source, target in zip(sources, targets, strict=True):
        yield from read_sides(source, target, corpus.format)
    languages = {"source_language": source_language, "target_language": target_language}
    for path in _whole(corpus, root):
        yield from read_file(path, format_of(path, corpus.format), fields=corpus.columns, **languages)


def read_sides(source: Path, target: Path, format: Format = "auto") -> Iterator[Pair]:
    """Stream the pairs of two files, one for each side."""
    formats = [format_of(path, format, one_side=True) for path in (source, target)]
    match formats:
        case ["lines", "lines"]:
            return read_aligned(source, target)
        case ["sgm", "sgm"]:
            return read_sgm(source, target)
    raise DataError(f"{source} and {target} are to be read as {formats[0]} and {formats[1]}; give two files of one format")


def read_file(
    path: Path, format: Format, *, fields: Sequence[str] | None = None, source_language: str = "", target_language: str = ""
) -> Iterator[Pair]:
    """Stream the pairs of a file that holds both sides; `PIPE` is one, too."""
    if fields is not None and format not in _WITH_FIELDS:
        raise DataError(f"{path}: fields is given, but {format} has none; it is for {', '.join(_WITH_FIELDS)}")
    stream = None if path == PIPE else path
    languages = {"source_language": source_language, "target_language": target_language}
    match format:
        case "tsv":
            return read_tsv(stream, fields)
        case "jsonl":
            return read_jsonl(stream, fields, **languages)
        case "tmx":
            return read_tmx(stream, **languages)
        case "xliff":
            return read_xliff(stream, **languages)
        case "po":
            return read_po(stream)
        case "brackets":
            return read_brackets(stream)
        case "parquet":
            if stream is None or path.suffix in ARCHIVES:
                raise DataError(
                    f"{name_of(stream)}: Parquet is read from its end, so neither from an archive nor a pipe; unpack it"
                )
            return read_parquet(path, fields, **languages)
    raise DataError(f"{name_of(stream)}: format = {format!r} is not of a file that holds both sides")
