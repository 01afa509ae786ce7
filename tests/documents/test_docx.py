"""Tests of DOCX documents."""

from __future__ import annotations

import pytest
from document_checks import check_document, check_other_members

from dragoman.documents.document import UnitTranslation, UnwritableUnitsError, check_written, write_document
from dragoman.documents.docx import parse_docx
from office_files import W, make_docx, read_members

BOLD = "<w:rPr><w:b/></w:rPr>"


def run(text: str, properties: str = "", attributes: str = "") -> str:
    space = ' xml:space="preserve"' if text != text.strip() else ""
    return f"<w:r{attributes}>{properties}<w:t{space}>{text}</w:t></w:r>"


def field(instruction: str, result: str) -> str:
    return (
        '<w:r><w:fldChar w:fldCharType="begin"/></w:r>'
        f'<w:r><w:instrText xml:space="preserve"> {instruction} </w:instrText></w:r>'
        f'<w:r><w:fldChar w:fldCharType="separate"/></w:r>{result}<w:r><w:fldChar w:fldCharType="end"/></w:r>'
    )


def read_sources(body: str) -> list[str]:
    return [unit.source for unit in parse_docx(make_docx(body)).units]


def translate(body: str, *texts: str) -> str:
    """Return the body with translations of its first units."""
    document = parse_docx(make_docx(body))
    translations = {unit.id: UnitTranslation(text) for unit, text in zip(document.units, texts, strict=False)}
    xml = read_members(write_document(document, translations))["word/document.xml"].decode()
    return xml[xml.index("<w:body>") + 8 : xml.index("<w:sectPr/>")]


U, UB = "<w:rPr><w:u/></w:rPr>", "<w:rPr><w:u/><w:b/></w:rPr>"
SPELLING = "<w:rPr><w:lang w:val='en-US'/><w:noProof/></w:rPr>"
NOTE = "<w:r><w:footnoteReference w:id='2'/></w:r>"
URL = "HYPERLINK 'https://example.org'"
START, END = "<w:bookmarkStart w:id='{0}' w:name='a{0}'/>", "<w:bookmarkEnd w:id='{0}'/>"
PARAGRAPHS = {
    "plain": (f"<w:pPr/>{run('Text &amp; more')}", "Text & more"),
    "runs of one format": (
        run("Te", "", " w:rsidR='1'") + "<w:proofErr w:type='spellStart'/>" + run("xt ", SPELLING) + run("here"),
        "Text here",
    ),
    "bold word": (run("A ") + run("bo", BOLD) + run("ld", BOLD) + run(" word"), "A <g1>bold</g1> word"),
    "all bold": (run("All ", BOLD) + run("bold", BOLD), "All bold"),
    "link": (
        f"{run('See ')}<w:hyperlink w:anchor='a'>{run('the ', U)}{run('page', UB)}</w:hyperlink>{run('.')}",
        "See <g1>the <g2>page</g2></g1>.",
    ),
    "tab and note": (
        f"<w:r><w:t>One</w:t><w:tab/><w:br/><w:t>two</w:t></w:r>{run(' end')}{NOTE}",
        "One|two end",
    ),
    "note inside": (run("One") + NOTE + run(" end"), "One<x1/> end"),
    "page field": (run("Page ") + field("PAGE", run("7")) + run(" of ten"), "Page <x1/> of ten"),
    "link field": (run("See ") + field(URL, run("this page")) + run(" now"), "See <g1>this page</g1> now"),
    "inserted and deleted": (
        f"{run('Old ')}<w:del w:id='1'><w:r><w:delText>bad</w:delText></w:r></w:del><w:ins w:id='2'>{run('new')}</w:ins>"
        f"{run(' text')}",
        "Old <x1/><g2>new</g2> text",
    ),
    "bookmark": (
        START.format(1) + run("One ") + END.format(1) + START.format(2) + run("two") + END.format(2) + run(" three"),
        "One <x1/><g2>two</g2> three",
    ),
    "bookmark across a format": (
        run("One ") + START.format(1) + run("two", BOLD) + run(" and", BOLD) + END.format(1) + run(" three"),
        "One <g1><g2>two and</g2></g1> three",
    ),
    "content control": (
        f"{run('Name: ')}<w:sdt><w:sdtPr><w:alias w:val='a'/></w:sdtPr><w:sdtContent>{run('your name', BOLD)}</w:sdtContent>"
        "</w:sdt>",
        "Name: <g1>your name</g1>",
    ),
}


def test_paragraph_is_read_and_written(subtests: pytest.Subtests) -> None:
    for name in PARAGRAPHS:
        with subtests.test(name=name):
            paragraph, source = PARAGRAPHS[name]
            document = check_document(parse_docx, make_docx(f"<w:p>{paragraph}</w:p>"))
            assert [unit.source for unit in document.units] == source.split("|")


def test_paragraphs_without_words_have_no_unit() -> None:
    assert read_sources(f"<w:p/><w:p>{run('12 - 3')}</w:p><w:p>{field('PAGE', run('Seite 1'))}</w:p>") == []


def test_translation_has_formats_and_codes_of_its_tags() -> None:
    body = f"<w:p><w:pPr/>{run('A ')}{run('bold', BOLD)}{run(' word')}<w:r><w:br/></w:r>{run('end')}</w:p>"
    assert translate(body, "<br2/>Ein <g1>fettes</g1>") == (
        f"<w:p><w:pPr/><w:r><w:br/></w:r>{run('Ein ')}{run('fettes', BOLD)}</w:p>"
    )


