"""Rules of EPUB 3.3 that a reading system needs, on translated books: https://www.w3.org/TR/epub-33/."""

from __future__ import annotations

import io
import posixpath
import zipfile
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from document_checks import make_stub
from zip_files import make_zip

from dragoman.documents.formats import get_parser, parse_document
from dragoman.documents.translate_document import DocumentOptions, translate_document

CONTAINER = "{urn:oasis:names:tc:opendocument:xmlns:container}"
OPF = "{http://www.idpf.org/2007/opf}"
DC = "{http://purl.org/dc/elements/1.1/}"
XHTML = "{http://www.w3.org/1999/xhtml}"
NCX = "{http://www.daisy.org/z3986/2005/ncx/}"
PAGE = (
    '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml" '
    'xmlns:epub="http://www.idpf.org/2007/ops" xml:lang="en" lang="en"><head><title>{}</title></head><body>{}</body></html>'
)
CHAPTER = (
    '<h1 id="c1">One &#8212; day</h1><p>A word<a epub:type="noteref" href="#n1">1</a> &amp; <b>more</b>&#160;words.<br/>End</p>'
    '<p><span class="cap">O</span>nce <ruby>sky<rt>s</rt></ruby></p><aside epub:type="footnote" id="n1"><p>A note</p></aside>'
)
NAVIGATION = '<nav epub:type="toc"><ol><li><a href="text/one%20x.xhtml#c1">One</a></li></ol></nav>'
BOOK = (
    '<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id">'
    '<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:identifier id="id">x</dc:identifier><dc:title>A book</dc:title>'
    '<dc:language>en</dc:language><meta property="dcterms:modified">2020-01-02T03:04:05Z</meta></metadata><manifest>'
    '<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>'
    '<item id="c1" href="text/one%20x.xhtml" media-type="application/xhtml+xml"/>'
    '<item id="ncx" href="toc.ncx" media-type="application/x-dtbncx+xml"/></manifest>'
    '<spine toc="ncx"><itemref idref="c1"/></spine></package>'
)
CONTENTS = (
    '<?xml version="1.0"?><ncx xmlns="http://www.daisy.org/z3986/2005/ncx/" version="2005-1"><head/><docTitle><text>A book'
    '</text></docTitle><navMap><navPoint id="p1" playOrder="1"><navLabel><text>One</text></navLabel>'
    '<content src="text/one%20x.xhtml#c1"/></navPoint></navMap></ncx>'
)


def build_book() -> bytes:
    return make_zip(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": (
                '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container" version="1.0"><rootfiles>'
                '<rootfile full-path="OPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>'
            ),
            "OPS/book.opf": BOOK,
            "OPS/nav.xhtml": PAGE.format("Contents", NAVIGATION),
            "OPS/text/one x.xhtml": PAGE.format("One", CHAPTER),
            "OPS/toc.ncx": CONTENTS,
        },
        stored=("mimetype",),
    )


def check_book(content: bytes) -> tuple[str, str, dict[str, ElementTree.Element]]:
    """Return the language of a book, its direction, and its pages, after a check of the rules."""
    archive = zipfile.ZipFile(io.BytesIO(content))
    first = archive.infolist()[0]
    assert (first.filename, first.compress_type, first.extra) == ("mimetype", zipfile.ZIP_STORED, b"")
    assert archive.read("mimetype") == b"application/epub+zip"
    container = ElementTree.fromstring(archive.read("META-INF/container.xml"))
    (root,) = container.iter(f"{CONTAINER}rootfile")
    path = root.attrib["full-path"]
    package = ElementTree.fromstring(archive.read(path))
    items = {item.attrib["id"]: item for item in package.iter(f"{OPF}item")}
    names = {
        key: unquote(posixpath.join(posixpath.dirname(path), item.attrib["href"])) for key, item in items.items()
    }  # fmt: skip
    assert len(items) == sum(1 for _ in package.iter(f"{OPF}item"))
    assert set(names.values()) <= set(archive.namelist())
    assert {reference.attrib["idref"] for reference in package.iter(f"{OPF}itemref")} <= set(items)
    assert [item.attrib["id"] for item in items.values() if item.get("properties") == "nav"] == ["nav"]
    trees = {name: ElementTree.fromstring(archive.read(name)) for name in names.values()}
    for name, tree in trees.items():
        links = [link.get("href", "") for link in tree.iter(f"{XHTML}a")]
        links += [link.get("src", "") for link in tree.iter(f"{NCX}content")]
        for link in links:
            target, _, fragment = unquote(link).partition("#")
            page = trees[posixpath.join(posixpath.dirname(name), target) if target else name]
            assert fragment in {element.get("id") for element in page.iter()}
    (language,) = package.iter(f"{DC}language")
    (spine,) = package.iter(f"{OPF}spine")
    return language.text or "", spine.get("page-progression-direction", ""), trees


@pytest.mark.parametrize(("language", "direction"), [("de", ""), ("ar", "rtl")])
def test_translated_book_follows_the_rules(language: str, direction: str) -> None:
    content = build_book()
    old_language, old_direction, old_trees = check_book(content)
    assert (old_language, old_direction) == ("en", "")
    result = translate_document(
        parse_document("a.epub", content), get_parser("a.epub"), make_stub(str.upper), DocumentOptions("en", language)
    )
    new_language, new_direction, trees = check_book(result.content)
    assert (new_language, new_direction) == (language, direction)
    page = trees["OPS/text/one x.xhtml"]
    assert page.get("lang") == language
    text, old_text = ("".join(tree.itertext()) for tree in (page, old_trees["OPS/text/one x.xhtml"]))
    assert text.replace("SKYs", "SKYS") == old_text.upper()
