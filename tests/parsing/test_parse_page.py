"""Tests of a parse on the attention page: cells show the attention, and hostile words are escaped."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

import dragoman
from dragoman import Parser
from dragoman.cli.main import cli
from dragoman.errors import DataError
from dragoman.parsing.explain_parse import explain_parse
from dragoman.viz.attention_page import render_attention_page
from dragoman.viz.explanation import Explanation, ExplanationTree
from dragoman.viz.explanation_figures import list_figure_names, render_figures
from dragoman.viz.tree_attention import render_tree_attention
from random_explanations import HOSTILE, random_explanation
from random_parsers import parser_bundle

pytestmark = pytest.mark.usefixtures("one_core")

SVG = "{http://www.w3.org/2000/svg}"
WORDS = ("the", "cat", "sat", "on", "mats")
BRACKETS = (("S", 0, 5), ("NP", 0, 2), ("VP", 2, 5), ("PP", 3, 5))


def random_parse(words: tuple[str, ...] = WORDS, *, has_pointer: bool = False) -> Explanation:
    """Return a random parse: the first two of 7 source tokens are the first word; brackets open at 0, 1, 4 and 6."""
    explanation = random_explanation(source_length=7, output_length=12, layers=2, heads=2, sharpness=4.0)
    tree = ExplanationTree(words, ("DT", "NN", "VBD", "IN", "NNS"), BRACKETS, (0, 1, 4, 6), has_pointer)
    return replace(explanation, source_word_ids=(0, 0, 1, 2, 3, 4, 5), output_word_ids=tuple(range(12)), tree=tree)


def read_rows(svg: str) -> list[tuple[str, list[tuple[float, float]]]]:
    """Return the tooltip of each row, and the x and the shade of each cell."""
    rows = []
    for group in ElementTree.fromstring(svg).iter(SVG + "g"):
        paths = group.findall(SVG + "path")
        if paths:
            cells = [path for path in paths if path.get("class") == "cell"]
            lefts = [float(re.match(r"M(\S+)", path.get("d", "")).group(1)) for path in cells]  # type: ignore[union-attr]
            rows.append(
                (
                    group.findtext(SVG + "title", ""),
                    list(zip(lefts, [float(path.get("fill-opacity", "")) for path in cells], strict=True)),
                )
            )
    return rows


def test_row_is_the_attention_of_the_bracket_token() -> None:
    explanation = random_parse()
    mean_TS = explanation.cross.weights_LHTS[1].mean(axis=0)  # the last layer, both heads
    drawn = read_rows(render_tree_attention(explanation))
    assert len(drawn) == len(BRACKETS)
    for (name, start, end), opener, (tooltip, cells) in zip(BRACKETS, (0, 1, 4, 6), drawn, strict=True):
        weights = [float(mean_TS[opener, :2].sum()), *map(float, mean_TS[opener, 2:])]
        shades = [round(16 * weight) / 16 for weight in weights]
        assert [shade for _, shade in cells] == pytest.approx([shade for shade in shades if shade], abs=0.006)
        best = max(range(6), key=weights.__getitem__)
        assert tooltip == f"{name}, words {start + 1} to {end}: most at {[*WORDS, 'the end'][best]}, {weights[best]:.3f}"


def test_pointer_is_drawn_if_the_parser_has_one() -> None:
    def triangles(svg: str) -> int:
        return svg.count("l6 4l-6 4z")

    assert triangles(render_tree_attention(random_parse())) == 0
    assert triangles(render_tree_attention(random_parse(has_pointer=True))) == len(BRACKETS)


def test_hostile_words_are_escaped() -> None:
    hostile = tuple(HOSTILE[:5])
    page = render_attention_page(random_parse(hostile))
    for word in hostile:
        assert word not in page.replace("</script>", "", 0).split('<section id="tree">')[1].split("</section>")[0]
    ElementTree.fromstring(render_tree_attention(random_parse(hostile)))


def test_only_parses_have_a_tree() -> None:
    explanation = random_parse()
    assert '<section id="tree">' in render_attention_page(explanation)
    assert set(render_figures(explanation)) == set(list_figure_names(include_tree=True))
    plain = replace(explanation, tree=None)
    assert '<section id="tree">' not in render_attention_page(plain)
    assert "tree" not in render_figures(plain)
    with pytest.raises(ValueError, match="explanation: has no tree"):
        render_tree_attention(plain)


# Explanations of a parser


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parser_bundle(tmp_path_factory.mktemp("parser") / "bundle")


@pytest.fixture(scope="module")
def parser(bundle: Path) -> Parser:
    model = dragoman.load(bundle, device="cpu", intra_threads=1, inter_threads=1, precision="float32")
    assert isinstance(model, Parser)
    return model


@pytest.mark.parametrize("method", ["beam", "greedy"])
def test_explanation_is_that_of_the_parse(parser: Parser, method: Literal["beam", "greedy"]) -> None:
    text = "the cat sat on ( 😀 ) ."
    parse = parser.parse(text, method=method)
    explanation = explain_parse(parser, text, method=method)
    assert (explanation.target, explanation.source) == (parse.brackets, text)
    assert explanation.output_tokens == (*parse.tokens, "</s>")
    assert explanation.tree is not None
    assert (explanation.tree.words, explanation.tree.tags) == (parse.words, parse.tags)
    assert [explanation.output_tokens[position] for position in explanation.tree.opener_positions] == [
        f"({label}" for label, _, _ in parse.spans
    ]
    assert explanation.source_word_ids[-1] == len(parse.words)
    best_tokens = [node.token for node in explanation.beam if node.is_best]
    assert best_tokens == list(explanation.output_tokens)  # the recorded search has the same constraints and the same parse
    for prediction, log_prob in zip(explanation.predictions, parse.token_log_probs, strict=True):
        assert prediction.output.log_prob == pytest.approx(log_prob, abs=1e-4)
    assert not {node.token for node in explanation.beam} & set(parser.labels.tags)


def test_unexplainable_sentences_are_errors(parser: Parser) -> None:
    for text, message in (
        ("  ", "the text is empty"),
        ("a\nb", "the text has 2 lines"),
        ("cat " * 400, "the sentence has .* tokens, and a page holds 400"),
    ):
        with pytest.raises(DataError, match=message):
            explain_parse(parser, text, method="greedy")
    with pytest.raises(DataError, match="the sentence has 5 tokens, and the model reads 3"):
        explain_parse(parser, "a a", max_source_tokens=3)
    assert explain_parse(parser, "the cat", method="sample").beam == ()


def test_explain_command_accepts_parsers(bundle: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = CliRunner().invoke(cli, ["explain", str(bundle), "the cat sat .", "-o", str(page), "--json"])
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert document["tree"]["words"] == ["the", "cat", "sat", "."]
    assert '<section id="tree">' in page.read_text(encoding="utf-8")
    result = CliRunner().invoke(cli, ["explain", str(bundle), "a", "--target", "b"])
    assert "is a parser, whose own parse is explained" in result.stderr
