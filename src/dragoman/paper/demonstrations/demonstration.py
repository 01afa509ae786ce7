"""Result of a demonstration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Demonstration:
    """Table of a demonstration, and its picture.

    lesson: one sentence that tells what to see in the picture; the picture has it, too
    rows: one value for each name of the header
    draw: returns the picture as an SVG
    notes: sentences below the table
    """

    title: str
    lesson: str
    header: Sequence[str]
    rows: Sequence[Sequence[str | int | float]]
    draw: Callable[[], str]
    notes: Sequence[str] = ()

    def describe(self) -> dict[str, object]:
        """Return the table for JSON."""
        rows = [dict(zip(self.header, row, strict=True)) for row in self.rows]
        return {"title": self.title, "lesson": self.lesson, "rows": rows, "notes": self.notes}
