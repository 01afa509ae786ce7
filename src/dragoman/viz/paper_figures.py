"""The paper's Figures 3 to 5: a sentence twice, one row above the other, and lines from the places that look to what they see.

Every head has its colour. Below what a single word sees, each head has a box of its own as well, as strong as its weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dragoman.viz.attention_svg import FAINTEST, HUES, MARGIN, OPACITIES, SIZE, drawing, heading, shown
from dragoman.viz.svg import fitted, label, number, text_width

if TYPE_CHECKING:
    from dragoman.viz.explanation import Numbers

_PITCH, _REACH, _LONGEST, _HEADING, _BETWEEN, _BOX = 18.0, 130.0, 132.0, 46.0, 26.0, 8.0
_NAMED, _NAME_ROW = 68.0, 15.0


@dataclass(frozen=True)
class Look:
    """One half of a figure: these heads, counted from 0, seen from these places, or from all of them where none are given."""

    heads: tuple[int, ...]
    places: tuple[int, ...] = ()


def paper_figure(tokens: Sequence[str], weights_HTS: Numbers, looks: Sequence[Look], *, title: str, remark: str) -> str:
    """One figure as an SVG, its halves below each other.

    weights_HTS: of one layer's heads, from each of the tokens to each of them
    """
    names = [fitted(shown(token), _LONGEST, SIZE) for token in tokens]
    tall = max(text_width(name, SIZE) for name in names)
    width = 2 * MARGIN + max(_PITCH * len(tokens), text_width(remark, 12))
    parts, top = heading(title, remark, width), _HEADING
    for look in looks:
        in_a_row = int((width - 2 * MARGIN) // _NAMED)
        parts += _legend(look.heads, top + 12, in_a_row)
        top += _NAME_ROW * math.ceil(len(look.heads) / in_a_row) + 8
        parts += _half(names, weights_HTS, look, top + tall)
        top += 2 * tall + _REACH + _boxes_height(look) + _BETWEEN
    told = f"{remark}: lines between {len(tokens)} tokens above and the same below."
    return drawing(width, top - _BETWEEN + MARGIN, title, told, parts)


def _boxes_height(look: Look) -> float:
    return _BOX * len(look.heads) + 4 if look.places else 0.0


def _middle(place: int) -> float:
    return MARGIN + _PITCH * (place + 0.5)


def _legend(heads: Sequence[int], y: float, in_a_row: int) -> Iterator[str]:
    """Which colour is whose; colours begin again after the last."""
    for order, head in enumerate(heads):
        x, at = MARGIN + _NAMED * (order % in_a_row), y + _NAME_ROW * (order // in_a_row)
        yield f'<path class="line h{head % len(HUES)}" d="M{number(x)} {number(at - 4)}h14"/>'
        yield label(f"head {head + 1}", x + 18, at, 11, kind="muted")


def _half(names: Sequence[str], weights_HTS: Numbers, look: Look, y: float) -> Iterator[str]:
    """Two rows of tokens, the upper one ending at `y`, and the lines between."""
    bottom = y + _REACH + _boxes_height(look)
    looking = look.places or tuple(range(len(names)))
    yield from _lines(weights_HTS, look.heads, looking, y + 4, y + _REACH - 4)
    if look.places:
        yield from _seen_boxes(weights_HTS, look, y + _REACH)
    for place, name in enumerate(names):
        x = _middle(place) + SIZE * 0.35
        above = "ink" if not look.places else "ink bold" if place in look.places else "muted"
        for at, kind, anchor in ((y, above, "start"), (bottom, "ink", "end")):
            turned = f' transform="rotate(-90 {number(x)} {number(at)})"'
            yield label(name, x, at, SIZE, kind=kind, anchor=anchor, extra=turned)


def _lines(weights_HTS: Numbers, heads: Sequence[int], looking: Sequence[int], top: float, bottom: float) -> Iterator[str]:
    """One path for each head and strength; weights too faint to be seen are left out."""
    paths: dict[tuple[int, int], list[str]] = {}
    for order, head in enumerate(heads):
        shift = (order - (len(heads) - 1) / 2) * min(1.6, _PITCH * 0.6 / len(heads))
        for row in looking:
            for column, weight in enumerate(weights_HTS[head, row].tolist()):
                if weight >= FAINTEST:
                    start, end = _middle(row) + shift, _middle(column) + shift
                    step = f"M{number(start)} {number(top)}L{number(end)} {number(bottom)}"
                    paths.setdefault((head, math.ceil(min(weight, 1.0) * OPACITIES)), []).append(step)
    for (head, level), steps in sorted(paths.items()):
        opacity = number(level / OPACITIES)
        yield f'<path class="line h{head % len(HUES)}" stroke-opacity="{opacity}" d="{"".join(steps)}"/>'


def _seen_boxes(weights_HTS: Numbers, look: Look, top: float) -> Iterator[str]:
    """Below each token a box for each head, as strong as the mean of what the places in view give it."""
    for order, head in enumerate(look.heads):
        together = weights_HTS[head][list(look.places)].mean(axis=0)
        for column, weight in enumerate(together.tolist()):
            if weight >= FAINTEST:
                place = f'x="{number(_middle(column) - _PITCH * 0.42)}" y="{number(top + _BOX * order)}"'
                size = f'width="{number(_PITCH * 0.84)}" height="{number(_BOX - 1)}"'
                opacity = number(min(round(weight, 2), 1.0))
                yield f'<rect class="f{head % len(HUES)}" fill-opacity="{opacity}" {place} {size}/>'
