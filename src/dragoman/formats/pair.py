"""Sentence pair of a corpus, with its origin."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE_BREAKS = re.compile(r"[\r\n]+")


@dataclass(frozen=True, slots=True)
class Pair:
    """Source and target text of one sentence.

    origin: file and line, or file and unit, for messages and reports

    No text holds a line break: the readers replace one, with the spaces and tabs around it, by one space. The target is empty
    if there is no finished translation.
    """

    source: str
    target: str
    origin: str = ""


@dataclass(frozen=True, slots=True)
class DirectedPair(Pair):
    """Sentence pair with the language codes of its sides, for models of many languages."""

    source_language: str = ""
    target_language: str = ""


def to_single_line(text: str) -> str:
    """Return a text in which each line break, with the spaces and tabs around it, is one space. At the ends it is removed."""
    first_part, *later_parts = _LINE_BREAKS.split(text)
    if not later_parts:
        return text
    *middle_parts, last_part = later_parts
    parts = [first_part.rstrip(" \t"), *(part.strip(" \t") for part in middle_parts), last_part.lstrip(" \t")]
    return " ".join(part for part in parts if part)


def make_unit_origin(name: str, identifier: str | None, number: int) -> str:
    """Return the origin of a unit of a format without lines: its identifier if it is printable and short, else its number."""
    is_displayable = identifier is not None and 0 < len(identifier) <= 80 and identifier.isprintable()
    return f"{name}:{identifier}" if is_displayable else f"{name}:#{number}"
