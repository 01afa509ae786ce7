"""A pair: one sentence and its counterpart, with the place it came from."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE_BREAKS = re.compile(r"[\r\n]+")


@dataclass(frozen=True, slots=True)
class Pair:
    """A source and a target text. `origin` names file and line, or file and unit, for messages and reports.

    No text holds a line break: one within a unit of its file, with the spaces and tabs around it, has become one space. Where
    there is no finished translation, the target is empty.
    """

    source: str
    target: str
    origin: str = ""


def to_single_line(text: str) -> str:
    """A text with a space for each line break and the white space around it; at its ends, with nothing instead."""
    first_part, *later_parts = _LINE_BREAKS.split(text)
    if not later_parts:
        return text
    *middle_parts, last_part = later_parts
    parts = [first_part.rstrip(" \t"), *(part.strip(" \t") for part in middle_parts), last_part.lstrip(" \t")]
    return " ".join(part for part in parts if part)


def make_unit_origin(name: str, identifier: str | None, number: int) -> str:
    """Where a unit of a format without lines stands: by its own name where it has one that can be shown, else by its number."""
    is_displayable = identifier is not None and 0 < len(identifier) <= 80 and identifier.isprintable()
    return f"{name}:{identifier}" if is_displayable else f"{name}:#{number}"
