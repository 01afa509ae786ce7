"""Plain text corpora: two aligned files, or one file with columns, which tabs separate, or commas or semicolons as in CSV."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path

from dragoman.errors import DataError
from dragoman.formats.jsonl import find_keys
from dragoman.formats.pair import Pair, to_single_line
from dragoman.formats.text import describe_path, quote_names, read_lines
from dragoman.languages import get_language, to_language_code

_DELIMITERS = ",;\t"
_NUM_SAMPLE_LINES = 20


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


def read_parallel_lines(first_path: Path, second_path: Path) -> tuple[list[str], list[str]]:
    """Return the lines of two parallel files. Raises DataError as `read_aligned` does."""
    pairs = list(read_aligned(first_path, second_path))
    return [pair.source for pair in pairs], [pair.target for pair in pairs]


def read_tsv(
    path: Path | None, column_names: Sequence[str] | None = None, *, source_language: str = "", target_language: str = ""
) -> Iterator[Pair]:
    """Yield the pairs of a TSV file.

    column_names: source and target column, counted from "1". By default, the first line names them as in a CSV file; otherwise,
        each line has exactly two columns, source and target.

    Raises DataError, which names the line, if a line has other columns.
    """
    name = describe_path(path)
    lines: Iterator[tuple[int, str]] = enumerate(read_lines(path), start=1)
    if column_names is None:
        first_line = next(lines, None)
        cells = [] if first_line is None else first_line[1].split("\t")
        columns, _ = _find_columns(name, cells, None, source_language, target_language)
        if columns is not None:
            column_names = [str(index + 1) for index in columns]
        elif first_line is not None:
            lines = chain([first_line], lines)
    if column_names is None:
        for number, line in lines:
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
    for number, line in lines:
        cells = line.split("\t", last_index + 1)
        if len(cells) <= last_index:
            raise DataError(
                f"{name}, line {number}: {len(cells)} tab-separated columns, but columns names {last_index + 1}",
                code="unknown-column",
            )
        yield Pair(cells[source_index], cells[target_index], f"{name}:{number}")


def read_csv(
    path: Path | None, column_names: Sequence[str] | None = None, *, source_language: str = "", target_language: str = ""
) -> Iterator[Pair]:
    """Yield the pairs of a CSV file, whose first lines tell whether commas, semicolons or tabs separate its columns.

    column_names: source and target column, as the first row names them or counted from "1". By default, it names them by the
        languages or by the usual keys of JSON lines; otherwise, each row has exactly two columns.

    Raises DataError, which names the line, if a row lacks a column.
    """
    name = describe_path(path)
    columns: tuple[int, int] | None = None
    for number, (line_number, row) in enumerate(_read_csv_rows(path)):
        if not number:
            columns, is_header = _find_columns(name, row, column_names, source_language, target_language)
            if is_header:
                continue
        if columns is None and len(row) != 2:
            raise DataError(
                f"{name}, line {line_number}: {len(row)} columns; expected 2, source and target; keep two, or name two in the "
                "first row, such as source and target, or in a recipe as data.train.columns",
                code="invalid-format",
            )
        source, target = columns or (0, 1)
        if max(source, target) >= len(row):
            raise DataError(
                f"{name}, line {line_number}: {len(row)} columns, but column {max(source, target) + 1} is to be read",
                code="unknown-column",
            )
        yield Pair(to_single_line(row[source]), to_single_line(row[target]), f"{name}:{line_number}")


def read_first_row(path: Path, *, is_tsv: bool) -> dict[str, str]:
    """Return the cells of the second row by those of the first one, which may be a header. Raises DataError."""
    rows = (line.split("\t") for line in read_lines(path)) if is_tsv else (row for _, row in _read_csv_rows(path))
    header, values = [*islice(rows, 2), [], []][:2]
    return {cell.strip(): value for cell, value in zip_longest(header, values, fillvalue="")}


def _read_csv_rows(path: Path | None) -> Iterator[tuple[int, list[str]]]:
    """Yield each row that is not empty, with the number of its first line."""
    lines = (f"{line}\n" for line in read_lines(path))
    sample = list(islice(lines, _NUM_SAMPLE_LINES))

    def count_rows(delimiter: str) -> int:
        """Return how many rows have the same number of columns, two or more."""
        lengths = Counter(map(len, csv.reader(sample, delimiter=delimiter)))
        return max((count for length, count in lengths.items() if length > 1), default=0)

    reader = csv.reader(chain(sample, lines), delimiter=max(_DELIMITERS, key=count_rows), strict=True)
    line_number = 1
    try:
        for row in reader:
            if row:
                yield line_number, row
            line_number = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{describe_path(path)}, line {line_number}: not CSV: {error}", code="invalid-format") from None


def _find_columns(
    name: str, row: Sequence[str], column_names: Sequence[str] | None, source_language: str, target_language: str
) -> tuple[tuple[int, int] | None, bool]:
    """Return the columns of source and target by the first row, None for the only two, and whether the row names them."""
    cells = [cell.strip() for cell in row]
    header = [cell if cell == "src" else get_language(to_language_code(cell)) for cell in cells]  # not Sardinian
    keys = find_keys(header.__contains__, source_language, target_language)
    is_header = keys is not None and set(keys) <= set(header)
    if column_names is None:
        return ((header.index(keys[0]), header.index(keys[1])) if keys and is_header else None), is_header
    if all(column_name.isdecimal() and column_name.isascii() and 0 < len(column_name) < 10 for column_name in column_names):
        source, target = (int(column_name) - 1 for column_name in column_names)
        if min(source, target) < 0:
            raise DataError(f"{name}: columns are counted from '1'", code="unknown-column")
        return (source, target), is_header
    if missing := [column_name for column_name in column_names if column_name not in cells]:
        raise DataError(f"{name}: has no column {missing[0]!r}; it has {quote_names(cells)}", code="unknown-column")
    return (cells.index(column_names[0]), cells.index(column_names[1])), True


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
