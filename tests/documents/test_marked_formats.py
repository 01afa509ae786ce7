"""reStructuredText, AsciiDoc and DocBook: what is a text, what stays, and what docutils and Asciidoctor read afterwards."""

from __future__ import annotations

import io
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from document_checks import check_document

from dragoman.documents.asciidoc import parse_asciidoc
from dragoman.documents.docbook import parse_docbook, parse_xml
from dragoman.documents.document import Document, UnitTranslation, check_written, write_document
from dragoman.documents.restructured_text import parse_rst
from expected_errors import raises_code

RST = b"""\
=====
Title
=====

Some *words*, ``code`` and `a link <http://x.y>`_ of `Second Part`_ and :ref:`text <label>`, not :term:`thing`::

    literal block

Second Part
-----------

- item
  goes on

  1. inner

term : kind
    Definition.

.. note:: The note
   goes on.

   Its second part.

.. figure:: a.png
   :alt: Alternative
   :width: 3

   Caption.

.. py:function:: run(x)

   Runs.

   :param x:
      number
   :type x: integer

.. glossary::

   kept term
   other term
      Meaning.

.. code-block:: text

   code

.. |name| replace:: substitution
.. _label: http://x.y
.. A comment

=====  =====
cell   cell
=====  =====
"""
ADOC = b"""\
= Title
A. Author <a@b.c>
:name: value

Some *words*, _marks_, `code` and https://x.y[a link] of <<_second_part>> or <<id,the part>>. +
Next {name}.

== Second Part

.Caption
* item
goes on
** inner

term:: Definition.

NOTE: The note
goes on.

[source]
----
code
----

 literal

[cols="1,m"]
|===
|Head |Column

|cell |code
|===

Old Title
---------
"""
DOCBOOK = b"""\
<?xml version="1.0"?>
<article xmlns="http://docbook.org/ns/docbook" version="5.0" xml:lang="en">
<title>Title<indexterm><primary>term</primary></indexterm></title>
<para>Some <emphasis>words</emphasis> and <literal>code</literal>
<itemizedlist><listitem><para>item</para></listitem></itemizedlist> behind.</para>
<programlisting>code</programlisting>
<informaltable><tgroup cols="1"><tbody><row><entry>cell</entry></row></tbody></tgroup></informaltable>
</article>
"""


def list_sources(document: Document) -> list[str]:
    return [unit.source for unit in document.units]


def translate(document: Document) -> bytes:
    """Return the document with twice as long texts."""
    texts = {unit.id: UnitTranslation(f"Neu \u00fcbersetzt {unit.source}") for unit in document.units}
    return write_document(document, texts, "de")


def test_texts_of_restructured_text() -> None:
    document = check_document(parse_rst, RST)
    assert list_sources(document) == [
        "Title",
        "Some <g1>words</g1>, <x2/> and <g3>a link</g3> of <g4>Second Part</g4> and <g5>text</g5>, not <x6/>",
        "Second Part", "item goes on", "inner", "term", "Definition.", "The note goes on.", "Its second part.", "Alternative",
        "Caption.", "Runs.", "number", "Meaning.", "substitution",
    ]  # fmt: skip
    assert document.skipped == {"terms of glossaries": 2, "tables in lines": 1}
    written = translate(document).decode()
    assert "===================\nNeu \u00fcbersetzt Title\n===================\n" in written
    assert ".. _Second Part:\n\nNeu \u00fcbersetzt Second Part\n-------------------------\n" in written
    assert "`Second Part <Second Part_>`__" in written


@pytest.mark.parametrize(("parse", "text", "written"), [
    (parse_rst, "one foo_ two", "one foo\\_ two"),
    (parse_rst, "a \\_ b", "a \\\\_ b"),
    (parse_asciidoc, "one {two} and {0}", "one \\{two} and \\{0}"),
])  # fmt: skip
def test_marks_that_a_translation_brings_are_escaped(parse: Callable[[bytes], Document], text: str, written: str) -> None:
    document = parse(b"A text.\n")
    translations = {document.units[0].id: UnitTranslation(text)}
    content = write_document(document, translations)
    assert content.decode() == f"{written}\n"
    check_written(document, translations, content, parse)


def test_bar_in_a_cell_of_asciidoc_begins_no_cell() -> None:
    page = b"|===\n|One cell |Another\n|===\n\nA text\n"
    document = parse_asciidoc(page)
    translations = {unit.id: UnitTranslation("a | b") for unit in document.units}
    content = write_document(document, translations)
    assert content == b"|===\n|a {vbar} b |a {vbar} b\n|===\n\na | b\n"
    check_written(document, translations, content, parse_asciidoc)


