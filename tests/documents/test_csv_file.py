"""CSV and TSV files: cells, quotation marks, keys, and files that are none."""

from __future__ import annotations

import csv
import io

import pytest
from document_checks import check_document, check_laws
from hypothesis import given
from hypothesis import strategies as st

from dragoman.documents.csv_file import parse_csv, parse_tsv
from dragoman.documents.document import UnitTranslation, write_document
from dragoman.documents.reading import ended_by
from dragoman.documents.unit_selection import KeyGlobs, list_selected
from dragoman.errors import DataError

FILE = 'id,text,note\r\ngreeting,"Hello, you",a note\r\nfarewell,"Say ""bye""\nnow",\r\n\r\nlast,Simple,x'


def test_cells_have_the_names_of_column_and_row() -> None:
    document = check_document(parse_csv, FILE.encode())
    texts = [unit for unit in document.units if unit.key.startswith("text.")]
    assert [(unit.key, unit.source) for unit in texts] == [
        ("text.greeting", "Hello, you"), ("text.farewell", 'Say "bye"\nnow'), ("text.last", "Simple"),
    ]  # fmt: skip
    assert [unit.source for unit in list_selected(document, "empty", KeyGlobs(("text.*",)))] == [unit.source for unit in texts]
    translations = {unit.id: UnitTranslation(f'{unit.source}; a, "b"') for unit in texts}
    written = write_document(document, translations).decode()
    rows = list(csv.reader(io.StringIO(written, newline="")))
    assert [row[1] for row in rows if row] == ["text", *(text.text for text in translations.values())]
    assert written.endswith('\r\n\r\nlast,"Simple; a, ""b""",x')


def test_keys_and_formulas_stay_and_columns_have_languages() -> None:
    content = b'Key,en,de,String_ID\nwelcome,Welcome,Hallo,a b\nk2,Good day,"=IF(A1,""x"")",c\n'
    document = check_document(parse_csv, content)
    assert [(unit.source, unit.language) for unit in document.units] == [("Welcome", "en"), ("Hallo", "de"), ("Good day", "en")]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_first_line_tells_the_delimiter(delimiter: str) -> None:
    content = f"a{delimiter}b\nOne, two; three{delimiter}x\n".replace(", ", " " if delimiter == "," else ", ")
    content = content.replace("; ", " " if delimiter == ";" else "; ")
    document = parse_csv(content.encode())
    assert [unit.key for unit in document.units] == ["a.1", "b.1"]
    assert parse_csv(f"sep={delimiter}\n{content}".encode()).units == document.units
    if delimiter == "\t":
        assert parse_tsv(content.encode()).units == document.units


def test_quotation_marks_between_tabs_are_text_unless_they_enclose_the_cell() -> None:
    content = b'en\tnote\n"Quoted" start\tA 5" screen\n"in ""both"""\t"a\tb"\n'
    document = check_document(parse_tsv, content)
    assert [unit.source for unit in document.units] == ['"Quoted" start', 'A 5" screen', 'in "both"', "a\tb"]
    new = ['"Neu" hier', '"alles"', 'x "y"', "c"]
    translations = {unit.id: UnitTranslation(text) for unit, text in zip(document.units, new, strict=True)}
    written = write_document(document, translations)
    assert written == b'en\tnote\n"Neu" hier\t"""alles"""\n"x ""y"""\t"c"\n'
    assert [unit.source for unit in parse_tsv(written).units] == new


@given(st.lists(st.lists(st.text(st.sampled_from('ab ,;"\n\r\t'), max_size=6), min_size=2, max_size=3), min_size=1, max_size=4))
def test_cells_are_those_of_the_module_csv(rows: list[list[str]]) -> None:
    stream = io.StringIO(newline="")
    csv.writer(stream).writerows([["one", "two", "three"], *rows])
    document = parse_csv(stream.getvalue().encode())
    cells = {f"{number}.{column}": cell for number, row in enumerate(rows, 1) for column, cell in enumerate(row, 1)}
    units = [*document.units, *document.other_units]
    assert {unit.id: unit.source for unit in units} == {name: cell for name, cell in cells.items() if cell.strip()}
    check_laws(parse_csv, document.content, lambda text: f'{text} "x", y\nz')


@given(st.text(st.sampled_from('ab "\n\t'), max_size=20))
def test_no_translation_between_tabs_changes_other_cells(rows: str) -> None:
    content = f"one\ttwo\n{rows}\n".encode()
    try:
        parse_tsv(content)
    except DataError:
        return
    for change in (lambda text: f'{text} "x" y', lambda text: f'"x" {text}', lambda text: f'"{text}"'):
        check_laws(parse_tsv, content, change)


def test_reading_ends_at_any_row() -> None:
    calls: list[None] = []
    with ended_by(lambda: calls.append(None)):
        parse_csv(b"one,two\n" + b",\n" * 500)
    assert len(calls) > 500
