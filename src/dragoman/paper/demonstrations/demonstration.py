"""Result of a demonstration, and its drawing."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dragoman.viz.svg import render_label, render_svg


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
        rows = [dict(zip(self.header, row, strict=True)) for row in self.rows]
        return {"title": self.title, "lesson": self.lesson, "rows": rows, "notes": self.notes}


def render_lesson(
    css_class: str,
    elements: Sequence[str],
    *,
    width: float,
    height: float,
    title: str,
    lesson: str,
    rules: tuple[Mapping[str, str], Mapping[str, str]],
) -> str:
    """Return a drawing as an SVG, with its title above and its lesson below.

    height: of the elements; the lesson is behind them
    rules: declarations of each selector for light and for dark pages
    """
    lines = textwrap.wrap(lesson, int((width - 32) / 6.8))
    labels = [render_label(line, 16, height + 18 * index, 13) for index, line in enumerate(lines)]
    light, dark = map(dict, rules)
    return render_svg(
        css_class,
        width=width,
        height=height + 18 * len(lines),
        title=title,
        description=lesson,
        body="\n".join([render_label(title, 16, 28, 16), *elements, *labels]),
        light=light,
        dark=dark,
    )