def test_title_with_marks_keeps_the_name_that_docutils_gives_it() -> None:
    written = translate(parse_rst(b"A *b* c_\n========\n\nSee `a b c`_.\n\n.. _c: http://x.y\n"))
    assert written.startswith(b".. _A b c:\n\nNeu ")
    written = translate(parse_rst(b"``get_a_*()`` on ``B``\n======================\n\nSee `get_a_*() on B`_.\n"))
    assert written.startswith(b".. _`get_a_*() on B`:\n\nNeu ")


def test_docutils_reads_the_same_structure() -> None:
    core = pytest.importorskip("docutils.core")
    text = (
        RST[: RST.index(b".. py:function")].replace(b" and :ref:`text <label>`, not :term:`thing`", b"")
        + RST[RST.index(b".. |name|") :]
    )
    trees = []
    for content in (text, translate(parse_rst(text))):
        warnings = io.StringIO()
        tree = core.publish_doctree(content.decode(), settings_overrides={"warning_stream": warnings, "report_level": 2})
        assert not warnings.getvalue()
        trees.append([type(node).__name__ for node in tree.findall() if type(node).__name__ not in ("Text", "target")])
    assert trees[0] == trees[1]


def test_mark_in_a_word_stays_a_mark() -> None:
    for parse, source, text, expected in (
        (parse_rst, b"The *big* house.", "Das <g1>Gro\u00df</g1>haus.", "Das *Gro\u00df*\\ haus."),
        (parse_rst, b"The ````:x:`y``` value.", "Der Wert<x1/>.", "Der Wert\\ ````:x:`y```."),
        (parse_rst, b"Plain text.", "1. Text mit *Stern*", "1\\. Text mit \\*Stern\\*"),
        (parse_asciidoc, b"The *big* house.", "Das <g1>Gro\u00df</g1>haus.", "Das **Gro\u00df**haus."),
        (parse_asciidoc, b"Plain text.", "* Text", "{empty}* Text"),
        (parse_asciidoc, b"[[x]]Plain text.", "<x1/>Text", "[[x]]Text"),
    ):
        document = parse(source)
        written = write_document(document, {"0": UnitTranslation(text)})
        assert written.decode() == expected
        assert parse(written).units[0].source.replace("<x1/>* ", "* ").count("<") == text.count("<")


def test_texts_of_asciidoc() -> None:
    document = parse_asciidoc(ADOC)
    assert list_sources(document) == [
        "Title",
        "Some <g1>words</g1>, <g2>marks</g2>, <x3/> and <g4>a link</g4> of <x5/> or <g6>the part</g6>.<br7/>Next <x8/>.",
        "Second Part", "Caption", "item goes on", "inner", "term", "Definition.", "The note goes on.", "Head", "Column", "cell",
        "Old Title",
    ]  # fmt: skip
    written = translate(document).decode()
    assert "[[_second_part]]\n== Neu" in written
    assert written.endswith("Neu \u00fcbersetzt Old Title\n-----------------------\n")
    assert list_sources(parse_asciidoc(translate(document))) == [
        f"Neu \u00fcbersetzt {text}" for text in list_sources(document)
    ]


@pytest.mark.parametrize("text", ["05:21", "17. 5:21", "42", "A. Smith", "- 5", "2031", "(2) 3"])
@pytest.mark.parametrize(
    ("parse", "page"),
    [
        (parse_rst, b"Some text here.\n\n* An item\n\n  7\n\nTitle\n=====\n\n.. note:: A note\n\n12\n"),
        (parse_asciidoc, b"Some text here.\n\n* An item\n\n== Title\n\nNOTE: A note\n\n12\n"),
    ],
)
def test_translations_without_letters_are_written(parse: Callable[[bytes], Document], page: bytes, text: str) -> None:
    document = parse(page)
    assert list_sources(document)[:2] == ["Some text here.", "An item"]
    assert [unit.source for unit in document.other_units][-1] == "12"
    translations = {unit.id: UnitTranslation(text) for unit in document.units}
    check_written(document, translations, write_document(document, translations), parse)


def test_curved_quotation_marks_of_asciidoc_are_pairs() -> None:
    page = b"He said \"`some *words* here`\" and '`more`' of Olaf`'s `code`.\n"
    document = parse_asciidoc(page)
    assert list_sources(document) == ["He said <g1>some <g2>words</g2> here</g1> and <g3>more</g3> of Olaf’s <x4/>."]
    assert translate(document) == b"Neu \xc3\xbcbersetzt " + page.replace(b"`'s", "’s".encode())


def test_notes_of_asciidoc_stand_behind_words() -> None:
    page = b"Builtfootnote:[In May.] here.footnote:a[See x.]\n"
    document = parse_asciidoc(page)
    assert list_sources(document) == ["Built <g1>In May.</g1> here. <g2>See x.</g2>"]
    [unit] = document.units
    assert write_document(document, {unit.id: UnitTranslation(unit.source.replace("In", "Im"))}) == page.replace(b"In", b"Im")


