"""Texts of office files outside of paragraphs and cells, and texts that formulas compare with."""

from __future__ import annotations

import pytest
from document_checks import check_document

from dragoman.documents.document import UnitTranslation, write_document
from dragoman.documents.docx import parse_docx
from dragoman.documents.pptx import parse_pptx
from dragoman.documents.reading import MAX_PARTS
from dragoman.documents.xlsx import parse_xlsx
from dragoman.errors import DataError
from office_files import A, S, W, make_docx, make_pptx, make_xlsx, read_members

CHART = (
    "drawingml.chart",
    f'<c:chartSpace xmlns:c="c" {A}><c:title><a:p><a:r><a:t>Chart title</a:t></a:r></a:p></c:title>'
    "<c:strCache><c:pt><c:v>Series</c:v></c:pt><c:pt><c:v>12</c:v></c:pt></c:strCache></c:chartSpace>",
)
NEW_CHART = (
    "ms-office.chartex",
    f'<x:chartSpace xmlns:x="x" {A}><x:strDim><x:lvl><x:pt>Spring</x:pt></x:lvl></x:strDim><x:txData><x:f>B1</x:f>'
    "<x:v>Copy</x:v></x:txData><x:txData><x:v>New title</x:v></x:txData><a:p><a:r><a:t>Axis</a:t></a:r></a:p></x:chartSpace>",
)
CORE = "<c:coreProperties xmlns:c='c' xmlns:d='d'><d:title>Book title</d:title><d:creator>Kept</d:creator></c:coreProperties>"
CORE_PART = {"docProps/core.xml": ("core-properties", CORE)}


def make_workbook(strings: list[str], sheet: str, parts: dict[str, tuple[str, str]]) -> bytes:
    """Return a workbook with a cell for each text."""
    return make_xlsx("".join(f"<si><t>{text}</t></si>" for text in strings), sheet, parts)


def test_texts_that_are_compared_stay(subtests: pytest.Subtests) -> None:
    for sheet, kept, num_literals in (
        ('<f>COUNTIF(A1:A9,"open door")</f>', ["Open door"], 1),
        ('<f>COUNTIF(A1:A9,"*door*")</f>', ["Open door", "Closed door"], 1),
        ('<f>COUNTIF(A1:A9,"*[ab]*")</f>', ["Free [ab]"], 1),
        ('<f>IF(A1="say ""yes""",1,0)</f>', ['Say "yes"'], 1),
        ('<filterColumn><filters><filter val="Open door"/></filters></filterColumn>', ["Open door"], 0),
        ('<cfRule type="containsText" text="door"><formula>1</formula></cfRule>', ["Open door", "Closed door"], 0),
        ('<cfRule><formula>NOT(ISERROR(SEARCH("door",A1)))</formula></cfRule>', ["Open door", "Closed door"], 1),
        ('<dataValidation type="list"><formula1>"Open door,No"</formula1></dataValidation>', ["Open door"], 1),
        ('<f>COUNTIF(A1:A9,"&lt;&gt;Open door")</f>', ["Open door"], 1),
        ('<f>LEFT(A1,4)="open"</f>', ["Open door"], 1),
        ('<f>SWITCH(RIGHT(A1,4),"door",1)</f>', ["Open door", "Closed door"], 1),
        ('<f>IF(MID(A1,3,1)="","no","")</f>', [], 1),
        ('<f>SUBSTITUTE(A1,"door","gate")</f>', ["Open door", "Closed door"], 2),
        ('<f>SEARCH(" ",A1)</f>', [], 0),
        ("<f>INDIRECT(A1&amp;B1)</f>", ["Sheet one"], 0),
        ("<f>LEN(A1)</f>", [], 0),
    ):
        with subtests.test(sheet):
            strings = ["Open door", "Closed door", 'Say "yes"', "Free [ab]", "Sheet one"]
            document = parse_xlsx(make_workbook(strings, sheet, {}))
            assert [text for text in strings if text not in {unit.source for unit in document.units}] == kept
            skipped = dict(document.skipped)
            assert skipped.pop("names of sheets") == 1
            assert skipped.pop("texts in formulas", 0) == num_literals
            assert sum(skipped.values()) == len(kept)


@pytest.mark.slow
def test_texts_that_cells_may_contain_are_limited() -> None:
    sheet = "".join(f'<cfRule text="{number}"/>' for number in range(MAX_PARTS + 1))
    with pytest.raises(DataError, match="200,000 elements, attributes and texts"):
        parse_xlsx(make_workbook([], sheet, {}))


def test_names_of_pivot_fields_stay() -> None:
    field = '<cacheField name="Color"><sharedItems><s v="Red"/></sharedItems></cacheField>'
    pivot = f"<pivotCacheDefinition {S}>{field}</pivotCacheDefinition>"
    content = make_workbook(["Color", "Red", "Size"], "", {"xl/p.xml": ("spreadsheetml.pivotCacheDefinition", pivot)})
    assert [unit.source for unit in parse_xlsx(content).units] == ["Size"]


