"""PosUnk: a vocabulary of words without the names of the text, whose translations are copies or stand in a dictionary."""

from __future__ import annotations

import random
from pathlib import Path

from click.testing import CliRunner

from dragoman.cli.main import cli
from dragoman.word_aligner import build_dictionary

COLORS = {"red": "rot", "blue": "blau", "green": "grün"}


def test_dictionary_has_the_most_frequent_translation() -> None:
    sources, targets = [["a", "b"], ["a"], ["a"]], [["x", "y"], ["x"], ["z"]]
    links = [[(0, 0), (1, 1)], [(0, 0)], [(0, 0)]]
    assert build_dictionary(sources, targets, links) == {"a": "x", "b": "y"}
    assert build_dictionary(sources, targets, links, min_count=2) == {"a": "x"}


def test_align_command_writes_a_dictionary(tmp_path: Path) -> None:
    rng = random.Random(1)
    lines = [rng.sample(list(COLORS), k=2) for _ in range(30)]
    (tmp_path / "a.en").write_text("".join(f"{' '.join(line)}\n" for line in lines), encoding="utf-8")
    (tmp_path / "a.de").write_text("".join(f"{' '.join(COLORS[word] for word in line)}\n" for line in lines), encoding="utf-8")
    arguments = ["align", str(tmp_path / "a.en"), str(tmp_path / "a.de")]
    result = CliRunner().invoke(cli, [*arguments, "--dictionary", "--min-links", "3"])
    assert result.exit_code == 0, result.output
    assert dict(line.split("\t") for line in result.stdout.splitlines()) == COLORS
    for options, message in ((["--dictionary", "--json"], "--json"), (["--min-links", "3"], "--dictionary")):
        refused = CliRunner().invoke(cli, [*arguments, *options])
        assert refused.exit_code == 2
        assert message in refused.output
