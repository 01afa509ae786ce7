"""Text that flows among inline elements, as in XHTML and OpenDocument: white space is one space, and blocks divide it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from dragoman.documents.document import Edit, Unit, UnitTranslation
from dragoman.documents.xml_spans import XmlElement, XmlMarkup, XmlSource, XmlText
from dragoman.documents.xml_units import Code, Piece, UnitList, name_codes, read_parts, write_pieces
from dragoman.text.breaks import divide_at

_SPACES = re.compile("[ \t\r\n]+")
Part = XmlElement | XmlText | XmlMarkup


def split_at_breaks(parts: Sequence[Part], is_break: Callable[[XmlElement], bool]) -> Iterator[Sequence[Part]]:
    """Yield the texts of parts that stand side by side, without the breaks that end a text.

    is_break: whether an element is a line break or a tab
    """
    places = [number for number, part in enumerate(parts) if isinstance(part, XmlElement) and is_break(part)]
    tabs = [number for number, place in enumerate(places) if cast(XmlElement, parts[place]).name == "tab"]
    return divide_at(parts, places, lambda line: "".join(part.text for part in line if not isinstance(part, XmlMarkup)), tabs)


def add_flowing_text(
    units: UnitList,
    source: XmlSource,
    parts: Sequence[Part],
    name: str,
    read_element: Callable[[XmlElement], list[Piece]],
    language: str = "",
    restate: Callable[[list[Piece], UnitTranslation], Sequence[Piece]] = lambda pieces, translation: pieces,
) -> None:
    """Add parts that stand side by side as one unit, if they have a word. Codes and white space at the ends stay outside.

    name: id of the unit
    read_element: function that returns the pieces of an element among the parts
    language: code that a part of the document states for the text, if it is not that of the document
    restate: function that returns the pieces of a translation, whose tags state its language
    """
    pieces_of_parts = [read_parts(source, [part], read_element) for part in parts]
    with_text = [number for number, group in enumerate(pieces_of_parts) if _has_text(group)]
    inside = slice(with_text[0], with_text[-1] + 1) if with_text else slice(0)
    parts = parts[inside]
    pieces = [piece for group in pieces_of_parts[inside] for piece in group]
    if not any(piece.strip() for piece in pieces if isinstance(piece, str)):
        return
    before, after = "", ""
    if isinstance(pieces[0], str):
        before = pieces[0][: len(pieces[0]) - len(pieces[0].lstrip(" \t\r\n"))]
        pieces[0] = pieces[0][len(before) :]
    if isinstance(pieces[-1], str):
        after = pieces[-1][len(pieces[-1].rstrip(" \t\r\n")) :]
        pieces[-1] = pieces[-1][: len(pieces[-1]) - len(after)]
    text = name_codes(_collapse_spaces(pieces))
    span = (parts[0].start, parts[-1].end)

    def write(translation: UnitTranslation) -> list[Edit]:
        return write_pieces([before, *restate(text.split(translation.text), translation), after], span, source)

    units.add(Unit(name, text.text, text.markup, keep_line_breaks=False, language=language), write)


def _has_text(pieces: Sequence[Piece]) -> bool:
    return any(isinstance(piece, str) and piece.strip() for piece in pieces)


def _collapse_spaces(pieces: Sequence[Piece]) -> list[Piece]:
    """Return the pieces with one space for each run of white space, also where a tag of an element is inside the run."""
    output: list[Piece] = []
    is_after_space = False
    for piece in pieces:
        if isinstance(piece, Code):
            output.append(piece)
            is_after_space = is_after_space and bool(piece.depth_change)
            continue
        text = _SPACES.sub(" ", piece)
        text = text.removeprefix(" ") if is_after_space else text
        is_after_space = text.endswith(" ") or (is_after_space and not text)
        output.append(text)
    return output
