"""Tests of the languages and directions that documents state, with a function in place of the model."""

from __future__ import annotations

import pytest
import test_epub
import test_pptx
import test_xlsx
from document_checks import translate_content

from dragoman.documents.formats import parse_document
from dragoman.documents.translate_document import DocumentOptions
from expected_errors import raises_code
from office_files import make_docx, make_odt, make_pptx, make_zip, read_members

RUN = "<w:r><w:rPr><w:b/><w:lang w:val='{}'/></w:rPr><w:t xml:space='preserve'>{}</w:t></w:r>"
STYLE = '<style:default-style style:family="paragraph"><style:text-properties {}/></style:default-style>'
FO = 'xmlns:fo="urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0" fo:language="{}" fo:country="{}"'


def translate(name: str, content: bytes, source: str, target: str, text: str) -> str:
    """Return the document with this text as the translation of every line; the members of an archive one after the other."""
    written = translate_content(name, content, lambda line: text, DocumentOptions(source, target)).content
    if not written.startswith(b"PK"):
        return written.decode()
    return "".join(member.decode("utf-8", "replace") for member in read_members(written).values())


DIRECTIONS = {
    "a.html": (b'<html lang="en" dir="ltr"><p dir=ltr>It is May.</p>', '<html lang="{}" dir="rtl"><p dir=rtl>'),
    "b.html": (b"<html lang=en><p>It is May.</p>", '<html lang={} dir="rtl"><p>'),
    "c.html": (b"<body><p>It is May.</p>", '<body dir="rtl"><p>'),
    "d.html": (b"<p>It is May.<p class=x>Hi<div><p>Hi</p></div><hr>", '<p dir="rtl">|<p class=x dir="rtl">|<div dir="rtl"><p>'),
    "e.html": (b"<ul><li>It is May.<li>Hi</ul>Hi <b>you</b>", '<ul dir="rtl"><li>|<li>'),
    "h.html": (b"Hi <b>you</b><p>It is May.</p>Hi", '<span dir="rtl">|<p dir="rtl">|</p><span dir="rtl">'),
    "i.html": (b"<li>May<ul><li>A<li>B</ul><li>Hi", '<li dir="rtl">|<ul><li>|</ul><li dir="rtl">'),
    "j.html": (b"<dt>May<dd>Hi<dl><dt>A<dd>B</dl><dt>Hi", '<dt dir="rtl">|<dd dir="rtl">|<dl><dt>|</dl><dt dir="rtl">'),
    "k.html": (b"<tr><td>May<td>Hi<tr><th>A", '<tr dir="rtl"><td>'),
    "l.html": (b"<td>May<table><tr><td>A</table><td>Hi", '<td dir="rtl">|<table><tr><td>|</table><td dir="rtl">'),
    "m.html": (b"<option>May<option>Hi<optgroup>A", '<option dir="rtl">|<optgroup dir="rtl">'),
    "f.html": (b"<p dir=ltr>It is May.</p><div/>", "<p dir=rtl>"),
    "g.html": (
        b"<html lang=en><p style='color:red; direction:ltr;margin:0' id=a>May.</p><p><b style='Direction: ltr'>Hi</b></p>",
        "<p style='color:red; direction:rtl;margin:0' id=a>|<b style='Direction: rtl'>",
    ),
    "a.docx": (
        make_docx("<w:tbl><w:tblPr/></w:tbl><w:p><w:pPr><w:keepNext/><w:jc/></w:pPr>" + RUN.format("en-US", "Hi") + "</w:p>"),
        "<w:tblPr><w:bidiVisual/></w:tblPr>|<w:pPr><w:keepNext/><w:bidi/><w:jc/></w:pPr>|<w:sectPr><w:bidi/></w:sectPr>"
        '|<w:rPr><w:b/><w:bCs/><w:rtl/><w:lang w:bidi="{}"/></w:rPr>',
    ),
    "a.pptx": (
        make_pptx(f"<a:p><a:pPr algn='l'/>{test_pptx.run('Hi', test_pptx.PLAIN)}</a:p><a:p>{test_pptx.run('Hi')}</a:p>"),
        '<a:pPr algn="r" rtl="1"/><a:r><a:rPr lang="{}"/>|<a:p><a:pPr rtl="1"/>',
    ),
    "a.xlsx": (test_xlsx.XLSX, '<sheetView rightToLeft="1"'),
    "a.odt": (
        make_odt("<text:p>It is May.</text:p>", f"<office:styles>{STYLE.format(FO.format('en', 'US'))}</office:styles>"),
        'style:writing-mode="rl-tb"/>|fo:language="{0}" fo:country="none" style:language-complex="{0}"',
    ),
    "b.odt": (make_odt("<text:p>It is May.</text:p>"), 'style:writing-mode="rl-tb"/>'),
    "a.epub": (test_epub.make_epub(), '<spine page-progression-direction="rtl">|xml:lang="{0}" lang="{0}" dir="rtl"'),
}


