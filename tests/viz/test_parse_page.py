"""View 6: a parse on the attention page. What a cell shows is what the model looked at; foreign words are inert."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

import dragoman
from dragoman import Parser
from dragoman.cli.main import cli
from dragoman.errors import DataError
from dragoman.inference.explain.parse import explain_parse
from dragoman.viz.attention_page import render_attention_page
from dragoman.viz.explanation import Explanation, ExplanationTree
from dragoman.viz.figures import list_figure_names, render_figures
from dragoman.viz.tree_attention import render_tree_attention
from dragoman.viz.tree_diagram import TreeDrawing, render_trees
from random_explanations import HOSTILE, made
from random_parsers import parser_bundle

pytestmark = pytest.mark.usefixtures("one_core")

SVG = "{http://www.w3.org/2000/svg}"
WORDS = ("the", "cat", "sat", "on", "mats")
BRACKETS = (("S", 0, 5), ("NP", 0, 2), ("VP", 2, 5), ("PP", 3, 5))


def of_chance(words: tuple[str, ...] = WORDS, *, points: bool = False) -> Explanation:
    """A parse of chance: weights of 6 source tokens, of which the first two are the first word's; brackets at 0, 1, 4 and 6."""
    looked = made(source=7, said=12, layers=2, heads=2, sharpness=4.0)
    tree = ExplanationTree(words, ("DT", "NN", "VBD", "IN", "NNS"), BRACKETS, (0, 1, 4, 6), points)
    return replace(looked, source_words=(0, 0, 1, 2, 3, 4, 5), said_words=tuple(range(12)), tree=tree)


def rows(svg: str) -> list[tuple[str, list[tuple[float, float]]]]:
    """Of each row what its hint says, and the place and the darkness of each cell."""
    found = []
    for group in ElementTree.fromstring(svg).iter(SVG + "g"):
        paths = group.findall(SVG + "path")
        if paths:
            cells = [path for path in paths if path.get("class") == "cell"]
            places = [float(re.match(r"M(\S+)", path.get("d", "")).group(1)) for path in cells]  # type: ignore[union-attr]
            found.append(
                (
                    group.findtext(SVG + "title", ""),
                    list(zip(places, [float(path.get("fill-opacity", "")) for path in cells], strict=True)),
                )
            )
    return found


def test_a_row_is_what_the_brackets_token_looked_at() -> None:
    explanation = of_chance()
    mean_TS = explanation.cross.weights_LHTS[1].mean(axis=0)  # the last layer, both heads
    drawn = rows(render_tree_attention(explanation))
    assert len(drawn) == len(BRACKETS)
    for (name, start, end), opener, (hint, cells) in zip(BRACKETS, (0, 1, 4, 6), drawn, strict=True):
        weights = [float(mean_TS[opener, :2].sum()), *map(float, mean_TS[opener, 2:])]
        shades = [round(16 * weight) / 16 for weight in weights]
        assert [shade for _, shade in cells] == pytest.approx([shade for shade in shades if shade], abs=0.006)
        best = max(range(6), key=weights.__getitem__)
        assert hint == f"{name}, words {start + 1} to {end}: most at {[*WORDS, 'the end'][best]}, {weights[best]:.3f}"


def test_a_cell_stands_below_its_word() -> None:
    svg = render_tree_attention(of_chance())
    words = {text.text: float(text.get("x", "")) for text in ElementTree.fromstring(svg).iter(SVG + "text")}
    places = sorted({place for _, cells in rows(svg) for place, _ in cells})
    centres = [words[word] for word in (*WORDS, "end")]
    assert all(any(0 < centre - place < 40 for centre in centres) for place in places)


def test_the_pointer_is_shown_where_there_is_one() -> None:
    def triangles(svg: str) -> int:
        return svg.count("l6 4l-6 4z")

    assert triangles(render_tree_attention(of_chance())) == 0
    assert triangles(render_tree_attention(of_chance(points=True))) == len(BRACKETS)


