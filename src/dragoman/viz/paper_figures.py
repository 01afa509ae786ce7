"""Drawings like the paper's Figures 3 to 5: a sentence twice, with lines from query tokens to key tokens.

Each head has its color. For a single query word, each key token also has a box for each head, as strong as its weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dragoman.viz.attention_svg import (
    FONT_SIZE,
    HEAD_COLORS,
    MARGIN,
    MIN_VISIBLE_WEIGHT,
    OPACITY_STEPS,
    display_token,
    render_drawing,
    render_head_lines,
    render_heading,
)
from dragoman.viz.svg import estimate_text_width, format_attributes, format_number, line_path, render_label, truncate_text

if TYPE_CHECKING:
    from dragoman.viz.explanation import FloatArray

_TOKEN_SPACING, _LINES_HEIGHT, _MAX_LABEL_WIDTH, _HEADING_HEIGHT, _PANEL_GAP, _BOX_HEIGHT = 18.0, 130.0, 132.0, 46.0, 26.0, 8.0
_LEGEND_ENTRY_WIDTH, _LEGEND_ROW_HEIGHT = 68.0, 15.0


@dataclass(frozen=True)
class FigurePanel:
    """One half of a figure: heads, counted from 0, and query positions; no positions mean all of them."""

    heads: tuple[int, ...]
    query_positions: tuple[int, ...] = ()


def render_paper_figure(
    tokens: Sequence[str], weights_HTS: FloatArray, panels: Sequence[FigurePanel], *, title: str, subtitle: str
) -> str:
    """Draw one figure as an SVG with stacked panels.

    weights_HTS: attention weights of the heads of one layer
    """
    token_labels = [truncate_text(display_token(token), _MAX_LABEL_WIDTH, FONT_SIZE) for token in tokens]
    labels_height = max(estimate_text_width(name, FONT_SIZE) for name in token_labels)
    width = 2 * MARGIN + max(_TOKEN_SPACING * len(tokens), estimate_text_width(subtitle, 12))
    parts, top = render_heading(title, subtitle, width), _HEADING_HEIGHT
    for panel in panels:
        heads_per_row = int((width - 2 * MARGIN) // _LEGEND_ENTRY_WIDTH)
        parts += _render_legend(panel.heads, top + 12, heads_per_row)
        top += _LEGEND_ROW_HEIGHT * math.ceil(len(panel.heads) / heads_per_row) + 8
        parts += _render_panel(token_labels, weights_HTS, panel, top + labels_height)
        top += 2 * labels_height + _LINES_HEIGHT + _compute_boxes_height(panel) + _PANEL_GAP
    description = f"{subtitle}: lines between {len(tokens)} tokens above and the same below."
    return render_drawing(width, top - _PANEL_GAP + MARGIN, title, description, parts)


def _compute_boxes_height(panel: FigurePanel) -> float:
    return _BOX_HEIGHT * len(panel.heads) + 4 if panel.query_positions else 0.0


def _compute_token_x(position: int) -> float:
    return MARGIN + _TOKEN_SPACING * (position + 0.5)


def _render_legend(heads: Sequence[int], y: float, heads_per_row: int) -> Iterator[str]:
    """Yield the color of each head. Colors repeat after the last."""
    for index, head in enumerate(heads):
        x, text_y = MARGIN + _LEGEND_ENTRY_WIDTH * (index % heads_per_row), y + _LEGEND_ROW_HEIGHT * (index // heads_per_row)
        yield f'<path class="line h{head % len(HEAD_COLORS)}" d="M{format_number(x)} {format_number(text_y - 4)}h14"/>'
        yield render_label(f"head {head + 1}", x + 18, text_y, 11, css_class="muted")


def _render_panel(token_labels: Sequence[str], weights_HTS: FloatArray, panel: FigurePanel, y: float) -> Iterator[str]:
    """Yield two rows of tokens and the lines between them. The upper row ends at `y`."""
    bottom = y + _LINES_HEIGHT + _compute_boxes_height(panel)
    query_positions = panel.query_positions or tuple(range(len(token_labels)))
    yield from _render_lines(weights_HTS, panel.heads, query_positions, y + 4, y + _LINES_HEIGHT - 4)
    if panel.query_positions:
        yield from _render_weight_boxes(weights_HTS, panel, y + _LINES_HEIGHT)
    for position, name in enumerate(token_labels):
        x = _compute_token_x(position) + FONT_SIZE * 0.35
        upper_class = "ink" if not panel.query_positions else "ink bold" if position in panel.query_positions else "muted"
        for text_y, css_class, anchor in ((y, upper_class, "start"), (bottom, "ink", "end")):
            rotation = f' transform="rotate(-90 {format_number(x)} {format_number(text_y)})"'
            yield render_label(name, x, text_y, FONT_SIZE, css_class=css_class, anchor=anchor, attributes=rotation)


def _render_lines(
    weights_HTS: FloatArray, heads: Sequence[int], query_positions: Sequence[int], top: float, bottom: float
) -> Iterator[str]:
    """Yield one path for each head and opacity, without invisible weights."""
    paths: dict[tuple[int, int], list[str]] = {}
    for index, head in enumerate(heads):
        shift = (index - (len(heads) - 1) / 2) * min(1.6, _TOKEN_SPACING * 0.6 / len(heads))
        for row in query_positions:
            for column, weight in enumerate(weights_HTS[head, row].tolist()):
                if weight >= MIN_VISIBLE_WEIGHT:
                    start_x, end_x = _compute_token_x(row) + shift, _compute_token_x(column) + shift
                    line = line_path(start_x, top, end_x, bottom)
                    paths.setdefault((head, math.ceil(min(weight, 1.0) * OPACITY_STEPS)), []).append(line)
    yield from render_head_lines(paths)


def _render_weight_boxes(weights_HTS: FloatArray, panel: FigurePanel, top: float) -> Iterator[str]:
    """Yield a box for each key token and head, as strong as the mean weight over the query positions."""
    for index, head in enumerate(panel.heads):
        mean_weights_S = weights_HTS[head][list(panel.query_positions)].mean(axis=0)
        for column, weight in enumerate(mean_weights_S.tolist()):
            if weight >= MIN_VISIBLE_WEIGHT:
                box = format_attributes(
                    x=_compute_token_x(column) - _TOKEN_SPACING * 0.42,
                    y=top + _BOX_HEIGHT * index,
                    width=_TOKEN_SPACING * 0.84,
                    height=_BOX_HEIGHT - 1,
                )
                opacity = format_number(min(round(weight, 2), 1.0))
                yield f'<rect class="f{head % len(HEAD_COLORS)}" fill-opacity="{opacity}" {box}/>'
