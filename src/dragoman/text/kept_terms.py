"""Terms and other words that are not translated, as codes of a text, which every translation keeps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from html import unescape
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

from dragoman.text.inline_codes import CodedText, Element, Part, Point, escape
from dragoman.text.placeholders import Span

if TYPE_CHECKING:
    from dragoman.text.glossary import Glossary


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
    for is_text, group in groupby(parts, lambda part: isinstance(part, str) or (isinstance(part, Point) and part.is_space)):
        if is_text:
            yield from _mark_text(list(group), find, is_escaped)
            continue
        for part in group:
            if isinstance(part, Element):
                part = replace(part, parts=tuple(_mark_parts(part.parts, find, is_escaped)))
            yield part


def _mark_text(parts: Sequence[Part], find: Callable[[str], Iterable[Span]], is_escaped: bool) -> Iterator[Part]:
    """Yield texts and codes of white space, which is a part of what `find` finds if it stands inside."""
    surfaces = [part if isinstance(part, str) else " " for part in parts]
    text, ends = "".join(surfaces), list(accumulate(map(len, surfaces)))
    position = 0
    for start, end in find(text):
        # A point is written as it is, so markup cannot have a term with `&` or `<` as a point.
        if not (is_escaped and escape(text[start:end]) != text[start:end]):
            yield from _cut(parts, ends, position, start)
            words = list(_cut(parts, ends, start, end))
            markup = "".join(part if isinstance(part, str) else part.markup for part in words if not isinstance(part, Element))
            plain = unescape(markup) if "&" in markup else ""
            yield Point(markup, plain)
            position = end
    yield from _cut(parts, ends, position, len(text))


def _cut(parts: Sequence[Part], ends: Sequence[int], start: int, end: int) -> Iterator[Part]:
    """Yield what parts have between two places of their text. ends: the end of each part"""
    for number in range(bisect_right(ends, start), len(parts)):
        part = parts[number]
        first = ends[number - 1] if number else 0
        if first >= end:
            return
        yield part[max(start - first, 0) : end - first] if isinstance(part, str) else part
