"""Tests of RESX files."""

from __future__ import annotations

import pytest
from document_checks import check_document, translate_content

from dragoman.documents.document import UnitTranslation, write_document
from dragoman.documents.resx import parse_resx
from dragoman.documents.translate_document import DocumentOptions

RESX = b"""\xef\xbb\xbf<?xml version="1.0" encoding="utf-8"?>\r
<root>\r
  <resheader name="resmimetype"><value>text/microsoft-resx</value></resheader>\r
  <data name="Greeting" xml:space="preserve">\r
    <value>Hello &lt;b&gt;you&lt;/b&gt;\r
  and all</value>\r
    <comment>At the start</comment>\r
  </data>\r
  <data name="Size" type="System.Drawing.Size, System.Drawing"><value>10, 10</value></data>\r
  <data name="Icon" mimetype="application/x-microsoft.net.object.bytearray.base64"><value>AAAA</value></data>\r
  <data name="&gt;&gt;button.Name" xml:space="preserve"><value>button</value></data>\r
  <data name="Count" xml:space="preserve"><value>{0} files</value></data>\r
  <data name="Nested" xml:space="preserve"><value>Go <a>on</a></value></data>\r
  <data name="Empty" xml:space="preserve"><value/></data>\r
</root>"""


def test_texts_are_read_and_written() -> None:
    document = check_document(parse_resx, RESX)
    assert [(unit.id, unit.source, unit.markup, unit.context) for unit in document.units] == [
        ("Greeting", "Hello <b>you</b>\n  and all", "none", "At the start"),
        ("Count", "{0} files", "none", "Count"),
    ]
    written = write_document(
        document, {"Greeting": UnitTranslation("Bonjour <b>à\ntous</b>"), "Count": UnitTranslation("{0} & co")}
    )
    expected = RESX.replace(b"Hello &lt;b&gt;you&lt;/b&gt;\r\n  and all", "Bonjour &lt;b&gt;à\r\ntous&lt;/b&gt;".encode())
    assert written == expected.replace(b"{0} files", b"{0} &amp; co")


def translate(comment: str, language: str, value: str = "Open the house") -> tuple[str, tuple[str, ...]]:
    """Return the text that a value with a comment gets in a language, by a stub that writes capital letters, and its flags."""
    content = f'<root><data name="a"><value>{value}</value><comment>{comment}</comment></data></root>'
    result = translate_content("a.resx", content, options=DocumentOptions("en", language))
    flags = tuple(flag for unit in result.results for flag in unit.flags)
    return parse_resx(result.content).units[0].source, flags


# The forms of comments in resources of Windows Terminal, PowerToys and Open Live Writer, and of Microsoft's page on metadata:
# https://learn.microsoft.com/globalization/localization/contextual-metadata
@pytest.mark.parametrize(
    ("comment", "kept"),
    [
        ("{Locked}", {"de", "de-AT", "fr", "qps-ploc"}),
        ("{Locked=qps-ploc,qps-ploca,qps-plocm} A name", {"qps-ploc"}),
        ("{Locked=de}", {"de", "de-AT"}),
        ("{locked = de, fr}", {"de", "de-AT", "fr"}),
        ("{Locked=de-AT}{Locked=fr-FR}", {"de", "de-AT", "fr"}),
        ("{Locked=deu,zh-Hans}", {"de", "de-AT"}),
        ("{Locked=1031,1036}", {"de", "fr"}),
        ("{Locked=!de}", {"de", "de-AT", "fr", "qps-ploc"}),
        ('{ValidStrings="left", "right"}', {"de", "de-AT", "fr", "qps-ploc"}),
        ("{ValidStrings=ltr,rtl}", {"de", "de-AT", "fr", "qps-ploc"}),
        ("{Locked=d e}", set()),
        ("Locked=de, but in no braces", set()),
    ],
)
def test_locked_text_stays_in_named_languages(comment: str, kept: set[str]) -> None:
    texts = {language: translate(comment, language)[0] for language in ("de", "de-AT", "fr", "qps-ploc")}
    assert texts == {language: "Open the house" if language in kept else "OPEN THE HOUSE" for language in texts}


@pytest.mark.parametrize(
    ("comment", "value", "text"),
    [
        ('{Locked="house"}', "Open the house", "OPEN THE house"),
        ('{Locked="house","cat"} and the', "A house, a cat", "A house, A cat"),
        ('{Locked="house", "cat"}', "A house, a cat", "A house, A cat"),
        ('{Locked="house"}{Locked="cat"}', "A house, a cat", "A house, A cat"),
        ('{Placeholder="{who}"} A name', "Open {who}", "OPEN {who}"),
        ("{Placeholder='{who}'} A name", "Open {who}", "OPEN {who}"),
        ('{Placeholder = "name"} A name', "Open name", "OPEN name"),
    ],
)
def test_words_of_a_comment_stay(comment: str, value: str, text: str) -> None:
    assert translate(comment, "de", value)[0] == text


def test_translation_over_the_length_is_flagged() -> None:
    assert "max_length" not in translate("{MaxLength=14}", "de")[1]
    assert "max_length" in translate("{MaxLength=13}", "de")[1]


def test_values_with_elements_are_counted() -> None:
    assert parse_resx(RESX).skipped == {"values with elements": 1}
