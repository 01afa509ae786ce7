"""Bars that lie, in groups below one another: named scores that are read against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.viz.axis import round_axis
from dragoman.viz.svg import fitted, label, number, picture, text_width


@dataclass(frozen=True)
class Bar:
    """One score. `note` stands behind its value."""

    name: str
    value: float
    note: str = ""


@dataclass(frozen=True)
class Group:
    """Scores that were measured alike; those of different groups only share the scale. `bright` has them in colour."""

    title: str
    bars: Sequence[Bar]
    bright: bool = False


_LIGHT = {".bar0": "fill:#8c959f", ".bar1": "fill:#0072b2"}
_DARK = {".bar0": "fill:#6e7681", ".bar1": "fill:#3d9fdc"}
_MARGIN, _ROW, _THICK, _SIZE, _TITLE_SIZE = 16, 22, 14, 12, 16
_WIDEST_NAME = 260.0


def bar_chart(groups: Sequence[Group], *, title: str, x_label: str, width: int = 720) -> str:
    """The groups as an SVG, each value written out.

    Values are no less than 0; the scale begins there. Raises ValueError where there is no bar.
    """
    bars = [bar for group in groups for bar in group.bars]
    if not bars:
        raise ValueError("a chart of bars needs a bar")
    left = _MARGIN + min(_WIDEST_NAME, max(text_width(bar.name, _SIZE) for bar in bars)) + 8
    right = width - _MARGIN - max(text_width(_told(bar), _SIZE) for bar in bars) - 6
    axis = round_axis([0.0, *(bar.value for bar in bars)], 5)

    def across(value: float) -> float:
        return axis.at(value, left, right)

    parts = [label(fitted(title, width - 2 * _MARGIN, _TITLE_SIZE), _MARGIN, _MARGIN + _TITLE_SIZE, _TITLE_SIZE)]
    top = y = _MARGIN + _TITLE_SIZE + 18.0
    for group in groups:
        y += _ROW
        parts.append(label(fitted(group.title, width - 2 * _MARGIN, _SIZE), _MARGIN, y - 7, _SIZE, kind="muted"))
        for bar in group.bars:
            drawn = f'width="{number(max(across(bar.value) - left, 0.5))}" height="{_THICK}"'
            parts.append(f'<rect class="bar{int(group.bright)}" x="{number(left)}" y="{number(y)}" {drawn}/>')
            parts.append(label(fitted(bar.name, left - _MARGIN - 8, _SIZE), left - 8, y + 11, _SIZE, anchor="end"))
            parts.append(label(_told(bar), across(bar.value) + 6, y + 11, _SIZE))
            y += _ROW
    for tick, text in zip(axis.ticks(), axis.labels(), strict=True):
        x = number(across(tick))
        parts.insert(1, f'<path class="grid" d="M{x} {number(top)}V{number(y)}"/>')
        parts.append(label(text, across(tick), y + 16, _SIZE, kind="muted", anchor="middle"))
    parts.append(label(x_label, (left + right) / 2, y + 36, _SIZE, kind="muted", anchor="middle"))
    told = "; ".join(f"{group.title}: " + ", ".join(f"{bar.name} {_told(bar)}" for bar in group.bars) for group in groups)
    return picture(
        "bars",
        width=width,
        height=y + 52,
        title=title,
        description=f"{x_label}. {told}.",
        body="\n".join(parts),
        light=_LIGHT,
        dark=_DARK,
    )


def _told(bar: Bar) -> str:
    return f"{bar.value:.2f} {bar.note}".rstrip()
