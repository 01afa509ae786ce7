"""Table 2 with --run: systems of equal size, budgets, ensembles, resumed runs, and input that cannot be used."""

from __future__ import annotations

import json
import multiprocessing
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from dragoman.config import ModelConfig, read_recipe
from dragoman.errors import DataError, DragomanError, RecipeError, RunError, WorkerLostError
from dragoman.model.factory import build_model
from dragoman.paper.budget import Budget
from dragoman.paper.parallel_runs import _RunProcess
from dragoman.paper.table2_results import Table2
from dragoman.paper.table2_runs import train_table2
from dragoman.paper.table2_systems import (
    SYSTEMS,
    count_longest_path,
    make_system_recipe,
    select_systems,
    split_overrides,
)
from dragoman.training.monitoring.events import ignore_event
from paper_commands import ask, refusal

pytestmark = pytest.mark.usefixtures("one_core")

# Sizes of a toy corpus. ByteNet and Deep-Att have fewer layers than in their recipes.
SMALL = (
    "model.d_model=16", "training.batch_tokens=400", "training.num_validation_translations=0", "decoding.max_extra_tokens=5",
    "transformer:model.num_heads=2", "transformer:model.d_ff=32", "moe:model.d_ff=8", "bytenet:model.encoder_layers=5",
    "bytenet:model.decoder_layers=5",
)  # fmt: skip


@pytest.fixture
def recipe_file(corpus: Path, tmp_path: Path) -> Path:
    path = tmp_path / "toy.toml"
    files = "".join(f'[data.{name}]\nsource = "{name}.en"\ntarget = "{name}.de"\n' for name in ("train", "valid"))
    path.write_text(
        f'name = "toy"\npreset = "modern"\nsize = "tiny"\n[task]\nsource_language = "en"\ntarget_language = "de"\n'
        f'[data]\nroot = "{corpus}"\nmax_length = 40\n{files}'
        "[tokenizer]\nvocab_size = 80\nreserved_tokens = 0\nbyte_fallback = false\n",
        encoding="utf-8",
    )
    return path


def small_table(recipe_file: Path, folder: Path, *, systems: str | None = "gnmt", seeds: int = 1, **budget: Any) -> Table2:
    return train_table2(
        recipe_file,
        SMALL,
        systems=select_systems(systems),
        budget=Budget(**(budget or {"steps": 3})),
        seeds=seeds,
        folder=folder,
        make_callback=lambda _: ignore_event,
    )


@pytest.mark.slow
def test_systems_have_equal_sizes() -> None:
    """Check that sizes differ by less than 5 %, at the vocabulary of Multi30k and at a smaller one."""
    for vocabulary in (4_000, 10_000):
        with torch.device("meta"):
            sizes = [
                build_model(
                    read_recipe(Path(system.recipe)).model, source_vocab_size=vocabulary, target_vocab_size=vocabulary
                ).num_parameters()
                for system in SYSTEMS
            ]
        assert max(sizes) / min(sizes) < 1.05


def test_recipe_of_a_system_has_its_layers_and_the_corpus_of_the_recipe(recipe_file: Path, tmp_path: Path) -> None:
    gnmt = SYSTEMS[1]
    budget = Budget(steps=100)
    recipe = make_system_recipe(recipe_file, gnmt, ["training.peak_lr=0.25"], seed=3, budget=budget, run=tmp_path / "run")
    assert recipe.model == read_recipe(Path("multi30k-ende-gnmt")).model
    assert (recipe.training.peak_lr, recipe.training.clip_norm, recipe.training.seed) == (0.25, 5.0, 3)
    assert (recipe.training.max_steps, recipe.training.checkpoint_every_steps) == (100, 2)
    assert (recipe.tokenizer.vocab_size, recipe.data.test) == (80, recipe.data.valid)
    by_flops = make_system_recipe(
        recipe_file, gnmt, (), seed=1, budget=Budget(flops=1e9, clock="processor"), run=tmp_path / "run"
    )
    assert (by_flops.training.max_flops, by_flops.training.clock) == (1e9, "processor")


def test_longest_path_equals_the_counts_of_table_1() -> None:
    """Check 31 steps of distance: ⌈31 / 1⌉ layers of kernel 3, and dilations of 1 + 2 + 4 + 8 + 16."""
    paths = {system.name: count_longest_path(read_recipe(Path(system.recipe)).model, 32) for system in SYSTEMS}
    assert paths == {"transformer": 1, "gnmt": 31, "deep-att": 31, "convs2s": 31, "bytenet": 5, "moe": 31}
    assert count_longest_path(ModelConfig.model_validate({"encoder_mixer": "convolution", "kernel_size": 5}), 32) == 16
    assert count_longest_path(ModelConfig(attention_window=10), 32) == 4
    assert count_longest_path(ModelConfig(), 1) == 0


@pytest.mark.slow
def test_all_systems_train_and_form_ensembles(recipe_file: Path, tmp_path: Path) -> None:
    table = small_table(recipe_file, tmp_path / "runs", systems=None, seeds=2)
    assert [result.system.name for result in table.results] == [system.name for system in SYSTEMS]
    for result in table.results:
        assert len(result.trained) == 2
        assert result.mean("steps") == 3
        assert result.mean("flops") > 0
        assert result.ensemble is not None
        assert len(result.curve) == 3
        assert (table.compare_with_transformer(result) is None) == (result.system.name == "transformer")
    # The operations of a run are those of its steps: three batches of one corpus, for all systems.
    assert len({result.trained[0].target_tokens for result in table.results}) == 1