def test_texts_around_cells_are_translated() -> None:
    sheet = (
        '<dataValidations><dataValidation promptTitle="Prompt title" prompt="A &quot;prompt&quot;" error="An error">'
        "<formula1>A1</formula1></dataValidation></dataValidations>"
        '<hyperlinks><hyperlink ref="A1" tooltip="A tip"/></hyperlinks>'
        '<headerFooter><oddHeader>&amp;LLeft side&amp;C&amp;"Arial,Bold"&amp;12Page &amp;P</oddHeader></headerFooter>'
    )
    comments = f"<comments {S}><comment><text><r><t>A note</t></r></text></comment></comments>"
    drawing = (
        f'<d:wsDr xmlns:d="d" {A}><d:cNvPr id="1" name="Kept" descr="A cat"/><a:p><a:r><a:t>A box</a:t></a:r></a:p></d:wsDr>'
    )
    parts = {
        "xl/comments1.xml": ("spreadsheetml.comments", comments),
        "xl/drawings/drawing1.xml": ("drawing", drawing),
        "xl/charts/chart1.xml": CHART,
        **CORE_PART,
    }
    document = check_document(parse_xlsx, make_workbook([], sheet, parts))
    assert [unit.source for unit in document.units] == [
        "<br1/>Left side<br2/><x3/><x4/>Page <x5/>", "A note", "Prompt title", 'A "prompt"', "An error", "A tip", "A box",
        "Chart title", "A cat", "Book title",
    ]  # fmt: skip
    texts = {unit.id: UnitTranslation(unit.source.replace("e", 'é & "')) for unit in document.units[:4]}
    texts[document.units[0].id] = UnitTranslation("<br1/>L &amp; R<br2/><x3/><x4/>Seite <x5/>")
    written = read_members(write_document(document, texts))["xl/worksheets/sheet1.xml"].decode()
    assert 'promptTitle="Prompt titlé &amp; &quot;" prompt="A &quot;prompt&quot;" error="An error">' in written
    assert '&amp;LL &amp;&amp; R&amp;C&amp;"Arial,Bold"&amp;12Seite &amp;P' in written


def test_alternative_texts_of_word() -> None:
    picture = '<w:r><w:drawing><docPr id="1" name="Kept" descr="A cat" title="Cats"/></w:drawing></w:r>'
    body = (
        f"<w:p><w:r><w:t>See </w:t></w:r>{picture}<w:r><w:t> there</w:t></w:r></w:p><w:p>{picture}</w:p>"
        f"<w:p><w:ins>{picture}<w:r><w:t>In a change</w:t></w:r></w:ins></w:p>"
        '<w:sdt><w:sdtPr><w:alias w:val="A name"/><w:dropDownList><w:listItem w:displayText="One"/></w:dropDownList></w:sdtPr>'
        '</w:sdt><w:p><w:hyperlink w:tooltip="A tip"><w:r><w:fldChar w:fldCharType="begin"><w:ffData><w:helpText w:val="Help"/>'
        '<w:textInput><w:default w:val="A name"/></w:textInput><w:checkBox><w:default w:val="0"/></w:checkBox></w:ffData>'
        "</w:fldChar></w:r></w:hyperlink></w:p>"
    )
    parts = {"word/charts/chart1.xml": CHART, "word/charts/chart2.xml": NEW_CHART, **CORE_PART}
    document = check_document(parse_docx, make_docx(body, parts))
    assert [unit.source for unit in document.units] == [
        "See <x1/> there", "A cat", "Cats", "A cat", "Cats", "<g1><x2/>In a change</g1>", "Chart title", "Axis",
        "New title", "Book title",
    ]  # fmt: skip
    assert document.skipped == {
        "texts in the data of charts": 3,
        "choices of lists": 1,
        "tooltips of links": 1,
        "texts of form fields": 3,
    }
    translations = {unit.id: UnitTranslation(f"{unit.source}!") for unit in document.units}
    written = read_members(write_document(document, translations))["word/document.xml"].decode()
    assert written.count('descr="A cat!" title="Cats!"') == 2
    assert W in written


def test_layouts_comments_and_alternative_texts_of_powerpoint() -> None:
    def make_part(kind: str, text: str) -> tuple[str, str]:
        return (
            f"presentationml.{kind}",
            f'<p:x xmlns:p="p" {A}><p:cNvPr descr="{text} picture"/><a:p><a:r><a:t>{text}</a:t></a:r></a:p></p:x>',
        )

    content = make_pptx(
        "",
        {
            "ppt/slides/slide1.xml": make_part("slide", "Slide"),
            "ppt/slideLayouts/slideLayout1.xml": make_part("slideLayout", "Layout"),
            "ppt/charts/chart1.xml": CHART,
            "ppt/comments/comment1.xml": ("presentationml.comments", '<p:cm xmlns:p="p"><p:text>A comment</p:text></p:cm>'),
            "ppt/comments/modern1.xml": ("ms-powerpoint.comments", make_part("", "Reply")[1].replace("cNvPr", "id")),
        },
    )
    document = check_document(parse_pptx, content)
    assert [unit.source for unit in document.units] == [
        "Slide", "Layout", "Chart title", "Reply", "Slide picture", "Layout picture", "A comment"
    ]  # fmt: skip


def test_texts_of_diagrams_and_their_shapes_are_translated() -> None:
    def make_part(kind: str, text: str) -> tuple[str, str]:
        return f"drawingml.{kind}", f'<d:x xmlns:d="d" {A}><d:t><a:p><a:r><a:t>{text}</a:t></a:r></a:p></d:t></d:x>'

    parts = {"a/data1.xml": make_part("diagramData", "A step"), "a/drawing1.xml": make_part("diagramDrawing", "A step")}
    for parse, content in (
        (parse_docx, make_docx("", parts)),
        (parse_xlsx, make_workbook([], "", parts)),
        (parse_pptx, make_pptx("", parts)),
    ):
        document = check_document(parse, content)
        assert [unit.source for unit in document.units] == ["A step", "A step"]
