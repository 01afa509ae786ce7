"""Two aligned plain files, or one with tabs between its columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from dragoman.errors import DataError
from dragoman.formats.pair import Pair
from dragoman.formats.text import describe_path, read_lines


def read_aligned(source: Path, target: Path) -> Iterator[Pair]:
    """Line n of one file with line n of the other. Files of unequal length are refused, both counts named."""
    sources, targets = read_lines(source), read_lines(target)
    for number, (source_line, target_line) in enumerate(zip_longest(sources, targets), start=1):
        if source_line is None or target_line is None:
            num_extra_lines = 1 + sum(1 for _ in (targets if source_line is None else sources))
            shorter_path, longer_path = (source, target) if source_line is None else (target, source)
            raise DataError(
                f"{shorter_path} has {number - 1} lines but {longer_path} has {number - 1 + num_extra_lines}: "
                "line n of one must be the translation of line n of the other"
            )
        yield Pair(source_line, target_line, f"{source}:{number}")


def read_tsv(path: Path | None, column_names: Sequence[str] | None = None) -> Iterator[Pair]:
    """`source TAB target` on each line and nothing else; or, of any number of columns, the two that `fields` names from "1"."""
    name = describe_path(path)
    if column_names is None:
        for number, line in enumerate(read_lines(path), start=1):
            source, _, target = line.partition("\t")
            if (num_tabs := line.count("\t")) != 1:
                raise DataError(f"{name}, line {number}: {num_tabs + 1} tab-separated fields; expected 2, source and target")
            yield Pair(source, target, f"{name}:{number}")
        return
    if invalid := [
        column_name
        for column_name in column_names
        if not (column_name.isascii() and column_name.isdigit() and 0 < len(column_name) < 10 and int(column_name))
    ]:
        raise DataError(f"{name}: fields names {invalid[0]!r}, but the columns of a TSV are numbers from '1'")
    source_index, target_index = (int(field) - 1 for field in column_names)
    last_index = max(source_index, target_index)
    for number, line in enumerate(read_lines(path), start=1):
        cells = line.split("\t", last_index + 1)
        if len(cells) <= last_index:
            raise DataError(f"{name}, line {number}: {len(cells)} tab-separated fields, but fields names {last_index + 1}")
        yield Pair(cells[source_index], cells[target_index], f"{name}:{number}")


def format_lines(pairs: Iterable[Pair]) -> Iterator[tuple[str, str]]:
    """What the two aligned files hold for each pair."""
    for number, pair in enumerate(pairs, start=1):
        yield f"{_protect_byte_order_mark(pair.source, number)}\n", f"{_protect_byte_order_mark(pair.target, number)}\n"


def format_tsv(pairs: Iterable[Pair]) -> Iterator[str]:
    """What a TSV holds for each pair; a tab within a text becomes a space."""
    for number, pair in enumerate(pairs, start=1):
        source, target = pair.source.replace("\t", " "), pair.target.replace("\t", " ")
        yield f"{_protect_byte_order_mark(source, number)}\t{target}\n"


def _protect_byte_order_mark(text: str, number: int) -> str:
    """A file's first character is taken for a byte order mark where it looks like one; a text's own has one put before it."""
    return f"\ufeff{text}" if number == 1 and text.startswith("\ufeff") else text
