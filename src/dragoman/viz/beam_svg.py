"""The attention page's pictures of the search: the likeliest tokens at each place, and the beam as a tree."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dragoman.viz.attention_svg import FONT_SIZE, MARGIN, ROW_HEIGHT, display_token, render_bar, render_drawing, render_heading
from dragoman.viz.explanation import BeamNode, Explanation
from dragoman.viz.svg import escape_text, estimate_text_width, format_number, render_label, truncate_text

_TOP = 74
_CELL_WIDTH, _NAME_WIDTH = 132, 130
_STEP_WIDTH, _NODE_HEIGHT = 104, 30
_LEGEND = (
    "thick: the translation; dark: kept; pale: pruned; framed: ended. "
    "Below: the sum of log-probabilities, divided by the length penalty where it ended"
)


def format_probability(log_prob: float) -> str:
    """In per cent: one decimal, or one digit that is not 0; what is too small to say is written as less."""
    percent = 100 * math.exp(log_prob)
    if percent >= 0.1 or percent == 0.0:
        return f"{percent:.1f} %"
    return f"{percent:.3f} %" if percent >= 0.001 else "<0.001 %"


def render_prediction_chart(explanation: Explanation) -> str:
    """A row for each place: what was said, then the likeliest tokens with their probabilities as bars."""
    num_candidates = max((len(prediction.candidates) for prediction in explanation.predictions), default=0)
    width = 2 * MARGIN + _NAME_WIDTH + num_candidates * _CELL_WIDTH
    parts = render_heading(
        "Step by step", f"the {num_candidates} likeliest tokens at each place, and their probabilities", width
    )
    parts.append(render_label("said", MARGIN + 24, _TOP - 12, 11, css_class="muted"))
    for row, choice in enumerate(explanation.predictions):
        y = _TOP + row * (ROW_HEIGHT + 4)
        parts.append(render_label(str(row + 1), MARGIN + 18, y + 14, 11, css_class="muted", anchor="end"))
        parts.append(
            render_label(
                truncate_text(display_token(choice.output.token), _NAME_WIDTH - 34, FONT_SIZE),
                MARGIN + 24,
                y + 14,
                FONT_SIZE,
                css_class="ink bold",
            )
        )
        for index, candidate in enumerate(choice.candidates):
            x = MARGIN + _NAME_WIDTH + index * _CELL_WIDTH
            bar_width = math.exp(candidate.log_prob) * (_CELL_WIDTH - 8)
            parts.append(
                f'<rect class="box" x="{format_number(x)}" y="{format_number(y)}" width="{_CELL_WIDTH - 6}" height="{ROW_HEIGHT}"/>'
            )
            if bar_width >= 0.5:
                parts.append(render_bar(x, y, bar_width, ROW_HEIGHT, opacity=0.35))
            css_class = "ink bold" if index == choice.rank - 1 else "ink"
            parts.append(
                render_label(
                    truncate_text(display_token(candidate.token), _CELL_WIDTH - 62, 12), x + 4, y + 14, 12, css_class=css_class
                )
            )
            parts.append(
                render_label(
                    format_probability(candidate.log_prob), x + _CELL_WIDTH - 10, y + 14, 10, css_class="muted", anchor="end"
                )
            )
    height = _TOP + len(explanation.predictions) * (ROW_HEIGHT + 4) + MARGIN
    return render_drawing(width, height, "Step by step", f"{len(explanation.predictions)} places.", parts)


def render_beam_tree(explanation: Explanation) -> str:
    """Every hypothesis that the beam considered, its place among those of its step, and what became of it."""
    nodes = explanation.beam
    max_rank, last_step = max(node.rank for node in nodes), max(branch.step for branch in nodes)
    width = max(2 * MARGIN + (last_step + 1) * _STEP_WIDTH, 420)
    parts = render_heading("The beam", _LEGEND, max(width, 820))
    links: dict[str, list[str]] = {"won": [], "line grid": []}
    for branch in nodes:
        if branch.parent is not None:
            css_class = "won" if branch.is_best else "line grid"
            if branch.status != "pruned" or _continues_best(branch, nodes):
                links[css_class].append(_draw_link(nodes[branch.parent], branch))
    parts += [f'<path class="{kind}" d="{"".join(paths)}"/>' for kind, paths in links.items() if paths]
    frames = "".join(_draw_frame(branch) for branch in nodes if branch.status == "finished")
    parts.append(f'<path class="line grid" d="{frames}"/>' if frames else "")
    for name, is_best in (("ink bold", True), ("ink", False)):
        parts.append(_render_labels(name, [node for node in nodes if node.status != "pruned" and node.is_best == is_best]))
    parts.append(_render_labels("muted", [one for one in nodes if one.status == "pruned"]))
    column_height = (max_rank + 1) * _NODE_HEIGHT + 8  # of a step's column, which a script may make something to choose
    parts.append(
        f'<g class="columns" data-left="{MARGIN}" data-top="{_TOP - 8}" data-wide="{_STEP_WIDTH}" data-high="{column_height}"/>'
    )
    description = f"{len(nodes)} hypotheses in {last_step + 1} steps; each column a step, the best above."
    return render_drawing(max(width, 820), _TOP + (max_rank + 1) * _NODE_HEIGHT + MARGIN, "The beam", description, parts)


def _continues_best(node: BeamNode, nodes: Sequence[BeamNode]) -> bool:
    """Pruned right after one that is part of the translation: the links that tell why the output is what it is."""
    return node.parent is not None and nodes[node.parent].is_best


def _locate_node(node: BeamNode) -> tuple[float, float]:
    return MARGIN + node.step * _STEP_WIDTH, _TOP + node.rank * _NODE_HEIGHT


def _draw_link(parent: BeamNode, child: BeamNode) -> str:
    (x, y), (end_x, end_y) = _locate_node(parent), _locate_node(child)
    start_x = (
        x + min(estimate_text_width(truncate_text(display_token(parent.token), _STEP_WIDTH - 36, 12), 12), _STEP_WIDTH - 34) + 4
    )
    return f"M{format_number(start_x)} {format_number(y + 8)}L{format_number(end_x - 5)} {format_number(end_y + 8)}"


def _draw_frame(node: BeamNode) -> str:
    x, y = _locate_node(node)
    frame_width = format_number(
        max(estimate_text_width(truncate_text(display_token(node.token), _STEP_WIDTH - 36, 12), 12), 30) + 6
    )
    return f"M{format_number(x - 4)} {format_number(y - 3)}h{frame_width}v27h-{frame_width}z"


def _render_labels(css_class: str, nodes: Sequence[BeamNode]) -> str:
    """Token and score, the class once for all: a long search has thousands."""
    tokens, scores = [], []
    for node in nodes:
        x, y = _locate_node(node)
        tokens.append(_render_text(truncate_text(display_token(node.token), _STEP_WIDTH - 36, 12), x, y + 10))
        scores.append(_render_text(f"{node.score:.2f}".replace("-", "−"), x, y + 21))
    groups = ((css_class, 12, tokens), ("muted", 9, scores))
    return "".join(
        f'<g class="{name}" font-size="{size}">{"".join(elements)}</g>' for name, size, elements in groups if elements
    )


def _render_text(text: str, x: float, y: float) -> str:
    return f'<text x="{format_number(x)}" y="{format_number(y)}">{escape_text(text)}</text>'
