"""Tests of charts and pages: positions of marks, escaped text, and pages that load nothing."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.viz import (
    Panel,
    ReportTable,
    Series,
    VerticalMarker,
    render_attention_heatmap,
    render_learning_curve,
    render_report,
)
from dragoman.viz.axis import format_ticks, make_log_axis, make_round_axis, make_tight_axis
from dragoman.viz.bar_chart import BarGroup, render_bar_chart
from dragoman.viz.line_chart import downsample
from dragoman.viz.svg import escape_hidden, escape_text, estimate_text_width, truncate_text

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = [
    "<script>alert(1)</script>",
    "\"/><image href='http://example.com/x'>",
    "</title></svg></style><b onclick=x>",
    "a & b &lt; ]]> -->",
    "\u202egnirts\u2066",
    "nul\0 bell\a newline\n tab\t delete\x7f",
    "lone \ud800 and \ufffe \uffff \U0001ffff",
    "▁Straße",
]
finite = st.floats(-1e12, 1e12)


def marks(svg: str, tag: str, kind: str = "") -> list[Element]:
    """Return the elements with this tag and class, in order."""
    root = ElementTree.fromstring(svg)
    return [element for element in root.iter(SVG + tag) if not kind or kind in element.get("class", "").split()]


def curve(*series: Series) -> str:
    return render_learning_curve([Panel("loss", series)], title="Loss", x_label="updates")


def path_points(element: Element) -> list[tuple[float, float]]:
    """Return the points of a path of the form `M1 2L3 4L5 6`."""
    pairs = element.get("d", "").removeprefix("M").split("L")
    return [(float(x), float(y)) for x, y in (pair.split(" ") for pair in pairs)]


def drawn_lines(svg: str) -> list[list[tuple[float, float]]]:
    """Return the lines inside the panels. Lines of the legend are paths with an `h`."""
    return [path_points(path) for path in marks(svg, "path", "line") if "h" not in path.get("d", "")]


def dots(svg: str) -> list[tuple[float, float]]:
    return [(float(dot.get("cx", "")), float(dot.get("cy", ""))) for dot in marks(svg, "circle", "dot")]


def grid_lines(svg: str) -> tuple[list[float], list[float]]:
    """Return the x of the vertical grid lines and the y of the horizontal ones."""
    paths = [path.get("d", "") for path in marks(svg, "path", "grid")]
    vertical = [float(path[1:].split(" ")[0]) for path in paths if "V" in path]
    horizontal = [float(path[1:].split("H")[0].split(" ")[1]) for path in paths if "H" in path]
    return vertical, horizontal


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in marks(svg, "text")]


# Text


def test_hidden_characters_become_visible() -> None:
    assert escape_hidden("a\0b\x1bc\x1f\x7f") == "a␀b␛c␟␡"
    assert escape_hidden("\u202e\u200b\u2028\u2029\x85") == "\\u202e\\u200b\\u2028\\u2029\\u0085"
    assert escape_hidden("\ud800\ufffe\U0001ffff\U000e0041") == "\\ud800\\ufffe\\U0001ffff\\U000e0041"


def test_ordinary_text_of_any_script_is_unchanged() -> None:
    persian = "\u0645\u06cc\u200c\u062e\u0648"
    for text in ("▁Straße", "مرحبا", persian, "犬が", "n\u0303", "100\u00a0%", "👩\u200d🔬", ""):
        assert escape_hidden(text) == text


def test_unused_joiner_becomes_visible() -> None:
    assert escape_hidden("\u200d") == "\\u200d"
    assert escape_hidden("a\u200c") == "a\\u200c"
    assert escape_hidden("a\u200d\u200db") == "a\u200d\\u200db"


@given(st.text(st.characters(codec=None), max_size=30))
def test_escaped_text_parses_as_the_visible_text(text: str) -> None:
    content = escape_text(text)
    element = ElementTree.fromstring(f'<a b="{content}">{content}</a>')
    assert (element.text or "") == element.get("b") == escape_hidden(text)
    assert escape_hidden(escape_hidden(text)) == escape_hidden(text)


@given(st.text(max_size=60), st.floats(20, 200))
def test_truncated_text_fits_the_width(text: str, width: float) -> None:
    result = truncate_text(text, width, 10)
    if result != escape_hidden(text):
        assert result.endswith("…")
        assert escape_hidden(text).startswith(result[:-1])
    assert estimate_text_width(result, 10) <= width + 1e-9


# Axes


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (1.3, 8.9, [0, 2, 4, 6, 8, 10]), (-1, 1, [-1, -0.5, 0, 0.5, 1])],
)
def test_round_axis_ends_at_ticks(low: float, high: float, ticks: list[float]) -> None:
    axis = make_round_axis([low, high], 5)
    assert axis.ticks() == pytest.approx(ticks)
    assert (axis.low, axis.high) == pytest.approx((ticks[0], ticks[-1]))


def test_tight_axis_ends_at_values_with_integer_ticks() -> None:
    assert make_tight_axis([1, 2, 3], 6).ticks() == [1, 2, 3]
    assert make_tight_axis([1, 2, 3.5], 6).ticks() == [1, 1.5, 2, 2.5, 3, 3.5]
    assert (make_tight_axis([300, 999], 6).low, make_tight_axis([300, 999], 6).high) == (300, 999)
    assert make_tight_axis([1, 999], 6).low == 0


@given(st.lists(st.floats(-1e300, 1e300), max_size=5), st.integers(3, 8))
def test_axes_include_all_values_with_few_ticks(values: list[float], max_ticks: int) -> None:
    axis = make_round_axis(values, max_ticks)
    assert 2 <= len(axis.ticks()) <= max_ticks + 3
    for value in values:
        assert -1e-5 <= axis.transform(value, 0, 1) <= 1 + 1e-5


@pytest.mark.parametrize(
    ("values", "ticks", "labels"),
    [
        ([1.5, 40], [1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"]),
        ([3, 9000], [1, 10, 100, 1000, 10_000], ["1", "10", "100", "1000", "10k"]),
        ([0.02, 0.2], [0.02, 0.05, 0.1, 0.2], ["0.02", "0.05", "0.1", "0.2"]),
        ([1e-7, 1e5], [1e-7, 1e-4, 1e-1, 1e2, 1e5], ["1e-7", "1e-4", "0.1", "100", "100k"]),
    ],
)
def test_log_axis_ends_at_round_ticks(values: list[float], ticks: list[float], labels: list[str]) -> None:
    axis = make_log_axis(values, 5)
    assert axis is not None
    assert axis.ticks() == pytest.approx(ticks)
    assert axis.labels() == labels
    assert axis.transform(math.sqrt(ticks[0] * ticks[-1]), 0, 1) == pytest.approx(0.5)


@given(st.lists(st.floats(1e-280, 1e280), min_size=1, max_size=5))
def test_log_axes_include_all_values_with_few_ticks(values: list[float]) -> None:
    axis = make_log_axis(values, 5)
    assert (axis is None) == (max(values) < 10 * min(values))
    if axis is not None:
        assert 2 <= len(axis.ticks()) <= 8
        assert all(-1e-6 <= axis.transform(value, 0, 1) <= 1 + 1e-6 for value in values)


def test_log_axis_needs_positive_values() -> None:
    assert make_log_axis([], 5) is None
    assert make_log_axis([0, 10], 5) is None
    assert make_log_axis([-1, 10], 5) is None


@given(finite, st.floats(1e-9, 1e12))
def test_tick_labels_are_distinct_and_exact(low: float, span: float) -> None:
    axis = make_round_axis([low, low + span], 5)
    labels = format_ticks(axis.ticks(), axis.step)
    assert len(set(labels)) == len(labels)
    for tick, text in zip(axis.ticks(), labels, strict=True):
        value = float(text.replace("k", "e3").replace("M", "e6"))
        assert value == pytest.approx(tick, rel=1e-12, abs=axis.step * 1e-3)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0, 0.5, 1], ["0", "0.5", "1.0"]),
        ([0, 200, 400], ["0", "200", "400"]),
        ([0, 5000, 10000], ["0", "5k", "10k"]),
        ([0, 500_000, 1_000_000, 1_500_000], ["0", "500k", "1M", "1.5M"]),
        ([0, 2e-4, 4e-4], ["0", "2e-4", "4e-4"]),
        ([-0.02, 0, 0.02], ["-0.02", "0", "0.02"]),
    ],
)
def test_tick_labels_are_short(values: list[float], labels: list[str]) -> None:
    assert format_ticks(values, values[1] - values[0]) == labels


# Curves


def test_points_at_limits_are_at_panel_corners() -> None:
    svg = render_learning_curve(
        [Panel("loss", [Series("train", [(0, 0), (5, 5), (10, 10)])])],
        title="Loss",
        x_label="updates",
        width=600,
        panel_height=200,
    )
    vertical, horizontal = grid_lines(svg)
    left, right, bottom, top = min(vertical), max(vertical), max(horizontal), min(horizontal)
    assert (right, bottom - top) == (600 - 16, 200)
    assert drawn_lines(svg) == [[(left, bottom), ((left + right) / 2, (bottom + top) / 2), (right, top)]]
    assert dots(svg) == drawn_lines(svg)[0]


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 50)), min_size=1, max_size=50))
def test_points_are_drawn_to_scale(points: list[tuple[float, float]]) -> None:
    svg = curve(Series("train", [(0, 0), *points, (100, 50)]))
    vertical, horizontal = grid_lines(svg)
    left, right, bottom, top = min(vertical), max(vertical), max(horizontal), min(horizontal)
    for (x, y), (drawn_x, drawn_y) in zip(points, drawn_lines(svg)[0][1:-1], strict=True):
        assert (drawn_x - left) / (right - left) * 100 == pytest.approx(x, abs=0.005)
        assert (bottom - drawn_y) / (bottom - top) * 50 == pytest.approx(y, abs=0.005)


@pytest.mark.parametrize("gap", [(2.0, math.nan), (2.0, math.inf), (math.nan, 2.0), (2.0, -1e305)])
def test_non_finite_points_make_gaps(gap: tuple[float, float]) -> None:
    steps = [(float(x), float(x % 7)) for x in range(50)]
    svg = curve(Series("train", [gap, *steps[:20], gap, gap, steps[20], gap, *steps[21:]]))
    assert [len(line) for line in drawn_lines(svg)] == [20, 29]
    assert len(dots(svg)) == 1
    assert "nan" not in svg
    assert "inf" not in svg


def test_single_point_is_a_dot() -> None:
    single = curve(Series("train", [(3, 4)]))
    assert (len(dots(single)), drawn_lines(single)) == (1, [])
    empty = curve(Series("train", []), Series("dev", [(1, math.nan)]))
    assert (dots(empty), drawn_lines(empty)) == ([], [])
    assert "no points yet" in texts(empty)
    assert "no points yet" not in texts(single)


def test_panels_share_x_axis_and_colors() -> None:
    loss = Panel("loss", [Series("train", [(0, 9), (100, 1)]), Series("dev", [(0, 8), (50, 2)])])
    bleu = Panel("BLEU", [Series("dev", [(0, 0), (50, 20)])])
    svg = render_learning_curve([loss, bleu], title="Run", x_label="updates", panel_height=150)
    train, dev, dev_bleu = drawn_lines(svg)
    assert [x for x, _ in dev_bleu] == [x for x, _ in dev]
    assert train[1][0] > dev[1][0]
    assert max(y for _, y in train + dev) < min(y for _, y in dev_bleu)
    tones = {(group[0].text, group.get("class")) for group in marks(svg, "g")}
    assert tones == {("train", "tone0"), ("dev", "tone1")}
    assert texts(svg).count("updates") == texts(svg).count("100") == 1


def test_series_beyond_the_colors_have_dashes() -> None:
    svg = curve(*(Series(str(index), [(0, index), (1, index)]) for index in range(21)))
    legend = [path for path in marks(svg, "path", "line") if "h" in path.get("d", "")]
    assert len({(path.get("class"), path.get("stroke-dasharray")) for path in legend}) == 21


def test_long_legend_stays_inside_the_drawing() -> None:
    svg = curve(*(Series(f"series {index} " * 20, []) for index in range(4)))
    for text in marks(svg, "text"):
        if text.get("text-anchor") == "start":
            right = float(text.get("x", "")) + estimate_text_width(text.text or "", float(text.get("font-size", "")))
            assert right <= 720
    assert svg.count("…") == 4


@pytest.mark.parametrize("length", [1200, 1201, 50_000])
def test_downsampling_keeps_spikes_gaps_and_ends(length: int) -> None:
    points = [(float(x), math.sin(x / 1000)) for x in range(length)]
    points[777], points[901], points[length // 2] = (777.0, 99.0), (901.0, -99.0), (5.0, math.nan)
    kept = downsample(points)
    assert len(kept) <= 1202
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert (777.0, 99.0) in kept
    assert (901.0, -99.0) in kept
    assert any(math.isnan(y) for _, y in kept)


@given(st.lists(st.tuples(finite, finite), max_size=60), st.integers(1, 8))
def test_downsampled_series_is_a_subsequence(points: list[tuple[float, float]], buckets: int) -> None:
    kept = downsample(points, buckets)
    remaining = iter(points)
    assert all(point in remaining for point in kept)
    assert len(kept) <= 3 * buckets + 2
    if points:
        assert (kept[0], kept[-1]) == (points[0], points[-1])
        assert min(y for _, y in kept) == min(y for _, y in points)
        assert max(y for _, y in kept) == max(y for _, y in points)


def test_long_run_is_a_small_drawing() -> None:
    points = [(float(x), math.exp(-x / 9000) + math.sin(x * x) / 20) for x in range(60_000)]
    assert len(curve(Series("train", points)).encode()) < 30_000


def test_extreme_numbers_stay_inside_the_panel() -> None:
    for values in ([1e299, -1e299], [5e-324, 0.0], [1.0, 1.0 + 2**-52], [-3.0, -3.0]):
        svg = curve(Series("train", [(value, value) for value in values]))
        for x, y in dots(svg):
            assert 0 <= x <= 720
            assert 64 <= y <= 64 + 220


def test_markers_are_vertical_lines_and_adjacent_ones_merge() -> None:
    panels = [Panel(name, [Series("one", [(0, 1), (1000, 2)])]) for name in ("loss", "BLEU")]
    markers = [
        VerticalMarker(500, "<b>"),
        VerticalMarker(501, "second"),
        VerticalMarker(1000, "last"),
        VerticalMarker(2000, "outside"),
    ]
    drawn = marks(render_learning_curve(panels, title="t", x_label="x", markers=markers), "path", "mark")
    assert len(drawn) == 4
    assert [mark[0].text for mark in drawn] == ["<b>; second", "last"] * 2
    many = render_learning_curve(
        panels[:1], title="t", x_label="x", markers=[VerticalMarker(500, str(number)) for number in range(9)]
    )
    assert [mark[0].text for mark in marks(many, "path", "mark")] == ["0; 1; 2; 3; 4; and 4 more"]


def test_panel_options_log_scale_zero_and_range() -> None:
    points = [(10, 1), (20, 10), (30, 100)]
    plain = Panel("loss", [Series("one", points)])
    (log_line,) = drawn_lines(render_learning_curve([replace(plain, log_scale=True)], title="t", x_label="x"))
    heights = [y for _, y in log_line]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.02)
    near = replace(plain, series=[Series("one", [(10, 99), (20, 100)])])
    assert "0" not in texts(render_learning_curve([near], title="t", x_label="x"))
    assert "0" in texts(render_learning_curve([replace(near, include_zero=True)], title="t", x_label="x"))
    wide = render_learning_curve([near], title="t", x_label="x", x_range=(0, 1000))
    assert "1000" in texts(wide)


def test_series_keeps_its_color_index() -> None:
    drawing = render_learning_curve(
        [Panel("BLEU", [Series("validation", [(1, 2), (2, 3)], color_index=1)])], title="t", x_label="x"
    )
    assert [group.get("class") for group in marks(drawing, "g")] == ["tone1"]


def test_learning_curve_needs_a_panel() -> None:
    with pytest.raises(ValueError, match="needs a panel"):
        render_learning_curve([], title="Loss", x_label="updates")


# Heatmaps


def cells(svg: str) -> list[Element]:
    return [cell for cell in marks(svg, "rect", "cell") if "scale" not in cell.get("class", "")]


def heatmap(weights: list[list[float]]) -> str:
    rows, columns = [f"t{i}" for i in range(len(weights))], [f"s{j}" for j in range(len(weights[0]))]
    return render_attention_heatmap(weights, rows=rows, columns=columns, title="Head 1")


unit_rows = st.integers(1, 5).flatmap(
    lambda width: st.lists(st.lists(st.floats(0, 1), min_size=width, max_size=width), min_size=1, max_size=5)
)


@given(unit_rows)
def test_heatmap_shades_equal_weights_within_a_255th(weights: list[list[float]]) -> None:
    flat = [weight for row in weights for weight in row]
    drawn = cells(heatmap(weights))
    assert len(drawn) == len(flat)
    shades = [float(cell.get("fill-opacity", "")) for cell in drawn]
    numbers = [float((cell[0].text or "").split("weight: ")[1]) for cell in drawn]
    assert shades == pytest.approx(flat, abs=1 / 255)
    assert numbers == pytest.approx(flat, abs=1 / 255)
    by_weight = [shade for _, shade in sorted(zip(flat, shades, strict=True))]
    assert by_weight == sorted(by_weight)


def test_all_256_shades_differ() -> None:
    drawn = cells(heatmap([[level / 255 for level in range(256)]]))
    assert len({cell.get("fill-opacity") for cell in drawn}) == 256


def test_heatmap_cells_form_a_labeled_matrix() -> None:
    svg = render_attention_heatmap(
        [[0, 0.25, 1], [1, 0.5, 0]],
        rows=["▁the", "▁dog"],
        columns=["▁der", "▁Hund", "</s>"],
        title="Head 1",
    )
    corners = [(float(cell.get("x", "")), float(cell.get("y", ""))) for cell in cells(svg)]
    (left, top), side = corners[0], 28
    expected = [(left + side * column, top + side * row) for row in range(2) for column in range(3)]
    assert [part for corner in corners for part in corner] == pytest.approx([part for corner in expected for part in corner])
    assert cells(svg)[1][0].text == "target: ▁the\nsource: ▁Hund\nweight: 0.250"
    slanted = {text.text: text for text in marks(svg, "text") if "rotate(-" in text.get("transform", "")}
    assert list(slanted) == ["▁der", "▁Hund", "</s>"]
    for index, text in enumerate(slanted.values()):
        assert left + side * index < float(text.get("x", "")) < left + side * (index + 1)
    row_labels = {text.text: float(text.get("y", "")) for text in marks(svg, "text") if text.get("text-anchor") == "end"}
    assert top < row_labels["▁the"] < top + side < row_labels["▁dog"] < top + 2 * side


@pytest.mark.parametrize("size", [(1, 1), (3, 40), (40, 3), (50, 50)])
def test_heatmap_stays_inside_its_frame(size: tuple[int, int]) -> None:
    height, width = size
    svg = render_attention_heatmap(
        [[0.5] * width] * height,
        rows=["W" * 80] * height,
        columns=["犬" * 80] * width,
        title="A title " * 30,
    )
    root = ElementTree.fromstring(svg)
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"
    for cell in cells(svg):
        assert float(cell.get("x", "")) + float(cell.get("width", "")) < float(root.get("width", ""))
        assert float(cell.get("y", "")) + float(cell.get("height", "")) < float(root.get("height", ""))
    for text in marks(svg, "text"):
        x, drawn = float(text.get("x", "")), estimate_text_width(text.text or "", float(text.get("font-size", "")))
        if text.get("transform"):
            slant = math.radians(55)
            assert x + drawn * math.cos(slant) <= float(root.get("width", ""))
            assert float(text.get("y", "")) - drawn * math.sin(slant) >= 26
        elif text.get("text-anchor") == "end":
            assert x - drawn >= 0
        else:
            assert x + drawn <= float(root.get("width", ""))


def test_heatmap_of_fifty_tokens_is_small() -> None:
    weights = [[(i * j % 255) / 255 for j in range(50)] for i in range(50)]
    assert len(heatmap(weights).encode()) < 500_000


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([[1.0, 0.0]], "rows of weights: 1, row tokens: 2"),
        ([[1.0, 0.0], [1.0]], "weights in row 1: 1, column tokens: 2"),
        ([[1.0, 0.0], [1.0, 0.0, 0.0]], "weights in row 1: 3, column tokens: 2"),
        ([[1.0, 0.0], [0.0, math.nan]], "row 1, column 1: nan is not"),
        ([[1.0, 0.0], [1.1, 0.0]], "row 1, column 0: 1.1 is not"),
        ([[-0.1, 0.0], [1.0, 0.0]], "row 0, column 0: -0.1 is not"),
    ],
)
def test_heatmap_rejects_wrong_weights(weights: list[list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        render_attention_heatmap(weights, rows=["a", "b"], columns=["c", "d"], title="")


def test_weight_slightly_above_one_is_one() -> None:
    drawn = cells(heatmap([[1.0, 1.0035, -0.0035, 0.0]]))
    assert [cell.get("fill-opacity") for cell in drawn] == ["1", "1", "0", "0"]


def test_empty_matrix_is_an_empty_drawing() -> None:
    assert cells(render_attention_heatmap([], rows=[], columns=[], title="Nothing")) == []


# Hostile text in drawings


def hostile_drawings() -> Iterator[str]:
    yield render_attention_heatmap(
        [[0.5] * len(HOSTILE)] * len(HOSTILE),
        rows=HOSTILE,
        columns=HOSTILE,
        title=HOSTILE[0],
        row_label=HOSTILE[1],
        column_label=HOSTILE[2],
    )
    for text in HOSTILE:
        series = Series(text, [(0, 1), (1, 2)])
        yield render_learning_curve([Panel(text, [series])], title=text, x_label=text)


def test_hostile_text_in_drawings_is_escaped() -> None:
    for svg in hostile_drawings():
        root = ElementTree.fromstring(svg)
        drawing = {"svg", "title", "desc", "style", "rect", "path", "g", "circle", "text"}
        assert {element.tag.removeprefix(SVG) for element in root.iter()} <= drawing
        names = {name for element in root.iter() for name in element.keys()}  # noqa: SIM118
        assert not {name for name in names if name.startswith("on") or name in {"href", "src", "id", "style"}}
        assert all(character.isprintable() or character == "\n" for character in svg)
        svg.encode("utf-8")


def test_hostile_token_is_complete_in_its_tooltip() -> None:
    for row, token in enumerate(HOSTILE):
        svg = render_attention_heatmap([[1.0]] * len(HOSTILE), rows=HOSTILE, columns=["a"], title="")
        assert cells(svg)[row][0].text == f"target: {escape_hidden(token)}\nsource: a\nweight: 1.000"


def test_drawings_have_title_and_description() -> None:
    for svg in (curve(Series("train", [(0, 9), (50, math.nan), (100, 1.25)])), heatmap([[1.0]])):
        root = ElementTree.fromstring(svg)
        assert root.get("role") == "img"
        assert [child.tag for child in root[:2]] == [SVG + "title", SVG + "desc"]
        assert root[0].text in {"Loss", "Head 1"}
    described = ElementTree.fromstring(curve(Series("train", [(0, 9), (50, math.nan), (100, 1.25)])))[1].text
    assert described == "loss: train, 2 points, 9 at 0 to 1.25 at 100, lowest 1.25, highest 9."


def test_style_rules_are_scoped_to_their_class() -> None:
    styles: dict[str, set[str]] = {}
    for svg in (*hostile_drawings(), heatmap([[1.0]]), curve()):
        kind = ElementTree.fromstring(svg).get("class", "")
        style = marks(svg, "style")[0].text or ""
        assert "prefers-color-scheme:dark" in style
        selectors = re.findall(r"^([^{}@\n]+)\{", style, re.MULTILINE)
        assert len(selectors) > 10
        assert all(selector.startswith(f".{kind} ") for selector in selectors)
        styles.setdefault(kind, set()).add(style)
    assert {kind: len(kind_styles) for kind, kind_styles in styles.items()} == {"dragoman-heatmap": 1, "dragoman-curve": 1}


# Pages


class PageReader(HTMLParser):
    """Parser that collects the tags with their attributes, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def having(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def hostile_page() -> str:
    return render_report(
        HOSTILE[0],
        facts=[(text, text) for text in HOSTILE],
        figures=[(text, svg) for text, svg in zip(HOSTILE, hostile_drawings(), strict=False)],
        tables=[ReportTable(text, HOSTILE, [HOSTILE]) for text in HOSTILE],
        notes=HOSTILE,
    )


def test_page_loads_and_runs_nothing() -> None:
    page = hostile_page()
    reader = PageReader(page)
    assert not {"script", "link", "img", "image", "iframe", "object", "embed", "a", "form", "b"} & {
        tag for tag, _ in reader.tags
    }
    for tag, attributes in reader.tags:
        for name, value in attributes.items():
            assert name not in {"src", "href", "xlink:href", "srcset", "action", "data", "background", "poster", "id"}
            assert not name.startswith("on")
            assert tag == "svg" or "http:" not in (value or "") or name == "aria-label"
    for style in re.findall("<style>(.*?)</style>", page, re.DOTALL):
        assert "url(" not in style
        assert "@import" not in style


def test_security_policy_comes_first() -> None:
    tags = PageReader(render_report("Report")).tags
    assert [tag for tag, _ in tags[:5]] == ["html", "head", "meta", "meta", "meta"]
    assert tags[3][1]["http-equiv"] == "Content-Security-Policy"
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    assert tags[3][1]["content"] == policy
    assert tags[4][1]["name"] == "viewport"


def test_hostile_text_in_a_page_is_escaped() -> None:
    text = "".join(PageReader(hostile_page()).text)
    for token in HOSTILE:
        for line in token.split("\n"):
            assert text.count(escape_hidden(line)) >= 4
    assert all(character.isprintable() or character == "\n" for character in hostile_page())


def test_page_holds_its_content_in_order() -> None:
    drawing = curve(Series("train", [(0, 1), (1, 2)]))
    page = render_report(
        "Report",
        facts=[("BLEU", "27.3")],
        figures=[("Loss", drawing), ("Loss again", drawing)],
        tables=[ReportTable("Scores", ["system", "BLEU"], [["ours", "27.3"]])],
        notes=["First\nsecond"],
    )
    assert page.count(drawing) == 2
    pieces = ["<h1", "<dt>BLEU</dt>", ">27.3</dd>", drawing, ">Loss</figcaption>", ">Loss again</figcaption>"]
    pieces += [">Scores</caption>", ">ours</td>", "First<br>second"]
    offsets = [page.index(piece) for piece in pieces]
    assert offsets == sorted(offsets)


def test_figure_shrinks_to_two_thirds_at_most() -> None:
    page = render_report("Report", figures=[("Loss", curve())])
    assert '<div style="min-width:480px">' in page


def test_columns_of_numbers_are_aligned_right() -> None:
    first = ["base", "27.3", "12,000", "1e-4", "28.1 ± 0.4", "3 %", "−2", "12 min"]
    rows = [first, ["big", "—", "7", "2", "3", "4", "5", "6"]]
    page = render_report("Report", tables=[ReportTable("Scores", list("abcdefgh"), rows)])
    kinds = [attributes.get("class") for attributes in PageReader(page).having("td")]
    assert kinds == [None, *["number"] * 6, None] * 2
    assert [attributes.get("class") for attributes in PageReader(page).having("th")] == kinds[:8]


def test_table_rejects_rows_of_different_lengths() -> None:
    with pytest.raises(ValueError, match="row 1 of 'Scores': has 1 cells for 2 columns"):
        render_report("Report", tables=[ReportTable("Scores", ["a", "b"], [["1", "2"], ["1"]])])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<script>alert(1)</script>", "not hold <script>"),
        ("<foreignObject/>", "not hold <foreignObject>"),
        ('<rect onload="x()"/>', "onload"),
        ('<rect ONLOAD="x()"/>', "ONLOAD"),
        ('<rect fill="url(http://example.com/a)"/>', "fill"),
        ('<text xmlns:l="http://www.w3.org/1999/xlink" l:href="x"/>', "href"),
        ("<style>@import 'x'</style>", "not load files"),
        ("<style>text{fill:url(x)}</style>", "not load files"),
        ("<!-- x -->", "without a declaration"),
        ("<rect>", "must be an SVG"),
    ],
)
def test_figure_with_active_content_is_rejected(content: str, message: str) -> None:
    frame = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9">{}</svg>'
    render_report("Report", figures=[("fine", frame.format('<rect width="9"/>'))])
    with pytest.raises(ValueError, match=message):
        render_report("Report", figures=[("bad", frame.format(content))])


@pytest.mark.parametrize("svg", ["", "text", "<b width='1'/>", '<svg xmlns="http://www.w3.org/2000/svg"/>'])
def test_figure_must_be_an_svg(svg: str) -> None:
    with pytest.raises(ValueError, match="a figure must be"):
        render_report("Report", figures=[("bad", svg)])


def test_output_is_equal_in_every_process() -> None:
    code = (
        "import sys; from dragoman.viz import *; "
        "print(render_learning_curve([Panel('l', [Series(n, [(0, 1), (1, 2)]) for n in 'abc'])], title='t', x_label='x')"
        "+ render_attention_heatmap([[0.5]], rows=['a'], columns=['b'], title='t')); "
        "assert not {'torch', 'numpy', 'matplotlib'} & set(sys.modules)"
    )
    outputs = set()
    for seed in ("1", "2"):
        environment = {"PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"}
        command = [sys.executable, "-c", code]
        outputs.add(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert len(outputs) == 1


def test_bar_chart_needs_a_bar() -> None:
    with pytest.raises(ValueError, match="needs a bar"):
        render_bar_chart([BarGroup("none", [])], title="t", x_label="x")
