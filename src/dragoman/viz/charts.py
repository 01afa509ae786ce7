"""Charts by matplotlib: learning curves in stacked panels, and horizontal bars."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dragoman.runtime.counts import format_count
from dragoman.viz.matplotlib_svg import COLORS, FONT_SIZE, GRAY, TITLE_FONT_SIZE, chart_style, figure_to_svg
from dragoman.viz.svg import escape_hidden, estimate_text_width, truncate_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = tuple[float, float]

# Larger values would overflow in the margins of a logarithmic axis.
_MAX_VALUE = 1e270
_MAX_DOTTED_POINTS = 40
_LINE_STYLES = ("-", "--", ":")
# Markers closer than this number of pixels are drawn as one.
_MIN_MARKER_GAP = 3.0
_MARKER_COLOR = "#cf222e"
_MARGIN, _ROW_HEIGHT, _LEGEND_LINE_WIDTH = 16.0, 22.0, 44.0
_MAX_BAR_NAME_WIDTH, _BAR_CHART_WIDTH = 260.0, 720
_CAPTION_LINE_HEIGHT = 18.0


@dataclass(frozen=True)
class Series:
    """One line. A point that is not finite makes a gap. A single point between gaps is a dot."""

    name: str
    points: Sequence[Point]
    color_index: int | None = None
    """Number of its color; default: by the order of the names."""


@dataclass(frozen=True)
class Panel:
    """One chart with its y label and its lines."""

    y_label: str
    series: Sequence[Series]
    log_scale: bool = False
    """Use a logarithmic y axis if the values span a factor of ten or more."""
    include_zero: bool = False
    """Include zero in the y axis."""


@dataclass(frozen=True)
class VerticalMarker:
    """Event at `x`: a vertical line through all panels."""

    x: float
    text: str


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


def render_learning_curve(
    panels: Sequence[Panel],
    *,
    title: str,
    x_label: str,
    width: int = 720,
    panel_height: int = 220,
    markers: Sequence[VerticalMarker] = (),
    x_range: Sequence[float] = (),
    caption: str = "",
) -> str:
    """Draw stacked panels as an SVG. A series name has one color in all panels.

    x_range: further values that the x axis includes, so that several charts can have the same axis
    caption: text below the panels

    Raises ValueError without a panel, and MissingDependencyError without matplotlib.
    """
    if not panels:
        raise ValueError("panels: are empty; render_learning_curve needs a panel")
    names = dict.fromkeys(series.name for panel in panels for series in panel.series)
    color_indices = {name: index for index, name in enumerate(names)}
    color_indices |= {s.name: s.color_index for panel in panels for s in panel.series if s.color_index is not None}
    x_values = [*x_range, *(x for panel in panels for x, _ in _iterate_points(panel))] or [0.0, 1.0]
    x_low, x_high = min(x_values), max(x_values)
    if x_low == x_high:
        x_low, x_high = x_low - 0.5, x_high + 0.5
    marker_groups = _group_markers(markers, x_low, x_high, _MIN_MARKER_GAP * (x_high - x_low) / width)
    tooltips: dict[str, list[str]] = {}

    with chart_style():
        from matplotlib.ticker import MaxNLocator

        caption_lines = textwrap.wrap(caption, int((width - 2 * _MARGIN) / (0.55 * FONT_SIZE)))
        height = TITLE_FONT_SIZE + sum(panel_height + _ROW_HEIGHT * _count_legend_rows(panel, width) for panel in panels) + 48
        height += _CAPTION_LINE_HEIGHT * len(caption_lines)
        figure = _make_figure(width, height, title, arrange=True)
        if caption_lines:
            figure.supxlabel("\n".join(caption_lines), x=_MARGIN / width, ha="left", fontsize=FONT_SIZE)
        all_axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
        for panel_number, (panel, axes) in enumerate(zip(panels, all_axes, strict=True)):
            for index, (x, texts) in enumerate(marker_groups):
                gid = f"mark {panel_number} {index}"
                axes.axvline(x, color=_MARKER_COLOR, linestyle=":", linewidth=1.25, gid=gid)
                tooltips[gid] = [_join_texts(texts)]
            for index, series in enumerate(panel.series):
                gid = f"line {panel_number} {index}"
                _draw_line(axes, series, color_indices[series.name], gid)
                tooltips[gid] = [series.name]
            _finish_panel(axes, panel, width, panel_height)
        all_axes[-1].set_xlim(x_low, x_high)
        all_axes[-1].set_xlabel(truncate_text(x_label, width - 2 * _MARGIN, FONT_SIZE))
        is_integer = all(x == int(x) for x in x_values)
        all_axes[-1].xaxis.set_major_locator(MaxNLocator(width // 100, steps=[1, 2, 2.5, 5, 10], integer=is_integer))
        description = " ".join(
            [*map(_describe_panel, panels), *([f"{format_count(len(markers), 'marker')}."] if markers else [])]
        )
        return figure_to_svg(figure, title=title, description=description, tooltips=tooltips)


def _make_figure(width: float, height: float, title: str, *, arrange: bool = False) -> Figure:
    """Return a figure of this size in pixels with its title at the upper left.

    arrange: let matplotlib arrange the axes and the title, so that no text overlaps
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72), layout="constrained" if arrange else None)
    text = truncate_text(title, width - 2 * _MARGIN, TITLE_FONT_SIZE)
    figure.suptitle(text, x=_MARGIN / width, y=None if arrange else 1 - 8 / height, ha="left")
    return figure


