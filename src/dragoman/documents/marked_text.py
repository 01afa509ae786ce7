"""Units of text files with marks, such as reStructuredText: a text is the lines of a block, and its marks are codes."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from dragoman.documents.document import Document, Edit, Unit, UnitTranslation, divide_units
from dragoman.documents.encoded_text import EncodedText
from dragoman.documents.reading import check_codes, check_text, check_texts

Span = tuple[int, int]
MAX_DEPTH = 40
"""Depth of blocks in blocks."""
_TAGS = {"start": "<g{}>", "point": "<x{}/>", "br": "<br{}/>"}
_TAG = re.compile(r"(</?g\d+>|<(?:x|br)\d+/>)")
MIN_WRAP_WIDTH = 40
"""Fewest columns of a paragraph in several lines that is written in lines again."""
_BREAK = re.compile(r"(?<![ \\]) (?=[^\W\d_])")
"""Space at which a line can end: no block begins with a letter, and a backslash before a line break is a break, too."""
GLUED = "\0"
"""Sign before a code that removes the space before it, which only the model reads."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Mark in a text.

    Attributes:
        start, end: its characters
        kind: "start" and "end" of a pair, "point", "br" for a line break, or "text" for an escape
        text: what an escape stands for; of a start, a space that the model reads before it if a word is there
        changed: what the file gets for an end if the text of its pair changes; empty for the mark itself
    """

    start: int
    end: int
    kind: Literal["start", "end", "point", "br", "text"]
    text: str = ""
    changed: str = ""


class MarkedSyntax(Protocol):
    """Rules of a format for the marks in a text."""

    def find_marks(self, content: str) -> Sequence[Mark]:
        """Return the marks of a text in order. Pairs nest."""

    def write(self, pieces: Sequence[str], tags: Sequence[str], *, is_escaped: bool) -> Sequence[str]:
        """Return what the file gets for texts and codes in turn, with the tags of the codes.

        is_escaped: escape all characters that can be marks
        """

    def protect_start(self, text: str) -> str:
        """Return a text that begins no other block than a paragraph."""


@dataclass(frozen=True, slots=True)
class _MarkedPlace:
    """Place of a text: its characters, its codes, the width of its lines, and what follows its edit."""

    start: int
    end: int
    codes: dict[str, str]
    changed_ends: dict[str, str]
    width: int
    prefix: str
    is_block: bool
    add_edits: Callable[[str], Sequence[Edit]] | None
    protect: Callable[[str], str]


class MarkedTextReader:
    """Reader of the units, and writer of their edits. skipped: as in `Document`"""

    def __init__(self, text: EncodedText, syntax: MarkedSyntax) -> None:
        self.text = text
        self.skipped: dict[str, int] = {}
        self._syntax = syntax
        self._units: list[Unit] = []
        self._places: dict[str, _MarkedPlace] = {}

    def add(
        self,
        spans: Sequence[Span],
        *,
        is_block: bool = True,
        add_edits: Callable[[str], Sequence[Edit]] | None = None,
        protect: Callable[[str], str] = lambda text: text,
    ) -> None:
        """Add the text of lines as one unit, if it has words.

        spans: the characters of each line, without white space at the ends
        is_block: another block could begin with the text
        add_edits: function from the new text, as the file gets it, to more edits
        protect: function that escapes in the new text what ends its place
        """
        text = self.text.text
        check_text(sum(end - start for start, end in spans))
        content = "\n".join(text[start:end] for start, end in spans)
        source, codes, changed_ends = _read(content, self._syntax)
        if not _TAG.sub("", source).strip():
            return
        width, prefix = 0, ""
        if len(spans) > 1:
            line_starts = [text.rfind("\n", 0, start) + 1 for start, _ in spans]
            width = max(MIN_WRAP_WIDTH, *(end - first for first, (_, end) in zip(line_starts, spans, strict=True)))
            prefix = text[line_starts[1] : spans[1][0]]
        name = str(len(self._units))
        self._units.append(Unit(name, source, markup="xml", keep_line_breaks=False))
        check_texts(len(self._units), len(self.text.content))
        self._places[name] = _MarkedPlace(
            spans[0][0], spans[-1][1], codes, changed_ends, width, prefix, is_block, add_edits, protect
        )

    def skip(self, name: str, count: int = 1) -> None:
        """Count texts that stay."""
        self.skipped[name] = self.skipped.get(name, 0) + count

    def make_document(self, format_name: str) -> Document:
        """Return the document with these units."""
        texts, others = divide_units(self._units)
        return Document(
            self.text.content, texts, format_name, make_edits=self._make_edits, other_units=others, skipped=self.skipped
        )

    def _make_edits(self, unit: Unit, translation: UnitTranslation) -> Sequence[Edit]:
        """Return the edits that write a text. A text of several lines is wrapped at the width of the longest one."""
        place = self._places[unit.id]
        codes = place.codes
        if translation.text != unit.source:
            codes = codes | place.changed_ends
        parts = _TAG.split(translation.text.strip())
        tags = parts[1::2]
        meant = [codes.get(part, "") if number % 2 else html.unescape(part) for number, part in enumerate(parts)]
        pieces = glue(self._syntax.write(meant, tags, is_escaped=False))
        if not self._reads_as(meant, tags, pieces):
            pieces = glue(self._syntax.write(meant, tags, is_escaped=True))
        text = wrap_pieces(pieces, place.width, f"{self.text.newline}{place.prefix}")
        if place.is_block:
            text = self._syntax.protect_start(text)
        text = place.protect(text)
        more = () if place.add_edits is None else place.add_edits(text)
        return [self.text.make_edit(place.start, place.end, text), *more]

    def _reads_as(self, meant: Sequence[str], tags: Sequence[str], pieces: Sequence[str]) -> bool:
        """Return whether written texts are read as they are meant."""
        source, _, _ = _read("".join(pieces), self._syntax)
        read = _TAG.split(source)
        kinds = [tag.rstrip("/>0123456789") for tag in read[1::2]]
        if kinds != [tag.rstrip("/>0123456789") for tag in tags]:
            return False
        return all(
            number % 2 or " ".join(html.unescape(part).split()) == " ".join(meant[number].split())
            for number, part in enumerate(read)
        )


def _read(content: str, syntax: MarkedSyntax) -> tuple[str, dict[str, str], dict[str, str]]:
    """Return a text with tags, what each tag stands for, and what end tags stand for if their text changes."""
    output: list[str] = []
    codes: dict[str, str] = {}
    changed_ends: dict[str, str] = {}
    open_tags: list[int] = []
    position = number = 0
    for mark in syntax.find_marks(content):
        output.append(html.escape(content[position : mark.start].replace("\n", " "), quote=False))
        position = mark.end
        if mark.kind == "text":
            output.append(html.escape(mark.text, quote=False))
            continue
        if mark.kind == "end":
            tag = f"</g{open_tags.pop()}>"
        else:
            number += 1
            tag = _TAGS[mark.kind].format(number)
        codes[tag] = content[mark.start : mark.end]
        if mark.kind == "start":
            open_tags.append(number)
            if mark.text and mark.start and not content[mark.start - 1].isspace():
                output.append(mark.text)
                codes[tag] = GLUED + codes[tag]
        check_codes(len(codes))
        if mark.changed:
            changed_ends[tag] = mark.changed
        output.append(tag)
    output.append(html.escape(content[position:].replace("\n", " "), quote=False))
    return "".join(output), codes, changed_ends


def get_width(text: str) -> int:
    """Return the columns of a text: two for a wide character, none for a combining one."""
    return sum(
        0 if unicodedata.combining(character) else 1 + (unicodedata.east_asian_width(character) in "WF") for character in text
    )


def wrap_pieces(pieces: Sequence[str], width: int, separator: str) -> str:
    """Return texts and codes in turn as one text in lines of a width.

    width: columns of the longest line, or 0 for a text in one line
    separator: line break, and what stands before each line but the first
    """
    words: list[list[str]] = [[]]
    for index, piece in enumerate(pieces):
        if index % 2:
            words[-1].append(piece.replace("\n", separator))
            continue
        first, *rest = _BREAK.split(piece) if width else [piece]
        words[-1].append(first)
        words += ([word] for word in rest)
    return separator.join(_wrap(["".join(word) for word in words], width, len(separator.rpartition("\n")[2])))


def _wrap(words: Sequence[str], width: int, indent: int) -> list[str]:
    """Return words in lines. A word may have line breaks."""
    lines: list[list[str]] = []
    column = 0  # behind the last line
    for word in words:
        first, *rest = word.split("\n")
        if lines and column + 1 + len(first) <= width:
            lines[-1].append(word)
            column += 1 + len(first)
        else:
            lines.append([word])
            column = indent + len(first)
        column = len(rest[-1]) if rest else column
    return [" ".join(line) for line in lines]


def glue(pieces: Sequence[str]) -> list[str]:
    """Return texts and codes in turn as the file gets them: without the spaces that only the model reads."""
    output = list(pieces)
    for number in range(1, len(output), 2):
        if output[number].startswith(GLUED):
            output[number] = output[number][1:]
            output[number - 1] = output[number - 1].rstrip(" ")
    return output