def test_direction_is_written_and_removed(subtests: pytest.Subtests) -> None:
    for language in ["ar", "fa-IR"]:
        for name in DIRECTIONS:
            with subtests.test(name=name, language=language):
                content, expected = DIRECTIONS[name]
                turned = translate_content(name, content, lambda line: "مايو", DocumentOptions("en", language)).content
                text = translate(name, content, "en", language, "مايو")
                parts = (
                    expected.format(language)
                    if name != "a.odt"
                    else expected.format(language[:2]).replace("none", language[3:] or "none")
                )
                assert [part for part in parts.split("|") if part not in text] == []
                back = translate(name, turned, language, "de", "Mai")
                marks = ("rtl", "w:bidi/", "bidiVisual", "rl-tb", "rightToLeft")
                assert [mark for mark in marks if mark in back] == []
                assert [mark for mark in marks if mark in translate(name, content, "en", "de", "Mai")] == []


def test_default_style_keeps_one_element_of_properties() -> None:
    properties = '<style:paragraph-properties style:line-break="strict" style:writing-mode="page"/>'
    graphic = '<style:default-style style:family="graphic"><style:paragraph-properties/></style:default-style>'
    styles = f'{graphic}<style:default-style style:family="paragraph">{properties}</style:default-style>'
    content = make_odt("<text:p>Hi</text:p>", f"<office:styles>{styles}</office:styles>")
    turned = translate_content("a.odt", content, lambda line: "مايو", DocumentOptions("en", "ar")).content
    assert styles.replace('"page"', '"rl-tb"') in read_members(turned)["styles.xml"].decode()


def test_pages_come_back_as_they_were() -> None:
    """A span that holds a direction alone goes with it, and the elements of the page stay."""
    for page in (
        "<li>A B<li>C",
        "<p>A B</p>C D<p>E",
        "A <b>B</b><br>C D",
        "<span>A</span> B <span>C</span>",
        '<span class="x">A B</span>',
        "A<ul><li>B<li>C</ul>D<dd>E<dd>F",
        "<p dir=auto>A B</p><p>C D</p>",
    ):
        content = page.encode()
        for source, target in (("en", "ar"), ("ar", "en")):
            content = translate_content("a.html", content, options=DocumentOptions(source, target)).content
            assert content.decode().count('"rtl"') == (0 if target == "en" else content.decode().count(' dir="rtl"') or -1)
        assert content.decode() == page


def test_row_in_another_language_stays() -> None:
    page = "<table><tr lang=fr><td>Un deux<td>trois<tr><td>four</table>"
    assert translate("a.html", page.encode(), "en", "de", "vier") == page.replace("four", "vier")


def test_direction_of_a_style_is_removed() -> None:
    page = '<html dir="rtl"><p style="direction:rtl">A<p style="margin:0;direction:rtl!important; color:red">B'
    page += '<p id=a style="DIRECTION : rtl;">C<p style="flex-direction:row;x:direction">D<bdo style="direction:rtl">E</bdo>'
    expected = '<html><p>Mai<p style="margin:0; color:red">Mai<p id=a>Mai<p style="flex-direction:row;x:direction">Ma'
    text = translate("a.html", page.encode(), "ar", "de", "Mai")
    assert text.startswith(expected)
    assert '<bdo style="direction:rtl">' in text


VTT = "WEBVTT\n\n00:01.000 --> 00:02.000\n<lang fr>Bonjour</lang> she said\n"


