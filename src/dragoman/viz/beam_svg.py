"""The attention page's pictures of the search: the likeliest tokens at each place, and the beam as a tree."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dragoman.viz.attention_svg import MARGIN, ROW, SIZE, bar, drawing, heading, shown
from dragoman.viz.explanation import Branch, Explanation
from dragoman.viz.svg import fitted, inert, label, number, text_width

_TOP = 74
_CELL, _NAME = 132, 130
_STEP, _BRANCH = 104, 30
_LEGEND = (
    "thick: the translation; dark: kept; pale: pruned; framed: ended. "
    "Below: the sum of log-probabilities, divided by the length penalty where it ended"
)


def probability(log_prob: float) -> str:
    """In per cent: one decimal, or one digit that is not 0; what is too small to say is written as less."""
    percent = 100 * math.exp(log_prob)
    if percent >= 0.1 or percent == 0.0:
        return f"{percent:.1f} %"
    return f"{percent:.3f} %" if percent >= 0.001 else "<0.001 %"


def choice_chart(explanation: Explanation) -> str:
    """A row for each place: what was said, then the likeliest tokens with their probabilities as bars."""
    most = max((len(choice.candidates) for choice in explanation.choices), default=0)
    width = 2 * MARGIN + _NAME + most * _CELL
    parts = heading("Step by step", f"the {most} likeliest tokens at each place, and their probabilities", width)
    parts.append(label("said", MARGIN + 24, _TOP - 12, 11, kind="muted"))
    for row, choice in enumerate(explanation.choices):
        y = _TOP + row * (ROW + 4)
        parts.append(label(str(row + 1), MARGIN + 18, y + 14, 11, kind="muted", anchor="end"))
        parts.append(label(fitted(shown(choice.said.token), _NAME - 34, SIZE), MARGIN + 24, y + 14, SIZE, kind="ink bold"))
        for place, candidate in enumerate(choice.candidates):
            x = MARGIN + _NAME + place * _CELL
            share = math.exp(candidate.log_prob) * (_CELL - 8)
            parts.append(f'<rect class="box" x="{number(x)}" y="{number(y)}" width="{_CELL - 6}" height="{ROW}"/>')
            if share >= 0.5:
                parts.append(bar(x, y, share, ROW, opacity=0.35))
            kind = "ink bold" if place == choice.rank - 1 else "ink"
            parts.append(label(fitted(shown(candidate.token), _CELL - 62, 12), x + 4, y + 14, 12, kind=kind))
            parts.append(label(probability(candidate.log_prob), x + _CELL - 10, y + 14, 10, kind="muted", anchor="end"))
    height = _TOP + len(explanation.choices) * (ROW + 4) + MARGIN
    return drawing(width, height, "Step by step", f"{len(explanation.choices)} places.", parts)


def beam_tree(explanation: Explanation) -> str:
    """Every hypothesis that the beam considered, its place among those of its step, and what became of it."""
    branches = explanation.beam
    deepest, steps = max(branch.rank for branch in branches), max(branch.step for branch in branches)
    width = max(2 * MARGIN + (steps + 1) * _STEP, 420)
    parts = heading("The beam", _LEGEND, max(width, 820))
    links: dict[str, list[str]] = {"won": [], "line grid": []}
    for branch in branches:
        if branch.parent is not None:
            kind = "won" if branch.won else "line grid"
            if branch.fate != "pruned" or _competes(branch, branches):
                links[kind].append(_link(branches[branch.parent], branch))
    parts += [f'<path class="{kind}" d="{"".join(found)}"/>' for kind, found in links.items() if found]
    ends = "".join(_frame(branch) for branch in branches if branch.fate == "finished")
    parts.append(f'<path class="line grid" d="{ends}"/>' if ends else "")
    for name, wanted in (("ink bold", True), ("ink", False)):
        parts.append(_labels(name, [one for one in branches if one.fate != "pruned" and one.won == wanted]))
    parts.append(_labels("muted", [one for one in branches if one.fate == "pruned"]))
    high = (deepest + 1) * _BRANCH + 8  # of a step's column, which a script may make something to choose
    parts.append(f'<g class="columns" data-left="{MARGIN}" data-top="{_TOP - 8}" data-wide="{_STEP}" data-high="{high}"/>')
    told = f"{len(branches)} hypotheses in {steps + 1} steps; each column a step, the best above."
    return drawing(max(width, 820), _TOP + (deepest + 1) * _BRANCH + MARGIN, "The beam", told, parts)


def _competes(branch: Branch, branches: Sequence[Branch]) -> bool:
    """Pruned right after one that is part of the translation: the links that tell why the output is what it is."""
    return branch.parent is not None and branches[branch.parent].won


def _at(branch: Branch) -> tuple[float, float]:
    return MARGIN + branch.step * _STEP, _TOP + branch.rank * _BRANCH


def _link(parent: Branch, child: Branch) -> str:
    (x, y), (end, below) = _at(parent), _at(child)
    start = x + min(text_width(fitted(shown(parent.token), _STEP - 36, 12), 12), _STEP - 34) + 4
    return f"M{number(start)} {number(y + 8)}L{number(end - 5)} {number(below + 8)}"


def _frame(branch: Branch) -> str:
    x, y = _at(branch)
    wide = number(max(text_width(fitted(shown(branch.token), _STEP - 36, 12), 12), 30) + 6)
    return f"M{number(x - 4)} {number(y - 3)}h{wide}v27h-{wide}z"


def _labels(kind: str, branches: Sequence[Branch]) -> str:
    """Token and score, the class once for all: a long search has thousands."""
    tokens, scores = [], []
    for branch in branches:
        x, y = _at(branch)
        tokens.append(_text(fitted(shown(branch.token), _STEP - 36, 12), x, y + 10))
        scores.append(_text(f"{branch.score:.2f}".replace("-", "−"), x, y + 21))
    groups = ((kind, 12, tokens), ("muted", 9, scores))
    return "".join(f'<g class="{name}" font-size="{size}">{"".join(some)}</g>' for name, size, some in groups if some)


def _text(text: str, x: float, y: float) -> str:
    return f'<text x="{number(x)}" y="{number(y)}">{inert(text)}</text>'
