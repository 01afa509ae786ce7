"""Checks that hold for documents of every format."""

from __future__ import annotations

import html
from collections.abc import Callable

from dragoman.data.tokenization.subword_sampling import METASPACE
from dragoman.documents.document import Document, Unit, UnitTranslation, write_document
from dragoman.inference.translation_result import Translation
from dragoman.inference.whole_texts import TranslateLines

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


def make_stub(change: Callable[[str], str]) -> TranslateLines:
    """Return a function in place of a model, which translates a line as `change` does. Word i attends to word i of the line."""

    def translate_line(line: str) -> Translation:
        text = change(line)
        sides = [tuple(METASPACE + word for word in side.split()) for side in (text, line)]
        num_words = len(sides[1])
        rows = tuple(tuple(float(min(row, num_words - 1) == i) for i in range(num_words)) for row in range(len(sides[0])))
        return Translation(text, tokens=sides[0], source_tokens=sides[1], attention=rows)

    return lambda request: [translate_line(line) for line in request.lines]