def test_parts_in_other_languages_stay() -> None:
    page = (
        '<html lang="en"><p lang="fr" title="Un mot">Il est tard.</p><p>He said <i lang="fr">au revoir</i> to <b lang="en-GB">'
        'us</b>.<ul><li lang=fr>Un<ul><li>Deux</ul><li>Two</ul><blockquote lang="de"><p lang="en">Three</p>Vier</blockquote>'
    )
    expected = (
        '<html lang="es"><p lang="fr" title="Un mot">Il est tard.</p><p>HE SAID <i lang="fr">au revoir</i> TO <b lang="es">'
        'US</b>.<ul><li lang=fr>Un<ul><li>Deux</ul><li>TWO</ul><blockquote lang="de"><p lang="es">THREE</p>Vier</blockquote>'
    )
    assert translate_content("a.html", page, options=DocumentOptions("en", "es")).content.decode() == expected
    assert "<lang fr>Bonjour</lang> A" in translate("a.vtt", VTT.encode(), "en", "de", "A")
    assert translate("a.md", b"---\nlang: en-US\n---\nMay", "en", "de", "Mai") == "---\nlang: de\n---\nMai"


def test_runs_in_other_languages_stay() -> None:
    body = "".join(RUN.format(*run) for run in (("en-US", "He said "), ("fr-FR", "au revoir"), ("en-GB", " to us")))
    other = RUN.format("fr-FR", "Il est tard")
    paragraphs = f"<w:p>{body}</w:p><w:p>{other}</w:p><w:p>{RUN.format('en-US', 'That was all.')}</w:p>"
    text = translate("a.docx", make_docx(paragraphs), "en", "de", "sagte zu uns")
    assert RUN.format("fr-FR", "au revoir").replace(" xml:space='preserve'", "") in text
    assert other in text
    assert text.count('<w:lang w:val="de"/>') == 3


def test_one_run_of_many_does_not_state_the_language_of_a_document() -> None:
    plain = "<w:p><w:r><w:t>May</w:t></w:r></w:p>"
    french = RUN.format("fr-FR", "Il est tard")
    for num_plain, language in ((20, ""), (2, "fr-FR")):
        content = make_docx(plain * num_plain + f"<w:p>{french}</w:p>")
        assert parse_document("a.docx", content).source_language == language
    text = translate("a.docx", make_docx(plain * 20 + f"<w:p>{french}</w:p>"), "en", "de", "Mai")
    assert text.count("Mai") == 20
    assert french in text


def test_script_selects_the_language_of_a_run() -> None:
    run = "<w:r><w:rPr><w:lang w:val='en-US' w:eastAsia='ja-JP' w:bidi='ar-SA'/></w:rPr><w:t>{}</w:t></w:r>"
    for language, text in (("ja", "東京"), ("ar", "مايو"), ("en", "May")):
        assert "Mai" in translate("a.docx", make_docx(f"<w:p>{run.format(text)}</w:p>"), language, "de", "Mai")


REFUSED = {
    "a.html": b'<html lang="fr-CA"><p>Il est tard.</p>',
    "a.docx": make_docx(f"<w:p>{RUN.format('fr-CA', 'Il est tard')}</w:p>"),
    "a.pptx": make_pptx(f"<a:p>{test_pptx.run('Il est tard', test_pptx.PLAIN.replace('en-US', 'fr-CA'))}</a:p>"),
    "a.odt": DIRECTIONS["a.odt"][0],
    "a.epub": test_epub.make_epub(),
    "a.md": b"---\ntitle: May\nlang: fr-CA\n---\nIl est tard\n",
}


@pytest.mark.parametrize("name", REFUSED)
def test_file_in_another_language_is_refused(name: str) -> None:
    language = "fr" if document_language(name) == "en" else "en"
    with raises_code("unsupported-language", "the file states the language"):
        translate_content(name, REFUSED[name], options=DocumentOptions(language, "de"))
    options = DocumentOptions(language, "de", any_language=True)
    assert translate_content(name, REFUSED[name], options=options).results[0].text


def document_language(name: str) -> str:
    return parse_document(name, REFUSED[name]).source_language[:2]


def test_metadata_of_odt_states_the_new_language() -> None:
    content = make_odt("<text:p>It is May.</text:p>")
    meta = '<office:document-meta xmlns:office="o" xmlns:dc="d"><office:meta><dc:language>{}</dc:language></office:meta>'
    for language, expected in (("en-US", "ar"), ("fr-FR", "fr-FR")):
        members = {**read_members(content), "meta.xml": f"{meta.format(language)}</office:document-meta>".encode()}
        assert f"<dc:language>{expected}<" in translate("a.odt", make_zip(members), "en", "ar", "نص")
