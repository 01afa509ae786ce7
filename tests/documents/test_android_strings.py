"""Tests of Android resources."""

from __future__ import annotations

from document_checks import check_document
from hypothesis import given
from hypothesis import strategies as st

from dragoman.documents.android_strings import parse_android_strings
from dragoman.documents.document import UnitTranslation, write_document

RESOURCES = rb"""<?xml version="1.0" encoding="utf-8"?>
<!-- Copyright -->
<resources xmlns:xliff="urn:oasis:names:tc:xliff:document:1.2" xmlns:tools="http://schemas.android.com/tools">
    <string name="hello">Hello,   <b>big</b>
        world\n\u0041 it\'s \"new\" \@home</string>
    <string name="key" translatable="false">KEY</string>
    <string name="copy">@string/hello</string>
    <string name="kept">"  two  spaces  "</string>
    <string name="given">Hi <xliff:g id="user" example="Bob">%1$s</xliff:g>!</string>
    <string name="page"><![CDATA[<p>It\'s <a href=\"x\">here</a></p>]]></string>
    <string name="empty"/>
    <color name="red">#ff0000</color>
    <plurals name="files">
        <item quantity="one">%d file</item>
        <item quantity="other">%d files</item>
    </plurals>
    <string-array name="days" tools:ignore="x"><item>Monday</item><item>Tuesday</item></string-array>
    <string-array name="codes" translatable="false"><item>a</item></string-array>
</resources>
"""


def make_string(value: str) -> bytes:
    return f'<resources><string name="a">{value}</string></resources>'.encode()


def test_strings_are_read() -> None:
    document = check_document(parse_android_strings, RESOURCES)
    assert {unit.id: (unit.source, unit.markup) for unit in document.units} == {
        "hello": ('Hello, <g1>big</g1> world\nA it\'s "new" @home', "xml"),
        "kept": ("  two  spaces  ", "none"),
        "given": ("Hi <x1/>!", "xml"),
        "page": ('<p>It\'s <a href="x">here</a></p>', "none"),
        "files/one": ("%d file", "none"),
        "files/other": ("%d files", "none"),
        "days/0": ("Monday", "none"),
        "days/1": ("Tuesday", "none"),
    }


def test_strings_are_written_with_escapes() -> None:
    document = parse_android_strings(RESOURCES)
    texts = {
        "given": "<x1/>, l'ami  <!",
        "page": '<p>C\'est <a href="x">là</a></p>',
        "days/0": '@lundi "1"\\\n',
    }
    written = write_document(document, {name: UnitTranslation(text) for name, text in texts.items()})
    expected = RESOURCES.replace(
        b'Hi <xliff:g id="user" example="Bob">%1$s</xliff:g>!',
        rb'<xliff:g id="user" example="Bob">%1$s</xliff:g>, l\'ami\u0020 &lt;!',
    )
    expected = expected.replace(rb"It\'s", rb"C\'est").replace(rb">here</a></p>]]>", ">là</a></p>]]>".encode())
    assert written == expected.replace(b">Monday<", rb">\@lundi \"1\"\\\n<")


@given(st.text(st.sampled_from("ab \\\"'@?\n\t\r\xa0u0n<&😀>"), min_size=1, max_size=12).filter(str.strip))
def test_every_text_is_read_back(text: str) -> None:
    document = parse_android_strings(make_string("Text"))
    assert parse_android_strings(write_document(document, {"a": UnitTranslation(text)})).units[0].source == text


def test_tags_keep_their_quotation_marks() -> None:
    for tag in ('<a href="x?a=1&b=2">', r"<a href=\"x\">", "<font color='#fff'>"):
        content = make_string(f"<![CDATA[It\\'s {tag}here</a> & now]]>")
        document = parse_android_strings(content)
        text = document.units[0].source.replace("It's", "C'est").replace("now", '"ici"')
        expected = content.replace(b"It\\'s", b"C\\'est").replace(b"now", rb"\"ici\"")
        assert write_document(document, {"a": UnitTranslation(text)}) == expected


def test_entities_stay_references() -> None:
    """The text of an entity is not translated, also if HTML knows the name. Source: https://www.w3.org/TR/xml/#sec-internal-ent."""
    content = (
        b'<!DOCTYPE resources [<!ENTITY app "Tool"><!ENTITY sum "https://a.org/">]>\n'
        b'<resources><string name="a">&app; opens &sum; &amp; more</string><string name="b">&app;</string></resources>'
    )
    document = check_document(parse_android_strings, content)
    unit = document.units[0]
    assert unit.source == "<x1/> opens <x2/> &amp; more"
    written = write_document(document, {unit.id: UnitTranslation("<x2/> &amp; mehr: <x1/>")})
    assert b'<string name="a">&sum; &amp; mehr: &app;</string>' in written
