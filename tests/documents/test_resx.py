"""Tests of RESX files."""

from __future__ import annotations

import pytest
from document_checks import check_document

from dragoman.documents.document import UnitTranslation, write_document
from dragoman.documents.resx import parse_resx
from expected_errors import raises_code

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
  <data name="Empty" xml:space="preserve"><value/></data>\r
</root>"""


def test_texts_are_read_and_written() -> None:
    document = check_document(parse_resx, RESX, is_bilingual=False)
    assert [(unit.id, unit.source, unit.markup, unit.context) for unit in document.units] == [
        ("Greeting", "Hello <b>you</b>\n  and all", "none", "At the start"),
        ("Count", "{0} files", "none", "Count"),
    ]
    written = write_document(
        document, {"Greeting": UnitTranslation("Bonjour <b>à\ntous</b>"), "Count": UnitTranslation("{0} & co")}
    )
    expected = RESX.replace(b"Hello &lt;b&gt;you&lt;/b&gt;\r\n  and all", "Bonjour &lt;b&gt;à\r\ntous&lt;/b&gt;".encode())
    assert written == expected.replace(b"{0} files", b"{0} &amp; co")


@pytest.mark.parametrize("content", [b"<resources/>", RESX[:-3], b""])
def test_other_files_are_refused(content: bytes) -> None:
    with raises_code("invalid-format"):
        parse_resx(content)
