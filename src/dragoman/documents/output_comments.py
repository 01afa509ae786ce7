"""Comments that a human wrote into an output, which a new translation of the file keeps.

A comment in lines of its own stays in front of the line, or the text, that it stood before. One behind a text stays behind it.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from dragoman.documents.document import Document, Edit, Unit, UnitTranslation, list_all_units
from dragoman.documents.earlier_output import name_units, pair_units
from dragoman.errors import DataError

_HASH = rb"(?P<comment>\#[^\r\n]*+)"
_TAGS = rb"(?P<comment><!--(?:[^-]|-(?!->))*+(?:-->|\Z))"
# A mark in a string is none. What nobody closes ends with the file.
_CODE = rb""""(?:[^"\\]|\\.)*+"?|'(?:[^'\\]|\\.)*+'?|(?P<comment>//[^\r\n]*+|/\*(?:[^*]|\*(?!/))*+(?:\*/|\Z))"""
_COMMENTS = {
    name: re.compile(pattern, re.DOTALL | re.MULTILINE)
    for pattern, names in (
        (_HASH, ("yaml", "ftl")),
        (rb"(?P<comment>[#!][^\r\n]*+)", ("properties",)),
        (_CODE, ("strings", "json", "json5")),
        (_TAGS, ("html", "markdown", "android", "resx", "stringsdict", "docbook")),
        (rb"^(?P<comment>//(?!/)[^\r\n]*+|////[ \t]*+\r?\n.*?^////[ \t]*+$)", ("asciidoc",)),
        (rb"^[ \t]*+(?P<comment>\.\.[ ](?![_|\[])(?![^\r\n]*?::)[^\r\n]*+(?:\r?\n[ \t]++[^\r\n]++)*+)", ("rst",)),
        (rb"^(?P<comment>NOTE(?![^ \t\r\n])[^\r\n]*+(?:\r?\n[^\r\n]++)*+)", ("vtt",)),
        (rb"(?P<comment>;[^\r\n]*+)", ("ass",)),
    )
    for name in names
}
"""Pattern of the comments of each format."""
_WITH_COMMENTS_BEHIND = frozenset(("yaml", "strings", "json", "json5", "android", "resx", "stringsdict", "docbook"))
"""Formats in which a comment may stand behind a text."""
_TAG = re.compile(_TAGS + rb"|</?[A-Za-z]", re.DOTALL)
_LINE_END = re.compile(rb"[ \t]*+(?:\r?\n|\r|\Z)")
_BLANK_LINE = re.compile(rb"[ \t]*+[\r\n]")
_LINE = re.compile(rb"[^\r\n]++")
_HEAD = re.compile(rb"(?:\xef\xbb\xbf)?+\s*+")
_MAX_GAP = 20
"""Most bytes between a text and a comment behind it."""
_Place = tuple[int, int, str, Unit]
"""Start, end and id of a text of the output, with its unit of the document."""


@dataclass(frozen=True)
class _Comment:
    """Comment of a file.

    start, end: place of the comment; of whole lines, if it stands in lines of its own
    """

    text: bytes
    start: int
    end: int
    has_own_lines: bool


def keep_comments(
    document: Document, parse: Callable[[bytes], Document], output: Document, original: Document | None = None
) -> tuple[Document, Sequence[str]]:
    """Return a document with the comments that only an output has, and those of them that cannot be kept.

    original: earlier version of the document, whose comments are no human's

    Raises DataError if the texts of the output have no places in the original.
    """
    known = Counter[bytes]()
    for side in (document, original or document):
        known |= Counter(comment.text for comment in _iter_comments(side))
    comments = []
    for comment in _iter_comments(output):
        known[comment.text] -= 1
        if known[comment.text] < 0:
            comments.append(comment)
    if not comments:
        return document, ()
    pairs = _pair_with_new(document, output, original)
    places = sorted(((*_find_span(output, other), unit.id, unit) for unit, other in pairs), key=itemgetter(0, 1, 2))
    find_place = _PlaceFinder(document, output, comments, places).find
    line_break = b"\r\n" if b"\r\n" in document.content else b"\n"
    edits: list[Edit] = []
    left_out: list[str] = []
    for comment in reversed(comments):
        number = bisect_left(places, (comment.end,))
        if number and places[number - 1][1] > comment.start:  # inside of a text
            continue
        if comment.has_own_lines:
            place = find_place(comment, number)
            lines = output.content[comment.start : comment.end].splitlines()
            lines += [b""] * (1 + (_BLANK_LINE.match(output.content, comment.end) is not None))
            text = line_break.join(lines)
            is_at_line_start = document.content[max(place - 1, 0) : place] in (b"", b"\n", b"\r", BOM_UTF8[-1:])
            edits.append(Edit(place, place, text if is_at_line_start else line_break + text))
        elif number and (edit := _place_behind(comment, document, output, places[number - 1])):
            edits.append(edit)
        else:
            left_out.append(_show(comment))
    edits = sorted(reversed(edits), key=lambda edit: edit.start)
    try:
        merged = parse(document.assemble(document.content, edits)) if edits else document
        is_same = [*map(_get_text, list_all_units(merged))] == [*map(_get_text, list_all_units(document))]
    except DataError:
        is_same = False
    if not is_same:
        return document, [*map(_show, comments)]
    return replace(merged, boundaries=document.boundaries), left_out


