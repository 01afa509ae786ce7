"""Rows of the quality benchmark: valid recipes, in the order of their dependencies."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.config import read_recipe

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from common.usage import CommandError
from quality import experiment
from quality.corpus import MissingMulti30kError, Multi30kCorpus, find_corpus
from quality.experiment import Experiment
from quality.rows import HALF, PLAIN, QUICK, REVERSED, ROWS, SYNTHETIC, ExperimentRow, select_rows


@pytest.fixture
def corpus(tmp_path: Path) -> Multi30kCorpus:
    tok = tmp_path / "multi30k" / "tok"
    tok.mkdir(parents=True)
    for name, count in (("train", 5), ("val", 2)):
        for language in ("en", "de"):
            with gzip.open(tok / f"{name}.{language}.gz", "wt", encoding="utf-8") as stream:
                stream.writelines(f"{language} {number}\u2028\n" for number in range(count))
    return find_corpus(tmp_path, tmp_path / "work")


def test_subsets_hold_alternating_lines(corpus: Multi30kCorpus) -> None:
    halves = {path.name: path.read_text(encoding="utf-8").split("\n")[:-1] for path in corpus.subset_path.iterdir()}
    assert halves["first.en"] == ["en 0\u2028", "en 2\u2028", "en 4\u2028"]
    assert halves["second.de"] == ["de 1\u2028", "de 3\u2028"]
    assert len(halves["all.en"]) == 5
    assert corpus.valid("de") == ["de 0\u2028", "de 1\u2028"]


def test_missing_corpus_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(MissingMulti30kError, match="holds no Multi30k"):
        find_corpus(tmp_path, tmp_path / "work")


def test_rows_follow_their_dependencies() -> None:
    assert [row.name for row in select_rows(("half-back",))] == [HALF, REVERSED, "half-back"]
    assert [row.name for row in select_rows(("together",))] == [PLAIN, "together"]
    assert [row.name for row in select_rows(("half-both",))] == [HALF, REVERSED, "half-both"]
    assert {row.name for row in select_rows(())} == {row.name for row in ROWS}
    for names in ((), QUICK):
        order = [row.name for row in select_rows(names)]
        for row in select_rows(names):
            assert all(order.index(SYNTHETIC[made].model_row) < order.index(row.name) for made in row.synthetic)
            assert not row.baseline or row.baseline in order


def test_changed_recipe_fails_before_training(corpus: Multi30kCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the error for the last row comes before any row is trained."""
    monkeypatch.setattr(experiment, "_run_dragoman", None)  # a call would raise another error
    before, now = (Experiment(corpus, tmp_path / "runs", steps, print) for steps in (1000, 2000))
    rows = select_rows(("together",))
    recipe, settings = before._settings(rows[-1], 1)
    run = before.get_run_path("together", 1)
    run.mkdir(parents=True)
    (run / "recipe.json").write_text(read_recipe(Path(recipe), settings).model_dump_json())
    assert before.read_report(rows[-1], 1) is None
    with pytest.raises(CommandError, match="was started with another recipe of row together"):
        now.train(rows, seeds=1, processes=1)


def test_missing_or_empty_pairs_are_made(corpus: Multi30kCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []
    monkeypatch.setattr(experiment, "_run_dragoman", lambda *words: paths.append(str(words[-1])))
    trainer = Experiment(corpus, tmp_path / "runs", 1000, print)
    [name] = {name for row in select_rows(("together",)) for name in row.synthetic}
    pairs = trainer._get_pairs_path(name, 1)
    pairs.parent.mkdir(parents=True)
    for text, times in (("", 1), ("a\tb\n", 1)):
        pairs.write_text(text)
        trainer._make_pairs(name, 1)
        assert len(paths) == times


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row_settings_form_a_recipe(row: ExperimentRow, corpus: Multi30kCorpus, tmp_path: Path) -> None:
    """Check that a row differs from its baseline in its own settings only."""
    trainer = Experiment(corpus, tmp_path / "runs", 1000, print)

    def recipe_of(row: ExperimentRow) -> dict[str, Any]:
        name, settings = trainer._settings(row, 3)
        recipe = read_recipe(Path(name), settings)
        assert recipe.training.max_steps == round(row.steps * 1000)
        assert recipe.training.seed == 3
        return recipe.model_dump(mode="json")

    recipe = recipe_of(row)
    first, second = ("de", "en") if row.name == REVERSED else ("en", "de")
    assert recipe["task"] | {"source_language": first, "target_language": second} == recipe["task"]
    data = recipe["data"]
    train = data["corpora"]["real"] if row.synthetic else data["train"]
    name = "all" if row.pairs == "all" else "first"
    assert [train["source"], train["target"]] == [
        str(corpus.subset_path / f"{name}.{language}") for language in (first, second)
    ]
    files = [part["file"] for name, part in (data["corpora"] or {}).items() if name != "real"]
    assert files == [str(tmp_path / "runs" / f"{SYNTHETIC[made].model_row}-seed3" / f"{made}.tsv") for made in row.synthetic]
    for evaluation in (data["valid"], data["test"]):
        assert (evaluation["source"], evaluation["target"]) == (f"val.{first}.gz", f"val.{second}.gz")
    if not row.baseline:
        return
    [baseline] = [recipe_of(candidate) for candidate in ROWS if candidate.name == row.baseline]
    differing = {
        f"{section}.{key}"
        for section in ("model", "tokenizer", "training", "decoding")
        for key, value in recipe[section].items()
        if value != baseline[section][key]
    }
    expected = {setting.partition("=")[0] for setting in row.settings}
    expected |= {"tokenizer.model_file"} if row.synthetic else set()
    if row.steps != 1:
        expected |= {f"training.{key}_steps" for key in ("max", "warmup", "validate_every", "checkpoint_every")}
    assert differing == expected
