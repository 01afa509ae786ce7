"""Explanations and the attention page: numbers are the model's, text stays inert, and translations do not change."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import io
import json
import pickle
import re
import sys
import zlib
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from dragoman import Translator, load
from dragoman.bundle import Bundle, BundleMetadata, load_bundle
from dragoman.cli.main import cli
from dragoman.config import update_section
from dragoman.data.tokenization.sentencepiece import Vocabulary
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.data.tokenization.tokenizer import PairTokenizer
from dragoman.errors import DataError, DragomanError, MissingDependencyError, OutputError, RecipeError
from dragoman.inference.explain.search_trace import trace_search
from dragoman.inference.explain.translation import explain
from dragoman.inference.translation import Translation
from dragoman.model.factory import build_model
from dragoman.tasks.attention_alignment import AlignmentHead
from dragoman.tasks.generation import compute_cross_attention
from dragoman.tasks.inference_model import get_decoder_start_id
from dragoman.viz import figures as figures_module
from dragoman.viz.attention_page import MAX_OPTIONAL_PAGE_BYTES, MAX_TOKENS, embed_in_iframe, render_attention_page
from dragoman.viz.attention_svg import DARK_HEAD_COLORS, HEAD_COLORS, render_word_matrix
from dragoman.viz.explanation import (
    ATTENTION_KINDS,
    AttentionHeads,
    AttentionKind,
    Explanation,
    HeadSelection,
    merge_tokens,
    merge_weights,
)
from dragoman.viz.figures import list_figure_names, render_figures, svg_to_png
from dragoman.viz.html_report import parse_drawing_width
from dragoman.viz.png import encode_palette_png, interpolate_colors
from dragoman.viz.svg import DARK, LIGHT
from random_explanations import HOSTILE, random_explanation

pytestmark = pytest.mark.usefixtures("one_core")


@pytest.fixture(scope="module")
def translator(bundle: Path) -> Translator:
    return load(bundle, task="translation", device="cpu", precision="float32")


@pytest.fixture(scope="module")
def small() -> Explanation:
    return random_explanation(source_length=6, output_length=5, layers=2, heads=3)


# Words


def test_spaces_separate_words(translator: Translator) -> None:
    explanation = explain(translator, "three red", target="drei rot")
    assert merge_tokens(explanation.source_tokens, explanation.source_word_ids) == ["three", "red", "</s>"]
    assert merge_tokens(explanation.output_tokens, explanation.output_word_ids) == ["drei", "rot", "</s>"]


def test_byte_tokens_become_characters() -> None:
    tokens = ["▁", "<0xE4>", "<0xBD>", "<0xA0>", "x", "▁<0x41>"]  # the last is no byte, but text that looks like one
    assert merge_tokens(tokens, [0, 0, 0, 0, 0, 1]) == ["你x", "<0x41>"]


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


class Page(HTMLParser):
    """Parser of tags, attributes, and the text of styles and scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[str, dict[str, str | None], str]] = []
        self.text = ""
        self.is_raw = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.is_raw = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self.is_raw = False

    def handle_data(self, data: str) -> None:
        if self.is_raw:
            self.raw.append((*self.tags[-1], data))
        else:
            self.text += data

    def images(self) -> list[bytes]:
        return [base64.b64decode((attributes["src"] or "").split(",")[1]) for tag, attributes in self.tags if tag == "img"]

    def data(self) -> Any:
        return next(json.loads(text) for _, attributes, text in self.raw if attributes.get("id") == "data")

    def vectors(self) -> bytes:
        return base64.b64decode(next((text for _, attributes, text in self.raw if attributes.get("id") == "vectors"), ""))


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


def vectors_of(page: Page, heads: AttentionHeads, name: str) -> list[Any]:
    """Return query, key and value of a head from the page: three scales, then 16-bit numbers."""
    start, packed = page.data()["vectors"][name], page.vectors()
    scales = np.frombuffer(packed, "<f4", 3, start)
    position, vectors = start + 12, []
    for scale, whole in zip(scales, (heads.query_LHTK, heads.key_LHSK, heads.value_LHSU), strict=True):
        rows, width = whole.shape[2:]
        vectors.append(np.frombuffer(packed, "<i2", rows * width, position).reshape(rows, width) * scale)
        position += 2 * rows * width
    return vectors


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


