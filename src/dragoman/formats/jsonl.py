"""JSON lines: one JSON object on each line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dragoman.errors import DataError
from dragoman.formats.pair import Pair, to_single_line
from dragoman.formats.text import describe_path, quote_names, read_lines
from dragoman.languages import get_language

KeyPair = tuple[str, str]


def read_jsonl(
    path: Path | None, column_names: Sequence[str] | None = None, *, source_language: str = "", target_language: str = ""
) -> Iterator[Pair]:
    """Yield the texts under two keys of each object.

    column_names: the two keys, where "a.b" is b in a; by default the usual keys that the first object has

    A null or a missing key gives an empty text. Raises DataError, which names the line, for anything else that is not text.
    """
    name = describe_path(path)
    keys: KeyPair | None = (column_names[0], column_names[1]) if column_names is not None else None
    missing_keys: set[str] = set(keys or ())
    first_row: dict[str, Any] | None = None
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        row = _parse_object(line, f"{name}, line {number}")
        first_row = row if first_row is None else first_row
        if keys is None:
            keys = find_keys(partial(_has_key, row), source_language, target_language)
            if keys is None:
                raise DataError(
                    f"{name}, line {number}: {describe_unknown_keys(list_keys(row), source_language, target_language)}",
                    code="unknown-column",
                )
            missing_keys = set(keys)
        if missing_keys:
            missing_keys = {key for key in missing_keys if not _has_key(row, key)}
        source, target = (_get_text(row, key, f"{name}, line {number}") for key in keys)
        yield Pair(source, target, f"{name}:{number}")
    if missing_keys and first_row is not None:
        raise DataError(
            f"{name}: no line has {sorted(missing_keys)[0]!r}; the first one has {quote_names(list_keys(first_row))}",
            code="unknown-column",
        )


def read_first_object(path: Path) -> dict[str, Any]:
    """Return the first object of a file; an empty one without any. Raises DataError."""
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            return _parse_object(line, f"{path}, line {number}")
    return {}


def find_keys(has_key: Callable[[str], bool], source_language: str, target_language: str) -> KeyPair | None:
    """Return the first usual pair of keys of which both exist, or else the first of which one exists, or None."""
    candidates: list[KeyPair] = []
    for source in dict.fromkeys([source_language, get_language(source_language)]):
        for target in dict.fromkeys([target_language, get_language(target_language)]):
            if source and target and source != target:
                candidates += [(f"translation.{source}", f"translation.{target}"), (source, target)]
    candidates += [("source", "target"), ("src", "tgt")]
    complete_candidates = (keys for keys in candidates if has_key(keys[0]) and has_key(keys[1]))
    incomplete_candidates = (keys for keys in candidates if has_key(keys[0]) or has_key(keys[1]))
    return next(complete_candidates, None) or next(incomplete_candidates, None)


def describe_unknown_keys(names: Sequence[str], source_language: str, target_language: str) -> str:
    """Return the error message for a file without any of the usual keys."""
    language_keys = f"{source_language} and {target_language}, " if source_language and target_language else ""
    return f"neither {language_keys}source and target nor src and tgt among {quote_names(names)}; name two of them in columns"


def choose_output_keys(source_language: str, target_language: str) -> KeyPair:
    """Return the keys for the texts of a file: the two languages if they are known and differ, else source and target."""
    has_languages = bool(source_language and target_language and source_language != target_language)
    return (source_language, target_language) if has_languages else ("source", "target")


def format_jsonl(pairs: Iterable[Pair], keys: KeyPair) -> Iterator[str]:
    """Yield the line of each pair."""
    for pair in pairs:
        yield json.dumps({keys[0]: pair.source, keys[1]: pair.target}, ensure_ascii=False) + "\n"


def _parse_object(line: str, location: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{location}: not JSON: {error.msg} at column {error.colno}", code="invalid-format") from None
    except ValueError:
        raise DataError(f"{location}: holds a number too long to read", code="invalid-format") from None
    except RecursionError:
        raise DataError(f"{location}: nested too deep to read", code="invalid-format") from None
    if not isinstance(row, dict):
        raise DataError(f"{location}: is not a JSON object of keys and values", code="invalid-format")
    return row


def _look_up(row: dict[str, Any], key: str) -> tuple[bool, Any]:
    """Return whether the key exists, and its value. The key "a.b" is b in a, unless it is a key itself."""
    if key in row:
        return True, row[key]
    head, dot, tail = key.partition(".")
    inner_object = row.get(head)
    return _look_up(inner_object, tail) if dot and isinstance(inner_object, dict) else (False, None)


def _has_key(row: dict[str, Any], key: str) -> bool:
    return _look_up(row, key)[0]


def _get_text(row: dict[str, Any], key: str, location: str) -> str:
    value = _look_up(row, key)[1]
    if value is None:
        return ""
    if not isinstance(value, str):
        type_name = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}[type(value)]
        raise DataError(f"{location}: {key!r} holds {type_name}, not text", code="invalid-format")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{location}: {key!r} holds half a surrogate pair (\\u{ord(value[error.start]):04x})", code="invalid-encoding"
        ) from None
    return to_single_line(value)


def list_keys(row: dict[str, Any]) -> list[str]:
    """Return the keys of an object, and those of the objects in it as "a.b"."""
    names = []
    for key, value in row.items():
        names += [f"{key}.{inner_key}" for inner_key in value] if isinstance(value, dict) and value else [key]
    return names
