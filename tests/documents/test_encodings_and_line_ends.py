"""Tests of encodings by the names of the web, and of files whose line breaks are carriage returns."""

from __future__ import annotations

import pytest

from dragoman.documents.document import UnitTranslation, write_document
from dragoman.documents.formats import get_parser
from outside_parsers import INSIDE


def test_carriage_returns_are_line_breaks(subtests: pytest.Subtests) -> None:
    """The output is that of the file with line feeds, with its line breaks."""
    for suffix, places in INSIDE.items():
        place = next(iter(places), str)
        is_xml = str(place("")).startswith("<")  # in which a line break of a text is a line feed
        content = place("Open it" if is_xml else "Open it\n or close it")
        if isinstance(content, bytes):
            continue
        parse = get_parser(f"a{suffix}")
        outputs = []
        for line_break in ("\n", "\r"):
            document = parse(f"{content}\n".replace("\n", line_break).encode())
            texts = {unit.id: UnitTranslation(f"«{unit.source}»") for unit in document.units}
            assert texts
            outputs.append(write_document(document, texts, "de"))
        with subtests.test(suffix):
            assert outputs[1] == outputs[0].replace(b"\n", b"\r")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.md", "Open it\r- Close it\r\n"),
        ("a.txt", "Open it\r\rClose it\n"),
        ("a.srt", "1\r00:01,0 --> 00:02,0\rOpen it\r\r2\n00:03,0 --> 00:04,0\nClose it\n"),
    ],
)
def test_carriage_returns_beside_line_feeds_are_line_breaks(name: str, content: str) -> None:
    document = get_parser(name)(content.encode())
    assert [unit.source for unit in document.units] == ["Open it", "Close it"]
    assert write_document(document, {document.units[1].id: UnitTranslation("X")}).decode() == content.replace("Close it", "X")


@pytest.mark.parametrize(
    ("head", "encoding"),
    [
        ('<meta charset="iso-8859-1">', "cp1252"),
        ('<meta charset="us-ascii">', "cp1252"),
        ('<meta http-equiv="Content-Type" content="text/html; charset=latin5">', "cp1254"),
        ('<meta charset="x-sjis">', "cp932"),
        ('<meta charset="utf-16">', "utf-8"),
        ('<!-- <meta charset="utf-16"> --><META content="text/html; charset=x-sjis" http-equiv="content-type">', "cp932"),
        ('<meta name="description" content="on charset=latin1"><meta charset="utf-8">', "utf-8"),
        ('<?xml version="1.0" encoding="ISO-8859-15"?><html><meta charset="utf-8">', "iso8859-15"),
    ],
)
def test_pages_are_read_as_browsers_read_them(head: str, encoding: str) -> None:
    """Source: https://encoding.spec.whatwg.org/#names-and-labels, and for XHTML the declaration of XML."""
    text = "日本" if encoding == "cp932" else "“5 €”" if encoding != "iso8859-15" else "5 € für"
    document = get_parser("a.html")(f"{head}<p>{text} for all</p>".encode(encoding))
    assert document.units[-1].source == f"{text} for all"
    content = write_document(document, {document.units[-1].id: UnitTranslation(f"für {text}" if "日" not in text else text)})
    assert text.encode(encoding) in content


@pytest.mark.parametrize("encoding", ["Shift_JIS", "EUC-JP", "GB18030", "Big5", "EUC-KR"])
@pytest.mark.parametrize(("name", "element"), [("a.resx", '<data name="a"><value>{}</value></data>'), ("a.xml", "<b>{}</b>")])
def test_xml_in_encodings_of_east_asia(encoding: str, name: str, element: str) -> None:
    """A character that the encoding does not have becomes a reference, as in other XML files."""
    root = "root" if name == "a.resx" else "article"
    file = f'<?xml version="1.0" encoding="{encoding}"?>\n<{root}><!-- 日本 -->{element.replace("b>", "para>")}</{root}>'
    content = file.format("The text").encode(encoding)
    document = get_parser(name)(content)
    assert write_document(document, {}) == content
    written = write_document(document, {document.units[0].id: UnitTranslation("日本 ẞ")})
    assert written.decode(encoding) == file.format("日本 ẞ" if encoding == "GB18030" else "日本 &#7838;")
    assert [unit.source for unit in get_parser(name)(written).units] == ["日本 ẞ"]
