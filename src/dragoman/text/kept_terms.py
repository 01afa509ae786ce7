"""Terms that are not translated, as codes of a text, which every translation keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dragoman.text.glossary import Glossary
from dragoman.text.inline_codes import CodedText, Element, Part, Point, escape


def mark_kept_terms(text: CodedText, glossary: Glossary | None) -> CodedText:
    """Return the text with each term that the glossary does not translate as a point."""
    if glossary is None or not any(entry.do_not_translate for entry in glossary.entries):
        return text
    return replace(text, parts=tuple(_mark_parts(text.parts, glossary, text.is_escaped)))


def _mark_parts(parts: Sequence[Part], glossary: Glossary, is_escaped: bool) -> Iterator[Part]:
    for part in parts:
        if isinstance(part, Element):
            yield replace(part, parts=tuple(_mark_parts(part.parts, glossary, is_escaped)))
        elif isinstance(part, str):
            yield from _mark_text(part, glossary, is_escaped)
        else:
            yield part


def _mark_text(text: str, glossary: Glossary, is_escaped: bool) -> Iterator[Part]:
    position = 0
    for match in glossary.find(text):
        term = text[match.start : match.end]
        # A point is written as it is, so markup cannot have a term with `&` or `<` as a point.
        if match.entry.do_not_translate and not (is_escaped and escape(term) != term):
            if match.start > position:
                yield text[position : match.start]
            yield Point(term)
            position = match.end
    if position < len(text):
        yield text[position:]
