"""Section 3.5: the table of positional encodings as a picture."""

from __future__ import annotations

import math
from collections import defaultdict

from dragoman.paper.demonstrations.demonstration import Demonstration, render_lesson
from dragoman.positions import interleaved_sinusoids
from dragoman.viz.svg import box_path, format_number, render_label

NUM_POSITIONS, D_MODEL = 100, 64
_SHOWN_DIMENSIONS = (0, 8, 16, 32, 62)
_LEVELS = 8
"""Shades of each sign."""
_CELL_WIDTH, _CELL_HEIGHT, _LEFT, _TOP = 10.0, 5.0, 64.0, 72.0


def show_encoding() -> Demonstration:
    """Draw the positional encoding as a heat map (section 3.5)."""
    table_PD = interleaved_sinusoids(NUM_POSITIONS, D_MODEL)
    title = f"Positional encoding: {NUM_POSITIONS} positions, d_model = {D_MODEL}"
    lesson = (
        "Each column is a wave: those at the left change their sign every few positions, and those at the right hardly change, "
        "so that each row is another pattern, like the digits of a number."
    )
    rows = [
        (
            f"{dimension}, {dimension + 1}",
            2.0 * math.pi * 10000.0 ** (dimension / D_MODEL),
            *(f"{table_PD[position, dimension]:.3f}, {table_PD[position, dimension + 1]:.3f}" for position in (0, 1, 10)),
        )
        for dimension in _SHOWN_DIMENSIONS
    ]
    header = ["dimensions", "wavelength in positions", "sin, cos at 0", "at 1", "at 10"]
    return Demonstration(title, lesson, header, rows, lambda: _draw(table_PD.tolist(), title, lesson))


def _draw(table: list[list[float]], title: str, lesson: str) -> str:
    """Draw positions from top to bottom and dimensions from left to right, with one path for each shade."""
    boxes_by_level: dict[int, list[str]] = defaultdict(list)
    for position, row in enumerate(table):
        for dimension, value in enumerate(row):
            box = box_path(_LEFT + _CELL_WIDTH * dimension, _TOP + _CELL_HEIGHT * position, _CELL_WIDTH, _CELL_HEIGHT)
            boxes_by_level[round(value * _LEVELS)].append(box)
    width, bottom = _LEFT + _CELL_WIDTH * len(table[0]) + 16, _TOP + _CELL_HEIGHT * len(table)
    body: list[str] = []
    for level, boxes in sorted(boxes_by_level.items()):
        if level:
            sign = "positive" if level > 0 else "negative"
            opacity = format_number(abs(level) / _LEVELS)
            body.append(f'<path class="{sign}" fill-opacity="{opacity}" d="{"".join(boxes)}"/>')
    for position in range(0, len(table), 10):
        y = _TOP + _CELL_HEIGHT * position + 5
        body.append(render_label(str(position), _LEFT - 6, y, 12, css_class="muted", anchor="end"))
    for dimension in range(0, len(table[0]), 8):
        x = _LEFT + _CELL_WIDTH * (dimension + 0.5)
        body.append(render_label(str(dimension), x, _TOP - 6, 12, css_class="muted", anchor="middle"))
    body.append(render_label("pos ↓  dimension →", 16, _TOP - 22, 12, css_class="muted"))
    for css_class, x, text in (("positive", _LEFT, "1"), ("negative", _LEFT + 60, "−1")):
        body.append(f'<path class="{css_class}" d="{box_path(x, bottom + 12, 14, 12)}"/>')
        body.append(render_label(text, x + 20, bottom + 22, 12, css_class="muted"))
    rules = (
        {".positive": "fill:#0072b2", ".negative": "fill:#d55e00"},
        {".positive": "fill:#58a6ff", ".negative": "fill:#ff8c42"},
    )
    return render_lesson("dragoman-encoding", body, width=width, height=bottom + 46, title=title, lesson=lesson, rules=rules)
