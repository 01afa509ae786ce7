"""Tests of XLSX documents."""

from __future__ import annotations

from document_checks import check_document, check_other_members

from dragoman.documents.document import UnitTranslation, write_document
from dragoman.documents.xlsx import parse_xlsx
from office_files import S, make_xlsx, read_members

STRINGS, SHEET = "xl/sharedStrings.xml", "xl/worksheets/sheet1.xml"
BOLD = "<rPr><b/></rPr>"
CELLS = f"""<si><t>Hello &amp; you</t></si><si><t>2024-01</t></si><si><t>Price</t></si>\
<si><r><t xml:space="preserve">A </t></r><r>{BOLD}<t>bo</t></r><r>{BOLD}<t>ld</t></r>\
<r><t xml:space="preserve"> word</t></r></si>\
<si><t>東京</t><rPh sb="0" eb="2"><t>トウキョウ</t></rPh><phoneticPr fontId="1"/></si><si><t/></si>"""
ROWS = '<c t="inlineStr"><is><t>Inline</t></is></c><c t="s"><f>A1&amp;"x"</f><v>0</v></c>'
TABLE = ("spreadsheetml.table", f'<table {S}><tableColumn id="1" name="Price"/></table>')
XLSX = make_xlsx(CELLS, ROWS, {"xl/tables/table1.xml": TABLE})


def test_texts_of_cells_are_translated() -> None:
    document = check_document(parse_xlsx, XLSX)
    assert [unit.source for unit in document.units] == ["Hello & you", "A <g1>bold</g1> word", "東京", "Inline"]
    check_other_members(parse_xlsx, XLSX, {STRINGS, SHEET})


def test_runs_and_reading_aids_are_written() -> None:
    names = [unit.id for unit in parse_xlsx(XLSX).units]
    translations = {names[1]: UnitTranslation("<g1>Fett</g1> ist es"), names[2]: UnitTranslation("Tokio\nStadt")}
    members = read_members(write_document(parse_xlsx(XLSX), translations))
    start, end = CELLS.index("<si><r>") + 4, CELLS.index("</si><si><t>東京")
    expected = CELLS.replace(CELLS[start:end], f'<r>{BOLD}<t>Fett</t></r><r><t xml:space="preserve"> ist es</t></r>')
    assert expected.replace("<t>東京", '<t xml:space="preserve">Tokio\nStadt') in members[STRINGS].decode()
    assert ROWS in members[SHEET].decode()
