"""Tests of EPUB books."""

from __future__ import annotations

import io
import zipfile

import pytest
from document_checks import check_document, check_other_members

from dragoman.documents.document import UnitTranslation, write_document
from dragoman.documents.epub import parse_epub
from expected_errors import raises_code
from office_files import make_zip, read_members

PACKAGE = """<?xml version="1.0"?>
<package xmlns="http://www.idpf.org/2007/opf" version="3.0"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">
<dc:title>My book</dc:title><dc:language>en</dc:language>
<dc:description>Short &lt;b>text&lt;/b></dc:description><dc:creator>A. Author</dc:creator></metadata>
<manifest><item id="a" href="text/a%20b.xhtml" media-type="application/xhtml+xml"/>
<item id="n" href="toc.ncx" media-type="application/x-dtbncx+xml"/><item id="s" href="s.css" media-type="text/css"/></manifest>
<spine><itemref idref="a"/></spine></package>"""
CONTENTS = "<ncx><docTitle><text>My book</text></docTitle><navMap><navLabel><text>One</text></navLabel></navMap></ncx>"
CHAPTER = """<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.1//EN" "http://www.w3.org/TR/xhtml11/DTD/xhtml11.dtd">
<html xmlns="http://www.w3.org/1999/xhtml" xml:lang="en" lang="en"><head><title>Chapter</title><style>p {}</style></head>
<body>
  <h1 id="x">One</h1>
  <div>Loose <i>text</i>
    <p>
      A <b>bold</b>&nbsp;word<br/>
      and <code>code()</code> &amp; <!-- note --> more.
    </p>
    tail <span translate="no">NAME</span> end</div>
  <p>&#160;</p><pre>code here</pre><script>var text;</script>
  <p translate="no">Not this</p>
</body></html>"""


def make_epub(chapter: str = CHAPTER, **others: str) -> bytes:
    members = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": '<container><rootfiles><rootfile full-path="OPS/book.opf"/></rootfiles></container>',
        "OPS/book.opf": PACKAGE,
        "OPS/text/a b.xhtml": chapter,
        "OPS/toc.ncx": CONTENTS,
        "OPS/s.css": "p {}",
    }
    return make_zip({**members, **{f"META-INF/{name}.xml": text for name, text in others.items()}}, stored=("mimetype",))


def test_texts_are_read() -> None:
    document = check_document(parse_epub, make_epub())
    assert document.source_language == "en"
    assert [unit.source for unit in document.units] == [
        "My book",
        "Short <b>text</b>",
        "Chapter",
        "One",
        "Loose <g1>text</g1>",
        "A <g1>bold</g1>\xa0word<br2/> and <x3/> &amp; <x4/> more.",
        "tail <x1/> end",
        "My book",
        "One",
    ]
    check_other_members(parse_epub, make_epub(), {"OPS/book.opf", "OPS/text/a b.xhtml", "OPS/toc.ncx"})


def test_texts_and_languages_are_written() -> None:
    document = parse_epub(make_epub())
    name = next(unit.id for unit in document.units if unit.source.startswith("Loose"))
    written = write_document(document, {name: UnitTranslation("<g1>Texte</g1> libre")}, "fr")
    members = read_members(written)
    expected = CHAPTER.replace("Loose <i>text</i>", "<i>Texte</i> libre").replace('lang="en"', 'lang="fr"')
    assert members["OPS/text/a b.xhtml"].decode() == expected
    assert members["OPS/book.opf"].decode() == PACKAGE.replace(">en<", ">fr<")
    with zipfile.ZipFile(io.BytesIO(written)) as archive:
        first = archive.infolist()[0]
        assert (first.filename, first.header_offset, first.compress_type) == ("mimetype", 0, zipfile.ZIP_STORED)


ENCRYPTED = '<encryption><CipherReference URI="OPS/text/a%20b.xhtml"/></encryption>'


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (make_epub(encryption=ENCRYPTED), "invalid-format"),
        (make_epub("<html><body>"), "invalid-format"),
        (make_epub("<a/>"), "invalid-format"),
        (make_epub(container="<container/>"), "invalid-format"),
        (make_zip({"mimetype": "application/zip"}), "unknown-format"),
    ],
)
def test_other_files_are_refused(content: bytes, code: str) -> None:
    with raises_code(code):
        parse_epub(content)


def test_book_with_encrypted_fonts_is_read() -> None:
    assert parse_epub(make_epub(encryption=ENCRYPTED.replace("text/a%20b.xhtml", "font.otf"))).units


def test_alternative_texts_are_counted() -> None:
    chapter = CHAPTER.replace("NAME</span>", 'NAME</span><img src="a.png" alt="A cat"/><img src="b.png" alt="*"/>')
    assert parse_epub(make_epub(chapter)).skipped == {"alternative texts of pictures": 1}


def test_title_that_names_the_file_stays() -> None:
    sources = [unit.source for unit in parse_epub(make_epub(CHAPTER.replace("Chapter", "ch001.xhtml"))).units]
    assert sources == [unit.source for unit in parse_epub(make_epub()).units if unit.source != "Chapter"]
