"""Tests of PPTX documents."""

from __future__ import annotations

from document_checks import check_document, check_other_members

from dragoman.documents.document import UnitTranslation, write_document
from dragoman.documents.pptx import parse_pptx
from office_files import A, make_pptx, read_members

SLIDE, NOTES = "ppt/slides/slide1.xml", "ppt/notesSlides/notesSlide1.xml"
MASTER = "ppt/slideMasters/slideMaster1.xml"
PLAIN = '<a:rPr lang="en-US" dirty="0"/>'
BOLD = '<a:rPr lang="en-US" b="1" dirty="0"/>'


def run(text: str, properties: str = "") -> str:
    return f"<a:r>{properties}<a:t>{text}</a:t></a:r>"


def test_slides_and_notes_are_translated() -> None:
    runs = [run("A ", PLAIN), run("bo", BOLD), run("ld", BOLD.replace("US", "GB")), run(" word"), "<a:br/>", run("next")]
    body = f"<a:p><a:pPr lvl='1'/>{''.join(runs)}<a:endParaRPr/></a:p>"
    notes = ("presentationml.notesSlide", f"<sld {A}><a:p>{run('Say hello')}</a:p></sld>")
    master = ("presentationml.slideMaster", f"<sld {A}><a:p>{run('Master')}</a:p></sld>")
    content = make_pptx(body, {NOTES: notes, MASTER: master})
    document = check_document(parse_pptx, content)
    assert [unit.source for unit in document.units] == ["A <g1>bold</g1> word<br2/>next", "Say hello", "Master"]
    check_other_members(parse_pptx, content, {SLIDE, NOTES, MASTER})
    written = write_document(document, {document.units[0].id: UnitTranslation("Ein<br2/><g1>fettes</g1> ")})
    expected = (
        "<a:p><a:pPr lvl='1'/>" + run("Ein") + "<a:br/>" + run("fettes", '<a:rPr b="1"/>') + run(" ") + "<a:endParaRPr/></a:p>"
    )
    assert expected.encode() in read_members(written)[SLIDE]


def test_slide_number_is_kept() -> None:
    number = "<a:fld id='{1}' type='slidenum'><a:rPr/><a:t>page 3</a:t></a:fld>"
    body = f"<a:p>{number}</a:p><a:p>{run('Slide ')}{number}{run(' of us')}</a:p>"
    document = check_document(parse_pptx, make_pptx(body))
    assert document.units[0].source == "Slide <x1/> of us"


def test_monospaced_run_beside_words_is_kept() -> None:
    mono = "<a:rPr b='1'><a:latin typeface='Consolas'/></a:rPr>"
    body = f"<a:p>{run('Call ')}{run('f(x)', mono)}{run(' now')}</a:p><a:p>{run('Whole text', mono)}</a:p>"
    document = check_document(parse_pptx, make_pptx(body))
    assert [unit.source for unit in document.units[:2]] == ["Call <x1/> now", "Whole text"]
