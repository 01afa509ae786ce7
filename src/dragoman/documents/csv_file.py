"""CSV and TSV files: the cells of each column below its name in the first row, as in RFC 4180.

Between tabs, a cell that only begins with a word in quotation marks is text as it stands.

A cell has the key `COLUMN.ROW`. The row is a cell of the line, if all cells of its column differ and stay, else its number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress

from dragoman.documents.document import Document, Edit, Unit, UnitTranslation, divide_units
from dragoman.documents.encoded_text import EncodedText, decode, make_line_error
from dragoman.documents.reading import check_goes_on, check_lines, check_texts, join_keys
from dragoman.errors import DataError
from dragoman.text.no_language import is_data

_DELIMITERS = ",;\t|"
_STATEMENT = re.compile(r"sep=([,;\t|])\r?\n")
"""Line in which a file for Excel states what divides its cells"""
_QUOTED = re.compile(r'"[^"]*+(?:""[^"]*+)*+"')
_KEY_COLUMNS = frozenset(
    ("guid", "handle", "id", "identifier", "ids", "key", "keys", "msgid", "sku", "slug", "string id", "uuid")
)
"""Names of columns whose cells programs look for."""
_LANGUAGE = re.compile(r"[a-z]{2}(?:[-_](?:[A-Z][a-z]{3}|[A-Z]{2}))?")
_FORMULA = re.compile(r"=[A-Z][A-Z0-9.]*\(")
MAX_COLUMNS = 10_000
"""Most cells of a line."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """Cell. start, end: its characters, with quotation marks"""

    text: str
    start: int
    end: int
    is_quoted: bool


def parse_csv(content: bytes) -> Document:
    """Return the document of a CSV file, whose first line tells what divides its cells.

    Raises DataError for a file without names of columns, and for quotation marks that end no cell or have no end.
    """
    text = decode(content, is_table=True)
    if stated := _STATEMENT.match(text.text):
        return _parse(text, stated[1], stated.end())
    first = _QUOTED.sub("", text.text[: text.text.find("\n")] if "\n" in text.text else text.text)
    return _parse(text, max(_DELIMITERS, key=first.count))


def parse_tsv(content: bytes) -> Document:
    """Return the document of a TSV file. Raises DataError as `parse_csv` does."""
    return _parse(decode(content, is_table=True), "\t")


def _parse(text: EncodedText, delimiter: str, start: int = 0) -> Document:
    rows = _read_rows(text.text, delimiter, start)
    header = next(rows, [])
    if not any(cell.text.strip() for cell in header):
        raise DataError("the first line has no names of columns", code="invalid-format")
    num_rows = 0
    cells: list[tuple[int, int, _Cell]] = []  # those with a text, each behind the numbers of its row and column
    for num_rows, row in enumerate(rows, start=1):
        check_lines(num_rows, len(text.text))
        for column, cell in enumerate(row):
            if cell.text.strip():
                cells.append((num_rows, column, cell))
                check_texts(len(cells), len(text.content))
    key_columns = {column for column, cell in enumerate(header) if cell.text.strip().lower().replace("_", " ") in _KEY_COLUMNS}
    languages = {
        column: cell.text for column, cell in enumerate(header) if column not in key_columns and _LANGUAGE.fullmatch(cell.text)
    }
    if len(languages) == 1:
        languages.clear()
    names = _find_names(cells, key_columns, len(header), num_rows)
    units: list[Unit] = []
    places: dict[str, _Cell] = {}
    for number, column, cell in cells:
        name = header[column].text if column < len(header) else str(column + 1)
        key = join_keys((name, names.get(number, str(number))))
        unit = Unit(f"{number}.{column + 1}", cell.text, context=key, key=key, language=languages.get(column, ""))
        units.append(unit)
        places[unit.id] = cell

    def make_edits(unit: Unit, translation: UnitTranslation) -> Sequence[Edit]:
        cell, new = places[unit.id], translation.text
        special = (delimiter, "\n", "\r") if _is_literal(cell, new, delimiter) else (delimiter, '"', "\n", "\r")
        if cell.is_quoted or new != new.strip() or any(map(new.__contains__, special)):
            new = '"' + new.replace('"', '""') + '"'
        return [text.make_edit(cell.start, cell.end, new)]

    def find_values() -> dict[str, Edit]:
        values: dict[str, Edit] = {}
        with suppress(DataError):  # that there are too many
            for number, row in enumerate(_read_rows(text.text, delimiter, start) if names else ()):
                for column, cell in enumerate(row[: len(header)] if number else ()):
                    if not cell.text.strip():
                        edit = text.make_edit(cell.start, cell.end, text.text[cell.start : cell.end])
                        values[join_keys((header[column].text, names[number]))] = edit
                        check_texts(len(values), len(text.content))
        return values

    kept = [column in key_columns or _FORMULA.match(cell.text) is not None for _, column, cell in cells]
    texts, others = divide_units(unit for unit, is_kept in zip(units, kept, strict=True) if not is_kept)
    return Document(
        text.content,
        texts,
        "csv",
        make_edits,
        other_units=[*others, *compress(units, kept)],
        has_numbered_keys=not names,
        find_values=find_values,
    )


def _find_names(
    cells: Sequence[tuple[int, int, _Cell]], key_columns: Collection[int], num_columns: int, num_rows: int
) -> dict[int, str]:
    """Return the name of each row, which a translation keeps; none if no column has names."""
    texts: dict[int, dict[int, str]] = {}
    for number, column, cell in cells if num_columns > 1 else ():
        texts.setdefault(column, {})[number] = cell.text
    for column, names in sorted(texts.items()):
        if len(set(names.values())) == num_rows and (column in key_columns or all(map(_stays, names.values()))):
            return names
    return {}


def _stays(text: str) -> bool:
    return not any(map(str.isalpha, text)) or is_data(text)


def _is_literal(cell: _Cell, new: str, delimiter: str) -> bool:
    """Return whether a text can stand in the place of a cell with quotation marks that are text, as those of the cell are."""
    if delimiter != "\t" or cell.is_quoted or '"' not in cell.text:
        return False
    return not new.startswith('"') or _begins_with_quotation(new, _QUOTED.match(new))


def _begins_with_quotation(text: str, quoted: re.Match[str] | None) -> bool:
    """Return whether quotation marks enclose the first words of a cell between tabs, and not all of it."""
    ends = ("\t", "\r", "\n", "")
    return (
        quoted is not None
        and text[quoted.end() : quoted.end() + 1] not in ends
        and not any(map(quoted[0].__contains__, ends[:3]))
    )


def _read_rows(text: str, delimiter: str, position: int) -> Iterator[list[_Cell]]:
    """Yield the cells of each line that is not empty. A quoted cell may have line breaks."""
    plain = re.compile(rf"[^{re.escape(delimiter)}\r\n]*+")
    row: list[_Cell] = []
    while position <= len(text):
        quoted = _QUOTED.match(text, position)
        if quoted is None and text.startswith('"', position):  # written marks behind it would end it
            raise make_line_error(text, position, "has a quotation mark that no other one ends; double it between two more")
        if delimiter == "\t" and _begins_with_quotation(text, quoted):
            quoted = None
        match = quoted or plain.match(text, position)
        assert match is not None  # the second pattern also matches nothing
        value = match[0][1:-1].replace('""', '"') if quoted else match[0]
        row.append(_Cell(value, *match.span(), quoted is not None))
        position = match.end()
        following = text[position : position + 1]
        if len(row) > MAX_COLUMNS:
            raise make_line_error(text, position, f"has more than {MAX_COLUMNS:,} cells")
        if following not in (delimiter, "\r", "\n", ""):
            raise make_line_error(text, position, "has a quotation mark before the end of a cell; double it")
        position += 1
        if following != delimiter:
            check_goes_on()
            position += text.startswith("\r\n", position - 1)
            if len(row) > 1 or row[0].text:
                yield row
            row = []
