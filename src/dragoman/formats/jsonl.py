"""One JSON object on each line, such as data sets are exported in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dragoman.errors import DataError
from dragoman.formats.pair import Pair, one_line
from dragoman.formats.text import name_of, read_lines, shown

Keys = tuple[str, str]


def read_jsonl(
    path: Path | None, fields: Sequence[str] | None = None, *, source_language: str = "", target_language: str = ""
) -> Iterator[Pair]:
    """The texts under two keys of each object; which ones the first object tells, where `fields` does not name them.

    A null, or a key that an object lacks, gives an empty text. Raises DataError naming the line.
    """
    name = name_of(path)
    keys: Keys | None = (fields[0], fields[1]) if fields is not None else None
    missing: set[str] = set(keys or ())
    first: dict[str, Any] | None = None
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        row = _object(line, f"{name}, line {number}")
        first = row if first is None else first
        if keys is None:
            keys = find_keys(partial(_held, row), source_language, target_language)
            if keys is None:
                raise DataError(f"{name}, line {number}: {unknown_keys(_names(row), source_language, target_language)}")
            missing = set(keys)
        if missing:
            missing = {key for key in missing if not _held(row, key)}
        source, target = (_text(row, key, f"{name}, line {number}") for key in keys)
        yield Pair(source, target, f"{name}:{number}")
    if missing and first is not None:
        raise DataError(f"{name}: no line has {sorted(missing)[0]!r}; the first one has {shown(_names(first))}")


def find_keys(held: Callable[[str], bool], source_language: str, target_language: str) -> Keys | None:
    """The first of the usual pairs of keys that is there whole, or else in part; none where nothing of any is."""
    usual: list[Keys] = [("source", "target"), ("src", "tgt")]
    if source_language and target_language and source_language != target_language:
        languages = (source_language, target_language)
        usual = [(f"translation.{languages[0]}", f"translation.{languages[1]}"), languages, *usual]
    whole = (keys for keys in usual if held(keys[0]) and held(keys[1]))
    part = (keys for keys in usual if held(keys[0]) or held(keys[1]))
    return next(whole, None) or next(part, None)


def unknown_keys(names: Sequence[str], source_language: str, target_language: str) -> str:
    """What to say where none of the usual keys is there."""
    looked_for = f"{source_language} and {target_language}, " if source_language and target_language else ""
    return f"neither {looked_for}source and target nor src and tgt among {shown(names)}; name two of them in fields"


def written_keys(source_language: str, target_language: str) -> Keys:
    """The keys that texts are written under: their languages, where both are known and differ."""
    named = bool(source_language and target_language and source_language != target_language)
    return (source_language, target_language) if named else ("source", "target")


def jsonl_of(pairs: Iterable[Pair], keys: Keys) -> Iterator[str]:
    """The line of each pair."""
    for pair in pairs:
        yield json.dumps({keys[0]: pair.source, keys[1]: pair.target}, ensure_ascii=False) + "\n"


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON: {error.msg} at column {error.colno}") from None
    except ValueError:
        raise DataError(f"{where}: holds a number too long to read") from None
    except RecursionError:
        raise DataError(f"{where}: nested too deep to read") from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: is not a JSON object of keys and values")
    return row


def _value(row: dict[str, Any], key: str) -> tuple[bool, Any]:
    """Whether the key is there, and what it holds; "a.b" is b within a unless it is a key itself."""
    if key in row:
        return True, row[key]
    head, dot, rest = key.partition(".")
    inner = row.get(head)
    return _value(inner, rest) if dot and isinstance(inner, dict) else (False, None)


def _held(row: dict[str, Any], key: str) -> bool:
    return _value(row, key)[0]


def _text(row: dict[str, Any], key: str, where: str) -> str:
    value = _value(row, key)[1]
    if value is None:
        return ""
    if not isinstance(value, str):
        kind = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}[type(value)]
        raise DataError(f"{where}: {key!r} holds {kind}, not text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: {key!r} holds half a surrogate pair (\\u{ord(value[error.start]):04x})") from None
    return one_line(value)


def _names(row: dict[str, Any]) -> list[str]:
    """The keys of an object and, one step down, of the objects in it."""
    names = []
    for key, value in row.items():
        names += [f"{key}.{inner}" for inner in value] if isinstance(value, dict) and value else [key]
    return names
