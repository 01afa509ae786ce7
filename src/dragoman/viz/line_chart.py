"""Learning curves: line charts in panels above one another that share the x axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dragoman.viz.axis import LARGEST, Axis, LogAxis, log_axis, round_axis, tight_axis
from dragoman.viz.svg import fitted, inert, label, number, picture, text_width

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """One line. A point that is not finite is a gap; a point between gaps is a dot."""

    name: str
    points: Sequence[Point]
    tone: int | None = None
    """The number of its colour; in the order of the names if not given."""


@dataclass(frozen=True)
class Panel:
    """One chart: what its y axis counts, and the lines in it."""

    y_label: str
    series: Sequence[Series]
    logarithmic: bool = False
    """Draw y by its logarithm, where the values span more than a factor of ten."""
    from_zero: bool = False
    """Have the y axis hold zero, so that a small change looks small."""


@dataclass(frozen=True)
class Mark:
    """Something that happened at `x`: an upright line through all panels."""

    x: float
    text: str


class _Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float


# Okabe and Ito's palette, told apart with any colour vision; without its yellow, which fades on white.
_TONES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_DARK_TONES = ("#3d9fdc", "#e8762c", "#1fb58c", "#d78fb6", "#e69f00", "#8ccdf2", "#ffffff")
_DASHES = ("", ' stroke-dasharray="6 4"', ' stroke-dasharray="2 3"')
_LIGHT = {
    ".line": "stroke:currentColor;fill:none;stroke-width:1.75;stroke-linejoin:round;stroke-linecap:round",
    ".dot": "fill:currentColor",
    ".mark": "stroke:#cf222e;fill:none;stroke-width:1.25;stroke-dasharray:3 3",
    **{f".tone{index}": f"color:{tone}" for index, tone in enumerate(_TONES)},
}
_DARK = {".mark": "stroke:#ff7b72"} | {f".tone{index}": f"color:{tone}" for index, tone in enumerate(_DARK_TONES)}

_BUCKETS = 400
_DOTTED_POINTS = 40
_MARGIN, _TITLE_HEIGHT, _ROW_HEIGHT, _FOOT_HEIGHT = 16, 40, 22, 48
_SIZE, _TITLE_SIZE = 12, 16
# Marks closer than this many pixels are drawn as one.
_MARK_GAP = 3


def learning_curve(
    panels: Sequence[Panel],
    *,
    title: str,
    x_label: str,
    width: int = 720,
    panel_height: int = 220,
    marks: Sequence[Mark] = (),
    x_range: Sequence[float] = (),
) -> str:
    """An SVG of `panels` above one another. A name has one colour in the whole picture.

    A long series is thinned, and keeps its spikes: see `thinned`.

    x_range: values that the x axis holds besides the points, so that several pictures can have the same one
    """
    if not panels:
        raise ValueError("learning_curve needs at least one panel")
    drawn = [replace(panel, series=[replace(s, points=thinned(s.points)) for s in panel.series]) for panel in panels]
    names = dict.fromkeys(series.name for panel in panels for series in panel.series)
    given = {series.name: series.tone for panel in panels for series in panel.series if series.tone is not None}
    tones = {name: index for index, name in enumerate(names)} | given
    x_axis = tight_axis([*x_range, *(x for panel in drawn for x, _ in _panel_points(panel))], 6)
    y_axes = [_y_axis(panel) for panel in drawn]
    y_labels = [axis.labels() for axis in y_axes]
    left = _MARGIN + 8 + max(text_width(text, _SIZE) for texts in y_labels for text in texts)
    right = width - _MARGIN

    title_text = fitted(title, width - 2 * _MARGIN, _TITLE_SIZE)
    body = [label(title_text, _MARGIN, 26, _TITLE_SIZE, extra=' font-weight="600"')]
    bottom = float(_TITLE_HEIGHT)
    for panel, y_axis, texts in zip(drawn, y_axes, y_labels, strict=True):
        legend, top = _legend(panel, tones, bottom, right)
        box = _Box(left, top, right, top + panel_height)
        body += [
            legend,
            _grid(box, x_axis, y_axis, texts),
            _marks(marks, box, x_axis),
            _lines(panel, tones, box, x_axis, y_axis),
        ]
        bottom = box.bottom + _MARGIN
    body.append(_foot(box, x_axis, x_label))
    return picture(
        "dragoman-curve",
        width=width,
        height=box.bottom + _FOOT_HEIGHT,
        title=title,
        description=" ".join([*map(_description, panels), *([f"{len(marks)} marks."] if marks else [])]),
        body="\n".join(body),
        light=_LIGHT,
        dark=_DARK,
    )


def _y_axis(panel: Panel) -> Axis | LogAxis:
    values = [y for _, y in _panel_points(panel)] + ([0.0] if panel.from_zero else [])
    return (log_axis(values, 5) if panel.logarithmic else None) or round_axis(values, 5)


def thinned(points: Sequence[Point], buckets: int = _BUCKETS) -> list[Point]:
    """At most about three points a bucket of neighbours: the lowest, the highest, a gap. First and last stay."""
    if len(points) <= 3 * buckets:
        return list(points)
    kept = {0, len(points) - 1}
    size = math.ceil(len(points) / buckets)
    for start in range(0, len(points), size):
        bucket = range(start, min(start + size, len(points)))
        finite = [index for index in bucket if _drawable(points[index])]
        if finite:
            kept |= {min(finite, key=lambda index: points[index][1]), max(finite, key=lambda index: points[index][1])}
        if len(finite) < len(bucket):
            kept.add(next(index for index in bucket if not _drawable(points[index])))
    return [points[index] for index in sorted(kept)]


def _drawable(point: Point) -> bool:
    # False for nan as well.
    return all(abs(value) < LARGEST for value in point)


def _panel_points(panel: Panel) -> Iterator[Point]:
    return (point for series in panel.series for point in series.points if _drawable(point))


def _runs(points: Iterable[Point]) -> list[list[Point]]:
    """The stretches between gaps."""
    runs: list[list[Point]] = [[]]
    for point in points:
        if _drawable(point):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _legend(panel: Panel, tones: dict[str, int], top: float, right: float) -> tuple[str, float]:
    """The row above a panel: what it counts, then its lines; and where the panel starts below it."""
    y = top + _SIZE
    name = fitted(panel.y_label, (right - _MARGIN) / 2, _SIZE)
    marks = [label(name, _MARGIN, y, _SIZE, extra=' font-weight="600"')]
    x = _MARGIN + text_width(name, _SIZE) + 20
    for series in panel.series:
        text = fitted(series.name, right - _MARGIN - 44, _SIZE)
        entry_width = 26 + text_width(text, _SIZE)
        if x + entry_width > right:
            x, y = float(_MARGIN), y + _ROW_HEIGHT
        tone, dash = _stroke(tones[series.name])
        marks.append(f'<path class="line {tone}"{dash} d="M{number(x)} {number(y - 4)}h20"/>')
        marks.append(label(text, x + 26, y, _SIZE))
        x += entry_width + 18
    return "\n".join(marks), y + 12


def _stroke(tone: int) -> tuple[str, str]:
    """The class and the dash of the series with this number: with more series than colours, dashes tell them apart."""
    return f"tone{tone % len(_TONES)}", _DASHES[tone // len(_TONES) % len(_DASHES)]


def _grid(box: _Box, x_axis: Axis, y_axis: Axis | LogAxis, y_labels: list[str]) -> str:
    marks = []
    for tick, text in zip(y_axis.ticks(), y_labels, strict=True):
        y = y_axis.at(tick, box.bottom, box.top)
        marks.append(f'<path class="grid" d="M{number(box.left)} {number(y)}H{number(box.right)}"/>')
        marks.append(label(text, box.left - 8, y + 4, _SIZE, kind="muted", anchor="end"))
    for tick in x_axis.ticks():
        x = x_axis.at(tick, box.left, box.right)
        marks.append(f'<path class="grid" d="M{number(x)} {number(box.top)}V{number(box.bottom)}"/>')
    return "\n".join(marks)


def _marks(marks: Sequence[Mark], box: _Box, x_axis: Axis) -> str:
    """An upright line for each mark within the axis; neighbours that would touch are one line with all their texts."""
    groups: list[tuple[float, list[str]]] = []
    for mark in sorted(marks, key=lambda mark: mark.x):
        x = x_axis.at(mark.x, box.left, box.right)
        if not box.left - 1e-6 <= x <= box.right + 1e-6:
            continue
        if not groups or x - groups[-1][0] >= _MARK_GAP:
            groups.append((x, []))
        groups[-1][1].append(mark.text)
    lines = []
    for x, texts in groups:
        more = [f"and {len(texts) - 5} more"] if len(texts) > 5 else []
        hint = inert("; ".join([*texts[:5], *more]))
        lines.append(f'<path class="mark" d="M{number(x)} {number(box.top)}V{number(box.bottom)}"><title>{hint}</title></path>')
    return "\n".join(lines)


def _lines(panel: Panel, tones: dict[str, int], box: _Box, x_axis: Axis, y_axis: Axis | LogAxis) -> str:
    marks = []
    for series in panel.series:
        tone, dash = _stroke(tones[series.name])
        runs = _runs(series.points)
        dotted = sum(map(len, runs)) <= _DOTTED_POINTS
        marks.append(f'<g class="{tone}"><title>{inert(series.name)}</title>')
        for run in runs:
            places = [(x_axis.at(x, box.left, box.right), y_axis.at(y, box.bottom, box.top)) for x, y in run]
            if len(run) > 1:
                path = "L".join(f"{number(x)} {number(y)}" for x, y in places)
                marks.append(f'<path class="line"{dash} d="M{path}"/>')
            if len(run) == 1 or dotted:
                for (x, y), point in zip(places, run, strict=True):
                    hint = inert(f"{series.name}: {_value(point[1])} at {_value(point[0])}")
                    place = f'cx="{number(x)}" cy="{number(y)}" r="3"'
                    marks.append(f'<circle class="dot" {place}><title>{hint}</title></circle>')
        marks.append("</g>")
    if not any(_panel_points(panel)):
        middle = (box.left + box.right) / 2, (box.top + box.bottom) / 2
        marks.append(label("no points yet", *middle, _SIZE, kind="muted", anchor="middle"))
    return "\n".join(marks)


def _foot(box: _Box, x_axis: Axis, x_label: str) -> str:
    marks = []
    for tick, text in zip(x_axis.ticks(), x_axis.labels(), strict=True):
        x = x_axis.at(tick, box.left, box.right)
        # A label at the right end would leave the picture.
        x = min(x, box.right + _MARGIN - 2 - text_width(text, _SIZE) / 2)
        marks.append(label(text, x, box.bottom + 18, _SIZE, kind="muted", anchor="middle"))
    middle = (box.left + box.right) / 2
    marks.append(label(fitted(x_label, box.right - box.left, _SIZE), middle, box.bottom + 38, _SIZE, anchor="middle"))
    return "\n".join(marks)


def _description(panel: Panel) -> str:
    """The panel in words, for a reader who does not see it."""
    return f"{panel.y_label}: " + "; ".join(map(_series_description, panel.series)) + "."


def _series_description(series: Series) -> str:
    points = [point for point in series.points if _drawable(point)]
    if not points:
        return f"{series.name}, no points"
    (first_x, first_y), (last_x, last_y) = points[0], points[-1]
    low, high = min(y for _, y in points), max(y for _, y in points)
    return (
        f"{series.name}, {len(points)} points, {_value(first_y)} at {_value(first_x)} to {_value(last_y)} "
        f"at {_value(last_x)}, lowest {_value(low)}, highest {_value(high)}"
    )


def _value(value: float) -> str:
    return str(int(value)) if abs(value) < 1e15 and value == int(value) else f"{value:.6g}"
