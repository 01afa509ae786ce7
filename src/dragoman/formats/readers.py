"""Readers of a corpus of the recipe: files, their formats, and the stream of pairs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dragoman.config import STANDARD_INPUT, CorpusConfig, Format, as_list, find_builtin_recipe
from dragoman.errors import DataError, MissingDependencyError, RecipeError
from dragoman.formats.jsonl import read_jsonl
from dragoman.formats.object_store import is_url
from dragoman.formats.pair import Pair
from dragoman.formats.po import read_po
from dragoman.formats.sgm import read_sgm
from dragoman.formats.text import COMPRESSED_SUFFIXES, describe_path, to_data_error
from dragoman.formats.tmx import read_tmx
from dragoman.formats.tsv import read_aligned, read_csv, read_tsv
from dragoman.formats.xliff import read_xliff
from dragoman.hooks import load_task

STDIN_PATH = Path(STANDARD_INPUT)
"""Path that stands for standard input."""
SUFFIX_FORMATS: dict[str, Format] = {
    ".tsv": "tsv",
    ".csv": "csv",
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
SIDE_SUFFIX_FORMATS: dict[str, Format] = {".sgm": "sgm", ".sgml": "sgm"}
"""Formats of files that hold one side. Any other ending means plain lines."""
_FORMATS_WITH_COLUMNS = ("tsv", "csv", "jsonl", "parquet")


def list_corpus_files(corpus: CorpusConfig, root: Path) -> list[Path]:
    """Return the files of a corpus in a fixed order, those of the source first. Standard input is `STDIN_PATH`.

    A * in a file name matches any characters, but no name that begins with a dot. Raises DataError if nothing matches.
    """
    return _list_side_files(corpus.source, root) + _list_side_files(corpus.target, root) + _list_bilingual_files(corpus, root)


def check_files_exist(data_root: str, recipe_name: str, corpora: Iterable[CorpusConfig]) -> None:
    """Raise DataError for the first missing file. The message names the folder and, for built-in recipes, how to get it.

    data_root: `data.root` of the recipe

    Raises RecipeError for a root in an object store, of which the readers need copies.
    """
    if is_url(data_root):
        raise RecipeError(
            f"data.root = {data_root!r}: only prepare and clean --cluster read object stores; copy the files",
            code="invalid-option",
        )
    root, builtin_file = Path(data_root), find_builtin_recipe(recipe_name)
    hint = "check its name" + (f", or see the first lines of {builtin_file} for how to get it" if builtin_file else "")
    for path in (path for corpus in corpora for path in list_corpus_files(corpus, root)):
        if path == STDIN_PATH:
            continue
        try:
            path.stat()
        except FileNotFoundError:
            root_hint = f" (data.root = {data_root!r})" if path.is_relative_to(root) and data_root != "." else ""
            raise DataError(f"{path}: there is no such file{root_hint}; {hint}", code="file-not-found") from None
        except OSError:
            continue  # the reader reports it


def _list_bilingual_files(corpus: CorpusConfig, root: Path) -> list[Path]:
    """Return the files that hold both sides."""
    paths: list[Path] = []
    for name in as_list(corpus.file):
        paths += [STDIN_PATH] if name == STANDARD_INPUT else _expand_wildcard(root, name)
    return paths


def _list_side_files(names: str | list[str] | None, root: Path) -> list[Path]:
    return [path for name in as_list(names) for path in _expand_wildcard(root, name)]


def _expand_wildcard(root: Path, name: str) -> list[Path]:
    """Return the files that a name with wildcards matches, sorted."""
    path = root / name
    if "*" not in path.name:
        return [_check_name_is_unicode(path)]
    pattern = re.compile(".*".join(re.escape(part) for part in path.name.split("*")), re.DOTALL)
    try:
        matches = [entry for entry in path.parent.iterdir() if pattern.fullmatch(entry.name) and entry.is_file()]
    except OSError as error:
        raise DataError(
            f"{path.parent}: cannot be listed for {path.name!r}: {error.strerror}", code="file-unreadable"
        ) from None
    if not path.name.startswith("."):
        matches = [entry for entry in matches if not entry.name.startswith(".")]
    if not matches:
        raise DataError(f"{path}: there is no such file; * matches file names, not folders", code="file-not-found")
    return [_check_name_is_unicode(entry) for entry in sorted(matches)]


def _check_name_is_unicode(path: Path) -> Path:
    """Return the path. Raises DataError if its name is not valid Unicode, since it becomes part of every pair's origin."""
    if not str(path).isprintable() and any("\ud800" <= character <= "\udfff" for character in str(path)):
        raise DataError(f"{str(path)!a}: the file name is not UTF-8; rename the file", code="invalid-encoding")
    return path


