"""Ablations: rows of one changed key, kept and resumed runs, and a row that diverges."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from conftest import MakeRecipe
from dragoman.cli.main import cli
from dragoman.config import ModelConfig, Recipe, flatten_settings
from dragoman.errors import RecipeError, RunError
from dragoman.experiments.normalization.options import NormalizationOptions
from dragoman.paper import run_grid
from dragoman.paper.ablations import (
    ABLATION_ROWS,
    TrainedAblation,
    choose_equal_d_ff,
    draw_ablations,
    make_ablation_recipe,
    select_ablations,
    train_ablations,
)
from dragoman.paper.budget import Budget
from dragoman.training.monitoring.events import Callback, ignore_event

pytestmark = pytest.mark.usefixtures("one_core")


def test_rows_are_selected_by_name_or_series() -> None:
    assert [row.name for row in select_ablations("score")] == ["base", "dot", "additive", "multiplicative"]
    assert [row.name for row in select_ablations("no-norm, dk16")] == ["base", "dk16", "no-norm"]
    assert select_ablations(None) == list(ABLATION_ROWS)
    for names, message in (("scores", "score"), (",", "names no row")):
        with pytest.raises(RecipeError, match=message):
            select_ablations(names)


def test_a_row_changes_its_keys_of_the_model_alone(
    subtests: pytest.Subtests, tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for row in ABLATION_ROWS:
        with subtests.test(row=row):
            tmp_path = tmp_path_factory.mktemp("case")
            base = tiny(tmp_path / "run")
            recipe = make_ablation_recipe(base, row, seed=2, budget=Budget(steps=40), run=tmp_path / "row")
            old, new = (dict(flatten_settings({"model": r.model.model_dump()})) for r in (base, recipe))
            d_ff = {"d_ff"} if row.series == "layers" else set()
            assert {key.removeprefix("model.") for key in new if new[key] != old.get(key)} <= set(row.settings) | d_ff
            assert all(new.get(f"model.{key}", value) == value for key, value in row.settings.items())
            assert (recipe.training.seed, recipe.training.max_steps, recipe.training.validate_every_steps) == (2, 40, 2)


def test_rows_of_layers_have_the_operations_of_base() -> None:
    """A gate has three products for two; half of the heads leave out d_model² of 4 · d_model² in each of 18 attentions."""
    base = ModelConfig()
    gated, grouped = ModelConfig(activation="geglu"), ModelConfig(num_key_value_heads=4)
    assert choose_equal_d_ff(base, base) == base.d_ff
    assert choose_equal_d_ff(base, gated) == round(2048 * 2 / 3)
    assert choose_equal_d_ff(base, grouped) == 2048 + 18 * 512**2 // (12 * 2 * 512)


def test_ablations_need_a_validation_set(tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(tmp_path / "run")
    without = recipe.model_copy(update={"data": recipe.data.model_copy(update={"valid": None})})
    with pytest.raises(RecipeError, match="is missing, but the table needs it"):
        make_ablation_recipe(without, ABLATION_ROWS[0], seed=1, budget=Budget(steps=2), run=tmp_path / "row")


def test_diverged_row_stays_in_the_table(tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake_train(recipe: Recipe, callback: Callback, *, reuse_plan: object) -> dict[str, Any]:
        folder = Path(recipe.run)
        folder.mkdir(parents=True)
        (folder / "recipe.json").write_text(json.dumps(recipe.model_dump()), encoding="utf-8")
        seed, nll = recipe.training.seed, 1.0 if recipe.model.get_extension(NormalizationOptions).residual else 2.0
        lines = [{"type": "valid", "step": step, "nll": nll + seed - step / 10} for step in (1, 2)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        if not recipe.model.get_extension(NormalizationOptions).residual and seed == 2:
            raise RunError("step 2: diverged", code="run-diverged")
        return {"valid": {"perplexity": math.exp(nll)}, "bleu": 10.0 * seed, "parameters": 7}

    monkeypatch.setattr(run_grid, "train", fake_train)
    rows = select_ablations("no-residual")
    base, changed = train_ablations(
        tiny(tmp_path / "run"),
        rows,
        budget=Budget(steps=2),
        seeds=2,
        folder=tmp_path / "rows",
        make_callback=lambda _: ignore_event,
    )
    curve = [point for pair in base.curve for point in pair]
    assert curve == pytest.approx([1.0, 2.4, 2.0, 2.3])
    assert base == TrainedAblation(rows[0], 7, [1.0, 1.0], [10.0, 20.0], [], base.curve)
    assert (changed.nlls, changed.bleus, changed.diverged_seeds) == ([2.0], [10.0], [2])
    pytest.importorskip("matplotlib")
    assert "no-residual" in draw_ablations([base, changed], title="Ablations")


@pytest.mark.slow
def test_command_trains_draws_and_keeps_rows(tiny: MakeRecipe, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    recipe = tiny(tmp_path / "run")
    valid = {"source": f"{recipe.data.root}/valid.en", "target": f"{recipe.data.root}/valid.de"}
    path = tmp_path / "tiny.toml"
    path.write_text(
        'preset = "modern"\nsize = "tiny"\n[data]\nroot = "/"\nmax_length = 40\n'
        + "".join(
            f'[data.{name}]\nsource = "{files["source"]}"\ntarget = "{files["target"]}"\n'
            for name, files in (("train", valid), ("valid", valid))
        )
        + "[tokenizer]\nvocab_size = 80\nreserved_tokens = 0\nbyte_fallback = false\n"
        + "[model]\nencoder_layers = 1\ndecoder_layers = 1\nd_model = 16\nd_ff = 32\nnum_heads = 2\n"
        + "[training]\nprecision = 'float32'\nbatch_tokens = 200\n",
        encoding="utf-8",
    )
    arguments = ["paper", "ablations", "--corpus", str(path), "--budget", "2", "--folder", str(tmp_path / "rows")]
    result = CliRunner().invoke(cli, [*arguments, "--rows", "dot,no-residual", "-o", str(tmp_path / "curves.svg")])
    assert result.exit_code == 0, result.output
    assert "no residual connections" in result.output
    assert (tmp_path / "curves.svg").read_text(encoding="utf-8").startswith("<svg")
    reports = {file: file.stat().st_mtime_ns for file in (tmp_path / "rows").glob("*/report.json")}
    assert len(reports) == 3
    document = json.loads(CliRunner().invoke(cli, [*arguments, "--rows", "dot,no-residual", "--json"]).stdout)
    assert [row["row"] for row in document["rows"]] == ["base", "dot", "no-residual"]
    assert all(len(row["curve"]) == 2 and len(row["nll"]) == 1 for row in document["rows"])
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "rows").glob("*/report.json")} == reports
