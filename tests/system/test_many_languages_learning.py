"""Learning of two tasks in one model: a token of the target language chooses between a copy and a reversal."""

from __future__ import annotations

from pathlib import Path

import pytest

import dragoman
from multilingual import make_corpus, make_multilingual_recipe, write_corpus


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["source", "both"])
def test_language_token_chooses_the_task(tmp_path: Path, placement: str) -> None:
    """The token decides alone: both tasks have the same sources, and 95 % of unseen lines come out as the task asks."""
    write_corpus(tmp_path)
    tests = {target: make_corpus("test", target) for target in ("cc", "rr")}
    settings = ["training.max_steps=350", f"tokenizer.language_token_placement={placement}", "data.pair_temperature=5"]
    settings += ["decoding.method=greedy", "training.lr_decay_ratio=0.4"]
    report = dragoman.train(make_multilingual_recipe(tmp_path, tmp_path / "run", *settings, test_corpora=tests))
    assert {name: scores["scores"]["exact_match"] >= 95.0 for name, scores in report["test_sets"].items()} == {
        "cc": True,
        "rr": True,
    }, report["test_sets"]
