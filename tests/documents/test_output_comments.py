"""Comments that a human wrote into an output stay, each where it stood."""

from __future__ import annotations

import pytest
from document_checks import OPTIONS, make_stub

from dragoman.documents.document import Document
from dragoman.documents.earlier_output import match_texts
from dragoman.documents.formats import get_parser, parse_document
from dragoman.documents.output_comments import keep_comments
from dragoman.documents.translate_document import translate_document

XML = '<?xml version="1.0"?>\n<resources>\n  {}<string name="a">{}</string>{}\n  {}<string name="b">{}</string>\n</resources>\n'
RESX = '<root>\n  {}<data name="a" xml:space="preserve">\n    <value>{}</value>\n  </data>\n</root>'
CUE = "WEBVTT\n\n{}00:00:01.000 --> 00:00:02.000\n{}\n"


def read(name: str, content: str) -> Document:
    return parse_document(name, content.encode())


def translate_again(name: str, source: str, output: str, original: str | None = None) -> tuple[str, list[str]]:
    """Return the new output and the comments that are left out."""
    before = None if original is None else read(name, original)
    document, left_out = keep_comments(read(name, source), get_parser(name), read(name, output), before)
    earlier = match_texts(document, read(name, output), before)
    stub = make_stub(lambda line: f"T({line})")
    result = translate_document(document, get_parser(name), stub, OPTIONS, earlier=earlier.texts)
    return result.content.decode(), [*left_out]


@pytest.mark.parametrize(("name", "source", "output"), [
    ("a.yml", "en:\n  # note\n  a: The text\n  b:\n    c: Two\n    d: Three\n",
     "# Ana\nde:\n  # note\n  a: Der # gut\n  # zwei\n  # drei\n  b:\n    c: Zwei\n    # vier\n    d: Drei\n# Ende\n"),
    ("a.properties", "a = The text\nb = Two\n", "! Ana\na = Der\n# zwei\nb = Zwei\n"),
    ("a.strings", '/* note */\n"a" = "// The text";\n"b" = "Two";\n',
     '/* note */\n"a" = "// Der"; // gut\n/* zwei\n   Zeilen */\n"b" = "Zwei";\n'),
    ("a.xml", XML.format("", "The text", "", "", "Two"),
     XML.format("<!-- eins -->\n  ", "Der", " <!-- gut -->", "<!-- zwei\n  Zeilen -->\n\n  ", "Zwei")),
    ("a.resx", RESX.format("", "The text"), RESX.format("<!-- gut -->\n  ", "Der")),
    ("a.json5", "{\n  a: 'The text',\n  b: 'Two', // note\n}\n",
     "{\n  // Ana\n  a: 'Der', // gut\n  /* zwei */\n  b: 'Zwei', // note\n}\n"),
    ("a.ftl", "a = The text\nb = Two\n", "a = Der\n# zwei\nb = Zwei\n### Ende\n"),
    ("a.html", "<p>The text</p>\n<p>Two</p>\n", "<!-- Ana -->\n<p>Der</p>\n<!-- zwei -->\n<p>Zwei</p>\n"),
    ("a.md", "The text.\n\nTwo texts.\n", "<!-- Ana -->\nDer.\n\n<!-- zwei -->\n\nZwei.\n"),
    ("a.adoc", "The text.\n\nTwo texts.\n", "// Ana\nDer.\n\n////\nzwei\n////\nZwei.\n"),
    ("a.rst", "The text.\n\nTwo texts.\n", ".. Ana\n   Meier\n\nDer.\n\n.. zwei\n\nZwei.\n"),
    ("a.vtt", CUE.format("", "The text"), CUE.format("NOTE Ana\nMeier\n\n", "Der")),
    ("a.docbook", "<article>\n<para>The text</para>\n<para>Two</para>\n</article>",
     "<article>\n<para>Der</para>\n<!-- zwei -->\n<para>Zwei</para>\n</article>"),
])  # fmt: skip
def test_comments_of_a_human_stay(name: str, source: str, output: str) -> None:
    assert translate_again(name, source, output) == (output, [])


def test_comments_stay_with_their_texts() -> None:
    """A text moved, one is new, and a comment of the source is gone."""
    original, source = "# old\na: One\nb: Two\n", "b: Two\nc: Three\na: One\n"
    written, left_out = translate_again("a.yml", source, "# old\n# x\na: Eins\n# y\nb: Zwei\n", original)
    assert written == "# y\nb: Zwei\nc: T(Three)\n# x\na: Eins\n"
    assert not left_out


def test_line_breaks_are_those_of_the_source() -> None:
    assert translate_again("a.yml", "a: One\r\nb: Two\r\n", "a: Eins\n# x\nb: Zwei\n") == ("a: Eins\r\n# x\r\nb: Zwei\r\n", [])


def test_comments_that_cannot_be_kept_are_named() -> None:
    """Behind the text, the source has a comment of its own."""
    written, left_out = translate_again("a.json5", "{a: 'One' /* note */}", "{a: 'Eins' // x\n}")
    assert written == "{a: 'Eins' /* note */}"
    assert left_out == ["// x"]
