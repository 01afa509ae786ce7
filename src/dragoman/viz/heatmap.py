"""Attention as a matrix of cells: the stronger the colour, the greater the weight.

Tokens are shown as the model has them: SentencePiece's ▁ stays, so that a label can be looked up in the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.viz.svg import fitted, inert, label, number, picture, text_width

_LIGHT = {".cell": "fill:#08519c"}
_DARK = {".cell": "fill:#79b8ff"}
_MARGIN, _TITLE_HEIGHT, _TITLE_SIZE, _SCALE_WIDTH, _LONGEST_LABEL = 16, 40, 16, 110, 150
_SLANT_DEGREES = 55
_LEVELS = 255


@dataclass(frozen=True)
class _Matrix:
    """Where the cells are, and the size of the letters beside them."""

    left: float
    top: float
    cell: int
    size: int
    height: int
    width: int

    @property
    def right(self) -> float:
        return self.left + self.cell * self.width

    @property
    def bottom(self) -> float:
        return self.top + self.cell * self.height

    def column(self, index: int) -> float:
        return self.left + self.cell * (index + 0.5)

    def row(self, index: int) -> float:
        return self.top + self.cell * (index + 0.5)


def attention_heatmap(
    weights: Sequence[Sequence[float]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    row_label: str = "target",
    column_label: str = "source",
) -> str:
    """An SVG of `weights[row][column]`, each between 0 and 1, in 256 shades and with its number as a tooltip.

    Raises `ValueError` where the sizes do not match, or a weight is not within 1/255 of [0, 1].
    """
    _check(weights, rows, columns)
    cell = max(13, min(28, 640 // max(len(rows), len(columns), 1)))
    size = min(13, cell - 2)
    row_texts = [fitted(token, _LONGEST_LABEL, size) for token in rows]
    column_texts = [fitted(token, _LONGEST_LABEL, size) for token in columns]
    corner = [fitted(text, _LONGEST_LABEL, size) for text in (f"{column_label} →", f"{row_label} ↓")]
    title_text = fitted(title, 560, _TITLE_SIZE)

    slant = math.radians(_SLANT_DEGREES)
    rise = max((text_width(text, size) for text in column_texts), default=0.0) * math.sin(slant)
    left = _MARGIN + 8 + max(text_width(text, size) for text in [*row_texts, *corner])
    top = _TITLE_HEIGHT + max(rise + size, 2 * size + 12)
    matrix = _Matrix(left, top, cell, size, len(rows), len(columns))
    reach = [matrix.column(j) + text_width(text, size) * math.cos(slant) + size for j, text in enumerate(column_texts)]
    width = max(matrix.right, *reach, left + _SCALE_WIDTH + 30, _MARGIN + text_width(title_text, _TITLE_SIZE)) + _MARGIN

    body = [
        label(title_text, _MARGIN, 26, _TITLE_SIZE, extra=' font-weight="600"'),
        _labels(matrix, row_texts, column_texts, corner),
        _cells(matrix, weights, [f"{row_label}: {row}" for row in rows], [f"{column_label}: {c}" for c in columns]),
        _scale(matrix),
    ]
    return picture(
        "dragoman-heatmap",
        width=width,
        height=matrix.bottom + 56,
        title=title,
        description=f"Weights from 0 to 1: {len(rows)} rows ({row_label}), {len(columns)} columns ({column_label}).",
        body="\n".join(body),
        light=_LIGHT,
        dark=_DARK,
    )


def _check(weights: Sequence[Sequence[float]], rows: Sequence[str], columns: Sequence[str]) -> None:
    if len(weights) != len(rows):
        raise ValueError(f"rows of weights: {len(weights)}, row tokens: {len(rows)}")
    for i, row in enumerate(weights):
        if len(row) != len(columns):
            raise ValueError(f"weights in row {i}: {len(row)}, column tokens: {len(columns)}")
        for j, weight in enumerate(row):
            if not -1 / _LEVELS <= weight <= 1 + 1 / _LEVELS:
                raise ValueError(f"the weight in row {i}, column {j} is {weight}, not between 0 and 1")


def _labels(matrix: _Matrix, rows: Sequence[str], columns: Sequence[str], corner: Sequence[str]) -> str:
    size, beside, above = matrix.size, matrix.left - 8, matrix.top - 8
    marks = [
        label(corner[0], beside, above - size - 4, size, kind="muted", anchor="end"),
        label(corner[1], beside, above, size, kind="muted", anchor="end"),
    ]
    for i, text in enumerate(rows):
        marks.append(label(text, beside, matrix.row(i) + size * 0.35, size, anchor="end"))
    for j, text in enumerate(columns):
        x, y = matrix.column(j) + size * 0.3, matrix.top - 6
        slanted = f' transform="rotate({-_SLANT_DEGREES} {number(x)} {number(y)})"'
        marks.append(label(text, x, y, size, extra=slanted))
    return "\n".join(marks)


def _cells(
    matrix: _Matrix,
    weights: Sequence[Sequence[float]],
    row_hints: Sequence[str],
    column_hints: Sequence[str],
) -> str:
    rows, columns = [inert(hint) for hint in row_hints], [inert(hint) for hint in column_hints]
    side = matrix.cell - 1
    marks = [
        f'<rect class="cell" x="{number(matrix.left + matrix.cell * j)}" y="{number(matrix.top + matrix.cell * i)}" '
        f'width="{side}" height="{side}" fill-opacity="{_shade(weight)}">'
        f"<title>{rows[i]}\n{columns[j]}\nweight: {weight:.3f}</title></rect>"
        for i, row in enumerate(weights)
        for j, weight in enumerate(row)
    ]
    x, y, w, h = matrix.left - 1, matrix.top - 1, matrix.cell * matrix.width + 1, matrix.cell * matrix.height + 1
    frame = f'<rect class="grid" x="{number(x)}" y="{number(y)}" width="{w}" height="{h}"/>'
    return "\n".join([frame, *marks])


def _shade(weight: float) -> str:
    return f"{round(max(0.0, min(1.0, weight)) * _LEVELS) / _LEVELS:.4g}"


def _scale(matrix: _Matrix) -> str:
    """The colours from 0 to 1, below the matrix."""
    y, step = matrix.bottom + 24, _SCALE_WIDTH / 10
    marks = [
        f'<rect class="cell scale" x="{number(matrix.left + step * i)}" y="{number(y)}" '
        f'width="{number(step)}" height="10" fill-opacity="{_shade((i + 0.5) / 10)}"/>'
        for i in range(10)
    ]
    marks.append(label("0", matrix.left - 5, y + 9, 11, kind="muted", anchor="end"))
    marks.append(label("1", matrix.left + _SCALE_WIDTH + 5, y + 9, 11, kind="muted"))
    return "\n".join(marks)
