"""Attention heatmap: a matrix of cells, in which a stronger color is a greater weight.

The labels keep SentencePiece's ▁, so that they equal the entries of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.viz.svg import (
    escape_text,
    estimate_text_width,
    format_attributes,
    format_number,
    render_label,
    render_svg,
    truncate_text,
)

_LIGHT = {".cell": "fill:#08519c"}
_DARK = {".cell": "fill:#79b8ff"}
_MARGIN, _TITLE_HEIGHT, _TITLE_FONT_SIZE, _SCALE_WIDTH, _MAX_LABEL_WIDTH = 16, 40, 16, 110, 150
_LABEL_ANGLE_DEGREES = 55
_OPACITY_LEVELS = 255


@dataclass(frozen=True)
class _HeatmapLayout:
    """Positions of the cells, and the font size of the labels."""

    left: float
    top: float
    cell_size: int
    font_size: int
    num_rows: int
    num_columns: int

    @property
    def right(self) -> float:
        return self.left + self.cell_size * self.num_columns

    @property
    def bottom(self) -> float:
        return self.top + self.cell_size * self.num_rows

    def format_corner(self, row: int, column: int) -> str:
        return format_attributes(x=self.left + self.cell_size * column, y=self.top + self.cell_size * row)

    def column_center(self, index: int) -> float:
        return self.left + self.cell_size * (index + 0.5)

    def row_center(self, index: int) -> float:
        return self.top + self.cell_size * (index + 0.5)


def render_attention_heatmap(
    weights: Sequence[Sequence[float]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    row_label: str = "target",
    column_label: str = "source",
) -> str:
    """Draw `weights[row][column]`, each between 0 and 1, as an SVG in 256 shades, with the numbers as tooltips.

    Raises `ValueError` if sizes do not match, or if a weight is not within 1/255 of [0, 1].
    """
    _check_weights(weights, rows, columns)
    cell_size = max(13, min(28, 640 // max(len(rows), len(columns), 1)))
    font_size = min(13, cell_size - 2)
    row_texts = [truncate_text(token, _MAX_LABEL_WIDTH, font_size) for token in rows]
    column_texts = [truncate_text(token, _MAX_LABEL_WIDTH, font_size) for token in columns]
    corner_texts = [truncate_text(text, _MAX_LABEL_WIDTH, font_size) for text in (f"{column_label} →", f"{row_label} ↓")]
    title_text = truncate_text(title, 560, _TITLE_FONT_SIZE)

    angle = math.radians(_LABEL_ANGLE_DEGREES)
    labels_height = max((estimate_text_width(text, font_size) for text in column_texts), default=0.0) * math.sin(angle)
    left = _MARGIN + 8 + max(estimate_text_width(text, font_size) for text in [*row_texts, *corner_texts])
    top = _TITLE_HEIGHT + max(labels_height + font_size, 2 * font_size + 12)
    layout = _HeatmapLayout(left, top, cell_size, font_size, len(rows), len(columns))
    label_ends = [
        layout.column_center(j) + estimate_text_width(text, font_size) * math.cos(angle) + font_size
        for j, text in enumerate(column_texts)
    ]
    width = (
        max(layout.right, *label_ends, left + _SCALE_WIDTH + 30, _MARGIN + estimate_text_width(title_text, _TITLE_FONT_SIZE))
        + _MARGIN
    )

    body = [
        render_label(title_text, _MARGIN, 26, _TITLE_FONT_SIZE, attributes=' font-weight="600"'),
        _render_labels(layout, row_texts, column_texts, corner_texts),
        _render_cells(layout, weights, [f"{row_label}: {row}" for row in rows], [f"{column_label}: {c}" for c in columns]),
        _render_color_scale(layout),
    ]
    return render_svg(
        "dragoman-heatmap",
        width=width,
        height=layout.bottom + 56,
        title=title,
        description=f"Weights from 0 to 1: {len(rows)} rows ({row_label}), {len(columns)} columns ({column_label}).",
        body="\n".join(body),
        light=_LIGHT,
        dark=_DARK,
    )


def _check_weights(weights: Sequence[Sequence[float]], rows: Sequence[str], columns: Sequence[str]) -> None:
    if len(weights) != len(rows):
        raise ValueError(f"rows of weights: {len(weights)}, row tokens: {len(rows)}; give equal numbers")
    for i, row in enumerate(weights):
        if len(row) != len(columns):
            raise ValueError(f"weights in row {i}: {len(row)}, column tokens: {len(columns)}; give equal numbers")
        for j, weight in enumerate(row):
            if not -1 / _OPACITY_LEVELS <= weight <= 1 + 1 / _OPACITY_LEVELS:
                raise ValueError(f"weight in row {i}, column {j}: {weight} is not between 0 and 1; give probabilities")


def _render_labels(layout: _HeatmapLayout, rows: Sequence[str], columns: Sequence[str], corner_texts: Sequence[str]) -> str:
    font_size, label_x, label_y = layout.font_size, layout.left - 8, layout.top - 8
    elements = [
        render_label(corner_texts[0], label_x, label_y - font_size - 4, font_size, css_class="muted", anchor="end"),
        render_label(corner_texts[1], label_x, label_y, font_size, css_class="muted", anchor="end"),
    ]
    for i, text in enumerate(rows):
        elements.append(render_label(text, label_x, layout.row_center(i) + font_size * 0.35, font_size, anchor="end"))
    for j, text in enumerate(columns):
        x, y = layout.column_center(j) + font_size * 0.3, layout.top - 6
        rotation = f' transform="rotate({-_LABEL_ANGLE_DEGREES} {format_number(x)} {format_number(y)})"'
        elements.append(render_label(text, x, y, font_size, attributes=rotation))
    return "\n".join(elements)


def _render_cells(
    layout: _HeatmapLayout,
    weights: Sequence[Sequence[float]],
    row_tooltips: Sequence[str],
    column_tooltips: Sequence[str],
) -> str:
    rows, columns = [escape_text(tooltip) for tooltip in row_tooltips], [escape_text(tooltip) for tooltip in column_tooltips]
    cell_size = layout.cell_size - 1
    elements = [
        f'<rect class="cell" {layout.format_corner(i, j)} '
        f'width="{cell_size}" height="{cell_size}" fill-opacity="{_format_opacity(weight)}">'
        f"<title>{rows[i]}\n{columns[j]}\nweight: {weight:.3f}</title></rect>"
        for i, row in enumerate(weights)
        for j, weight in enumerate(row)
    ]
    x, y, w, h = (
        layout.left - 1,
        layout.top - 1,
        layout.cell_size * layout.num_columns + 1,
        layout.cell_size * layout.num_rows + 1,
    )
    frame = f'<rect class="grid" x="{format_number(x)}" y="{format_number(y)}" width="{w}" height="{h}"/>'
    return "\n".join([frame, *elements])


def _format_opacity(weight: float) -> str:
    return f"{round(max(0.0, min(1.0, weight)) * _OPACITY_LEVELS) / _OPACITY_LEVELS:.4g}"


def _render_color_scale(layout: _HeatmapLayout) -> str:
    """Return the color scale from 0 to 1 below the matrix."""
    y, step = layout.bottom + 24, _SCALE_WIDTH / 10
    elements = [
        f'<rect class="cell scale" x="{format_number(layout.left + step * i)}" y="{format_number(y)}" '
        f'width="{format_number(step)}" height="10" fill-opacity="{_format_opacity((i + 0.5) / 10)}"/>'
        for i in range(10)
    ]
    elements.append(render_label("0", layout.left - 5, y + 9, 11, css_class="muted", anchor="end"))
    elements.append(render_label("1", layout.left + _SCALE_WIDTH + 5, y + 9, 11, css_class="muted"))
    return "\n".join(elements)
