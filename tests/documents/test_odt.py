"""Tests of ODT documents."""

from __future__ import annotations

import pytest
from document_checks import check_document, check_other_members

from dragoman.documents.document import UnitTranslation, write_document
from dragoman.documents.odt import parse_odp, parse_ods, parse_odt
from expected_errors import raises_code
from office_files import ODF, make_odt, make_zip, read_members

NOTE = (
    '<text:note text:id="n1"><text:note-citation>1</text:note-citation><text:note-body>'
    "<text:p>A note.</text:p></text:note-body></text:note>"
)


PARAGRAPHS = {
    "plain": ("Text &amp; more\n   text", "Text & more text", "none"),
    "span": ('A <text:span text:style-name="T1">bold </text:span> word', "A <g1>bold </g1>word", "xml"),
    "link": ('See <text:a href="x">this</text:a><text:line-break/>now<text:tab/>', "See <g1>this</g1><br2/>now", "xml"),
    "note": (f"One{NOTE} two", "One<x1/> two", "xml"),
    "note in a span": (
        f'One <text:span text:style-name="T1">two{NOTE} three</text:span>',
        "One <g1>two<x2/> three</g1>",
        "xml",
    ),
    "note at the end": (f"One{NOTE}", "One", "none"),
    "field": ("Page <text:page-number>3</text:page-number> of ten", "Page <x1/> of ten", "xml"),
}


@pytest.mark.parametrize("name", PARAGRAPHS)
def test_paragraph_is_read_and_written(name: str) -> None:
    body, source, markup = PARAGRAPHS[name]
    content = make_odt(f"<text:p>{body}</text:p>")
    document = check_document(parse_odt, content)
    assert (document.units[0].source, document.units[0].markup) == (source, markup)
    assert [unit.source for unit in document.units[1:]] == (["A note."] if NOTE in body else [])


def test_notes_keep_their_place_and_are_translated() -> None:
    document = parse_odt(make_odt(f"<text:p>One{NOTE} two</text:p>"))
    texts = dict(zip((unit.id for unit in document.units), ("<x1/>Eins zwei", "Eine Notiz."), strict=True))
    written = write_document(document, {name: UnitTranslation(text) for name, text in texts.items()})
    expected = f"<text:p>{NOTE.replace('A note.', 'Eine Notiz.')}Eins zwei</text:p>"
    assert expected.encode() in read_members(written)["content.xml"]


DRAWING = (
    'xmlns:draw="urn:oasis:names:tc:opendocument:xmlns:drawing:1.0" '
    'xmlns:svg="urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0"'
)


def make_frame(inside: str = "", attributes: str = "") -> str:
    """Return a frame with alternative texts."""
    titles = "<svg:title>A house</svg:title><svg:desc>It has &lt;two&gt; doors.</svg:desc>"
    return f"<draw:frame {DRAWING} {attributes}>{inside}{titles}</draw:frame>"


@pytest.mark.parametrize("kind", ["text", "presentation", "spreadsheet"])
def test_alternative_texts_are_translated(kind: str) -> None:
    titles = ["A house", "It has <two> doors."]
    parse = {"text": parse_odt, "presentation": parse_odp, "spreadsheet": parse_ods}[kind]
    frame = make_frame("<draw:text-box><text:p>Inside</text:p></draw:text-box>")
    body = (
        f"<text:p>One {frame} two</text:p>{make_frame()}<text:p>{make_frame()}</text:p><svg:title {DRAWING}>a.png</svg:title>"
    )
    document = check_document(parse, make_odt(body, mimetype=kind))
    assert [unit.source for unit in document.units] == ["One <x1/> two", "Inside", *titles * 3]
    assert not document.skipped


def test_headings_and_headers_are_translated_and_deleted_texts_are_not() -> None:
    body = "<text:tracked-changes><text:p>Deleted</text:p></text:tracked-changes><text:h>Title</text:h><text:p> - 1 -</text:p>"
    content = make_odt(body, "<text:p>Header</text:p>")
    document = check_document(parse_odt, content)
    assert [(unit.id, unit.source) for unit in document.units] == [("content.xml/1", "Title"), ("styles.xml/1", "Header")]
    check_other_members(parse_odt, content, {"content.xml", "styles.xml"})