def make_styled_docx(body: str, default_font: str) -> bytes:
    """Return a DOCX file with a default font, a paragraph style in a monospaced font, and a character style for code."""
    fonts = '<w:rPr><w:rFonts w:ascii="{}"/></w:rPr>'
    styles = (
        f"<w:docDefaults><w:rPrDefault>{fonts.format(default_font)}</w:rPrDefault></w:docDefaults>"
        f'<w:style w:type="paragraph" w:styleId="Play"><w:name w:val="Screenplay"/>{fonts.format("Courier New")}</w:style>'
        '<w:style w:type="character" w:styleId="V"><w:name w:val="Verbatim Char"/></w:style>'
        '<w:style w:type="character" w:styleId="V2"><w:name w:val="Tok"/><w:basedOn w:val="V"/></w:style>'
    )
    part = ("wordprocessingml.styles", f"<w:styles {W}>{styles}</w:styles>")
    return make_docx(body, {"word/styles.xml": part})


COURIER = "<w:rPr><w:rFonts w:hAnsi='Courier New' w:ascii='Courier New'/></w:rPr>"
VERBATIM, TOKEN = (f"<w:rPr><w:rStyle w:val='V{number}'/></w:rPr>" for number in ("", "2"))


@pytest.mark.parametrize(
    ("paragraph", "sources"),
    [
        (f"{run('He ')}{run('eats', COURIER)}", ["He <g1>eats</g1>"]),
        (run("Call ") + run("print", COURIER) + run("(x)", COURIER) + run(" now"), ["Call <x1/> now"]),
        (run("Call ") + run("print", VERBATIM) + run("(x)", TOKEN), ["Call "]),
        (run("print(x)", VERBATIM), []),
        (run("A letter", COURIER), ["A letter"]),
        (run("A letter", COURIER) + run(" - 1"), ["<g1>A letter</g1> - 1"]),
        (f"<w:pPr><w:pStyle w:val='Play'/></w:pPr>{run('He ')}{run('runs', COURIER)}", ["He <g1>runs</g1>"]),
    ],
)
def test_code_is_kept(paragraph: str, sources: list[str]) -> None:
    body = f"<w:p>{paragraph}</w:p><w:p>{run('End')}</w:p>"
    content = make_styled_docx(body, "Courier New" if "eats" in body else "Calibri")
    assert [unit.source for unit in parse_docx(content).units] == [*sources, "End"]
    if "- 1" not in paragraph:  # a pseudo-translation has words outside, so the run would be code
        check_document(parse_docx, content)


def test_runs_of_code_become_one_run() -> None:
    body = f"<w:p>{run('Call ')}{run('print', COURIER)}{run('(x)', COURIER)}{run(' now')}</w:p>"
    assert translate(body, "Nun <x1/>") == f"<w:p>{run('Nun ')}{run('print(x)', COURIER)}</w:p>"


def test_text_box_is_translated_in_its_place() -> None:
    box = f"<w:r><w:pict><w:txbxContent><w:p>{run('Box text')}</w:p></w:txbxContent></w:pict></w:r>"
    body = f"<w:p>{run('Before')}{box}{run(' after')}</w:p>"
    check_document(parse_docx, make_docx(body))
    assert read_sources(body) == ["Before<x1/> after", "Box text"]
    assert translate(body, "Nach<x1/>", "Kasten") == f"<w:p>{run('Nach')}{box.replace('Box text', 'Kasten')}</w:p>"


def test_table_of_contents_keeps_its_field() -> None:
    start, _, end = field("TOC", "|").partition("|")
    body = f"<w:p>{start}{run('Chapter')}</w:p><w:p>{run('Second')}{end}</w:p>"
    check_document(parse_docx, make_docx(body))
    written = translate(body, parse_docx(make_docx(body)).units[0].source.replace("Chapter", "Kapitel"))
    assert written == body.replace("Chapter", "Kapitel")


def test_all_parts_with_texts_are_translated() -> None:
    parts = {
        f"word/{name}1.xml": (f"wordprocessingml.{name}", f"<w:a {W}><w:p>{run(name)}</w:p></w:a>")
        for name in ("header", "footer", "footnotes", "endnotes", "comments", "styles")
    }
    content = make_docx(f"<w:p>{run('Body')}</w:p>", parts)
    document = check_document(parse_docx, content)
    assert [unit.source for unit in document.units] == ["Body", "header", "footer", "footnotes", "endnotes", "comments"]
    check_other_members(parse_docx, content, {"word/document.xml", *parts} - {"word/styles1.xml"})


def test_same_tags_prove_that_no_paragraph_is_lost() -> None:
    """A superscript is read by its letters, so the written file is read again."""
    plain, raised = run(" two"), run("2", "<w:rPr><w:vertAlign w:val='superscript'/></w:rPr>")
    for last, is_kept in ((plain, True), (raised, False)):
        content = make_docx(f"<w:p w:rsidR='1'><w:r w:rsidR=\"2\"><w:t>One</w:t></w:r>{run('bold', BOLD)}{last}</w:p>")
        document = parse_docx(content)
        translations = {unit.id: UnitTranslation(unit.source.replace("One", "Eins & ")) for unit in document.units}
        if document.units[0].markup == "xml":
            translations = {name: UnitTranslation(item.text.replace("&", "&amp;")) for name, item in translations.items()}
        written = write_document(document, translations)
        assert document.keeps_tags is not None
        assert document.keeps_tags(written, translations) is is_kept
        check_written(document, translations, written, parse_docx)


def test_written_file_that_lost_a_paragraph_is_no_good_one() -> None:
    body = f"<w:p>{run('One')}</w:p><w:p>{run('Two')}</w:p>"
    document = parse_docx(make_docx(body))
    for old, new in (("Two", "Two Two"), ("Two", ""), (run("Two"), ""), ("Two", "Two<")):
        with pytest.raises(UnwritableUnitsError):
            check_written(document, {}, make_docx(body.replace(old, new)), parse_docx)
