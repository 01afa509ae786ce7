"""Tests of the results table from the reports of runs."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from conftest import MakeRecipe
from dragoman.cli.main import cli
from dragoman.config import Recipe
from dragoman.errors import RunError
from dragoman.evaluation.bootstrap import compare_resampled, resample
from dragoman.paper.results_table import build_rows, format_markdown
from dragoman.tasks.translation import score_translations
from dragoman.training.report import TRANSLATIONS_FILE
from paper_commands import refusal

pytestmark = pytest.mark.usefixtures("one_core")

MakeRun = Callable[..., Path]


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> MakeRun:
    """Return a function that copies a finished run with another seed, other keys, scores or translations."""

    def make(name: str, *, seed: int = 1, bleu: float = 90.0, lines: list[str] | None = None, **settings: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        recipe = json.loads((trained / "recipe.json").read_text())
        recipe["training"] |= {"seed": seed, **settings}
        (folder / "recipe.json").write_text(json.dumps(recipe))
        shutil.copy(trained / "metrics.jsonl", folder)
        shutil.copy(trained / TRANSLATIONS_FILE, folder)
        if lines is not None:
            (folder / TRANSLATIONS_FILE).write_text("".join(line + "\n" for line in lines))
        report = json.loads((trained / "report.json").read_text())
        (folder / "report.json").write_text(json.dumps({**report, "bleu": bleu}))
        return folder

    return make


def test_seeds_are_one_row_with_mean_and_std(run: MakeRun) -> None:
    (row,) = build_rows([run("one", seed=1, bleu=80.0), run("two", seed=2, bleu=81.0), run("three", seed=3, bleu=85.0)])
    assert row.seeds == (1, 2, 3)
    assert row.scores["bleu"].mean == pytest.approx(82)
    assert row.scores["bleu"].std == pytest.approx(math.sqrt((4 + 1 + 9) / 2))
    assert (row.steps.mean, row.steps.std, row.changed_settings, row.comparison) == (200, 0, (), None)
    assert "| 1 2 3 | 200 |" in format_markdown([row])
    assert "| 82.00 ± 2.65 |" in format_markdown([row])
    assert f"- bleu: `{row.scores['bleu'].signature}`" in format_markdown([row])
    assert "against" not in format_markdown([row])


def test_rows_are_compared_with_the_first_by_bootstrap(run: MakeRun, trained: Path, corpus: Path) -> None:
    references = (corpus / "test.de").read_text().splitlines()
    kept = (trained / TRANSLATIONS_FILE).read_text().splitlines()
    assert len(kept) == len(references) == 8
    worse = [references[0], *["null"] * 7]
    ours = [run("a1", seed=1, lines=references), run("a2", seed=2, lines=references)]
    theirs = [run("b1", seed=1, lines=worse, label_smoothing=0.0), run("b2", seed=2, lines=kept, label_smoothing=0.0)]
    first, second = build_rows([*ours, *theirs])
    assert (first.comparison, second.changed_settings) == (None, ("training.label_smoothing=0.0",))
    draws = [[resample(lines, [references]) for lines in pair] for pair in ((worse, kept), (references, references))]
    assert second.comparison == compare_resampled(*draws)
    means = [sum(resampled.score.value for resampled in group) / 2 for group in draws]
    assert second.comparison is not None
    assert second.comparison.difference == pytest.approx(means[0] - means[1])
    assert "`training.label_smoothing=0.0`" in format_markdown([first, second]).splitlines()[3]
    same = build_rows([ours[0], run("c", lines=references, peak_lr=0.5)])[1]
    assert same.comparison is not None
    assert (same.comparison.difference, same.comparison.p_value) == (0.0, 1.0)
    assert "+0.00 (+0.00 to +0.00), p = 1.000, not significant" in format_markdown([first, same])


def test_without_translations_there_is_no_comparison(run: MakeRun) -> None:
    first, second = run("a"), run("b", label_smoothing=0.0)
    (second / TRANSLATIONS_FILE).unlink()
    assert build_rows([first, second])[1].comparison is None
    third = run("c", label_smoothing=0.2)
    assert all(row.comparison is None for row in build_rows([second, first, third]))  # also if the second run comes first
    (first / TRANSLATIONS_FILE).write_text("one\n")  # of a different test set
    assert build_rows([first, third])[1].comparison is None


def write_recipe(run: Path, recipe: dict[str, Any]) -> None:
    (run / "recipe.json").write_text(json.dumps(recipe))
    (run / "report.json").touch()  # a report that is older than its recipe belongs to another run


def test_runs_on_different_corpora_are_different_rows(run: MakeRun, corpus: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(corpus, tmp_path / "other"))
    runs = [run("a"), run("b", seed=2), run("c", seed=3)]
    recipe = json.loads((runs[2] / "recipe.json").read_text())
    recipe["data"]["root"] = str(folder)
    write_recipe(runs[2], recipe)
    assert [row.seeds for row in build_rows(runs)] == [(1, 2, 3)]  # the same text in another folder
    (folder / "test.de").write_text((folder / "test.de").read_text().replace("e", "a"))
    first, second = build_rows(runs)
    assert (first.seeds, second.seeds, second.comparison) == ((1, 2), (3,), None)
    assert second.changed_settings == (f"data.root={folder}",)
    (folder / "test.de").unlink()
    assert [row.seeds for row in build_rows(runs)] == [(1, 2, 3)]  # a missing text counts as equal
    for name, digest in zip("abc", "112", strict=True):
        inputs = {"train.en": {"sha256": digest}}
        (tmp_path / name / "data").mkdir()
        manifest = {"digest": "", "inputs": inputs, "files": {}, "pair_counts": {}}
        (tmp_path / name / "data" / "prepared.json").write_text(json.dumps(manifest))
    recipe["data"]["root"] = str(corpus)
    write_recipe(runs[2], recipe)
    assert [row.seeds for row in build_rows(runs)] == [(1, 2), (3,)]


def test_scores_of_different_signatures_have_no_mean(run: MakeRun) -> None:
    first, second = run("one", seed=1), run("two", seed=2)
    report = json.loads((second / "report.json").read_text())
    (second / "report.json").write_text(json.dumps({**report, "signatures": {**report["signatures"], "bleu": "other"}}))
    (row,) = build_rows([first, second])
    assert "bleu" not in row.scores
    assert "chrf" in row.scores


def test_invalid_runs_are_one_line_errors(run: MakeRun, tmp_path: Path, trained: Path) -> None:
    folder = run("one")

    assert "one recipe and seed" in refusal("results", folder, run("again"))
    assert "one recipe and seed" in refusal("results", folder, folder)
    assert "holds no recipe.json" in refusal("results", tmp_path / "nowhere")
    (folder / "report.json").write_text("{}")
    assert "report.json: cannot be read" in refusal("results", folder)
    (folder / "report.json").unlink()
    with pytest.raises(RunError, match="is not finished"):
        build_rows([folder])
    result = CliRunner().invoke(cli, ["paper", "results", str(trained), "--json"])
    (row,) = json.loads(result.stdout)["rows"]
    assert (row["seeds"], row["comparison"], row["significant"]) == ([1], None, None)


# Both kinds of BLEU


def recipe_of(tiny: MakeRecipe, tmp_path: Path, language: str, *, tokenized: bool) -> Recipe:
    return tiny(tmp_path / "run", f"task.target_language={language}", f"task.tokenized={str(tokenized).lower()}")


def test_german_has_paper_bleu(subtests: pytest.Subtests, tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Check that a split compound with a correct second half counts two of three tokens; unsplit, it counts none of one."""
    for language in ["de", "de-AT", "deu"]:
        for tokenized in [True, False]:
            with subtests.test(language=language, tokenized=tokenized):
                tmp_path = tmp_path_factory.mktemp("case")
                hypotheses, references = ["das ist ein neues U-Boot hier"], ["das ist ein neues S-Boot hier"]
                scores = score_translations(
                    hypotheses, references, recipe_of(tiny, tmp_path, language, tokenized=tokenized).task
                )
                # 7 of 8 tokens are correct, in runs of 4 and 3: 5 of 7 pairs, 3 of 6 triples, 1 of 5 quadruples.
                expected = 100 * (7 / 8 * 5 / 7 * 3 / 6 * 1 / 5) ** 0.25
                assert scores["paper_bleu"].value == pytest.approx(expected)
                assert "compounds:split" in scores["paper_bleu"].signature
                assert ("tok:none" if tokenized else "tok:moses-") in scores["paper_bleu"].signature
                assert scores["bleu"].value != pytest.approx(expected, abs=1)


def test_paper_bleu_is_left_out_without_sacremoses(tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a run does not fail without the extra. `table2 --score` and `evaluate` name what is missing."""
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    assert "paper_bleu" not in score_translations(["a"], ["a"], recipe_of(tiny, tmp_path, "de", tokenized=False).task)
    assert "paper_bleu" in score_translations(["a"], ["a"], recipe_of(tiny, tmp_path, "de", tokenized=True).task)
