"""Learning curves: line charts in stacked panels that share the x axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dragoman.viz.axis import MAX_VALUE, Axis, LogAxis, make_log_axis, make_round_axis, make_tight_axis
from dragoman.viz.svg import escape_text, estimate_text_width, format_number, render_label, render_svg, truncate_text

Point = tuple[float, float]


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
    """Use a logarithmic y axis if the values span more than a factor of ten."""
    include_zero: bool = False
    """Include zero in the y axis."""


@dataclass(frozen=True)
class VerticalMarker:
    """Event at `x`: a vertical line through all panels."""

    x: float
    text: str


class _PlotArea(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float


# Okabe and Ito's palette for any color vision, without its yellow, which has no contrast with white.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_DARK_COLORS = ("#3d9fdc", "#e8762c", "#1fb58c", "#d78fb6", "#e69f00", "#8ccdf2", "#ffffff")
_DASHES = ("", ' stroke-dasharray="6 4"', ' stroke-dasharray="2 3"')
_LIGHT = {
    ".line": "stroke:currentColor;fill:none;stroke-width:1.75;stroke-linejoin:round;stroke-linecap:round",
    ".dot": "fill:currentColor",
    ".mark": "stroke:#cf222e;fill:none;stroke-width:1.25;stroke-dasharray:3 3",
    **{f".tone{index}": f"color:{color}" for index, color in enumerate(_COLORS)},
}
_DARK = {".mark": "stroke:#ff7b72"} | {f".tone{index}": f"color:{color}" for index, color in enumerate(_DARK_COLORS)}

_MAX_BUCKETS = 400
_MAX_DOTTED_POINTS = 40
_MARGIN, _TITLE_HEIGHT, _ROW_HEIGHT, _X_AXIS_HEIGHT = 16, 40, 22, 48
_FONT_SIZE, _TITLE_FONT_SIZE = 12, 16
# Markers closer than this number of pixels are drawn as one.
_MIN_MARKER_GAP = 3


def render_learning_curve(
    panels: Sequence[Panel],
    *,
    title: str,
    x_label: str,
    width: int = 720,
    panel_height: int = 220,
    markers: Sequence[VerticalMarker] = (),
    x_range: Sequence[float] = (),
) -> str:
    """Draw stacked panels as an SVG. A series name has one color in all panels. Long series are downsampled.

    x_range: further values that the x axis includes, so that several charts can have the same axis

    Raises ValueError without a panel.
    """
    if not panels:
        raise ValueError("panels: are empty; render_learning_curve needs a panel")
    thinned_panels = [
        replace(panel, series=[replace(s, points=downsample(s.points)) for s in panel.series]) for panel in panels
    ]
    names = dict.fromkeys(series.name for panel in panels for series in panel.series)
    assigned_colors = {
        series.name: series.color_index for panel in panels for series in panel.series if series.color_index is not None
    }
    color_indices = {name: index for index, name in enumerate(names)} | assigned_colors
    x_axis = make_tight_axis([*x_range, *(x for panel in thinned_panels for x, _ in _iterate_points(panel))], 6)
    y_axes = [_make_y_axis(panel) for panel in thinned_panels]
    y_labels = [axis.labels() for axis in y_axes]
    left = _MARGIN + 8 + max(estimate_text_width(text, _FONT_SIZE) for texts in y_labels for text in texts)
    right = width - _MARGIN

    title_text = truncate_text(title, width - 2 * _MARGIN, _TITLE_FONT_SIZE)
    body = [render_label(title_text, _MARGIN, 26, _TITLE_FONT_SIZE, attributes=' font-weight="600"')]
    bottom = float(_TITLE_HEIGHT)
    for panel, y_axis, texts in zip(thinned_panels, y_axes, y_labels, strict=True):
        legend, top = _render_legend(panel, color_indices, bottom, right)
        plot_area = _PlotArea(left, top, right, top + panel_height)
        body += [
            legend,
            _render_grid(plot_area, x_axis, y_axis, texts),
            _render_markers(markers, plot_area, x_axis),
            _render_lines(panel, color_indices, plot_area, x_axis, y_axis),
        ]
        bottom = plot_area.bottom + _MARGIN
    body.append(_render_x_axis(plot_area, x_axis, x_label))
    return render_svg(
        "dragoman-curve",
        width=width,
        height=plot_area.bottom + _X_AXIS_HEIGHT,
        title=title,
        description=" ".join([*map(_describe_panel, panels), *([f"{len(markers)} markers."] if markers else [])]),
        body="\n".join(body),
        light=_LIGHT,
        dark=_DARK,
    )


def _make_y_axis(panel: Panel) -> Axis | LogAxis:
    values = [y for _, y in _iterate_points(panel)] + ([0.0] if panel.include_zero else [])
    return (make_log_axis(values, 5) if panel.log_scale else None) or make_round_axis(values, 5)


def downsample(points: Sequence[Point], buckets: int = _MAX_BUCKETS) -> list[Point]:
    """Return at most about three points of each bucket: the lowest, the highest and a gap. Keep the first and the last."""
    if len(points) <= 3 * buckets:
        return list(points)
    kept_indices = {0, len(points) - 1}
    size = math.ceil(len(points) / buckets)
    for start in range(0, len(points), size):
        bucket = range(start, min(start + size, len(points)))
        finite = [index for index in bucket if _is_drawable(points[index])]
        if finite:
            kept_indices |= {min(finite, key=lambda index: points[index][1]), max(finite, key=lambda index: points[index][1])}
        if len(finite) < len(bucket):
            kept_indices.add(next(index for index in bucket if not _is_drawable(points[index])))
    return [points[index] for index in sorted(kept_indices)]


def _is_drawable(point: Point) -> bool:
    # The comparison is false for nan.
    return all(abs(value) < MAX_VALUE for value in point)


def _iterate_points(panel: Panel) -> Iterator[Point]:
    return (point for series in panel.series for point in series.points if _is_drawable(point))


def _split_at_gaps(points: Iterable[Point]) -> list[list[Point]]:
    """Return the runs of points between gaps."""
    segments: list[list[Point]] = [[]]
    for point in points:
        if _is_drawable(point):
            segments[-1].append(point)
        elif segments[-1]:
            segments.append([])
    return [segment for segment in segments if segment]


def _render_legend(panel: Panel, color_indices: dict[str, int], top: float, right: float) -> tuple[str, float]:
    """Return the legend above a panel, and the top of the panel below it."""
    y = top + _FONT_SIZE
    name = truncate_text(panel.y_label, (right - _MARGIN) / 2, _FONT_SIZE)
    elements = [render_label(name, _MARGIN, y, _FONT_SIZE, attributes=' font-weight="600"')]
    x = _MARGIN + estimate_text_width(name, _FONT_SIZE) + 20
    for series in panel.series:
        text = truncate_text(series.name, right - _MARGIN - 44, _FONT_SIZE)
        entry_width = 26 + estimate_text_width(text, _FONT_SIZE)
        if x + entry_width > right:
            x, y = float(_MARGIN), y + _ROW_HEIGHT
        color_class, dash = _get_line_style(color_indices[series.name])
        elements.append(f'<path class="line {color_class}"{dash} d="M{format_number(x)} {format_number(y - 4)}h20"/>')
        elements.append(render_label(text, x + 26, y, _FONT_SIZE))
        x += entry_width + 18
    return "\n".join(elements), y + 12


def _get_line_style(color_index: int) -> tuple[str, str]:
    """Return the class and the dashes of a series. Dashes differ if there are more series than colors."""
    return f"tone{color_index % len(_COLORS)}", _DASHES[color_index // len(_COLORS) % len(_DASHES)]


def _render_grid(plot_area: _PlotArea, x_axis: Axis, y_axis: Axis | LogAxis, y_labels: list[str]) -> str:
    elements = []
    for tick, text in zip(y_axis.ticks(), y_labels, strict=True):
        y = y_axis.transform(tick, plot_area.bottom, plot_area.top)
        elements.append(
            f'<path class="grid" d="M{format_number(plot_area.left)} {format_number(y)}H{format_number(plot_area.right)}"/>'
        )
        elements.append(render_label(text, plot_area.left - 8, y + 4, _FONT_SIZE, css_class="muted", anchor="end"))
    for tick in x_axis.ticks():
        x = x_axis.transform(tick, plot_area.left, plot_area.right)
        elements.append(
            f'<path class="grid" d="M{format_number(x)} {format_number(plot_area.top)}V{format_number(plot_area.bottom)}"/>'
        )
    return "\n".join(elements)


def _render_markers(markers: Sequence[VerticalMarker], plot_area: _PlotArea, x_axis: Axis) -> str:
    """Return a vertical line for each marker within the axis. Adjacent markers share one line and one tooltip."""
    groups: list[tuple[float, list[str]]] = []
    for marker in sorted(markers, key=lambda marker: marker.x):
        x = x_axis.transform(marker.x, plot_area.left, plot_area.right)
        if not plot_area.left - 1e-6 <= x <= plot_area.right + 1e-6:
            continue
        if not groups or x - groups[-1][0] >= _MIN_MARKER_GAP:
            groups.append((x, []))
        groups[-1][1].append(marker.text)
    lines = []
    for x, texts in groups:
        remainder = [f"and {len(texts) - 5} more"] if len(texts) > 5 else []
        tooltip = escape_text("; ".join([*texts[:5], *remainder]))
        lines.append(
            f'<path class="mark" d="M{format_number(x)} {format_number(plot_area.top)}V{format_number(plot_area.bottom)}">'
            f"<title>{tooltip}</title></path>"
        )
    return "\n".join(lines)


def _render_lines(
    panel: Panel, color_indices: dict[str, int], plot_area: _PlotArea, x_axis: Axis, y_axis: Axis | LogAxis
) -> str:
    elements = []
    for series in panel.series:
        color_class, dash = _get_line_style(color_indices[series.name])
        segments = _split_at_gaps(series.points)
        show_dots = sum(map(len, segments)) <= _MAX_DOTTED_POINTS
        elements.append(f'<g class="{color_class}"><title>{escape_text(series.name)}</title>')
        for segment in segments:
            positions = [
                (x_axis.transform(x, plot_area.left, plot_area.right), y_axis.transform(y, plot_area.bottom, plot_area.top))
                for x, y in segment
            ]
            if len(segment) > 1:
                path = "L".join(f"{format_number(x)} {format_number(y)}" for x, y in positions)
                elements.append(f'<path class="line"{dash} d="M{path}"/>')
            if len(segment) == 1 or show_dots:
                for (x, y), point in zip(positions, segment, strict=True):
                    tooltip = escape_text(f"{series.name}: {_format_value(point[1])} at {_format_value(point[0])}")
                    dot_position = f'cx="{format_number(x)}" cy="{format_number(y)}" r="3"'
                    elements.append(f'<circle class="dot" {dot_position}><title>{tooltip}</title></circle>')
        elements.append("</g>")
    if not any(_iterate_points(panel)):
        middle = (plot_area.left + plot_area.right) / 2, (plot_area.top + plot_area.bottom) / 2
        elements.append(render_label("no points yet", *middle, _FONT_SIZE, css_class="muted", anchor="middle"))
    return "\n".join(elements)


def _render_x_axis(plot_area: _PlotArea, x_axis: Axis, x_label: str) -> str:
    elements = []
    for tick, text in zip(x_axis.ticks(), x_axis.labels(), strict=True):
        x = x_axis.transform(tick, plot_area.left, plot_area.right)
        # A label at the right end must not leave the drawing.
        x = min(x, plot_area.right + _MARGIN - 2 - estimate_text_width(text, _FONT_SIZE) / 2)
        elements.append(render_label(text, x, plot_area.bottom + 18, _FONT_SIZE, css_class="muted", anchor="middle"))
    middle = (plot_area.left + plot_area.right) / 2
    elements.append(
        render_label(
            truncate_text(x_label, plot_area.right - plot_area.left, _FONT_SIZE),
            middle,
            plot_area.bottom + 38,
            _FONT_SIZE,
            anchor="middle",
        )
    )
    return "\n".join(elements)


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
        f"{series.name}, {len(points)} points, {_format_value(first_y)} at {_format_value(first_x)} to {_format_value(last_y)} "
        f"at {_format_value(last_x)}, lowest {_format_value(low)}, highest {_format_value(high)}"
    )


def _format_value(value: float) -> str:
    return str(int(value)) if abs(value) < 1e15 and value == int(value) else f"{value:.6g}"
