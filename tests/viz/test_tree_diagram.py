"""Tests of tree drawings: brackets above their words, no crossing edges, escaped text."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from dragoman.cli.main import cli
from dragoman.parsing.trees.ptb import read_tree
from dragoman.parsing.trees.tree import get_leaves, get_spans
from dragoman.viz.tree_diagram import render_tree

SVG = "{http://www.w3.org/2000/svg}"
TEXT = "(S (NP (DT The) (NN cat)) (VP (VBD sat) (ADVP (RB down))) (. .))"

Corner = tuple[float, float]


def drawn(text: str) -> str:
    tree = read_tree(text)
    leaves = get_leaves(tree)
    return render_tree([leaf.word for leaf in leaves], get_spans(tree), tags=[leaf.tag for leaf in leaves], title="A <tree>")


def texts(svg: str, kind: str) -> list[tuple[str, float, float]]:
    labels = [label for label in ElementTree.fromstring(svg).iter(SVG + "text") if label.get("class") == kind]
    return [(label.text or "", float(label.get("x", "")), float(label.get("y", ""))) for label in labels]


def edges(svg: str) -> list[tuple[Corner, Corner, Corner, Corner]]:
    """Return the four corners of each edge: down, across, down."""
    corners = []
    for path in ElementTree.fromstring(svg).iter(SVG + "path"):
        match = re.fullmatch(r"M(\S+) (\S+)V(\S+)H(\S+)V(\S+)", path.get("d", ""))
        assert match is not None
        x, y, bus, far, end = map(float, match.groups())
        corners.append(((x, y), (x, bus), (far, bus), (far, end)))
    return corners


def test_brackets_are_above_their_words() -> None:
    svg = drawn(TEXT)
    brackets = {text: (x, y) for text, x, y in texts(svg, "bracket")}
    words = {text: (x, y) for text, x, y in texts(svg, "ink") if text != "A <tree>"}
    assert set(brackets) == {"S", "NP", "VP", "ADVP"}
    assert list(words) == ["The", "cat", "sat", "down", "."]
    assert [text for text, _, _ in texts(svg, "muted")] == ["DT", "NN", "VBD", "RB", "."]
    assert len({y for _, y in words.values()}) == 1
    assert sorted(x for x, _ in words.values()) == [x for x, _ in words.values()]
    assert brackets["S"][1] < brackets["NP"][1] == brackets["VP"][1] < brackets["ADVP"][1] < words["The"][1]
    assert brackets["NP"][0] == pytest.approx((words["The"][0] + words["cat"][0]) / 2)
    assert brackets["ADVP"][0] == words["down"][0]
    ends = {(start[0], end[0]) for start, _, _, end in edges(svg)}
    holds = [("S", "NP"), ("S", "VP"), ("VP", "ADVP")]
    assert {(brackets[outer][0], brackets[inner][0]) for outer, inner in holds} < ends
    assert (brackets["S"][0], words["."][0]) in ends
    assert len(ends) == 8
    assert "<title>NP: words 1 to 2</title>" in svg


def test_edges_do_not_cross() -> None:
    rng = random.Random(4)
    for _ in range(40):
        length = rng.randint(1, 12)
        brackets = _random_spans(rng, 0, length)
        lines = edges(render_tree(["word"[: rng.randint(1, 4)] for _ in range(length)], brackets))
        assert len(lines) == len(brackets) - 1 + length
        down = [(x, top, bottom) for corners in lines for (x, top), (_, bottom) in (corners[:2], corners[2:])]
        across = [(min(a, b), max(a, b), y) for _, (a, y), (b, _), _ in lines]
        for x, top, bottom in down:
            assert not any(left < x < right and top < y < bottom for left, right, y in across)


def _random_spans(rng: random.Random, start: int, end: int) -> list[tuple[str, int, int]]:
    spans = [("X", start, end)]
    position = start
    while position < end:
        stop = rng.randint(position + 1, end)
        if rng.random() < 0.6 and (position, stop) != (start, end):
            spans += _random_spans(rng, position, stop)
        position = stop
    return spans


def test_hostile_text_is_escaped() -> None:
    hostile = ["<script>alert(1)</script>", '"/><image href="http://example.com/x">', "\u202eabc", "nul\0", "x" * 500]
    svg = render_tree(hostile, [(word, 0, 5) for word in hostile], tags=hostile, title=hostile[0])
    root = ElementTree.fromstring(svg)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {
        "svg", "title", "desc", "style", "rect", "path", "g", "text",
    }  # fmt: skip
    assert "\u202e" not in svg
    assert "…" in svg


def test_empty_tree_is_a_drawing() -> None:
    ElementTree.fromstring(render_tree([], []))
    svg = render_tree(["a"], [("S", 0, 1), ("NP", 1, 1), ("", 0, 1)], title="")
    assert [text for text, _, _ in texts(svg, "bracket")] == ["S", ""]
    assert texts(svg, "muted") == []


@pytest.mark.parametrize(
    ("brackets", "tags", "message"),
    [
        ([("S", 0, 3)], [], "bracket 'S': is from word 0 to 3, but there are 2"),
        ([("S", 1, 0)], [], "bracket 'S': is from word 1 to 0, but there are 2"),
        ([("S", 0, 1), ("NP", 0, 2)], [], "brackets 'S' and 'NP': cross at word 0"),
        ([("S", 0, 2)], ["X"], "tags: 1 for 2 words"),
    ],
)
def test_invalid_brackets_are_errors(brackets: list[tuple[str, int, int]], tags: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        render_tree(["a", "b"], brackets, tags=tags)


def test_command_draws_a_tree_of_a_file(tmp_path: Path) -> None:
    file, output = tmp_path / "a.mrg", tmp_path / "a.svg"
    file.write_text(f"(A (B c))\n( {TEXT.replace('NP', 'NP-SBJ')})\n", encoding="utf-8")
    runner = CliRunner()
    assert runner.invoke(cli, ["tree", "draw", str(file), "-n", "2", "--strip", "-o", str(output)]).exit_code == 0
    assert output.read_text(encoding="utf-8") == drawn(TEXT).replace("A &lt;tree&gt;", "a.mrg, line 2")
    document = json.loads(runner.invoke(cli, ["tree", "draw", str(file), "-n", "2", "--json"]).stdout)
    assert document["words"] == ["The", "cat", "sat", "down", "."]
    assert document["brackets"][2] == {"label": "NP-SBJ", "start": 0, "end": 2}
    again = runner.invoke(cli, ["tree", "draw", str(file), "-o", str(output)])
    assert "exists already" in str(again.exception)
    assert (
        str(runner.invoke(cli, ["tree", "draw", str(file), "-n", "3", "--json"]).exception)
        == f"{file}: holds fewer than 3 trees; give a smaller --number"
    )
    assert "give -o FILE.svg, or --json" in runner.invoke(cli, ["tree", "draw", str(file)]).output