@pytest.mark.skipif(shutil.which("asciidoctor") is None, reason="Asciidoctor is not installed")
def test_asciidoctor_reads_the_same_structure(tmp_path: Path) -> None:
    pages = []
    for content in (ADOC, translate(parse_asciidoc(ADOC))):
        path = tmp_path / "page.adoc"
        path.write_bytes(content)
        page = subprocess.run(["asciidoctor", "-b", "docbook5", "-o", "-", path], capture_output=True, check=True, timeout=120)
        pages.append([(unit.markup, unit.source.count("<")) for unit in parse_docbook(page.stdout).units])
    assert pages[0] == pages[1]


def test_texts_of_docbook() -> None:
    document = check_document(parse_xml, DOCBOOK)
    assert list_sources(document) == ["Title", "Some <g1>words</g1> and <x2/> <x3/> behind.", "item", "cell"]
    assert (document.source_language, document.skipped) == ("en", {"terms of the index": 1})
    assert b'xml:lang="de"' in translate(document)
    with raises_code("invalid-format"):
        parse_docbook(b"<resources/>")


def test_captions_labels_of_menus_and_alternative_texts_of_docbook_are_texts() -> None:
    media = (
        '<mediaobject><alt>Short</alt><imageobject><imagedata fileref="a.png"/></imageobject>'
        "<textobject><phrase>Long one</phrase></textobject><caption><para>Below it</para></caption></mediaobject>"
    )
    inline = media.replace("mediaobject", "inlinemediaobject").replace("Long", "Inner")
    menu = "<para>In <menuchoice><guimenu>File</guimenu><guimenuitem>Save as</guimenuitem></menuchoice> now.</para>"
    page = f"<article><figure><title>Title</title>{media}</figure><para>Before {inline} behind.</para>{menu}</article>"
    document = parse_docbook(page.encode())
    assert list_sources(document) == [
        "Title", "Short", "Long one", "Below it", "Before <x1/> behind.", "Short", "Inner one", "Below it",
        "In <x1/> now.", "File", "Save as",
    ]  # fmt: skip
    texts = {unit.id: UnitTranslation(unit.source.upper().replace("<X1", "<x1")) for unit in document.units}
    written = write_document(document, texts).decode()
    assert all(f">{text.upper()}<" in written for text in ("Short", "Long one", "Inner one", "Below it", "Save as"))
    check_written(document, texts, written.encode(), parse_docbook)


def test_docbook_keeps_what_is_not_to_be_translated() -> None:
    kept = b'<section translate="no"><para>No</para></section><para translate="no">Nor this</para>'
    others = b'<para xml:lang="fr">Bonjour</para><para>One <emphasis translate="no">X</emphasis> two</para>'
    document = parse_docbook(b'<article xml:lang="en">' + kept + others + b"</article>")
    assert [(unit.source, unit.language) for unit in document.units] == [("Bonjour", "fr"), ("One <x1/> two", "")]


def test_deep_blocks_are_refused() -> None:
    with raises_code("input-too-long"):
        parse_rst(b"- " * 1000 + b"text")
    assert len(parse_asciidoc(b"*_" * 1000 + b"text" + b"_*" * 1000).units) == 1


def test_parts_of_docbook_state_the_language_of_the_translation() -> None:
    content = (
        b'<book xml:lang="en"><title>One</title><section xml:lang="en-GB"><title>Two</title>'
        b'<para>Big <phrase xml:lang="en">words</phrase></para></section>'
        b'<section xml:lang="fr"><para>Trois</para></section></book>'
    )
    document = parse_docbook(content)
    translations = {unit.id: UnitTranslation(unit.source.upper().replace("G1", "g1")) for unit in document.units[:2]}
    written = write_document(document, translations, "de")
    check_written(document, translations, written, parse_docbook)
    assert written == content.replace(b'"en">', b'"de">', 1).replace(b"en-GB", b"de").replace(b"One", b"ONE").replace(
        b"Two", b"TWO"
    )


def test_texts_of_pictures_in_asciidoc() -> None:
    """A block's is a text, in quotes if it needs them, and that inside a paragraph is counted."""
    content = b"See{nbsp}here image:a.png[Red, 10] it{rsquo}s {b}.\n\nimage::b.png[The picture]\n\nimage::c.png[width=10]\n"
    document = parse_asciidoc(content)
    assert list_sources(document) == ["See\u00a0here <x1/> it\u2019s <x2/>.", "The picture"]
    assert document.skipped == {"alternative texts of pictures": 1}
    written = write_document(document, {"1": UnitTranslation("Das Bild, [neu]")})
    assert b'image::b.png["Das Bild, [neu]"]' in written
    assert list_sources(parse_asciidoc(written))[1] == "Das Bild, [neu]"