def test_code_is_kept() -> None:
    def style(family: str, name: str, parent: str, font: str = "") -> str:
        attributes = f'style:family="{family}" style:name="{name}" style:parent-style-name="{parent}"'
        return f'<style:style {attributes}><style:text-properties style:font-name="{font}"/></style:style>'

    def span(name: str, text: str) -> str:
        return f'<text:span text:style-name="{name}">{text}</text:span>'

    common = style("text", "Source_20_Text", "") + style("paragraph", "Play", "", "Courier") + "<text:p>{}</text:p>"
    automatic = style("text", "T1", "", "Liberation Mono1") + style("text", "T2", "Source_20_Text") + style("text", "T3", "T1")
    paragraphs = [
        f"Call {span('T1', 'f')}{span('T3', '(x)')} now",
        f"Call {span('T2', 'f(x)')} now",
        span("T2", "f(x)"),
    ]
    body = automatic + "".join(f"<text:p>{paragraph}</text:p>" for paragraph in paragraphs)
    body += f'<text:p text:style-name="Play">He {span("T1", "runs")}</text:p>'
    # In the headers, T1 is another style.
    content = make_odt(body, style("text", "T1", "", "Arial") + common.format(f"Head {span('T1', 'er')}"))
    document = check_document(parse_odt, content)
    assert [unit.source for unit in document.units] == [
        "Call <x1/><x2/> now",
        "Call <x1/> now",
        "He <g1>runs</g1>",
        "Head <g1>er</g1>",
    ]
    whole = make_odt(automatic + f"<text:p>{span('T1', 'Whole text')}</text:p>")
    assert [unit.source for unit in parse_odt(whole).units] == ["<g1>Whole text</g1>"]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (make_odt("", manifest="<manifest:encryption-data/>"), "invalid-format"),
        (make_odt("", manifest="<x:y/><manifest:encryption-data/>"), "invalid-format"),
        (make_odt("", mimetype="spreadsheet"), "unknown-format"),
    ],
)
def test_other_files_are_refused(content: bytes, code: str) -> None:
    with raises_code(code):
        parse_odt(content)


def test_prefix_without_a_name_in_the_manifest_is_allowed() -> None:
    """Templates of letters of LibreOffice 7.4 have such manifests, and LibreOffice opens them."""
    content = make_odt("<text:p>One word</text:p>", manifest="<x:y/>")
    check_document(parse_odt, content)


TABLE = 'xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0"'


def make_ods(rows: str, more: str = "") -> bytes:
    body = f'<office:spreadsheet {TABLE}>{more}<table:table table:name="Prices">{rows}</table:table></office:spreadsheet>'
    return make_odt(body, "<text:p>Page <text:page-number>1</text:page-number></text:p>", mimetype="spreadsheet")


def make_cell(text: str, attributes: str = 'office:value-type="string"') -> str:
    return f"<table:table-cell {attributes}><text:p>{text}</text:p></table:table-cell>"


def test_titles_of_charts_are_translated() -> None:
    """The table of a chart has copies of cells, which stay. The object of a formula is no chart."""
    cell = "<table:table-cell><text:p>East</text:p></table:table-cell>"
    chart = (
        f"<office:chart><c:title xmlns:c='c'><text:p>Sales</text:p></c:title><table:table>{cell}</table:table></office:chart>"
    )
    objects = {
        f"Object {number}/content.xml": f"<office:document-content {ODF} {TABLE}>{body}</office:document-content>"
        for number, body in enumerate((chart, "<text:p>Formula</text:p>"))
    }
    members = read_members(make_ods("", '<table:error-message table:title="Prompt"/>'))
    document = check_document(parse_ods, make_zip({**members, **objects}, stored=("mimetype",)))
    assert [unit.source for unit in document.units] == ["Page", "Sales"]
    assert document.skipped == {"names of sheets": 1, "texts in the data of charts": 1, "titles of prompts": 1}


def test_cells_are_translated_and_compared_texts_stay() -> None:
    note = "<office:annotation><text:p>A note</text:p></office:annotation>"
    cells = make_cell("The <text:span>red</text:span> house") + make_cell("yes") + make_cell("Old stock") + make_cell("Tea")
    cells += make_cell("Blue") + make_cell(f"Cell</text:p>{note}<text:p>Second line")
    cells += make_cell("two", 'table:formula="of:=IF([.B1]=&quot;yes&quot;;&quot;two&quot;;1)" office:value-type="string"')
    cells += make_cell("5 May", 'office:value-type="date" office:date-value="2020-05-05"') + make_cell("3.5 kg")
    more = '<table:content-validation table:condition="of:cell-content-is-in-list(&quot;Tea&quot;;&quot;Salt&quot;)"/>'
    more += '<table:filter-condition table:value="Blue"/>'
    more += '<table:condition table:value="begins-with(&quot;old&quot;)"/>'
    content = make_ods(cells, more)
    document = check_document(parse_ods, content)
    assert [unit.source for unit in document.units] == [
        "The <g1>red</g1> house", "Cell", "A note", "Second line", "3.5 kg", "Page",
    ]  # fmt: skip
    assert document.skipped == {
        "names of sheets": 1,
        "texts that formulas, lists, filters or tables compare with": 4,
        "results of formulas": 1,
        "numbers and dates": 1,
        "texts in formulas": 5,
    }
    check_other_members(parse_ods, content, {"content.xml", "styles.xml"})
    with raises_code("unknown-format"):
        parse_ods(make_odt(""))