class _PlaceFinder:
    """Finds where comments in lines of their own belong in a document. The caller asks for the last one first."""

    def __init__(self, document: Document, output: Document, comments: Sequence[_Comment], places: Sequence[_Place]) -> None:
        self._document, self._output, self._places = document, output, places
        self._lines, self._other_lines = _find_lines(document.content), _find_lines(output.content)
        self._line_starts = [match.start() for match in _LINE.finditer(document.content)]
        self._head_end = _skip_blanks(output.content, 0)
        for comment in comments:
            if comment.start <= self._head_end:
                self._head_end = _skip_blanks(output.content, comment.end)
        self._tags, self._other_tags = _find_tags(document.content), _find_tags(output.content)
        self._next_start, self._next_place = len(output.content) + 1, 0

    def find(self, comment: _Comment, number: int) -> int:
        """Return the place of a comment that stands before the text of this number."""
        content = self._output.content
        key = line[0].strip() if (line := _LINE.search(content, comment.end)) else b""
        if comment.start < self._head_end:
            place = len(BOM_UTF8) if self._document.content.startswith(BOM_UTF8) else 0
        elif _skip_blanks(content, comment.end) >= self._next_start:
            place = self._next_place
        elif self._document.format == "html":
            place = self._find_by_tags(comment)
        elif len(self._lines.get(key, ())) == len(self._other_lines.get(key, ())) == 1:
            place = self._lines[key][0]
        elif number < len(self._places):
            start = _find_span(self._document, self._places[number][3])[0]
            place = self._line_starts[bisect_right(self._line_starts, start) - 1]
        else:
            place = len(self._document.content)
        self._next_start, self._next_place = comment.start, place
        return place

    def _find_by_tags(self, comment: _Comment) -> int:
        """Return the line of the tag before which a comment of HTML stands, whose translation has the same tags."""
        number = bisect_left(self._other_tags, comment.end)
        if number >= len(self._tags):
            return len(self._document.content)
        return self._line_starts[bisect_right(self._line_starts, self._tags[number]) - 1]


def _iter_comments(document: Document) -> Iterator[_Comment]:
    """Yield the comments of a file in order; none for a format, or an encoding, in which they are not known."""
    pattern, content = _COMMENTS.get(document.format), document.content
    if pattern is None or b"\0" in content[:4]:
        return
    for match in pattern.finditer(content):
        if match["comment"] is None:
            continue
        start, end = match.span("comment")
        while start and content[start - 1] in b" \t":
            start -= 1
        line_end = _LINE_END.match(content, end)
        has_own_lines = line_end is not None and (not start or content[start - 1] in b"\r\n")
        if not has_own_lines and (document.format not in _WITH_COMMENTS_BEHIND or start == match.start("comment")):
            continue
        yield _Comment(
            match["comment"].rstrip(),
            start if has_own_lines else match.start("comment"),
            line_end.end() if has_own_lines and line_end else end,
            has_own_lines,
        )


def _pair_with_new(document: Document, output: Document, original: Document | None) -> Iterator[tuple[Unit, Unit]]:
    """Yield units of a document with those of an output, by way of its earlier version."""
    pairs = pair_units(original or document, output)
    if original is None:
        yield from pairs
        return
    names, original_names = name_units(document), name_units(original)
    units = {names.get(unit.id, unit.source): unit for unit in reversed(list_all_units(document))}
    for old, other in pairs:
        if (unit := units.get(original_names.get(old.id, old.source))) is not None:
            yield unit, other


def _find_span(document: Document, unit: Unit) -> tuple[int, int]:
    """Return where the text of a unit begins and ends."""
    edits = document.make_edits(unit, UnitTranslation(unit.source))
    return min((edit.start for edit in edits), default=0), max((edit.end for edit in edits), default=0)


def _skip_blanks(content: bytes, start: int) -> int:
    """Return where the white space ends that begins at a place, with a byte order mark before it."""
    head = _HEAD.match(content, start)
    return head.end() if head else start


def _find_tags(content: bytes) -> list[int]:
    """Return where the tags of HTML begin."""
    return [match.start() for match in _TAG.finditer(content) if match["comment"] is None]


def _find_lines(content: bytes) -> dict[bytes, list[int]]:
    """Return the first two places of each line, without white space at its ends."""
    lines: dict[bytes, list[int]] = {}
    for match in _LINE.finditer(content):
        if len(places := lines.setdefault(match[0].strip(), [])) < 2:
            places.append(match.start())
    return lines


def _place_behind(comment: _Comment, document: Document, output: Document, place: _Place) -> Edit | None:
    """Return the edit that puts a comment behind the same text; None if something else stands there."""
    gap = output.content[place[1] : comment.start]
    end = _find_span(document, place[3])[1] + len(closing := gap.rstrip())
    if len(gap) > _MAX_GAP or b"\n" in gap or not document.content.startswith(closing, end - len(closing)):
        return None
    return Edit(end, end, gap[len(closing) :] + comment.text)


def _get_text(unit: Unit) -> tuple[str, str]:
    return unit.key, unit.source


def _show(comment: _Comment) -> str:
    return " ".join(comment.text.decode(errors="replace").split())
