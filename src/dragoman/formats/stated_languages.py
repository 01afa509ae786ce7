"""Languages that the files of a corpus state: in the names of columns, in units, or in the names of files and folders."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragoman.errors import MissingDependencyError
from dragoman.formats.jsonl import list_keys, read_first_object
from dragoman.formats.readers import SUFFIX_FORMATS, get_format_suffix
from dragoman.formats.text import COMPRESSED_SUFFIXES
from dragoman.formats.tmx import read_first_languages
from dragoman.formats.tsv import read_first_row
from dragoman.formats.xliff import read_stated_languages
from dragoman.languages import is_known_language, is_same_language, to_language_code

_CODE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z]{2,4})?")
_CODES_IN_NAME = re.compile(r"(?:^|[._-])([a-z]{2,3})[-_]([a-z]{2,3})(?=\.|$)")
_COLUMNS, _UNITS = "the names of the columns", "the units of the file"
SWAPPABLE_ORIGINS = (_COLUMNS, _UNITS)
"""What states the languages in an order that says nothing about source and target."""
_CODE_COLUMNS = [("source_language", "target_language"), ("source_lang", "target_lang"), ("src_lang", "tgt_lang")]


def find_stated_languages(files: Sequence[Path]) -> tuple[str, str, str]:
    """Return the languages of source and target that one file or two state, and what states them; empty if nothing does.

    Raises DataError for a file that cannot be read.
    """
    if len(files) == 1 and (stated := _find_codes_in_file(files[0])):
        return stated
    names = [path.with_suffix("").name if path.suffix in COMPRESSED_SUFFIXES else path.name for path in files]
    if codes := _find_codes_in_names(names):
        return codes[0], codes[1], "the names of the files" if len(files) == 2 else "the name of the file"
    for folder in files[0].parent.parts[::-1]:
        if (match := _CODES_IN_NAME.fullmatch(folder)) and (codes := _check_codes(match[1], match[2])):
            return codes[0], codes[1], f"the name of the folder {folder}"
    return "", "", ""


def _find_codes_in_names(names: Sequence[str]) -> tuple[str, str] | None:
    """Return the codes in one name, as in `a.en-de.tsv`, or those in which two names differ, as in `a.en` and `a.de`."""
    if len(names) == 1:
        match = _CODES_IN_NAME.search(names[0])
        return _check_codes(match[1], match[2]) if match else None
    for separators in (r"\.", r"[._-]"):
        parts = zip(*(re.split(separators, name) for name in names), strict=False)
        if len(pairs := [pair for pair in (_check_codes(*sides) for sides in parts) if pair]) == 1:
            return pairs[0]
    return None


def _find_codes_in_file(path: Path) -> tuple[str, str, str] | None:
    """Return the languages in a file with both sides, and where they stand in it."""
    row: dict[str, Any] = {}
    match SUFFIX_FORMATS.get(get_format_suffix(path)):
        case "tmx" | "xliff" as name:
            stated = read_first_languages(path) if name == "tmx" else read_stated_languages(path)
            codes = _check_codes(*stated) if len(stated) == 2 else None
            return (*codes, _UNITS) if codes else None
        case "tsv" | "csv" as name:
            row = {to_language_code(cell): value for cell, value in read_first_row(path, is_tsv=name == "tsv").items()}
        case "jsonl":
            row = read_first_object(path)
        case "parquet":
            try:
                from dragoman.formats.parquet import read_first_parquet_row
            except ModuleNotFoundError:
                raise MissingDependencyError("pyarrow", "parquet", f"{path}: a Parquet file") from None
            row = read_first_parquet_row(path)
    for source, target in _CODE_COLUMNS:
        if codes := _check_codes(str(row.get(source)), str(row.get(target))):
            return (*codes, f"the columns {source} and {target}")
    names = [name for name in (key.rpartition(".")[2] for key in list_keys(row)) if _is_code(name)]
    if len(names) > 2:
        names = [name for name in names if name != "id"]  # a number more often than Indonesian
    codes = _check_codes(*names) if len(names) == 2 else None
    return (*codes, _COLUMNS) if codes else None


def _check_codes(source: str, target: str) -> tuple[str, str] | None:
    """Return two codes of different languages, or None."""
    are_codes = _is_code(source) and _is_code(target)
    return (source, target) if are_codes and not is_same_language(source, target) else None


def _is_code(name: str) -> bool:
    """Return whether a name is the code of a known language. `src` is a source, not Sardinian."""
    return name != "src" and bool(_CODE.fullmatch(name)) and is_known_language(name)