@pytest.mark.slow
def test_budget_of_operations_ends_with_the_step_that_spends_it(recipe_file: Path, tmp_path: Path) -> None:
    by_steps = small_table(recipe_file, tmp_path / "steps", steps=3).results
    flops_of_a_step = min(result.mean("flops") for result in by_steps) / 3
    table = small_table(recipe_file, tmp_path / "flops", flops=3.5 * flops_of_a_step)
    for result in table.results:
        largest_step = max(run.mean("flops") for run in by_steps) / 3
        assert 3.5 * flops_of_a_step <= result.mean("flops") < 3.5 * flops_of_a_step + 1.5 * largest_step


@pytest.mark.slow
def test_command_prints_the_table_and_resumes(recipe_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder, drawing = tmp_path / "runs", tmp_path / "table2.svg"
    words = ("table2", "--run", "--corpus", recipe_file, "--systems", "moe", "--steps", 2, "--seeds", 2, "--folder", folder)
    result = ask(*words, *SMALL, "-o", drawing)
    assert result.exit_code == 0, result.output
    for text in ("transformer ensemble", "moe ensemble", "26.03", "2.0e+19", "O(n)", "against Transformer"):
        assert text in result.stdout
    assert drawing.read_text(encoding="utf-8").startswith("<svg")
    kept = {path: path.stat().st_mtime_ns for name in ("*/report.json", "*.json") for path in folder.glob(name)}
    assert len(kept) == 6
    (folder / "moe-seed2" / "report.json").unlink()
    document = json.loads(ask(*words, *SMALL, "--json").stdout)
    assert [system["system"] for system in document["systems"]] == ["transformer", "moe"]
    moe = document["systems"][1]
    assert (len(moe["runs"]), moe["longest_path"], moe["printed"]["en_de_bleu"]) == (2, 31, 26.03)
    assert moe["against_transformer"]["interval"][0] <= moe["against_transformer"]["difference"]
    changed = {path for path, time in kept.items() if path.stat().st_mtime_ns != time}
    assert changed == {folder / "moe-seed2" / "report.json"}


@pytest.mark.parametrize(
    ("exit_code", "error", "message"), [(1, RunError, "error printed above"), (-9, WorkerLostError, "killed")]
)
def test_message_of_a_failed_process_says_whether_it_was_killed(
    exit_code: int, error: type[DragomanError], message: str
) -> None:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    sender.close()
    process = cast(SpawnProcess, SimpleNamespace(join=lambda: None, exitcode=exit_code))
    with pytest.raises(error, match=message):
        _RunProcess("gnmt, seed 1", process, receiver).raise_on_failure()


def test_input_that_cannot_be_used_is_one_line(recipe_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    run = ("table2", "--run", "--corpus", recipe_file, "--folder", folder)
    assert "--steps and --minutes are two budgets; give one of them" in refusal(*run, "--steps", 3, "--minutes", 1)
    assert "--flops" in refusal(*run, "--flops", "0")
    assert "'gnnt' is no system; did you mean gnmt" in refusal(*run, "--systems", "gnnt")
    assert "names no system" in refusal(*run, "--systems", ",")
    assert "there is no such recipe" in refusal("table2", "--run", "--corpus", tmp_path / "none.toml")
    assert "nowhere" in refusal(*run, f"data.root={tmp_path / 'nowhere'}")
    assert "Table 2 sets training.max_steps itself; use --steps" in refusal(*run, "training.max_steps=3")
    assert "'gnnt' is no system" in refusal(*run, "gnnt:training.peak_lr=1")
    assert "--tflops is for finished runs" in refusal(*run, "--tflops", 1)
    assert "--steps is for --run" in refusal("table2", folder, "--steps", 1)
    assert "give the folders of finished runs, or --run" in refusal("table2")
    assert not folder.exists()


def test_corpus_of_table_2_is_checked_before_training(recipe_file: Path, tmp_path: Path) -> None:
    text = recipe_file.read_text(encoding="utf-8")
    recipe_file.write_text(text.replace("valid.en", "none.en"), encoding="utf-8")
    with pytest.raises(DataError, match=r"none\.en"):
        small_table(recipe_file, tmp_path / "runs")
    recipe_file.write_text(text.replace('[data.valid]\nsource = "valid.en"\ntarget = "valid.de"\n', ""), encoding="utf-8")
    with pytest.raises(RecipeError, match=r"data\.test and data\.valid are missing"):
        small_table(recipe_file, tmp_path / "runs")
    with pytest.raises(RecipeError, match="is a parsing recipe"):
        small_table(Path("parsing-craft"), tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_settings_are_for_all_systems_or_for_one() -> None:
    shared, by_system = split_overrides(["data.root=a:b", "moe:training.peak_lr=1e-3"])
    assert shared == ["data.root=a:b"]
    assert by_system["moe"] == ["training.peak_lr=1e-3"]
    assert not by_system["gnmt"]
