"""Views of an explanation: the attention page, figures and images. Text stays inert, and pixels are the attention weights."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import zlib

import numpy as np
import pytest

from attention_page_reader import Page, vectors_of
from dragoman.viz.attention_page import MAX_OPTIONAL_PAGE_BYTES, MAX_TOKENS, embed_in_iframe, render_attention_page
from dragoman.viz.explanation import (
    ATTENTION_KINDS,
    AttentionKind,
    Explanation,
    merge_weights,
)
from dragoman.viz.explanation_figures import list_figure_names, render_figures
from dragoman.viz.html_report import parse_drawing_width
from dragoman.viz.png import encode_palette_png, interpolate_colors
from random_explanations import HOSTILE, random_explanation


@pytest.fixture(scope="module")
def small() -> Explanation:
    return random_explanation(source_length=6, output_length=5, layers=2, heads=3)


def test_word_weights_sum_keys_and_average_queries() -> None:
    weights = np.array([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [1.0, 0.0, 0.0]], dtype=np.float32)
    merged = merge_weights(weights, [0, 0, 1], [0, 0, 1])
    assert np.array(merged) == pytest.approx(np.array([[0.45, 0.55], [1.0, 0.0]]))


# PNG images


def pixels(png: bytes) -> list[bytes]:
    """Return the rows of an unfiltered PNG by the format's specification: a filter byte precedes each row."""
    width, height = (int.from_bytes(png[position : position + 4], "big") for position in (16, 20))
    position, packed = 8, b""
    while position < len(png):
        length, kind = int.from_bytes(png[position : position + 4], "big"), png[position + 4 : position + 8]
        assert zlib.crc32(png[position + 4 : position + 8 + length]) == int.from_bytes(
            png[position + 8 + length : position + 12 + length], "big"
        )
        packed += png[position + 8 : position + 8 + length] if kind == b"IDAT" else b""
        position += length + 12
    plain = zlib.decompress(packed)
    assert len(plain) == (width + 1) * height
    rows = [plain[(width + 1) * row : (width + 1) * (row + 1)] for row in range(height)]
    assert {row[0] for row in rows} == {0}
    return [row[1:] for row in rows]


def test_png_has_the_colors_of_the_palette() -> None:
    image = pytest.importorskip("PIL.Image", reason="needs Pillow, which reads PNG on its own")
    palette = interpolate_colors((255, 255, 255), (8, 69, 148))
    rows = [bytes([0, 128, 255]), bytes([1, 2, 254])]
    read = image.open(io.BytesIO(encode_palette_png(rows, palette))).convert("RGB")
    assert [[read.getpixel((x, y)) for x in range(3)] for y in range(2)] == [[palette[index] for index in row] for row in rows]
    assert (palette[0], palette[255]) == ((255, 255, 255), (8, 69, 148))


# The page as a file


def csp_hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


@pytest.fixture(scope="module")
def hostile() -> Page:
    return Page(
        render_attention_page(
            random_explanation(source_length=len(HOSTILE), output_length=len(HOSTILE), layers=1, heads=2, tokens=HOSTILE)
        )
    )


def test_policy_allows_only_hashed_scripts_and_styles(small: Explanation) -> None:
    page = Page(render_attention_page(small))
    policy = next(attributes["content"] for tag, attributes in page.tags if attributes.get("http-equiv")) or ""
    allowed = dict(part.split(" ", 1) for part in policy.split("; "))
    assert allowed["default-src"] == "'none'"
    assert allowed["img-src"] == "data:"
    styles = {csp_hash(text) for tag, _, text in page.raw if tag == "style"}
    scripts = {csp_hash(text) for tag, attributes, text in page.raw if tag == "script" and not attributes.get("type")}
    assert set(allowed["style-src"].split()) == styles
    assert set(allowed["script-src"].split()) == scripts
    assert len(scripts) == 1


def test_page_has_no_external_urls(small: Explanation) -> None:
    page = render_attention_page(small)
    assert set(re.findall(r"\w+://[^\s\"'<>]+", page)) == {"http://www.w3.org/2000/svg"}
    names = {(tag, name) for tag, attributes in Page(page).tags for name in attributes}
    assert {(tag, name) for tag, name in names if name in ("src", "href", "srcset", "action", "style")} == {("img", "src")}