def test_foreign_words_are_inert() -> None:
    hostile = tuple(HOSTILE[:5])
    page = render_attention_page(of_chance(hostile))
    for word in hostile:
        assert word not in page.replace("</script>", "", 0).split('<section id="tree">')[1].split("</section>")[0]
    ElementTree.fromstring(render_tree_attention(of_chance(hostile)))


def test_only_a_parse_has_a_tree() -> None:
    explanation = of_chance()
    assert '<section id="tree">' in render_attention_page(explanation)
    assert set(render_figures(explanation)) == set(list_figure_names(include_tree=True))
    plain = replace(explanation, tree=None)
    assert '<section id="tree">' not in render_attention_page(plain)
    assert "tree" not in render_figures(plain)
    with pytest.raises(ValueError, match="of no parse"):
        render_tree_attention(plain)


def test_every_style_of_the_page_is_in_its_policy() -> None:
    """One style for all its pictures, the tree among them: the policy names the first one's hash alone."""
    page = render_attention_page(of_chance())
    assert len(set(re.findall(r"<style>.*?</style>", page.split("<body>")[1], re.DOTALL))) == 1


def test_several_trees_stand_below_each_other() -> None:
    one = TreeDrawing(WORDS, BRACKETS, (), "first")
    root = ElementTree.fromstring(render_trees([one, replace(one, title="second")]))
    heights = {text.text: float(text.get("y", "")) for text in root.iter(SVG + "text")}
    words = [float(text.get("y", "")) for text in root.iter(SVG + "text") if text.text == "cat"]
    assert heights["first"] < words[0] < heights["second"] < words[1] < float(root.get("height", ""))


# A parser explained


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parser_bundle(tmp_path_factory.mktemp("parser") / "bundle")


@pytest.fixture(scope="module")
def parser(bundle: Path) -> Parser:
    found = dragoman.load(bundle, device="cpu", intra_threads=1, inter_threads=1)
    assert isinstance(found, Parser)
    return found


@pytest.mark.parametrize("method", ["beam", "greedy"])
def test_it_explains_the_parse_that_it_gives(parser: Parser, method: str) -> None:
    text = "the cat sat on ( 😀 ) ."
    parse = parser.parse(text, method=method)
    told = explain_parse(parser, text, method=method)
    assert (told.target, told.source) == (parse.brackets, text)
    assert told.output_tokens == (*parse.tokens, "</s>")
    assert told.tree is not None
    assert (told.tree.words, told.tree.tags) == (parse.words, parse.tags)
    assert [told.output_tokens[place] for place in told.tree.opener_positions] == [f"({label}" for label, _, _ in parse.spans]
    assert told.source_word_ids[-1] == len(parse.words)
    won = [branch.token for branch in told.beam if branch.is_best]
    assert won == list(told.output_tokens)  # the recorded search, which the same automaton constrains, came to the same parse
    for choice, log_prob in zip(told.predictions, parse.token_log_probs, strict=True):
        assert choice.output.log_prob == pytest.approx(log_prob, abs=1e-4)
    assert not {branch.token for branch in told.beam} & set(parser.labels.tags)


def test_what_cannot_be_explained_is_refused(parser: Parser) -> None:
    for text, message in (
        ("  ", "the text is empty: there is nothing to parse"),
        ("a\nb", "the text has 2 lines"),
        ("cat " * 400, "the sentence has .* tokens, and a page holds 400"),
    ):
        with pytest.raises(DataError, match=message):
            explain_parse(parser, text, method="greedy")
    with pytest.raises(DataError, match="the sentence has 5 tokens, and the model reads 3"):
        explain_parse(parser, "a a", max_source_tokens=3)
    assert explain_parse(parser, "the cat", method="sample").beam == ()


def test_the_command_explains_parsers_too(bundle: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = CliRunner().invoke(cli, ["explain", str(bundle), "the cat sat .", "-o", str(page), "--json"])
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert told["tree"]["words"] == ["the", "cat", "sat", "."]
    assert '<section id="tree">' in page.read_text(encoding="utf-8")
    forced = CliRunner().invoke(cli, ["explain", str(bundle), "a", "--target", "b"])
    assert "is a parser, whose own parse is explained" in forced.stderr
