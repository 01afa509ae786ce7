"""Cleaning of a recipe's corpora: progress with an estimated total, and warnings of the command."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from dragoman.cleaning import cleaned_corpus
from dragoman.cleaning.pipeline import clean_corpora
from dragoman.cleaning.total_estimator import TotalEstimator
from dragoman.cli.data_commands import clean
from dragoman.config import make_recipe


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_progress_estimates_total_and_covers_every_task(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaned_corpus, "CHUNK_PAIRS", 1000)
    rng = random.Random(1)
    content = "".join(f"{rng.randbytes(40).hex()}\t{rng.randbytes(40).hex()}\n" for _ in range(50_000)).encode()
    path = tmp_path / f"a.tsv{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    recipe = make_recipe(
        {"data": {"train": {"file": str(path)}, "cleaning": {"duplicate_pairs": True}, "preprocessing_workers": 1}}
    )
    calls: list[tuple[str, int, int | None]] = []
    stats = clean_corpora(recipe, tmp_path / "out", on_progress=lambda *call: calls.append(call))
    assert stats["train"].num_kept == 50_000
    assert list(dict.fromkeys(task_name for task_name, *_ in calls)) == [
        "cleaning train",
        "finding duplicate-pair rows",
        "writing train",
    ]
    totals = {done: total for task_name, done, total in calls if task_name == "cleaning train"}
    assert totals.pop(0) is None
    assert totals[50_000] == 50_000
    # The reader is one block of 128 KiB ahead of the pairs that are counted, which matters in the first chunks only.
    assert all(total is not None and done <= total <= 60_000 for done, total in totals.items())
    assert all(total is not None and abs(total - 50_000) < 5_000 for done, total in totals.items() if done > 30_000)
    assert {total for task_name, _, total in calls if task_name != "cleaning train"} == {50_000}


def test_command_warns_if_one_filter_drops_all_pairs(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a house\tein sehr großes Haus mit Garten\n" * 20, encoding="utf-8")
    (tmp_path / "r.toml").write_text("[data.cleaning]\nmax_ratio = 1.5\n", encoding="utf-8")
    arguments = [str(tmp_path / "r.toml"), f"data.train.file={tmp_path / 'a.tsv'}", "-o", str(tmp_path / "out"), "--json"]
    result = CliRunner().invoke(clean, arguments)
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "warning: train: no pair is left; the filter ratio dropped 20 of 20 pairs (100.0 %); check data.cleaning.max_ratio, "
        "or set skip_filters = ['ratio'] for this corpus"
    ]


def test_standard_input_has_no_estimated_total(tmp_path: Path) -> None:
    recipe = make_recipe({"data": {"train": {"file": "-", "format": "tsv"}}})
    assert recipe.data.train is not None
    assert TotalEstimator(recipe.data.train, tmp_path).estimate() is None
