"""Two aligned plain files, or one with tabs between its columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from dragoman.errors import DataError
from dragoman.formats.pair import Pair
from dragoman.formats.text import name_of, read_lines


def read_aligned(source: Path, target: Path) -> Iterator[Pair]:
    """Line n of one file with line n of the other. Files of unequal length are refused, both counts named."""
    sources, targets = read_lines(source), read_lines(target)
    for number, (one, other) in enumerate(zip_longest(sources, targets), start=1):
        if one is None or other is None:
            rest = 1 + sum(1 for _ in (targets if one is None else sources))
            shorter, longer = (source, target) if one is None else (target, source)
            raise DataError(
                f"{shorter} has {number - 1} lines but {longer} has {number - 1 + rest}: "
                "line n of one must be the translation of line n of the other"
            )
        yield Pair(one, other, f"{source}:{number}")


def read_tsv(path: Path | None, fields: Sequence[str] | None = None) -> Iterator[Pair]:
    """`source TAB target` on each line and nothing else; or, of any number of columns, the two that `fields` names from "1"."""
    name = name_of(path)
    if fields is None:
        for number, line in enumerate(read_lines(path), start=1):
            source, _, target = line.partition("\t")
            if (tabs := line.count("\t")) != 1:
                raise DataError(f"{name}, line {number}: {tabs + 1} tab-separated fields; expected 2, source and target")
            yield Pair(source, target, f"{name}:{number}")
        return
    if wrong := [field for field in fields if not (field.isascii() and field.isdigit() and 0 < len(field) < 10 and int(field))]:
        raise DataError(f"{name}: fields names {wrong[0]!r}, but the columns of a TSV are numbers from '1'")
    one, other = (int(field) - 1 for field in fields)
    last = max(one, other)
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t", last + 1)
        if len(columns) <= last:
            raise DataError(f"{name}, line {number}: {len(columns)} tab-separated fields, but fields names {last + 1}")
        yield Pair(columns[one], columns[other], f"{name}:{number}")


def lines_of(pairs: Iterable[Pair]) -> Iterator[tuple[str, str]]:
    """What the two aligned files hold for each pair."""
    for number, pair in enumerate(pairs, start=1):
        yield f"{_kept(pair.source, number)}\n", f"{_kept(pair.target, number)}\n"


def tsv_of(pairs: Iterable[Pair]) -> Iterator[str]:
    """What a TSV holds for each pair; a tab within a text becomes a space."""
    for number, pair in enumerate(pairs, start=1):
        source, target = pair.source.replace("\t", " "), pair.target.replace("\t", " ")
        yield f"{_kept(source, number)}\t{target}\n"


def _kept(text: str, number: int) -> str:
    """A file's first character is taken for a byte order mark where it looks like one; a text's own has one put before it."""
    return f"\ufeff{text}" if number == 1 and text.startswith("\ufeff") else text
