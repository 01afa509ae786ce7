"""Table 4: printed rows, baselines, rows of bundles and runs, and errors of the command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from dragoman.bundle import read_config
from dragoman.cli.main import cli
from dragoman.config import make_recipe
from dragoman.paper.cky import ChartParser
from dragoman.paper.pcfg import induce_pcfg
from dragoman.paper.right_branching import build_right_branching_tree, find_most_common_labels
from dragoman.paper.table4 import LATER_PARSERS, PAPER_PARSERS, SimplifiedTreebank, find_run_files, score_parses
from dragoman.parsing.evalb.scorer import score_trees, sum_scores
from dragoman.parsing.trees.ptb import read_tree
from dragoman.parsing.trees.tree import format_brackets, get_leaves, get_words
from paper_commands import ask, refusal
from tiny_runs import on_one_core
from toy_treebank import BANK, TREES, save_toy_parser

SINGLE_THREAD = ("--intra-threads", "1", "--inter-threads", "1")


@pytest.fixture(scope="module")
def gold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trees") / "gold.mrg"
    path.write_text(BANK.lstrip(), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_toy_parser(tmp_path_factory.mktemp("parser") / "bundle")


def test_printed_rows_equal_table_4() -> None:
    """Compare with Table 4: WSJ only, semi-supervised, multi-task, generative."""
    assert [row.f1 for row in PAPER_PARSERS] == [88.3, 90.4, 90.4, 91.7, 91.3, 91.3, 91.3, 92.1, 92.1, 92.7, 93.0, 93.3]
    assert [row.f1 for row in PAPER_PARSERS if row.parser.startswith("Transformer")] == [91.3, 92.7]
    result = ask("table4")
    assert result.exit_code == 0
    assert "92.7" in result.stdout


def test_scores_use_gold_tags_and_count_failures() -> None:
    bank = SimplifiedTreebank("bank", TREES[:4])
    full_stop = read_tree(format_brackets(TREES[0]).replace("(. .)", "(NN .)"))
    result = score_parses("x", bank, [full_stop, None, *TREES[2:4]], tags="own", seconds=1.0)
    # TREES[1] has 7 of 4 + 7 + 6 + 3 brackets (without TOP and punctuation), and no predicted tree.
    assert (result.failures, result.precision) == (1, 100.0)
    assert result.recall == pytest.approx(100 * 13 / 20)
    assert result.f1 == pytest.approx(200 * 13 / (13 + 20))
    # With its predicted tag, the full stop counts as a word, so that the sentence fails as well.
    assert result.f1_predicted_tags is not None
    assert result.f1_predicted_tags < result.f1
    assert result.tagging == pytest.approx(100 * (5 + 8 + 3) / (6 + 8 + 8 + 3))


def test_baselines_follow_the_printed_rows(gold: Path, tmp_path: Path) -> None:
    picture = tmp_path / "table4.svg"
    result = ask("table4", "--gold", gold, "--train", gold, "--json", "-o", picture)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    right = score_trees(TREES, [build_right_branching_tree(get_leaves(tree), find_most_common_labels(TREES)) for tree in TREES])
    grammar = ChartParser(induce_pcfg(TREES))
    counted = score_trees(TREES, [grammar.parse(get_leaves(tree)) for tree in TREES])
    figures = {(row["parser"], row["tags"]): row["f1"] for row in document["results"]}
    assert figures[("right-branching", "gold")] == pytest.approx(sum_scores(right).f1)
    assert figures[("PCFG", "gold")] == pytest.approx(sum_scores(counted).f1)
    assert figures[("PCFG", "own")] > 80.0
    assert document["train_trees"] == len(TREES)
    drawn = ElementTree.parse(picture).getroot()
    svg = "{http://www.w3.org/2000/svg}"
    bars = [group.find(f"{svg}path") for group in drawn.iter(f"{svg}g") if group.get("class") == "bar"]
    assert len(bars) == len(PAPER_PARSERS) + len(LATER_PARSERS) + 3
    # A bar is a path that begins with its lower edge.
    edges = [bar.get("d", "").replace("M", "").split("L")[:2] for bar in bars if bar is not None]
    widths = [float(end.split()[0]) - float(start.split()[0]) for start, end in edges]
    assert widths[-1] / widths[0] == pytest.approx(figures[("PCFG", "own")] / 88.3, abs=1e-3)


def test_row_of_a_bundle_equals_parse_and_evalb(gold: Path, parser: Path, tmp_path: Path) -> None:
    text, parsed = tmp_path / "text.txt", tmp_path / "parsed.mrg"
    text.write_text("".join(" ".join(get_words(tree)) + "\n" for tree in TREES))
    with on_one_core():
        row = json.loads(ask("table4", "--gold", gold, "--bundle", parser, "--no-baselines", "--json", "beam_size=2").stdout)[
            "results"
        ]
        assert (
            CliRunner()
            .invoke(cli, ["parse", str(parser), str(text), *SINGLE_THREAD, "beam_size=2", "-o", str(parsed)])
            .exit_code
            == 0
        )
    scores = json.loads(CliRunner().invoke(cli, ["tree", "evalb", str(gold), str(parsed), "--gold-tags", "--json"]).stdout)
    assert [result["f1"] for result in row] == [pytest.approx(scores["failures_zero"]["all"]["f1"])]
    assert (row[0]["tags"], row[0]["failures"], row[0]["repaired"]) == ("own", 0, 0)


def test_unconstrained_parses_are_repaired_and_counted(gold: Path, parser: Path) -> None:
    with on_one_core():
        result = ask("table4", "--gold", gold, "--bundle", parser, "--no-baselines", "--unconstrained", "beam_size=1")
    assert result.exit_code == 0, result.output
    assert "unconstrained: 5 of 5 trees were malformed and are repaired" in result.stdout


def test_usage_errors_are_one_line(subtests: pytest.Subtests) -> None:
    for arguments, message in [
        (["--bundle", "b"], "--gold FILE"),
        (["--run", "r", "--gold", "g"], "--run gives bundle, gold and training trees"),
        (["beam_size=4"], "'beam_size=4' is an option of a bundle's search; give --bundle or --run"),
        (["--unconstrained"], "--unconstrained needs a bundle; give --bundle or --run"),
        (["--gold", "g", "--train", "t", "--no-baselines"], "--train is for the baselines"),
        (["--gold", "g", "--no-baselines"], "--no-baselines leaves nothing to score"),
        (["--gold", "missing.mrg"], "missing.mrg"),
        (["--run", "missing"], "no recipe.json"),
    ]:
        with subtests.test(arguments=arguments, message=message):
            assert message in refusal("table4", *arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no tree"),
        ("(S (NP (-NONE- *)))\n", "line 1: the tree has no words"),
        (f"{format_brackets(TREES[0])}\n(S (A a) b)\n", "line 2: the word 'b' has no tag"),
        ("(S (A a)\n", "line 1: the tree that begins here has 1 brackets that never close"),
    ],
)
def test_invalid_trees_are_named_with_their_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.mrg"
    path.write_text(text)
    line = refusal("table4", "--gold", path)
    assert message in line
    assert "bad.mrg" in line


def test_table_is_printed_before_a_write_error(gold: Path, tmp_path: Path) -> None:
    result = ask("table4", "--gold", gold, "--json", "-o", tmp_path / "none" / "table4.svg")
    assert "table4.svg" in str(result.exception)
    assert [row["parser"] for row in json.loads(result.stdout)["results"]] == ["right-branching"]


def test_run_must_be_a_finished_parser_run(tmp_path: Path) -> None:
    for task, message in (("translation", "is a run of translation"), ("parsing", "has no bundle to parse with")):
        files = {"file": "x.mrg" if task == "parsing" else "x.tsv"}
        recipe = make_recipe(
            {
                "task": {"kind": task},
                "data": {"train": files},
                "tokenizer": {"joint": False, "normalization": "identity"},
                "model": {"tie_embeddings": "none"},
            }
        )
        (tmp_path / task).mkdir()
        (tmp_path / task / "recipe.json").write_text(json.dumps(recipe.model_dump()))
        assert message in refusal("table4", "--run", tmp_path / task)


def test_run_gives_bundle_test_and_training_files(parser: Path, gold: Path, tmp_path: Path) -> None:
    document = read_config(parser)[0].model_dump()
    document["data"] |= {"root": str(gold.parent), "valid": {"file": "valid.mrg"}}
    (tmp_path / "recipe.json").write_text(json.dumps(document))
    shutil.copytree(parser, tmp_path / "bundle")
    assert find_run_files(tmp_path) == (tmp_path / "bundle", [gold.parent / "valid.mrg"], [gold])
    document["data"]["test"] = {"file": "test.mrg"}
    (tmp_path / "recipe.json").write_text(json.dumps(document))
    assert find_run_files(tmp_path)[1] == [gold.parent / "test.mrg"]