def detect_format(path: Path, file_format: Format = "auto", *, is_one_side: bool = False) -> Format:
    """Return the format of a file: the given one, or for `auto` the one of its ending without that of an archive.

    is_one_side: whether the file holds one side only

    Raises DataError if the ending belongs to no format.
    """
    if file_format != "auto":
        return file_format
    suffix = get_format_suffix(path)
    if is_one_side:
        return SIDE_SUFFIX_FORMATS.get(suffix, "lines")
    if path == STDIN_PATH:
        raise DataError(
            "standard input: its format is unknown; give data.….format, such as 'tsv' or 'jsonl'", code="unknown-format"
        )
    if suffix in SIDE_SUFFIX_FORMATS:
        raise DataError(
            f"{path}: an SGM file holds one side: give data.….source and target instead of file", code="unknown-format"
        )
    if suffix not in SUFFIX_FORMATS:
        if path.is_dir():
            raise to_data_error(path, IsADirectoryError())
        problem = f"the ending {suffix!r}" if suffix else "a name without an ending"
        raise DataError(
            f"{path}: {problem} does not name a format; known are {' '.join(SUFFIX_FORMATS)}; save it as one of them, such as "
            "tab-separated text, or state its format in a recipe, as data.train.format",
            code="unknown-format",
        )
    return SUFFIX_FORMATS[suffix]


def get_format_suffix(path: Path) -> str:
    """Return the ending of a file name in lower case, without the ending of an archive."""
    return (path.with_suffix("") if path.suffix in COMPRESSED_SUFFIXES else path).suffix.lower()


def read_pairs(corpus: CorpusConfig, root: Path, *, source_language: str = "", target_language: str = "") -> Iterator[Pair]:
    """Yield the pairs of a corpus: those of `source` and `target`, then those of `file`.

    Raises DataError, which names file and position.
    """
    sources, targets = _list_side_files(corpus.source, root), _list_side_files(corpus.target, root)
    if len(sources) != len(targets):
        raise DataError(
            f"{corpus.source} matches {len(sources)} files but {corpus.target} {len(targets)}; "
            "file n of one must be the translation of file n of the other",
            code="length-mismatch",
        )
    for source, target in zip(sources, targets, strict=True):
        yield from read_sides(source, target, corpus.format)
    languages = {"source_language": source_language, "target_language": target_language}
    for path in _list_bilingual_files(corpus, root):
        yield from read_file(path, detect_format(path, corpus.format), column_names=corpus.columns, **languages)


def read_sides(source: Path, target: Path, file_format: Format = "auto") -> Iterator[Pair]:
    """Return an iterator over the pairs of two files, one for each side."""
    formats = [detect_format(path, file_format, is_one_side=True) for path in (source, target)]
    match formats:
        case ["lines", "lines"]:
            return read_aligned(source, target)
        case ["sgm", "sgm"]:
            return read_sgm(source, target)
    raise DataError(
        f"{source} and {target}: their formats {formats[0]} and {formats[1]} differ; give two files of one format",
        code="unknown-format",
    )


def read_file(
    path: Path,
    file_format: Format,
    *,
    column_names: Sequence[str] | None = None,
    source_language: str = "",
    target_language: str = "",
) -> Iterator[Pair]:
    """Return an iterator over the pairs of a file that holds both sides, or of `STDIN_PATH`.

    column_names: columns or keys of source and target, for the formats that have them
    """
    if column_names is not None and file_format not in _FORMATS_WITH_COLUMNS:
        raise DataError(
            f"{path}: {file_format} has no columns; columns is for {', '.join(_FORMATS_WITH_COLUMNS)}", code="unknown-column"
        )
    stream_path = None if path == STDIN_PATH else path
    languages = {"source_language": source_language, "target_language": target_language}
    match file_format:
        case "tsv":
            return read_tsv(stream_path, column_names, **languages)
        case "csv":
            return read_csv(stream_path, column_names, **languages)
        case "jsonl":
            return read_jsonl(stream_path, column_names, **languages)
        case "tmx":
            return read_tmx(stream_path, **languages)
        case "xliff":
            return read_xliff(stream_path, **languages)
        case "po":
            return read_po(stream_path)
        case "brackets":
            pairs: Iterator[Pair] = load_task("parsing").read_pairs(stream_path)
            return pairs
        case "parquet":
            if stream_path is None or path.suffix in COMPRESSED_SUFFIXES:
                raise DataError(
                    f"{describe_path(stream_path)}: Parquet cannot be read from an archive or a pipe; unpack it into a file",
                    code="unknown-format",
                )
            try:
                from dragoman.formats.parquet import read_parquet
            except ModuleNotFoundError:
                raise MissingDependencyError("pyarrow", "parquet", f"{path}: a Parquet file") from None
            return read_parquet(path, column_names, **languages)
    raise DataError(
        f"{describe_path(stream_path)}: format = {file_format!r} holds one side; give source and target", code="unknown-format"
    )