def _draw_line(axes: Axes, series: Series, color_index: int, gid: str) -> None:
    points = [point if _is_drawable(point) else (math.nan, math.nan) for point in series.points]
    is_gap = [True, *(math.isnan(x) for x, _ in points), True]
    drawable_indices = [index for index in range(len(points)) if not is_gap[index + 1]]
    isolated = [index for index in drawable_indices if is_gap[index] and is_gap[index + 2]]
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        color=COLORS[color_index % len(COLORS)],
        linestyle=_LINE_STYLES[color_index // len(COLORS) % len(_LINE_STYLES)],
        marker="o",
        markevery=drawable_indices if len(drawable_indices) <= _MAX_DOTTED_POINTS else isolated,
        gid=gid,
    )


def _finish_panel(axes: Axes, panel: Panel, width: float, height: float) -> None:
    """Set the scale and the label of the y axis, and draw the legend above the panel."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    values = [y for _, y in _iterate_points(panel)]
    axes.margins(y=0.05)
    if panel.log_scale and values and min(values) > 1 / _MAX_VALUE and 10 * min(values) <= max(values):
        axes.set_yscale("log")
        if max(values) < 1000 * min(values):
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    if panel.include_zero and values and min(values) >= 0:
        axes.set_ylim(bottom=0)
    axes.set_ylabel(truncate_text(panel.y_label, height, FONT_SIZE))
    if not values:
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no points yet", transform=axes.transAxes, ha="center", va="center")
    if panel.series:
        lines = [line for line in axes.lines if str(line.get_gid()).startswith("line ")]
        axes.legend(
            lines,
            [_truncate_name(series, width) for series in panel.series],
            loc="lower left",
            bbox_to_anchor=(0, 1),
            borderaxespad=0.2,
            ncols=_count_legend_columns(panel, width),
        )


def _truncate_name(series: Series, width: float) -> str:
    return truncate_text(series.name, width - 4 * _MARGIN - _LEGEND_LINE_WIDTH, FONT_SIZE)


def _count_legend_columns(panel: Panel, width: float) -> int:
    widest = max(estimate_text_width(_truncate_name(series, width), FONT_SIZE) for series in panel.series)
    return max(1, int((width - 4 * _MARGIN) // (widest + _LEGEND_LINE_WIDTH)))


def _count_legend_rows(panel: Panel, width: float) -> int:
    return math.ceil(len(panel.series) / _count_legend_columns(panel, width)) if panel.series else 0


def _group_markers(
    markers: Sequence[VerticalMarker], x_low: float, x_high: float, min_gap: float
) -> list[tuple[float, list[str]]]:
    """Return the markers within the axis. Adjacent markers share one line."""
    groups: list[tuple[float, list[str]]] = []
    for marker in sorted(markers, key=lambda marker: marker.x):
        if x_low <= marker.x <= x_high:
            if not groups or marker.x - groups[-1][0] >= min_gap:
                groups.append((marker.x, []))
            groups[-1][1].append(marker.text)
    return groups


def _join_texts(texts: Sequence[str]) -> str:
    return "; ".join([*texts[:5], *([f"and {len(texts) - 5} more"] if len(texts) > 5 else [])])


def _is_drawable(point: Point) -> bool:
    # The comparison is false for nan.
    return all(abs(value) < _MAX_VALUE for value in point)


def _iterate_points(panel: Panel) -> Iterator[Point]:
    return (point for series in panel.series for point in series.points if _is_drawable(point))


def _describe_panel(panel: Panel) -> str:
    """Return a description of the panel for screen readers."""
    return f"{panel.y_label}: " + "; ".join(map(_describe_series, panel.series)) + "."


def _describe_series(series: Series) -> str:
    points = [point for point in series.points if _is_drawable(point)]
    if not points:
        return f"{series.name}, no points"
    (first_x, first_y), (last_x, last_y) = points[0], points[-1]
    low, high = min(y for _, y in points), max(y for _, y in points)
    return (
        f"{series.name}, {format_count(len(points), 'point')}, {first_y:.6g} at {first_x:.9g} to {last_y:.6g} at {last_x:.9g}, "
        f"lowest {low:.6g}, highest {high:.6g}"
    )


def render_bar_chart(groups: Sequence[BarGroup], *, title: str, x_label: str) -> str:
    """Draw the groups as an SVG with all values as text.

    The scale begins at 0, and values must not be negative.

    Raises ValueError without a bar, and MissingDependencyError without matplotlib.
    """
    bars = [bar for group in groups for bar in group.bars]
    if not bars:
        raise ValueError("groups: have no bar; a bar chart needs a bar")
    width = _BAR_CHART_WIDTH
    left = _MARGIN + min(_MAX_BAR_NAME_WIDTH, max(estimate_text_width(bar.name, FONT_SIZE) for bar in bars))
    right = _MARGIN + max(estimate_text_width(_format_bar_value(bar), FONT_SIZE) for bar in bars)
    height = _ROW_HEIGHT * (len(groups) + len(bars)) + 88
    with chart_style():
        figure = _make_figure(width, height, title)
        axes = figure.add_axes((left / width, 48 / height, 1 - (left + right) / width, 1 - 88 / height))
        row = 0
        for number, group in enumerate(groups):
            group_title = truncate_text(group.title, width - left - _MARGIN, FONT_SIZE)
            axes.text(0, row, f" {group_title}", va="center", fontweight="bold")
            rows = range(row + 1, row + 1 + len(group.bars))
            color = COLORS[0] if group.highlighted else GRAY
            drawn_bars = axes.barh(rows, [bar.value for bar in group.bars], height=0.65, color=color)
            for index, patch in enumerate(drawn_bars):
                patch.set_gid(f"bar {number} {index}")
            axes.bar_label(drawn_bars, [_format_bar_value(bar) for bar in group.bars], padding=4, parse_math=False)
            row = rows.stop
        axes.set_ylim(row - 0.4, -0.6)
        axes.set_xlim(0, max(bar.value for bar in bars) or 1.0)
        row_names = [name for group in groups for name in ("", *(bar.name for bar in group.bars))]
        axes.set_yticks(range(row), [truncate_text(name, left - _MARGIN, FONT_SIZE) for name in row_names])
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(truncate_text(x_label, width - left, FONT_SIZE))
        tooltips = {
            f"bar {number} {index}": [f"{bar.name}: {_format_bar_value(bar)}"]
            for number, group in enumerate(groups)
            for index, bar in enumerate(group.bars)
        }
        description = "; ".join(
            f"{group.title}: " + ", ".join(f"{bar.name} {_format_bar_value(bar)}" for bar in group.bars) for group in groups
        )
        return figure_to_svg(figure, title=title, description=f"{x_label}. {description}.", tooltips=tooltips)


def _format_bar_value(bar: Bar) -> str:
    return f"{bar.value:.2f} {escape_hidden(bar.note)}".rstrip()
