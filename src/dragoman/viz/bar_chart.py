"""Horizontal bar charts of named scores in groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.viz.axis import make_round_axis
from dragoman.viz.svg import estimate_text_width, format_attributes, format_number, render_label, render_svg, truncate_text


@dataclass(frozen=True)
class Bar:
    """One score. `note` follows its value."""

    name: str
    value: float
    note: str = ""


@dataclass(frozen=True)
class BarGroup:
    """Comparable scores. Scores of different groups share only the scale. A highlighted group has a color."""

    title: str
    bars: Sequence[Bar]
    highlighted: bool = False


_LIGHT = {".bar0": "fill:#8c959f", ".bar1": "fill:#0072b2"}
_DARK = {".bar0": "fill:#6e7681", ".bar1": "fill:#3d9fdc"}
_MARGIN, _ROW_HEIGHT, _BAR_HEIGHT, _FONT_SIZE, _TITLE_FONT_SIZE = 16, 22, 14, 12, 16
_MAX_NAME_WIDTH = 260.0


def render_bar_chart(groups: Sequence[BarGroup], *, title: str, x_label: str, width: int = 720) -> str:
    """Draw the groups as an SVG with all values as text.

    The scale begins at 0, and values must not be negative. Raises ValueError without a bar.
    """
    bars = [bar for group in groups for bar in group.bars]
    if not bars:
        raise ValueError("groups: have no bar; a bar chart needs a bar")
    left = _MARGIN + min(_MAX_NAME_WIDTH, max(estimate_text_width(bar.name, _FONT_SIZE) for bar in bars)) + 8
    right = width - _MARGIN - max(estimate_text_width(_format_bar_value(bar), _FONT_SIZE) for bar in bars) - 6
    axis = make_round_axis([0.0, *(bar.value for bar in bars)], 5)

    def to_x(value: float) -> float:
        return axis.transform(value, left, right)

    parts = [
        render_label(
            truncate_text(title, width - 2 * _MARGIN, _TITLE_FONT_SIZE), _MARGIN, _MARGIN + _TITLE_FONT_SIZE, _TITLE_FONT_SIZE
        )
    ]
    top = y = _MARGIN + _TITLE_FONT_SIZE + 18.0
    for group in groups:
        y += _ROW_HEIGHT
        parts.append(
            render_label(
                truncate_text(group.title, width - 2 * _MARGIN, _FONT_SIZE), _MARGIN, y - 7, _FONT_SIZE, css_class="muted"
            )
        )
        for bar in group.bars:
            attributes = format_attributes(x=left, y=y, width=max(to_x(bar.value) - left, 0.5), height=_BAR_HEIGHT)
            parts.append(f'<rect class="bar{int(group.highlighted)}" {attributes}/>')
            parts.append(
                render_label(
                    truncate_text(bar.name, left - _MARGIN - 8, _FONT_SIZE), left - 8, y + 11, _FONT_SIZE, anchor="end"
                )
            )
            parts.append(render_label(_format_bar_value(bar), to_x(bar.value) + 6, y + 11, _FONT_SIZE))
            y += _ROW_HEIGHT
    for tick, text in zip(axis.ticks(), axis.labels(), strict=True):
        x = format_number(to_x(tick))
        parts.insert(1, f'<path class="grid" d="M{x} {format_number(top)}V{format_number(y)}"/>')
        parts.append(render_label(text, to_x(tick), y + 16, _FONT_SIZE, css_class="muted", anchor="middle"))
    parts.append(render_label(x_label, (left + right) / 2, y + 36, _FONT_SIZE, css_class="muted", anchor="middle"))
    description = "; ".join(
        f"{group.title}: " + ", ".join(f"{bar.name} {_format_bar_value(bar)}" for bar in group.bars) for group in groups
    )
    return render_svg(
        "bars",
        width=width,
        height=y + 52,
        title=title,
        description=f"{x_label}. {description}.",
        body="\n".join(parts),
        light=_LIGHT,
        dark=_DARK,
    )


def _format_bar_value(bar: Bar) -> str:
    return f"{bar.value:.2f} {bar.note}".rstrip()
