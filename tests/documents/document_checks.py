"""Laws that documents of every format obey, and a function in place of a model."""

from __future__ import annotations

import html
import io
import zipfile
from collections.abc import Callable, Mapping

import numpy as np

from dragoman.data.tokenization.special_tokens import METASPACE
from dragoman.documents.document import Document, Edit, Unit, UnitTranslation, check_written, write_document
from dragoman.documents.formats import get_parser, parse_document
from dragoman.documents.translate_document import DocumentOptions, DocumentTranslation, translate_document
from dragoman.inference.translation_result import Translation
from dragoman.inference.whole_texts import LineRequest, TranslateLines
from office_files import read_members

Parse = Callable[[bytes], Document]


def make_pseudo_translation(unit: Unit) -> str:
    """Return a longer text with characters that formats escape; the tags of the source stay."""
    tail = " ]]&gt; &amp;amp; &lt;\"é'&gt; 😀 \\n \u05e9\u05dc"
    return f"⟦{unit.source}{tail if unit.markup == 'xml' else html.unescape(tail)}⟧"


def check_document(parse: Parse, content: bytes) -> Document:
    """Return the document. Check that it stays without translations, and that pseudo-translations are read again exactly."""
    document = parse(content)
    assert write_document(document, {}) == content
    texts = {unit.id: make_pseudo_translation(unit) for unit in document.units if unit.state != "locked"}
    assert texts
    written = write_document(document, {name: UnitTranslation(text) for name, text in texts.items()})
    assert _read_texts(parse, written) == texts
    again = parse(written)
    repeated = write_document(again, {name: UnitTranslation(text) for name, text in texts.items()})
    assert repeated == written, "a second run changes nothing"
    name = next(iter(texts))
    first = write_document(document, {name: UnitTranslation(texts[name])})
    before = _read_texts(parse, content)
    assert _read_texts(parse, first) == {**before, name: texts[name]}
    return document


def _read_texts(parse: Parse, content: bytes) -> dict[str, str]:
    document = parse(content)
    return {unit.id: unit.target if document.is_bilingual else unit.source for unit in document.units if unit.state != "locked"}


def pseudo_translate(text: str) -> str:
    """Return a longer text with other letters, quotes and marks, and the same line breaks at its ends."""
    body = text.strip("\n")
    head, _, tail = text.partition(body) if body else (text, "", "")
    return f"{head}Ŧḗẋŧ „{body}“ ‏שלום 🐉{tail}"


def check_laws(parse: Parse, content: bytes, translate: Callable[[str], str] = pseudo_translate) -> Document:
    """Check that no change gives the same bytes, and that a translation reads as written, with nothing else changed."""
    document = parse(content)
    assert write_document(document, {}) == content
    texts = {unit.id: UnitTranslation(unit.source) for unit in document.units if unit.state != "locked"}
    check_written(document, texts, write_document(document, texts), parse)
    units = [unit for unit in document.units if unit.state != "locked"]
    assert len({unit.id for unit in document.units}) == len(document.units)
    translations = {unit.id: UnitTranslation(translate(unit.source)) for unit in units}
    written = write_document(document, translations)
    check_written(document, translations, written, parse)
    check_outside(document, translations, content, written)
    return document


def check_outside(document: Document, translations: Mapping[str, UnitTranslation], content: bytes, written: bytes) -> None:
    """Check that the bytes between the edits are those of the original, in order."""
    edits = [
        edit for unit in document.units if unit.id in translations for edit in document.make_edits(unit, translations[unit.id])
    ]
    edits += document.make_document_edits(translations, "")
    position = written_position = 0
    for edit in sorted([*edits, Edit(len(content), len(content), b"")], key=lambda edit: (edit.start, -edit.end)):
        if edit.start < position:  # a title in a text
            written_position += len(edit.content) - (edit.end - edit.start)
            continue
        kept = content[position : edit.start]
        assert written[written_position : written_position + len(kept)] == kept
        position, written_position = edit.end, written_position + len(kept) + len(edit.content)


def check_other_members(parse: Parse, content: bytes, changed: set[str]) -> None:
    """Check that a translation changes these members, and that the header and the compressed bytes of all others stay."""
    document = parse(content)
    translations = {unit.id: UnitTranslation(make_pseudo_translation(unit)) for unit in document.units}
    written = write_document(document, translations)
    before, after = read_members(content), read_members(written)
    assert list(after) == list(before)
    assert {name for name in before if before[name] != after[name]} == changed
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(io.BytesIO(written)) as new:
        for name in set(before) - changed:
            start, new_start = old.getinfo(name).header_offset, new.getinfo(name).header_offset
            length = 30 + len(name.encode()) + old.getinfo(name).compress_size
            assert content[start : start + length] == written[new_start : new_start + length]
            assert old.getinfo(name).date_time == new.getinfo(name).date_time
        assert old.comment == new.comment


OPTIONS = DocumentOptions("en", "de")


def translate_content(
    name: str, content: str | bytes, change: Callable[[str], str] = str.upper, options: DocumentOptions = OPTIONS
) -> DocumentTranslation:
    """Return the translation of the content of a file by `make_stub`."""
    document = parse_document(name, content.encode() if isinstance(content, str) else content)
    return translate_document(document, get_parser(name), make_stub(change), options)


def make_stub(change: Callable[[str], str] = str.upper, lines: list[str] | None = None) -> TranslateLines:
    """Return a function in place of a model, which translates a line as `change` does. Word i attends to word i of the line.

    lines: list that gets the lines
    """

    def translate_line(line: str) -> Translation:
        text = change(line)
        sides = [tuple(METASPACE + word for word in side.split()) for side in (text, line)]
        rows = np.eye(len(sides[1]))[[min(row, len(sides[1]) - 1) for row in range(len(sides[0]))]]
        return Translation(text, tokens=sides[0], source_tokens=sides[1], attention=rows)

    def translate_lines(request: LineRequest) -> list[Translation]:
        if lines is not None:
            lines.extend(request.lines)
        return [translate_line(line) for line in request.lines]

    return translate_lines
