"""Tests of the places of elements and texts in XML."""

from __future__ import annotations

import codecs
import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman.documents.xml_spans
from dragoman.documents.xml_spans import XmlElement, XmlSource, XmlText, escape_xml, set_attribute
from expected_errors import raises_code

ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "iso-8859-1", "windows-1252"]
BODY = '<b x="1>2">té&amp;<i/>&nbsp;<![CDATA[x<y]]>é</b>'


def encode(body: str, encoding: str) -> bytes:
    declared = encoding.removesuffix("-sig").removesuffix("-be")
    text = f'<?xml version="1.0" encoding="{declared}"?><!DOCTYPE a SYSTEM "a.dtd"><!-- é --><a>\n{body}</a>\n'
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    return mark + text.encode(encoding)


def read_element(content: bytes, name: str = "b") -> tuple[XmlSource, XmlElement]:
    source = XmlSource(content)
    return source, next(iter(source.iter_elements((name,))))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_places_are_exact_in_every_encoding(encoding: str) -> None:
    source, element = read_element(encode(BODY, encoding))
    assert source.get_markup(element.start, element.end) == BODY
    assert source.get_markup(element.content_start, element.content_end) == BODY[BODY.index("t") : -4]
    parts = [source.get_markup(part.start, part.end) for part in element.parts]
    assert parts == ["té&amp;", "<i/>", "&nbsp;", "<![CDATA[", "x<y", "]]>", "é"]
    assert [part.text for part in element.parts if isinstance(part, XmlText)] == ["té&", "\xa0", "x<y", "é"]


def test_empty_tag_differs_from_empty_element() -> None:
    source = XmlSource(b"<a><b/><b></b></a>")
    assert [element.is_empty_tag for element in source.iter_elements(("b",))] == [True, False]


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=20), min_size=1, max_size=5))
def test_texts_are_read_back_from_their_places(texts: list[str]) -> None:
    texts = [text.replace("\ufffe", "").replace("\uffff", "") for text in texts]
    body = "".join(f"<b>{escape_xml(text)}</b>" for text in texts)
    for encoding in ("utf-8", "utf-16"):
        source = XmlSource(f"<a>{body}</a>".encode(encoding))
        elements = [(item.text, item.content_start, item.content_end) for item in source.iter_elements(("b",))]
        assert [text for text, *_ in elements] == texts
        assert [source.get_markup(start, end) for _, start, end in elements] == list(map(escape_xml, texts))


def test_elements_leave_memory_without_a_collection() -> None:
    """A collection over those of a large file would hold the interpreter for a second."""
    gc.collect()
    gc.disable()
    try:
        for element in XmlSource(b"<a>" + (b"<b>" + b"<i/>" * 20_000 + b"</b>") * 5 + b"</a>").iter_elements(("b",)):
            assert sum(type(item) is XmlElement for item in gc.get_objects()) < 40_000, element.start
    finally:
        gc.enable()


def test_long_text_crosses_chunks() -> None:
    body = "<b>" + "é&amp;" * 15_000 + "</b>"
    source, element = read_element(encode(body, "utf-8"))
    assert element.text == "é&" * 15_000
    assert source.get_markup(element.start, element.end) == body


@pytest.mark.parametrize(
    "declaration",
    [
        '<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">',
        '<!ENTITY a SYSTEM "file:///etc/passwd">',
        '<!ENTITY % a SYSTEM "http://localhost/a">%a;',
    ],
)
def test_declared_entities_are_refused(declaration: str) -> None:
    with raises_code("invalid-format"):
        read_element(f"<!DOCTYPE a [{declaration}]><a><b>&a;</b></a>".encode())


@pytest.mark.parametrize("value", ["aaaa&#38;b;", "<i/>", "a" * 101, "%b;"])
def test_entities_are_short_texts(value: str) -> None:
    source = XmlSource(f'<!DOCTYPE a [<!ENTITY a "{value}">]><a><b>&a;</b></a>'.encode(), has_entities=True)
    with raises_code("invalid-format"):
        list(source.iter_elements(("b",)))


@pytest.mark.parametrize("content", [b"", b"text", b"<a>", b"<a><b></a></b>", b"<a>&nbsp;</a>", b"<a>\xff</a>", b"<a/><b/>"])
def test_other_files_are_refused(content: bytes) -> None:
    with raises_code("invalid-format"):
        list(XmlSource(content).iter_elements(("b",)))


def test_unknown_encodings_are_refused() -> None:
    for name in ("klingon", "shift_jis", "rot13", "hex"):
        with raises_code("invalid-encoding"):
            list(XmlSource(f'<?xml version="1.0" encoding="{name}"?><a/>'.encode()).iter_elements(("b",)))


def test_deep_and_large_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with raises_code("invalid-format"):
        list(XmlSource(b"<a>" * 300 + b"</a>" * 300).iter_elements(("b",)))
    monkeypatch.setattr(dragoman.documents.xml_spans, "MAX_BYTES", 10)
    with raises_code("input-too-long"):
        XmlSource(b"<a></a>    ")


def test_new_markup_keeps_encoding_and_line_breaks() -> None:
    source = XmlSource(encode("<b>\r\n</b>", "iso-8859-1"))
    assert source.encode("é\n→") == "é\r\n&#8594;".encode("iso-8859-1")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("z", 'q"<', '<a x="1" y=\'2\' z="q&quot;&lt;"/>'),
        ("y", "3", '<a x="1" y="3"/>'),
        ("x", "", "<a y='2'/>"),
        ("z", "", "<a x=\"1\" y='2'/>"),
    ],
)
def test_attribute_of_a_start_tag_is_set(name: str, value: str, expected: str) -> None:
    assert set_attribute("<a x=\"1\" y='2'/>", name, value) == expected


def test_character_outside_xml_is_refused() -> None:
    with raises_code("invalid-data", "U+0001"):
        escape_xml("a\x01")
