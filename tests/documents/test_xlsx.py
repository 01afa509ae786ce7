"""Tests of XLSX documents."""

from __future__ import annotations

from document_checks import check_document
from zip_files import check_other_members, make_package, read_members

from dragoman.documents.document import UnitTranslation, write_document
from dragoman.documents.xlsx import parse_xlsx

S = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
STRINGS, SHEET = "xl/sharedStrings.xml", "xl/worksheets/sheet1.xml"
BOLD = "<rPr><b/></rPr>"
CELLS = f"""<sst {S} count="6"><si><t>Hello &amp; you</t></si><si><t>2024-01</t></si><si><t>Price</t></si>\
<si><r><t xml:space="preserve">A </t></r><r>{BOLD}<t>bo</t></r><r>{BOLD}<t>ld</t></r>\
<r><t xml:space="preserve"> word</t></r></si>\
<si><t>東京</t><rPh sb="0" eb="2"><t>トウキョウ</t></rPh><phoneticPr fontId="1"/></si><si><t/></si></sst>"""
ROWS = f'<worksheet {S}><c t="inlineStr"><is><t>Inline</t></is></c><c t="s"><f>A1&amp;"x"</f><v>0</v></c></worksheet>'
XLSX = make_package(
    {
        "xl/workbook.xml": ("spreadsheetml.sheet.main", f'<workbook {S}><sheet name="Sheet one"/></workbook>'),
        STRINGS: ("spreadsheetml.sharedStrings", CELLS),
        SHEET: ("spreadsheetml.worksheet", ROWS),
        "xl/tables/table1.xml": ("spreadsheetml.table", f'<table {S}><tableColumn id="1" name="Price"/></table>'),
    }
)


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
    assert members[STRINGS].decode() == expected.replace("<t>東京", '<t xml:space="preserve">Tokio\nStadt')
    assert members[SHEET].decode() == ROWS
