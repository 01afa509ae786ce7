"""Laws that every format obeys, and pseudo-translations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dragoman.documents.document import Document, Edit, UnitTranslation, check_written, write_document

Parse = Callable[[bytes], Document]


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
    for edit in sorted([*edits, Edit(len(content), len(content), b"")], key=lambda edit: (edit.start, edit.end)):
        kept = content[position : edit.start]
        assert written[written_position : written_position + len(kept)] == kept
        position, written_position = edit.end, written_position + len(kept) + len(edit.content)
