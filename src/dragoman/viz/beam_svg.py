"""Drawings of the search: the most probable tokens of each step, and the beam as a tree."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dragoman.runtime.counts import format_count
from dragoman.viz.attention_svg import FONT_SIZE, MARGIN, ROW_HEIGHT, display_token, render_bar, render_drawing, render_heading
from dragoman.viz.explanation import BeamNode, Explanation
from dragoman.viz.svg import (
    escape_text,
    estimate_text_width,
    format_attributes,
    format_number,
    line_path,
    render_label,
    truncate_text,
)

_TOP = 74
_CELL_WIDTH, _NAME_WIDTH = 132, 130
_STEP_WIDTH, _NODE_HEIGHT = 104, 30
_LEGEND = (
    "thick: the output; dark: kept; pale: pruned; framed: finished; "
    "number: log-probability, over the length penalty if finished"
)


def format_probability(log_prob: float) -> str:
    """Return the probability in percent, with one decimal, or with three decimals if it is small."""
    percent = 100 * math.exp(log_prob)
    if percent >= 0.1 or percent == 0.0:
        return f"{percent:.1f} %"
    return f"{percent:.3f} %" if percent >= 0.001 else "<0.001 %"


def render_prediction_chart(explanation: Explanation) -> str:
    """Draw one row for each step: the output token, then the most probable tokens with their probabilities as bars."""
    num_candidates = max((len(prediction.candidates) for prediction in explanation.predictions), default=0)
    width = 2 * MARGIN + _NAME_WIDTH + num_candidates * _CELL_WIDTH
    parts = render_heading(
        "Step by step", f"the {num_candidates} most probable tokens of each step, and their probabilities", width
    )
    parts.append(render_label("output", MARGIN + 24, _TOP - 12, 11, css_class="muted"))
    for row, prediction in enumerate(explanation.predictions):
        y = _TOP + row * (ROW_HEIGHT + 4)
        parts.append(render_label(str(row + 1), MARGIN + 18, y + 14, 11, css_class="muted", anchor="end"))
        output = truncate_text(display_token(prediction.output.token), _NAME_WIDTH - 34, FONT_SIZE)
        parts.append(render_label(output, MARGIN + 24, y + 14, FONT_SIZE, css_class="ink bold"))
        for index, candidate in enumerate(prediction.candidates):
            x = MARGIN + _NAME_WIDTH + index * _CELL_WIDTH
            bar_width = math.exp(candidate.log_prob) * (_CELL_WIDTH - 8)
            parts.append(f'<rect class="box" {format_attributes(x=x, y=y, width=_CELL_WIDTH - 6, height=ROW_HEIGHT)}/>')
            if bar_width >= 0.5:
                parts.append(render_bar(x, y, bar_width, ROW_HEIGHT, opacity=0.35))
            css_class = "ink bold" if index == prediction.rank - 1 else "ink"
            token = truncate_text(display_token(candidate.token), _CELL_WIDTH - 62, 12)
            parts.append(render_label(token, x + 4, y + 14, 12, css_class=css_class))
            probability, end_x = format_probability(candidate.log_prob), x + _CELL_WIDTH - 10
            parts.append(render_label(probability, end_x, y + 14, 10, css_class="muted", anchor="end"))
    height = _TOP + len(explanation.predictions) * (ROW_HEIGHT + 4) + MARGIN
    return render_drawing(width, height, "Step by step", f"{format_count(len(explanation.predictions), 'step')}.", parts)


def render_beam_tree(explanation: Explanation) -> str:
    """Draw all hypotheses that the search considered, with rank, score and status."""
    nodes = explanation.beam
    max_rank, last_step = max(node.rank for node in nodes), max(node.step for node in nodes)
    width = max(2 * MARGIN + (last_step + 1) * _STEP_WIDTH, 420)
    parts = render_heading("The beam", _LEGEND, max(width, 820))
    links: dict[str, list[str]] = {"best": [], "line grid": []}
    for node in nodes:
        if node.parent is not None:
            css_class = "best" if node.is_best else "line grid"
            # Links to pruned nodes only show the alternatives of the output.
            if node.status != "pruned" or nodes[node.parent].is_best:
                links[css_class].append(_draw_link(nodes[node.parent], node))
    parts += [f'<path class="{css_class}" d="{"".join(paths)}"/>' for css_class, paths in links.items() if paths]
    frames = "".join(_draw_frame(node) for node in nodes if node.status == "finished")
    parts.append(f'<path class="line grid" d="{frames}"/>' if frames else "")
    for name, is_best in (("ink bold", True), ("ink", False)):
        parts.append(_render_labels(name, [node for node in nodes if node.status != "pruned" and node.is_best == is_best]))
    parts.append(_render_labels("muted", [node for node in nodes if node.status == "pruned"]))
    column_height = (max_rank + 1) * _NODE_HEIGHT + 8  # height of a step's column, which the script makes selectable
    parts.append(
        f'<g class="columns" data-left="{MARGIN}" data-top="{_TOP - 8}" data-wide="{_STEP_WIDTH}" data-high="{column_height}"/>'
    )
    description = (
        f"{len(nodes)} hypotheses in {format_count(last_step + 1, 'step')}; each column is a step, the best at the top."
    )
    return render_drawing(max(width, 820), _TOP + (max_rank + 1) * _NODE_HEIGHT + MARGIN, "The beam", description, parts)


def _shorten_token(node: BeamNode) -> str:
    return truncate_text(display_token(node.token), _STEP_WIDTH - 36, 12)


def _locate_node(node: BeamNode) -> tuple[float, float]:
    return MARGIN + node.step * _STEP_WIDTH, _TOP + node.rank * _NODE_HEIGHT


def _draw_link(parent: BeamNode, child: BeamNode) -> str:
    (x, y), (end_x, end_y) = _locate_node(parent), _locate_node(child)
    start_x = x + min(estimate_text_width(_shorten_token(parent), 12), _STEP_WIDTH - 34) + 4
    return line_path(start_x, y + 8, end_x - 5, end_y + 8)


def _draw_frame(node: BeamNode) -> str:
    x, y = _locate_node(node)
    frame_width = format_number(max(estimate_text_width(_shorten_token(node), 12), 30) + 6)
    return f"M{format_number(x - 4)} {format_number(y - 3)}h{frame_width}v27h-{frame_width}z"


def _render_labels(css_class: str, nodes: Sequence[BeamNode]) -> str:
    """Return tokens and scores in groups of one class, because a long search has thousands."""
    tokens, scores = [], []
    for node in nodes:
        x, y = _locate_node(node)
        tokens.append(_render_text(_shorten_token(node), x, y + 10))
        scores.append(_render_text(f"{node.score:.2f}".replace("-", "−"), x, y + 21))
    groups = ((css_class, 12, tokens), ("muted", 9, scores))
    return "".join(
        f'<g class="{name}" font-size="{size}">{"".join(elements)}</g>' for name, size, elements in groups if elements
    )


def _render_text(text: str, x: float, y: float) -> str:
    return f'<text x="{format_number(x)}" y="{format_number(y)}">{escape_text(text)}</text>'
