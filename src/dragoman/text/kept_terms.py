"""Terms and other words that are not translated, as codes of a text, which every translation keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from dragoman.text.glossary import Glossary
from dragoman.text.inline_codes import CodedText, Element, Part, Point, escape
from dragoman.text.placeholders import Span


def mark_kept_terms(text: CodedText, glossary: Glossary | None) -> CodedText:
    """Return the text with each term that the glossary does not translate as a point."""
    if glossary is None or not any(entry.do_not_translate for entry in glossary.entries):
        return text

    def find_terms(part: str) -> Iterator[Span]:
        return ((match.start, match.end) for match in glossary.find(part) if match.entry.do_not_translate)

    return mark_spans(text, find_terms)


def mark_spans(text: CodedText, find: Callable[[str], Iterable[Span]]) -> CodedText:
    """Return a text with what `find` finds in its parts as points. find: function that returns spans of a text, in order"""
    return replace(text, parts=tuple(_mark_parts(text.parts, find, text.is_escaped)))


def _mark_parts(parts: Sequence[Part], find: Callable[[str], Iterable[Span]], is_escaped: bool) -> Iterator[Part]:
    for part in parts:
        if isinstance(part, Element):
            yield replace(part, parts=tuple(_mark_parts(part.parts, find, is_escaped)))
        elif isinstance(part, str):
            yield from _mark_text(part, find(part), is_escaped)
        else:
            yield part


def _mark_text(text: str, spans: Iterable[Span], is_escaped: bool) -> Iterator[Part]:
    position = 0
    for start, end in spans:
        # A point is written as it is, so markup cannot have a term with `&` or `<` as a point.
        if not (is_escaped and escape(text[start:end]) != text[start:end]):
            if start > position:
                yield text[position:start]
            yield Point(text[start:end])
            position = end
    if position < len(text):
        yield text[position:]
