"""Confidence of parses: the filter for self-training, its thresholds, and `dragoman parse --min-score`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dragoman.cli.main import cli
from dragoman.config import CorpusConfig
from dragoman.parsing.parse_confidence import compute_mean_log_prob, is_confident
from dragoman.parsing.parse_result import Parse
from tiny_runs import on_one_core
from toy_treebank import TREES, save_toy_parser

SINGLE_THREAD = ("--intra-threads", "1", "--inter-threads", "1")


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_toy_parser(tmp_path_factory.mktemp("parser") / "bundle")


@pytest.mark.parametrize(
    ("parse", "expected"),
    [
        (Parse(("a",), TREES[0], token_log_probs=(-0.1, -0.3)), True),
        (Parse(("a",), TREES[0], token_log_probs=(-0.1, -0.31)), False),
        (Parse(("a",), TREES[0], token_log_probs=(-0.1,), status="repaired"), False),
        (Parse((), status="empty"), False),
    ],
)
def test_uncertain_parses_are_no_training_data(parse: Parse, expected: bool) -> None:
    assert is_confident(parse, -0.2) == expected


def test_parse_min_score_keeps_confident_lines(parser: Path, tmp_path: Path) -> None:
    text, silver = tmp_path / "raw.txt", tmp_path / "silver.mrg"
    text.write_text("the cat saw a dog .\n\nit slept .\ntelescope\na dog saw it\n")
    with on_one_core():
        whole = CliRunner().invoke(cli, ["parse", str(parser), str(text), *SINGLE_THREAD, "--json"]).stdout
        confidences = [compute_mean_log_prob(line["token_log_probs"]) for line in map(json.loads, whole.splitlines())]
        min_score = sorted(confidences)[-2]
        result = CliRunner().invoke(
            cli, ["parse", str(parser), str(text), *SINGLE_THREAD, "--min-score", str(min_score), "-o", str(silver)]
        )
    assert result.exit_code == 0, result.output
    assert "kept 2 of 5 lines" in result.stderr
    kept = [bool(line) for line in silver.read_text().split("\n")[:-1]]
    assert kept == [confidence >= min_score for confidence in confidences]
    corpus = CorpusConfig(file="silver.mrg", weight=1)
    sources = [line for line, is_kept in zip(text.read_text().splitlines(), kept, strict=True) if is_kept]
    readers = pytest.importorskip("dragoman.formats.readers")  # of corpora, with pyarrow
    assert [pair.source for pair in readers.read_pairs(corpus, tmp_path)] == sources
