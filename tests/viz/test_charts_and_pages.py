"""Tests of charts and pages: positions of marks, escaped text, and pages that load nothing."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.viz.attention_svg import render_matrix
from dragoman.viz.charts import (
    Bar,
    BarGroup,
    Panel,
    Series,
    VerticalMarker,
    render_bar_chart,
    render_learning_curve,
)
from dragoman.viz.html_report import ReportTable, render_figure, render_report
from dragoman.viz.run_page import MetricTile, PageState, SentenceHistory, render_run_page
from dragoman.viz.svg import escape_hidden, escape_text, estimate_text_width, truncate_text
from expected_errors import raises_code

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


def marks(svg: str, tag: str, kind: str = "") -> list[Element]:
    """Return the elements with this tag and class, in order."""
    root = ElementTree.fromstring(svg)
    return [element for element in root.iter(SVG + tag) if not kind or kind in element.get("class", "").split()]


def curve(*series: Series) -> str:
    return render_learning_curve([Panel("loss", series)], title="Loss", x_label="updates")


def groups(svg: str, kind: str) -> list[Element]:
    """Return the lines, marks or bars of all panels."""
    return marks(svg, "g", kind)


def segments(group: Element) -> list[list[tuple[float, float]]]:
    """Return the points of each part of the paths, which have the form `M 1 2 L 3 4 L 5 6 z`, without the dots."""
    outlines = [path.get("d", "") for path in group.iter(SVG + "path") if not path.get("transform")]
    parts = [part for outline in outlines for part in re.sub("[Lz]", " ", outline).split("M") if part.strip()]
    numbers = [list(map(float, part.split())) for part in parts]
    return [list(zip(values[::2], values[1::2], strict=True)) for values in numbers]


def dots(group: Element) -> list[tuple[float, float]]:
    transforms = [path.get("transform", "") for path in group.iter(SVG + "path")]
    positions = [transform.removeprefix("translate(").rstrip(")").split() for transform in transforms if transform]
    return [(float(x), float(y)) for x, y in positions]


def tooltips(group: Element) -> list[str]:
    return [title.text or "" for title in group.iter(SVG + "title")]


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


# Curves


def test_each_series_is_a_line_that_reaches_the_extent() -> None:
    loss = Panel("loss", [Series("train", [(0, 0), (5, 5), (10, 10)]), Series("dev", [(0, 9), (5, 2)])])
    bleu = Panel("BLEU", [Series("dev", [(0, 1), (10, 20)])])
    svg = render_learning_curve([loss, bleu], title="Run", x_label="updates", width=600)
    train, dev, dev_bleu = (points for (points,) in map(segments, groups(svg, "line")))
    assert [len(train), len(dev), len(dev_bleu)] == [3, 2, 2]
    (left, bottom), middle, (right, top) = train
    assert middle == pytest.approx(((left + right) / 2, (bottom + top) / 2), abs=0.02)
    assert left < 60
    assert right > 600 - 20
    assert bottom - top > 100
    assert dev[0][0] == dev_bleu[0][0] == left
    assert dev_bleu[1][0] == right
    assert bottom < dev_bleu[1][1]
    assert {"Run", "loss", "BLEU", "updates"} <= set(texts(svg))
    assert texts(svg).count("train") == 1
    assert texts(svg).count("updates") == 1


@pytest.mark.parametrize("gap", [(2.0, math.nan), (2.0, math.inf), (math.nan, 2.0), (2.0, -1e305)])
def test_non_finite_points_make_gaps(gap: tuple[float, float]) -> None:
    steps = [(float(x), float(x % 7)) for x in range(50)]
    svg = curve(Series("train", [gap, *steps[:20], gap, gap, steps[20], gap, *steps[21:]]))
    (group,) = groups(svg, "line")
    assert [len(points) for points in segments(group) if len(points) > 1] == [20, 29]
    assert len(dots(group)) == 1
    assert not re.search(r"\b(nan|inf)\b", svg)


@pytest.mark.parametrize(("highest", "is_log"), [(9.9, False), (100.0, True), (100_000.0, True)])
def test_log_scale_needs_a_factor_of_ten(highest: float, is_log: bool) -> None:
    points = [(0, 1.0), (1, math.sqrt(highest)), (2, highest)]
    svg = render_learning_curve([Panel("loss", [Series("one", points)], log_scale=True)], title="t", x_label="x")
    (((_, low), (_, middle), (_, high)),) = segments(groups(svg, "line")[0])
    assert (middle == pytest.approx((low + high) / 2, abs=0.05)) == is_log
    assert ("100" in texts(svg)) == is_log


@pytest.mark.slow
def test_markers_are_vertical_lines_and_adjacent_ones_merge() -> None:
    panels = [Panel(name, [Series("one", [(0, 1), (1000, 2)])]) for name in ("loss", "BLEU")]
    events = [(500, "<b>"), (501, "second"), (1000, "last"), (2000, "outside")]
    markers = [VerticalMarker(x, text) for x, text in events]
    drawn = groups(render_learning_curve(panels, title="t", x_label="x", markers=markers), "mark")
    assert [tooltips(mark) for mark in drawn] == [["<b>; second"], ["last"]] * 2
    crowd = [VerticalMarker(500, str(number)) for number in range(9)]
    (mark,) = groups(render_learning_curve(panels[:1], title="t", x_label="x", markers=crowd), "mark")
    assert tooltips(mark) == ["0; 1; 2; 3; 4; and 4 more"]


@pytest.mark.slow
def test_extreme_numbers_stay_inside_the_panel() -> None:
    for values in ([1e269, -1e269], [5e-324, 0.0], [5e-324, 1.0], [1.0, 1.0 + 2**-52], [-3.0, -3.0], [1e-269, 1e269]):
        panel = Panel("loss", [Series("train", [(value, value) for value in values])], log_scale=True)
        svg = render_learning_curve([panel], title="Loss", x_label="updates")
        for x, y in dots(groups(svg, "line")[0]):
            assert 0 <= x <= 720
            assert 0 <= y <= 300


# Bars


def test_bars_are_to_scale_with_names_and_values() -> None:
    bars = [
        BarGroup("printed", [Bar("first", 80.0), Bar("second", 40.0)]),
        BarGroup("results", [Bar("third", 20.0, "(own)")], True),
    ]
    svg = render_bar_chart(bars, title="Table 4", x_label="F1")
    lengths = [abs(points[1][0] - points[0][0]) for group in groups(svg, "bar") for points in segments(group)]
    assert lengths[1:] == pytest.approx([lengths[0] / 2, lengths[0] / 4], abs=0.05)
    assert {"Table 4", "F1", "first", "second", "third", "80.00", "40.00", "20.00 (own)"} <= set(texts(svg))
    assert "#0072b2" in groups(svg, "bar")[2][0].get("style", "")


# Matrices


def test_cells_of_a_matrix_have_their_weights() -> None:
    rows, columns = ["▁the", "▁dog"], ["▁der", "▁Hund", "</s>"]
    weights = [[0, 0.25, 1.0035], [1, 0.5, 0]]  # a sum in bfloat16 may be above 1
    svg = render_matrix(weights, rows, columns, title="Head 1", subtitle="s", description="d", tooltips=True)
    cells = marks(svg, "path", "cell")
    assert [float(cell.get("fill-opacity", "")) for cell in cells] == [0, 0.25, 1, 1, 0.5, 0]
    corners = [tuple(map(float, cell.get("d", "").lstrip("M").partition("h")[0].split())) for cell in cells]
    (left, top), side = corners[0], 42
    assert corners == [(left + side * column, top + side * row) for row in range(2) for column in range(3)]
    assert tooltips(cells[1]) == ["▁the: ▁Hund 0.250"]
    assert {"Head 1", *rows, *columns} <= set(texts(svg))


# All charts


def hostile_drawings() -> Iterator[str]:
    rows = [[0.5] * len(HOSTILE)] * len(HOSTILE)
    yield render_matrix(rows, HOSTILE, HOSTILE, title=HOSTILE[0], subtitle=HOSTILE[1], description=HOSTILE[2], tooltips=True)
    for text in HOSTILE:
        series = Series(text, [(0, 1), (1, 2)])
        yield render_learning_curve([Panel(text, [series])], title=text, x_label=text)
    yield render_bar_chart([BarGroup(text, [Bar(text, 1.0, text)]) for text in HOSTILE], title=HOSTILE[2], x_label=HOSTILE[2])


@pytest.mark.slow
def test_hostile_text_in_drawings_is_escaped() -> None:
    for svg in hostile_drawings():
        root = ElementTree.fromstring(svg)
        tags = {element.tag.removeprefix(SVG) for element in root.iter()}
        assert tags <= {"svg", "style", "title", "desc", "path", "g", "rect", "text"}
        names = {name for element in root.iter() for name in element.keys()}  # noqa: SIM118
        assert not {name for name in names if name.startswith("on") or name in {"href", "src", "id", "clip-path"}}
        assert "url(" not in svg.replace(HOSTILE[1], "")
        assert all(character.isprintable() or character == "\n" for character in svg)
        svg.encode("utf-8")


@pytest.mark.slow
def test_text_is_drawn_as_it_is() -> None:
    for text in ("$x^2$", "_underscore", "a & b", "50 %"):
        assert texts(curve(Series(text, [(0, 1)]))).count(text) == 1


@pytest.mark.slow
def test_drawings_have_title_and_description() -> None:
    svg = curve(Series("train", [(0, 9), (50, math.nan), (100, 1.25)]))
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    assert [child.tag for child in root[:2]] == [SVG + "title", SVG + "desc"]
    assert root[0].text == "Loss"
    assert root[1].text == "loss: train, 2 points, 9 at 0 to 1.25 at 100, lowest 1.25, highest 9."


def test_missing_matplotlib_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    names = ("matplotlib", "pip install 'dragoman[plots]'")
    with raises_code("missing-dependency", *names):
        curve(Series("train", [(0, 1)]))
    with raises_code("missing-dependency", *names):
        render_bar_chart([BarGroup("a", [Bar("b", 1.0)])], title="t", x_label="x")


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
    return render_run_page(
        HOSTILE[0],
        PageState("running", HOSTILE[0], 0.5),
        tiles=[MetricTile(text, text, text) for text in HOSTILE],
        figures=[(text, svg) for text, svg in zip(HOSTILE, hostile_drawings(), strict=False)],
        sentences=[SentenceHistory(text, text, [(text, text)]) for text in HOSTILE],
        diagnoses=[(text, text) for text in HOSTILE],
        tables=[ReportTable(text, HOSTILE, [HOSTILE]) for text in HOSTILE],
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


@pytest.mark.slow
def test_hostile_text_in_a_page_is_escaped() -> None:
    text = "".join(PageReader(hostile_page()).text)
    for token in HOSTILE:
        for line in token.split("\n"):
            assert text.count(escape_hidden(line)) >= 4
    assert all(character.isprintable() or character == "\n" for character in hostile_page())


def test_table_rejects_rows_of_different_lengths() -> None:
    with pytest.raises(ValueError, match="row 1 of 'Scores': has 1 cells for 2 columns"):
        render_report("Report", tables=[ReportTable("Scores", ["a", "b"], [["1", "2"], ["1"]])])


def test_figure_with_active_content_is_rejected(subtests: pytest.Subtests) -> None:
    for content, message in [
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
    ]:
        with subtests.test(content=content, message=message):
            frame = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9">{}</svg>'
            render_figure("fine", frame.format('<rect width="9"/>'))
            with pytest.raises(ValueError, match=message):
                render_figure("bad", frame.format(content))


@pytest.mark.parametrize("svg", ["", "text", "<b width='1'/>", '<svg xmlns="http://www.w3.org/2000/svg"/>'])
def test_figure_must_be_an_svg(svg: str) -> None:
    with pytest.raises(ValueError, match="a figure must be"):
        render_figure("bad", svg)