def test_page_is_readable_without_script(small: Explanation) -> None:
    page = Page(render_attention_page(small))
    assert sum(tag == "svg" for tag, _ in page.tags) == 3 + 1 + 1 + 1  # lines of each kind, words, the beam, one head
    for token in (*small.source_tokens, *small.output_tokens):
        assert token.removeprefix("▁") in page.text
    assert page.text.count("%") >= sum(len(choice.candidates) for choice in small.predictions)


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


def test_word_matrix_has_sixteen_shades() -> None:
    explanation = random_explanation(source_length=2, output_length=2, layers=1, heads=1)
    explanation.cross.weights_LHTS[0, 0] = [[0.75, 0.25], [0.0, 1.0]]
    assert re.findall(r'class="cell" fill-opacity="([\d.]+)"', render_word_matrix(explanation)) == ["0.25", "0.75", "1"]


def test_svg_to_png_scales(small: Explanation) -> None:
    pytest.importorskip("resvg_py", reason="needs resvg-py (the png extra)")
    svg = render_figures(small)["words"]
    png = svg_to_png(svg, scale=2)
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(png[16:20], "big") == pytest.approx(2 * parse_drawing_width(svg), abs=2)


# Simulation of colour blindness in linear sRGB: Machado, Oliveira and Fernandes (2009), severity 1.
VISION_MATRICES = {
    "all cones": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]),
    "tritanopia": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]]),
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(hue: str) -> Any:
    """Return the linear sRGB value of a colour (IEC 61966-2-1)."""
    value = np.array([int(hue[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(rgb: Any) -> Any:
    """Return the CIELAB value under daylight (CIE 15)."""
    share = XYZ @ np.clip(rgb, 0, 1) / (XYZ @ np.ones(3))
    x, y, z = np.where(share > (6 / 29) ** 3, np.cbrt(share), share / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize(("hues", "paper"), [(HEAD_COLORS, LIGHT.paper), (DARK_HEAD_COLORS, DARK.paper)], ids=["light", "dark"])
def test_head_colors_differ_for_color_blind_readers(hues: Sequence[str], paper: str) -> None:
    """A difference of 2.3 is just visible; WCAG 2 requires a contrast of 3 for graphics (1.4.11)."""
    for matrix in VISION_MATRICES.values():
        colors = [lab(matrix @ linear(hue)) for hue in hues]
        assert min(np.linalg.norm(color - other) for index, color in enumerate(colors) for other in colors[:index]) > 15
    luminances = [float((XYZ @ linear(hue))[1]) + 0.05 for hue in (paper, *hues)]
    assert min(max(luminances[0], value) / min(luminances[0], value) for value in luminances[1:]) >= 3


# The model's numbers


def test_explain_does_not_change_translations(translator: Translator) -> None:
    before = translator.translate(["three red five"], nbest=4)
    explanation = explain(translator, "three red five")
    assert translator.translate(["three red five"], nbest=4) == before
    assert (explanation.target, explanation.output_tokens[:-1]) == (before[0].text, before[0].tokens)


def test_explained_weights_equal_cross_attention(translator: Translator) -> None:
    explanation = explain(translator, "three red five")
    source = translator.bundle.tokenizer.encode_source("three red five")
    ids = ids_of(translator.bundle.tokenizer.target, explanation.output_tokens[:-1])
    cross = compute_cross_attention(
        translator.bundle.model, source, ids, start_id=get_decoder_start_id(translator.recipe.model)
    )
    assert torch.equal(torch.from_numpy(explanation.cross.weights_LHTS), cross)


def ids_of(subword: Vocabulary, pieces: Sequence[str]) -> list[int]:
    all_pieces = subword.ids_to_pieces(range(len(subword)))
    return [all_pieces.index(piece) for piece in pieces]


def test_alignment_head_is_selected_first(bundle: Path) -> None:
    named = load(bundle, task="translation", device="cpu")
    metadata = dataclasses.replace(named.metadata, alignment=AlignmentHead(layer=0, head=1, error_rate=0.25))
    named.bundle = dataclasses.replace(named.bundle, metadata=metadata)
    assert explain(named, "three red").selections["cross"] == HeadSelection(0, (1,))
    assert explain(named, "three red", layer=1).selections["cross"] == HeadSelection(0, (0, 1))
    assert explain(named, "three red").selections["encoder"] == HeadSelection(0, (0, 1))


@pytest.mark.parametrize("kind", ATTENTION_KINDS)
def test_vectors_of_a_head_give_its_weights(translator: Translator, kind: AttentionKind) -> None:
    """Compute equation 1 with its mask in float64, from the page's own 16-bit vectors."""
    explanation = explain(translator, "three red five")
    page, heads = Page(render_attention_page(explanation)), explanation.heads(kind)
    layers, count, rows, columns = heads.shape
    for layer in range(layers):
        for head in range(count):
            query, key, _ = vectors_of(page, heads, f"{kind}.{layer}.{head}")
            scores = query @ key.T / np.sqrt(query.shape[1])
            hidden = np.triu(np.ones((rows, columns), dtype=bool), 1) if kind == "decoder" else np.zeros((rows, columns), bool)
            powers = np.where(hidden, 0.0, np.exp(scores - scores.max()))
            assert np.abs(powers / powers.sum(1, keepdims=True) - heads.weights_LHTS[layer, head]).max() < 1 / 255
            assert all(
                explanation.is_visible(kind, row, column) != hidden[row, column] for row, column in np.ndindex(rows, columns)
            )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"beam_size": 1},
        {"method": "greedy"},
        {"beam_size": 3, "alpha": 0.0, "early_stopping": "best"},
        {"beam_size": 6, "length_penalty": "power", "alpha": 1.0, "early_stopping": "best"},
        {"beam_size": 3, "early_stopping": "beam_full"},
        {"beam_size": 2, "max_extra_tokens": 0},
        {"beam_size": 60},  # more than the extensions of the first step
    ],
    ids=str,
)
def test_recorded_search_finds_the_translation(translator: Translator, settings: dict[str, Any]) -> None:
    config = update_section(translator.recipe.decoding, settings, where="decoding")
    for text in ("three red five", "one", "small green nine blue seven", "xylophone"):
        explanation = explain(translator, text, **settings)
        assert explanation.beam, explanation.notes
        best_nodes = [branch for branch in explanation.beam if branch.is_best]
        assert tuple(branch.token for branch in best_nodes) == explanation.output_tokens
        width = 1 if settings.get("method") == "greedy" else config.beam_size
        for step in range(len(explanation.output_tokens)):
            same = [branch for branch in explanation.beam if branch.step == step]
            assert sum(branch.status == "kept" for branch in same) <= width
            assert len(same) <= 2 * width
            totals = [branch.score for branch in same if branch.status != "finished"]
            assert totals == sorted(totals, reverse=True)


def test_score_of_best_node_is_the_translations(translator: Translator) -> None:
    result = translator.translate(["three red five"])[0]
    source = translator.bundle.tokenizer.encode_source("three red five")
    trace = trace_search(
        translator.bundle.model, source, translator.recipe.decoding, start_id=get_decoder_start_id(translator.recipe.model)
    )
    assert trace.ids[-1] == END_ID
    assert trace.hypotheses[trace.path[-1]].score == pytest.approx(result.score, rel=1e-6)


def test_candidates_have_the_models_probabilities(translator: Translator) -> None:
    explanation = explain(translator, "three red five", target="drei rot sechs")
    scored = translator.score(["three red five"], ["drei rot sechs"])[0]
    assert tuple(choice.output.log_prob for choice in explanation.predictions) == pytest.approx(
        scored.token_log_probs, rel=1e-5
    )
    assert explanation.teacher_forced
    assert not explanation.beam
    for choice in explanation.predictions:
        log_probs = [candidate.log_prob for candidate in choice.candidates]
        assert len(log_probs) == 10
        assert log_probs == sorted(log_probs, reverse=True)
        assert sum(np.exp(log_probs)) <= 1 + 1e-6
        assert choice.rank == 1 + sum(log_prob > choice.output.log_prob for log_prob in log_probs) or choice.rank > 10
    assert max(choice.rank for choice in explanation.predictions) > 1  # the model prefers "fünf"


@pytest.mark.parametrize(
    "change",
    [
        {"attention_window": 2, "encoder_layers": 3},
        {"d_k": 5, "d_v": 11, "num_heads": 3, "decoder_start_token": "zero"},
        {"append_source_eos": False, "position_encoding": "learned", "max_positions": 70, "decoder_layers": 2},
    ],
    ids=lambda change: " ".join(change),
)
def test_explain_models_of_several_shapes(bundle: Path, change: dict[str, Any]) -> None:
    """Compute equation 1 with its mask, for untrained models of several shapes."""
    loaded = load_bundle(bundle)
    config = update_section(loaded.recipe.model, change, where="model")
    recipe = loaded.recipe.model_copy(update={"model": config})
    tokenizer = PairTokenizer(loaded.tokenizer.source, loaded.tokenizer.target, append_source_eos=config.append_source_eos)
    torch.manual_seed(1)
    model = build_model(config, source_vocab_size=len(tokenizer.source), target_vocab_size=len(tokenizer.target)).eval()
    translator = Translator.from_bundles([Bundle(recipe, tokenizer, model, BundleMetadata())], device="cpu")
    explanation = explain(translator, "three red five")
    assert explanation.beam, explanation.notes
    for kind in ATTENTION_KINDS:
        heads = explanation.heads(kind)
        _, _, rows, columns = heads.shape
        scores = heads.query_LHTK @ heads.key_LHSK.swapaxes(-1, -2) / np.sqrt(heads.key_LHSK.shape[-1])
        row, column = np.ogrid[:rows, :columns]
        hidden = np.zeros((rows, columns), bool) if kind != "decoder" else column > row
        if kind != "cross" and config.attention_window is not None:
            hidden = hidden | (abs(row - column) > config.attention_window)
        powers = np.where(hidden, 0.0, np.exp(scores - scores.max()))
        assert np.abs(powers / powers.sum(-1, keepdims=True) - heads.weights_LHTS).max() < 1e-4
        assert all(explanation.is_visible(kind, *spot) != hidden[spot] for spot in np.ndindex(rows, columns))
    assert render_figures(explanation)
    assert render_attention_page(explanation)


def test_sampled_translation_has_no_beam(translator: Translator) -> None:
    explanation = explain(translator, "three red five", method="sample")
    assert explanation.target == translator.translate(["three red five"], method="sample")[0].text
    assert not explanation.beam
    assert "sampled" in explanation.notes[0]


def test_truncated_output_is_explained(translator: Translator) -> None:
    explanation = explain(translator, "three red five " * 3, max_extra_tokens=0, alpha=0.0)
    result = translator.translate(["three red five " * 3], max_extra_tokens=0, alpha=0.0)[0]
    assert explanation.output_tokens[: len(result.tokens)] == result.tokens
    assert render_attention_page(explanation)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "the text is empty"),
        (" \t ", {}, "the text is empty"),
        ("one\ntwo", {}, "the text has 2 lines"),
        ("one " * 200, {}, "a page holds 400"),
        ("one two three", {"max_source_tokens": 2}, "decoding.max_source_tokens is 2"),
        ("one", {"target": ""}, "the target is empty"),
        ("one", {"target": "eins 漢"}, r"the target has '\\u6f22'"),
        ("one", {"target": "eins " * 200}, "the translation has .* a page holds 400"),
        ("one \ud800", {}, "surrogate"),
        ("one", {"layer": 7}, "layer 7 does not exist; the decoder has layers 1 to 1"),
        ("one", {"heads": [3]}, "head 3 does not exist; a layer has heads 1 to 2"),
    ],
)
def test_explain_errors_are_one_line(translator: Translator, text: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        explain(translator, text, **options)
    assert "\n" not in str(caught.value)


# The explain command


def call(*arguments: object) -> Any:
    return CliRunner().invoke(cli, ["explain", *map(str, arguments)])


def test_command_writes_page_and_figures(bundle: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = call(bundle, "three red", "-o", page, "--svg", tmp_path / "svg", "--head", 2, "--include-head", "cross.1.1")
    assert result.exit_code == 0, result.output
    assert result.stdout == load(bundle, task="translation").translate(["three red"])[0].text + "\n"
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert "layer 1, head 2<" in page.read_text(encoding="utf-8")
    assert {path.name for path in (tmp_path / "svg").iterdir()} == {f"{name}.svg" for name in list_figure_names()}
    second = call(bundle, "three red", "-o", page)
    assert isinstance(second.exception, OutputError)
    assert call(bundle, "three red", "-o", page, "--overwrite").exit_code == 0
    assert isinstance(call(bundle, "one", "-o", tmp_path / "b.html", "--svg", tmp_path / "svg").exception, OutputError)
    assert not (tmp_path / "b.html").exists()


def test_command_writes_png_or_names_the_extra(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(figures_module.__dict__, "svg_to_png", lambda svg: b"pixels")
    assert call(bundle, "three", "-o", tmp_path / "a.html", "--png", tmp_path / "png").exit_code == 0
    assert (tmp_path / "png" / "words.png").read_bytes() == b"pixels"
    monkeypatch.undo()
    monkeypatch.setitem(__import__("sys").modules, "resvg_py", None)
    result = call(bundle, "three", "-o", tmp_path / "b.html", "--png", tmp_path / "more")
    assert isinstance(result.exception, MissingDependencyError)
    assert "dragoman[png]" in str(result.exception)


def test_command_prints_json(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    document = json.loads(call(bundle, "three red", "--json").stdout)
    assert np.array(document["attention"]["cross"]).sum(axis=-1) == pytest.approx(1.0, abs=1e-3)
    assert [prediction["output"]["token"] for prediction in document["predictions"]] == document["output_tokens"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--include-head", "cross.9.1"], "there are 1 layers of 2 heads"),
        (["--include-head", "across.1.1"], "write encoder, decoder, cross"),
        (["--include-head", "cross.x.1"], "write encoder, decoder, cross"),
        (["beam_size=0"], "beam_size"),
    ],
)
def test_command_errors_precede_writing(bundle: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    result = call(bundle, "three", "-o", tmp_path / "a.html", *arguments)
    assert isinstance(result.exception, DragomanError)
    assert isinstance(result.exception, RecipeError | DataError)
    assert message in str(result.exception)
    assert not list(tmp_path.iterdir())


# In a notebook


def test_show_returns_a_notebook_frame(translator: Translator, tmp_path: Path) -> None:
    line = "three one two"
    (translation,) = translator.translate([line], nbest=2, beam_size=2)
    assert "IPython" not in sys.modules
    shown = translation.show(height=500)
    assert shown.html == render_attention_page(explain(translator, line, nbest=2, beam_size=2))
    frame = shown._repr_html_()
    assert 'height="500"' in frame
    attributes, page = re.fullmatch(r'<iframe ([^<>]*) srcdoc="([^"]*)"></iframe>', frame).groups()  # type: ignore[union-attr]
    assert html.unescape(page) == shown.html
    assert attributes.startswith('sandbox="allow-scripts"')
    assert "page" not in repr(shown)
    alternative = translation.alternatives[0]
    assert alternative.text != translation.text
    assert "The translation is forced" in alternative.show().html
    assert translator.translate([line], nbest=2, beam_size=2) == [translation]  # unchanged, bit for bit
    shown.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == shown.html
    with pytest.raises(OutputError, match=r"page\.html"):
        shown.save(tmp_path / "page.html")


def test_show_needs_a_translation_of_this_process(translator: Translator) -> None:
    (translation,) = translator.translate(["three one"])
    unpickled = pickle.loads(pickle.dumps(translation))
    assert unpickled == translation
    assert "_explain" not in {*vars(translation), *dataclasses.asdict(translation)}
    for other in (unpickled, Translation("eins"), dataclasses.replace(translation)):
        with pytest.raises(DataError, match="this translation was not returned by translate in this process"):
            other.show()
    (split,) = translator.translate(["one two three four five"], max_source_tokens=4)
    assert split.num_segments > 1
    with pytest.raises(DataError, match=rf"translated in {split.num_segments} segments"):
        split.show()
    with pytest.raises(DataError, match="the text is empty"):
        translator.translate([""])[0].show()