def test_hostile_tokens_stay_text(hostile: Page) -> None:
    plain = {
        tag
        for tag, _ in Page(render_attention_page(random_explanation(source_length=3, output_length=3, layers=1, heads=2))).tags
    }
    assert {tag for tag, _ in hostile.tags} <= plain
    assert not [name for _, attributes in hostile.tags for name in attributes if name.startswith("on")]
    assert sum(tag == "script" for tag, _ in hostile.tags) == 3
    assert "<script>alert" in hostile.text
    whole = json.dumps(hostile.data(), ensure_ascii=False) + hostile.text
    assert not re.search("[\u202a-\u202e\u2066-\u2069\0]", whole)
    assert "\\u202e" in whole


def test_pixels_are_the_attention_weights(small: Explanation) -> None:
    page = Page(render_attention_page(small))
    kinds: tuple[AttentionKind, ...] = ("cross", "encoder", "decoder")
    for kind, png in zip(kinds, page.images(), strict=True):
        heads, gap = small.heads(kind), page.data()["kinds"][kind]["gap"]
        layers, count, rows, columns = heads.shape
        mosaic = pixels(png)
        assert len(mosaic) == layers * (rows + gap) - gap
        for layer in range(layers):
            for head in range(count):
                shown = [list(mosaic[layer * (rows + gap) + row][head * (columns + gap) :][:columns]) for row in range(rows)]
                assert np.abs(np.array(shown) / 255 - heads.weights_LHTS[layer, head]).max() <= 0.5 / 255 + 1e-6


def test_page_has_vectors_in_16_bits(small: Explanation) -> None:
    page = Page(render_attention_page(small))
    assert len(page.data()["vectors"]) == 3 * 2 * 3
    for kind in ATTENTION_KINDS:
        heads = small.heads(kind)
        query, key, value = vectors_of(page, heads, f"{kind}.1.2")
        for stored, whole in ((query, heads.query_LHTK), (key, heads.key_LHSK), (value, heads.value_LHSU)):
            assert np.abs(stored - whole[1, 2]).max() <= np.abs(whole[1, 2]).max() / 65_534 * 1.01


def test_largest_page_is_below_the_limit() -> None:
    """50 × 50 tokens, 6 layers of 8 heads of width 64; random weights compress worse than those of any model."""
    explanation = random_explanation(source_length=50, output_length=50, layers=6, heads=8, width=64, beam=4)
    page = render_attention_page(explanation)
    assert len(page.encode()) <= 500_000 == MAX_OPTIONAL_PAGE_BYTES
    vectors = Page(page).data()["vectors"]
    assert 0 < len(vectors) < 3 * 6 * 8
    included: tuple[AttentionKind, int, int] = ("encoder", 0, 0)
    assert "encoder.0.0" not in vectors
    assert "encoder.0.0" in Page(render_attention_page(explanation, include_heads=(included,))).data()["vectors"]


def test_notebook_frame_is_sandboxed(small: Explanation) -> None:
    page = render_attention_page(small)
    ((tag, attributes),) = Page(embed_in_iframe(page)).tags
    assert (tag, attributes["sandbox"], attributes["srcdoc"]) == ("iframe", "allow-scripts", page)


def test_page_rejects_wrong_sizes(small: Explanation) -> None:
    with pytest.raises(ValueError, match="cross weights: have shape"):
        render_attention_page(Explanation(**{**vars(small), "cross": small.encoder}))
    with pytest.raises(ValueError, match=f"a page holds {MAX_TOKENS}"):
        render_attention_page(random_explanation(source_length=MAX_TOKENS + 1, output_length=2, layers=1, heads=1, width=1))


# Figures


def test_each_figure_is_an_svg(small: Explanation) -> None:
    figures = render_figures(small)
    assert list(figures) == list_figure_names()
    for svg in figures.values():
        assert 100 < parse_drawing_width(svg) < 2000


def test_line_connects_tokens_with_weight_as_opacity() -> None:
    explanation = random_explanation(source_length=3, output_length=2, layers=1, heads=1)
    explanation.cross.weights_LHTS[0, 0] = [[0.0, 1.0, 0.0], [0.0, 0.0, 0.26]]
    svg = render_figures(explanation)["lines-cross"]
    y = {side: [float(number) for number in re.findall(rf'class="ink {side}" x="[\d.]+" y="([\d.]+)"', svg)] for side in "qk"}
    lines = re.findall(r'class="line h0" stroke-opacity="([\d.]+)" d="M[\d.]+ ([\d.]+)L[\d.]+ ([\d.]+)"', svg)
    drawn_lines = sorted((float(opacity), float(start) + 4.5, float(end) + 4.5) for opacity, start, end in lines)
    assert drawn_lines == [(0.38, y["q"][1], y["k"][2]), (1.0, y["q"][0], y["k"][1])]  # 0.26 in steps of an eighth: 3/8
