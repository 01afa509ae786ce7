"""Tests of TMX documents."""

from __future__ import annotations

from document_checks import check_document

from dragoman.documents.document import UnitTranslation, write_document
from dragoman.documents.tmx_document import parse_tmx
from expected_errors import raises_code

START = '<?xml version="1.0"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx version="1.4">\n<header srclang="en"/><body>\n'
UNITS = """\
  <tu tuid="a">
    <prop type="x">1</prop>
    <tuv xml:lang="en-US"><seg>Open <bpt i="1">&lt;b&gt;</bpt>the<ept i="1">&lt;/b&gt;</ept> \
<hi>file</hi><ph x="1"/></seg></tuv>
    <tuv xml:lang="de" creationid="MT!"><seg>Öffne</seg></tuv>
  </tu>
  <tu>
    <tuv xml:lang="de" creationid="anna"><seg>Ja &amp; nein</seg></tuv>
    <tuv xml:lang="en"><seg>Yes &amp; no</seg></tuv>
  </tu>
  <tu>
    <tuv xml:lang="en"><seg>New</seg></tuv>
  </tu>
"""
TMX = f"{START}{UNITS}</body></tmx>".encode()
MONOLINGUAL = f'{START}<tu>\n  <tuv xml:lang="en"><seg>New</seg></tuv>\n</tu></body></tmx>'.encode()


def test_units_are_read() -> None:
    document = check_document(parse_tmx, TMX)
    assert (document.source_language, document.target_language) == ("en", "de")
    assert [(unit.id, unit.source, unit.target, unit.state) for unit in document.units] == [
        ("a", "Open <g1>the</g1> <g2>file</g2><x3/>", "Öffne", "fuzzy"),
        ("2", "Yes & no", "Ja & nein", "translated"),
        ("3", "New", "", "untranslated"),
    ]


def test_translations_and_states_are_written() -> None:
    document = parse_tmx(TMX)
    text = "<g2>Datei</g2> <g1>die</g1> öffnen<x3/>"
    written = write_document(document, {"a": UnitTranslation(text), "3": UnitTranslation("Neu", "fuzzy")})
    expected = TMX.replace(
        ' creationid="MT!"><seg>Öffne'.encode(),
        '><seg><hi>Datei</hi> <bpt i="1">&lt;b&gt;</bpt>die<ept i="1">&lt;/b&gt;</ept> öffnen<ph x="1"/>'.encode(),
    )
    new = b"<seg>New</seg></tuv>"
    assert written == expected.replace(new, new + b'\n    <tuv xml:lang="de" creationid="MT!"><seg>Neu</seg></tuv>')


def test_language_of_a_monolingual_memory_is_needed() -> None:
    document = parse_tmx(MONOLINGUAL)
    with raises_code("unsupported-language"):
        write_document(document, {"1": UnitTranslation("Neu")})
    written = write_document(document, {"1": UnitTranslation("Neu", language="de")})
    assert written == MONOLINGUAL.replace(b"</tuv>", b'</tuv>\n  <tuv xml:lang="de"><seg>Neu</seg></tuv>')


def test_each_target_language_has_units() -> None:
    """The first of several texts in one language is the translation, also if they state other countries."""
    other = '<tuv xml:lang="de-AT" creationid="anna"><seg>Ach ja</seg></tuv><tuv xml:lang="fr"><seg>Oui</seg></tuv>'
    content = TMX.replace(b'    <tuv xml:lang="en"><seg>Yes', other.encode() + b'    <tuv xml:lang="en"><seg>Yes')
    document = check_document(parse_tmx, content)
    assert [(unit.id, unit.target_language, unit.target) for unit in document.units] == [
        ("a/de", "de", "Öffne"), ("a/fr", "fr", ""), ("2/de", "de", "Ja & nein"), ("2/fr", "fr", "Oui"), ("3/de", "de", ""),
        ("3/fr", "fr", ""),
    ]  # fmt: skip
    written = write_document(document, {"3/fr": UnitTranslation("Nouveau")}, "fr")
    new = b"<seg>New</seg></tuv>"
    assert written == content.replace(new, new + b'\n    <tuv xml:lang="fr"><seg>Nouveau</seg></tuv>')
