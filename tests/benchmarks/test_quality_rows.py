"""What the benchmark of quality trains: recipes that hold, each after what it learns from."""

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
from quality.corpus import Multi30kCorpus, MissingMulti30kError, find_corpus
from quality.experiment import Experiment
from quality.rows import HALF, SYNTHETIC, PLAIN, QUICK, REVERSED, ROWS, ExperimentRow, select_rows


@pytest.fixture
def corpus(tmp_path: Path) -> Multi30kCorpus:
    tok = tmp_path / "multi30k" / "tok"
    tok.mkdir(parents=True)
    for name, count in (("train", 5), ("val", 2)):
        for language in ("en", "de"):
            with gzip.open(tok / f"{name}.{language}.gz", "wt", encoding="utf-8") as stream:
                stream.writelines(f"{language} {number}\u2028\n" for number in range(count))
    return find_corpus(tmp_path, tmp_path / "work")


def test_halves_are_every_other_line(corpus: Multi30kCorpus) -> None:
    """Of lines as everything else counts them."""
    halves = {path.name: path.read_text(encoding="utf-8").split("\n")[:-1] for path in corpus.subset_path.iterdir()}
    assert halves["first.en"] == ["en 0\u2028", "en 2\u2028", "en 4\u2028"]
    assert halves["second.de"] == ["de 1\u2028", "de 3\u2028"]
    assert len(halves["all.en"]) == 5
    assert corpus.valid("de") == ["de 0\u2028", "de 1\u2028"]


def test_without_the_corpus_nothing_is_trained(tmp_path: Path) -> None:
    with pytest.raises(MissingMulti30kError, match="no Multi30k in"):
        find_corpus(tmp_path, tmp_path / "work")


def test_rows_come_with_what_they_need_and_after_it() -> None:
    assert [row.name for row in select_rows(("half-back",))] == [HALF, REVERSED, "half-back"]
    assert [row.name for row in select_rows(("together",))] == [PLAIN, "together"]
    assert [row.name for row in select_rows(("half-both",))] == [HALF, REVERSED, "half-both"]
    assert {row.name for row in select_rows(())} == {row.name for row in ROWS}
    for names in ((), QUICK):
        order = [row.name for row in select_rows(names)]
        for row in select_rows(names):
            assert all(order.index(SYNTHETIC[made].model_row) < order.index(row.name) for made in row.synthetic)
            assert not row.baseline or row.baseline in order


def test_what_was_begun_with_another_recipe_is_told_before_anything_is_trained(
    corpus: Multi30kCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the last of the rows, by its folder alone: neither it nor those before it are begun."""
    monkeypatch.setattr(experiment, "_dragoman", None)  # which to call would be another error
    before, now = (Experiment(corpus, tmp_path / "runs", steps, print) for steps in (1000, 2000))
    rows = select_rows(("together",))
    recipe, settings = before._settings(rows[-1], 1)
    run = before.get_run_path("together", 1)
    run.mkdir(parents=True)
    (run / "recipe.json").write_text(read_recipe(Path(recipe), settings).model_dump_json())
    assert before.read_report(rows[-1], 1) is None
    with pytest.raises(CommandError, match="begun with another recipe than row together has now"):
        now.train(rows, seeds=1, processes=1)


def test_pairs_are_made_where_there_are_none_or_an_empty_file(
    corpus: Multi30kCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr(experiment, "_dragoman", lambda *words: made.append(str(words[-1])))
    school = Experiment(corpus, tmp_path / "runs", 1000, print)
    [name] = {name for row in select_rows(("together",)) for name in row.synthetic}
    pairs = school._get_pairs_path(name, 1)
    pairs.parent.mkdir(parents=True)
    for text, times in (("", 1), ("a\tb\n", 1)):
        pairs.write_text(text)
        school._make_pairs(name, 1)
        assert len(made) == times


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_is_set_is_a_recipe(row: ExperimentRow, corpus: Multi30kCorpus, tmp_path: Path) -> None:
    """And differs from the row that it is compared with in its switch alone."""
    school = Experiment(corpus, tmp_path / "runs", 1000, print)

    def recipe_of(row: ExperimentRow) -> dict[str, Any]:
        name, settings = school._settings(row, 3)
        recipe = read_recipe(Path(name), settings)
        assert recipe.training.max_steps == round(row.steps * 1000)
        assert recipe.training.seed == 3
        return recipe.model_dump(mode="json")

    recipe = recipe_of(row)
    first, second = ("de", "en") if row.name == REVERSED else ("en", "de")
    assert recipe["task"] | {"source_language": first, "target_language": second} == recipe["task"]
    data = recipe["data"]
    learnt = data["corpora"]["real"] if row.synthetic else data["train"]
    name = "all" if row.pairs == "all" else "first"
    assert [learnt["source"], learnt["target"]] == [str(corpus.subset_path / f"{name}.{one}") for one in (first, second)]
    files = [one["file"] for name, one in (data["corpora"] or {}).items() if name != "real"]
    assert files == [str(tmp_path / "runs" / f"{SYNTHETIC[made].model_row}-seed3" / f"{made}.tsv") for made in row.synthetic]
    for judged in (data["valid"], data["test"]):
        assert (judged["source"], judged["target"]) == (f"val.{first}.gz", f"val.{second}.gz")
    if not row.baseline:
        return
    [other] = [recipe_of(one) for one in ROWS if one.name == row.baseline]
    differing = {
        f"{section}.{knob}"
        for section in ("model", "tokenizer", "training", "decoding")
        for knob, value in recipe[section].items()
        if value != other[section][knob]
    }
    wanted = {setting.partition("=")[0] for setting in row.settings}
    wanted |= {"tokenizer.model_file"} if row.synthetic else set()
    if row.steps != 1:
        wanted |= {f"training.{knob}_steps" for knob in ("max", "warmup", "validate_every", "checkpoint_every")}
    assert differing == wanted
