"""Checks that hold for documents of every format."""

from __future__ import annotations

import html
from collections.abc import Callable

from dragoman.documents.document import Document, Unit, UnitTranslation, write_document

Parse = Callable[[bytes], Document]


def make_pseudo_translation(unit: Unit) -> str:
    """Return a longer text with characters that formats escape; the tags of the source stay."""
    tail = " ]]&gt; &amp;amp; &lt;\"é'&gt; 😀 \\n \u05e9\u05dc"
    return f"⟦{unit.source}{tail if unit.markup == 'xml' else html.unescape(tail)}⟧"


def check_document(parse: Parse, content: bytes, *, is_bilingual: bool) -> Document:
    """Return the document. Check that it stays without translations, and that pseudo-translations are read again exactly."""
    document = parse(content)
    assert write_document(document, {}) == content
    texts = {unit.id: make_pseudo_translation(unit) for unit in document.units if unit.state != "locked"}
    assert texts
    written = write_document(document, {name: UnitTranslation(text) for name, text in texts.items()})
    assert _read_texts(parse, written, is_bilingual=is_bilingual) == texts
    again = parse(written)
    repeated = write_document(again, {name: UnitTranslation(text) for name, text in texts.items()})
    assert repeated == written, "a second run changes nothing"
    name = next(iter(texts))
    first = write_document(document, {name: UnitTranslation(texts[name])})
    before = _read_texts(parse, content, is_bilingual=is_bilingual)
    assert _read_texts(parse, first, is_bilingual=is_bilingual) == {**before, name: texts[name]}
    return document


def _read_texts(parse: Parse, content: bytes, *, is_bilingual: bool) -> dict[str, str]:
    return {unit.id: unit.target if is_bilingual else unit.source for unit in parse(content).units if unit.state != "locked"}
