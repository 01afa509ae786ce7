"""Plain text corpora: two aligned files, or one file with tab-separated columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from dragoman.errors import DataError
from dragoman.formats.pair import Pair
from dragoman.formats.text import describe_path, read_lines


def read_aligned(source: Path, target: Path) -> Iterator[Pair]:
    """Yield line n of one file with line n of the other. Raises DataError, with both counts, if their lengths differ."""
    sources, targets = read_lines(source), read_lines(target)
    for number, (source_line, target_line) in enumerate(zip_longest(sources, targets), start=1):
        if source_line is None or target_line is None:
            num_extra_lines = 1 + sum(1 for _ in (targets if source_line is None else sources))
            shorter_path, longer_path = (source, target) if source_line is None else (target, source)
            raise DataError(
                f"{shorter_path} has {number - 1} lines but {longer_path} has {number - 1 + num_extra_lines}: "
                "line n of one must be the translation of line n of the other",
                code="length-mismatch",
            )
        yield Pair(source_line, target_line, f"{source}:{number}")


def read_tsv(path: Path | None, column_names: Sequence[str] | None = None) -> Iterator[Pair]:
    """Yield the pairs of a TSV file.

    column_names: source and target column, counted from "1"; by default each line has exactly two columns, source and target

    Raises DataError, which names the line, if a line has other columns.
    """
    name = describe_path(path)
    if column_names is None:
        for number, line in enumerate(read_lines(path), start=1):
            source, _, target = line.partition("\t")
            if (num_tabs := line.count("\t")) != 1:
                hint = "; make a file of two, such as by cut -f 1,2" if num_tabs > 1 else ""
                raise DataError(
                    f"{name}, line {number}: {num_tabs + 1} tab-separated columns; expected 2, source and target{hint}",
                    code="invalid-format",
                )
            yield Pair(source, target, f"{name}:{number}")
        return
    if invalid := [
        column_name
        for column_name in column_names
        if not (column_name.isascii() and column_name.isdigit() and 0 < len(column_name) < 10 and int(column_name))
    ]:
        raise DataError(
            f"{name}: columns names {invalid[0]!r}, but the columns of a TSV are numbers from '1'", code="unknown-column"
        )
    source_index, target_index = (int(column_name) - 1 for column_name in column_names)
    last_index = max(source_index, target_index)
    for number, line in enumerate(read_lines(path), start=1):
        cells = line.split("\t", last_index + 1)
        if len(cells) <= last_index:
            raise DataError(
                f"{name}, line {number}: {len(cells)} tab-separated columns, but columns names {last_index + 1}",
                code="unknown-column",
            )
        yield Pair(cells[source_index], cells[target_index], f"{name}:{number}")


def format_lines(pairs: Iterable[Pair]) -> Iterator[tuple[str, str]]:
    """Yield the lines of the two aligned files for each pair."""
    for number, pair in enumerate(pairs, start=1):
        yield f"{_protect_byte_order_mark(pair.source, number)}\n", f"{_protect_byte_order_mark(pair.target, number)}\n"


def format_tsv(pairs: Iterable[Pair]) -> Iterator[str]:
    """Yield the line of each pair. A tab in a text becomes a space."""
    for number, pair in enumerate(pairs, start=1):
        source, target = pair.source.replace("\t", " "), pair.target.replace("\t", " ")
        yield f"{_protect_byte_order_mark(source, number)}\t{target}\n"


def _protect_byte_order_mark(text: str, number: int) -> str:
    """Return the text, with a second U+FEFF in front of a first text that begins with one.

    Readers take U+FEFF at the beginning of a file for a byte order mark and remove it.
    """
    return f"\ufeff{text}" if number == 1 and text.startswith("\ufeff") else text
