"""Tests of the paper's tables and settings, and of the page that explains the paper line by line."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import itertools
import json
import math
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from conftest import MakeRecipe
from dragoman.cli.main import cli
from dragoman.config import Recipe, make_recipe
from dragoman.config.paper_settings import PAPER_SETTINGS, find_deviations
from dragoman.config.presets import PRESETS, SIZES
from dragoman.errors import DataError, RecipeError, RunError
from dragoman.evaluation.bootstrap import ResampledScore
from dragoman.evaluation.metrics import Score
from dragoman.paper import parallel_runs, table1
from dragoman.paper.budget import Budget, parse_budget
from dragoman.paper.commands.outputs import describe_table3
from dragoman.paper.differences import PAPER_ITEMS, find_differences
from dragoman.paper.flop_counter import count_operations, count_sequential_matmuls, find_path_length
from dragoman.paper.run_grid import read_row_scores
from dragoman.paper.table1 import LayerSize, Sweep, draw_table1, measure_table1
from dragoman.paper.table1_layers import LAYER_KINDS, LayerKind, build_layer
from dragoman.paper.table2 import PAPER_COSTS, add_bleu_scores, compute_run_cost, estimate_paper_flops
from dragoman.paper.table3 import train_table3
from dragoman.paper.table3_results import Ordering, Table3, Table3Result, TrainedRow, draw_table3
from dragoman.paper.table3_rows import (
    MODEL_SCALES,
    PAPER_ROWS,
    ROW_SERIES,
    make_row_model,
    make_row_recipe,
    select_rows,
)
from dragoman.training import compute_plan
from dragoman.training.checkpoints.checkpoint import list_checkpoints
from dragoman.training.compute_plan import KernelChoice
from dragoman.training.monitoring.events import Callback, RunClosed, TrainingEvent, ignore_event
from dragoman.training.monitoring.metrics_log import read_metrics_log
from dragoman.training.report import TRANSLATIONS_FILE
from expected_errors import raises_code
from paper_commands import ask, refusal

pytestmark = pytest.mark.usefixtures("one_core")

ROOT = Path(__file__).parents[2]
MakeCallback = Callable[[str], Callback]
PAGE = ROOT / "docs" / "explanation" / "paper.md"


def answer(*words: object) -> str:
    """Return the output of a successful command."""
    result = ask(*words)
    assert result.exit_code == 0, result.exception
    return result.stdout


# --- differences -------------------------------------------------------------------------------------------------------


def test_every_paper_setting_has_its_item() -> None:
    assert [item.number for item in PAPER_ITEMS] == list(range(1, 33))
    keys = [key for item in PAPER_ITEMS for key in item.recipe_keys]
    assert sorted(keys) == sorted(setting.key for setting in PAPER_SETTINGS)
    recipe = make_recipe({}).model_dump()
    for item in PAPER_ITEMS:
        assert item.recipe_keys or item.value or item.decided_by, item.name
        for dotted_key in item.decided_by:
            section, _, key = dotted_key.rpartition(".")
            assert key in (recipe[section] if section else recipe), dotted_key


def test_differences_equal_the_deviations_of_a_run(subtests: pytest.Subtests) -> None:
    for size in ["base", "big", "tiny", "E", "D-p0.2"]:
        for preset in PRESETS:
            with subtests.test(preset=preset, size=size):
                recipe = make_recipe({"preset": preset, "size": size}).model_dump()
                differences = find_differences(recipe)
                deviations = [deviation for difference in differences for deviation in difference.deviations]
                assert sorted(deviation.key for deviation in deviations) == sorted(
                    deviation.key for deviation in find_deviations(recipe)
                )
                assert all((difference.state == "deviates") == bool(difference.deviations) for difference in differences)


def test_differences_prints_text_and_json() -> None:
    text = answer("differences", "modern")
    assert "model.norm = pre; the text has post (section 3.1), its code has post" in text
    assert "sacreBLEU" in text
    document = json.loads(answer("differences", "t2t-2017", "--size", "big", "--json"))
    assert (document["preset"], document["size"], len(document["differences"])) == ("t2t-2017", "big", 32)
    sinusoids = document["differences"][6]
    assert (sinusoids["number"], sinusoids["state"], sinusoids["recipe"]) == (7, "deviates", "position_encoding concatenated")
    assert "does not deviate" in answer("differences", "paper")


def test_unknown_preset_or_table_is_one_line() -> None:
    assert "preset = 'modem' is unknown" in refusal("differences", "modem")
    assert "size = 'huge' is unknown" in refusal("differences", "paper", "--size", "huge")
    assert "No such command 'table9'" in refusal("table9")


# --- table 1 -----------------------------------------------------------------------------------------------------------


# Multiplications and additions of the products, forwards and backwards, by the equations: n places, width d.
OPERATIONS = {
    "self-attention": lambda n, d: 3 * 2 * (2 * n * n * d),
    "convolution": lambda n, d: 3 * 2 * 3 * n * d * d,
    "separable convolution": lambda n, d: 3 * 2 * (3 * n * d + n * d * d),
}


@pytest.mark.parametrize("kind", OPERATIONS)
def test_operations_equal_those_of_the_equations(kind: LayerKind) -> None:
    n, d = 40, 8
    operations = count_operations(build_layer(kind, d, 3), torch.randn(1, n, d, requires_grad=True)).operations
    assert operations == OPERATIONS[kind](n, d)


def test_peak_bytes_count_live_tensors() -> None:
    def three_operations(x_BND: Tensor) -> Tensor:
        doubled = x_BND * 2  # released after the sum, which does not save it
        return (doubled + 1) * 1

    x_BND = torch.randn(1, 100, 10, requires_grad=True)
    count = count_operations(three_operations, x_BND)
    # 4,000 bytes a tensor: two are live in the forward pass; then the result, its gradient and the next gradient.
    assert 2 * 4000 <= count.peak_bytes <= 4 * 4000
    assert count.operations == 0


def test_path_lengths_and_sequential_products() -> None:
    def path(kind: LayerKind, reach: int) -> list[int]:
        return [find_path_length(kind, n, 4, reach) for n in (9, 27)]

    assert path("self-attention", 0) == [1, 1]
    assert path("restricted self-attention", 2) == [4, 13]  # (n−1)/r
    assert path("recurrent (LSTM)", 0) == [9, 27]
    assert path("convolution", 3) == [4, 13]  # (n−1)/(k−1)
    assert path("dilated convolution", 3) == [2, 3]  # log_k n
    assert path("separable convolution", 3) == [4, 13]
    sequential = {kind: [count_sequential_matmuls(build_layer(kind, 4, 3), n, 4) for n in (5, 20)] for kind in LAYER_KINDS}
    assert sequential.pop("recurrent (LSTM)") == [5, 20]
    assert all(few == more <= 2 for few, more in sequential.values())


def few_sweeps() -> list[Sweep]:
    return [
        Sweep(
            kind,
            axis,
            tuple(LayerSize(16 * size if axis == "n" else 16, 4 * size if axis == "d" else 4, 3) for size in (1, 2, 4)),
        )
        for kind in LAYER_KINDS
        for axis in ("n", "d")
    ] + [
        Sweep(kind, "reach", tuple(LayerSize(32, 4, reach) for reach in (3, 5, 9)))
        for kind in ("restricted self-attention", "convolution", "dilated convolution")
    ]


@pytest.mark.slow
def test_table_1_runs_within_a_small_budget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(table1, "plan_sweeps", few_sweeps)
    monkeypatch.setattr(table1, "PATH_LENGTHS", (3, 9, 27))
    output = answer("table1", "--budget", 3, "-o", tmp_path / "table1.svg")
    for words in ("self-attention", "recurrent (LSTM)", "r·n·d", "k·n·d + n·d²", "log_k n", "n^2"):
        assert words in output
    assert (tmp_path / "table1.svg").read_text().startswith("<svg")
    assert "exists already" in refusal("table1", "--budget", 3, "-o", tmp_path / "table1.svg")
    document = json.loads(answer("table1", "--budget", 3, "--json"))
    assert [row["kind"] for row in document["rows"]] == list(LAYER_KINDS)
    recurrent = document["rows"][2]
    assert recurrent["sweeps"]["n"]["exponents"]["operations"] == pytest.approx(
        1.0, abs=0.01
    )  # the first step has no previous state
    assert recurrent["path"] == [3, 9, 27]
    assert recurrent["path_exponent"] == pytest.approx(1.0)


@pytest.mark.slow
def test_table_1_has_the_printed_exponents() -> None:
    """Check what is counted. Times depend on the machine: the command prints them, and the page has those of a quiet one."""
    rows = measure_table1(1, clock=itertools.count().__next__)  # the first round is all
    assert "recurrent" in draw_table1(rows)
    for row in rows:
        for axis, (_, printed) in row.get_time_exponents().items():
            assert row.sweeps_by_axis[axis].fit_exponents()["operations"] == pytest.approx(printed, abs=0.05), (row.kind, axis)
        assert row.sequential_exponent == pytest.approx(row.paper_row.sequential_n, abs=0.01)
        assert row.path_exponent == pytest.approx(1.0 if row.paper_row.path_n is None else row.paper_row.path_n, abs=0.03)
    restricted = rows[1].sweeps_by_axis
    assert restricted["n"].fit_exponents()["memory"] == pytest.approx(1.0, abs=0.05)


# --- table 2 -----------------------------------------------------------------------------------------------------------


def test_estimates_equal_those_of_the_paper() -> None:
    base, big = PAPER_COSTS[-2:]
    p100 = 9.5e12
    assert f"{estimate_paper_flops(12 * 3600, 8, p100):.1e}" == f"{base.en_de_flops:.1e}" == "3.3e+18"
    assert f"{estimate_paper_flops(3.5 * 86400, 8, p100):.1e}" == f"{big.en_de_flops:.1e}" == "2.3e+19"


def test_cost_of_finished_run_equals_its_report(trained: Path) -> None:
    report = json.loads((trained / "report.json").read_text())
    run = read_metrics_log(trained / "metrics.jsonl")[0]
    cost = compute_run_cost(trained)
    assert (cost.steps, cost.seconds, cost.counted_flops) == (200, report["seconds"], report["flops"])
    assert cost.sustained_flops == pytest.approx(run["peak_flops_per_second"])
    assert cost.paper_flops == pytest.approx(report["seconds"] * run["peak_flops_per_second"])
    assert compute_run_cost(trained, sustained_flops=2e12).paper_flops == pytest.approx(report["seconds"] * 2e12)
    both = add_bleu_scores(cost)
    assert both.bleu == pytest.approx(report["bleu"], abs=0.01)
    assert "compounds:split" in (both.paper_bleu_signature or "")
    output = answer("table2", trained, "--tflops", 1)
    assert "Transformer (base)" in output
    assert "3.3e+18" in output
    assert "as given" in output
    assert json.loads(answer("table2", trained, "--json"))["runs"][0]["steps"] == 200


def test_cost_of_unfinished_run_is_from_metrics_log(trained: Path, tmp_path: Path) -> None:
    """Check the cost up to the last line before the end, where each line covers the time since the previous one."""
    for name in ("recipe.json", "metrics.jsonl"):
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    whole = json.loads((trained / "report.json").read_text())
    cost = compute_run_cost(tmp_path)
    assert cost.steps == 180
    assert cost.counted_flops == pytest.approx(0.9 * whole["flops"], rel=0.1)
    assert 0 < cost.seconds < whole["seconds"] + 0.1
    assert "holds no recipe.json" in refusal("table2", tmp_path / "nowhere")
    (tmp_path / "metrics.jsonl").write_text("")
    assert "no line of a step" in refusal("table2", tmp_path)
    with pytest.raises(RunError, match="has no bundle"):
        add_bleu_scores(cost)


def test_gpu_of_the_paper_has_its_sustained_flops(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_bytes((trained / "recipe.json").read_bytes())
    lines = (trained / "metrics.jsonl").read_text().splitlines()
    first = {**json.loads(lines[0]), "machine": "cuda (Tesla P100-PCIE-16GB), float32", "devices": 8}
    (tmp_path / "metrics.jsonl").write_text("\n".join([json.dumps(first), *lines[1:]]) + "\n")
    cost = compute_run_cost(tmp_path)
    assert (cost.sustained_flops, cost.devices) == (9.5e12, 8)
    assert cost.paper_flops == pytest.approx(cost.seconds * 8 * 9.5e12)


def test_cost_adds_up_over_changed_devices(trained: Path, tmp_path: Path) -> None:
    """Compare with a calculation by hand: 100 s on two devices of together 6 TFLOP/s, then 60 s on one of 4."""
    (tmp_path / "recipe.json").write_bytes((trained / "recipe.json").read_bytes())
    line = {"type": "train", "flops_per_second": 1e9}
    lines = [
        {"type": "run", "step": 0, "machine": "cpu", "devices": 2, "peak_flops_per_second": 6e12},
        {**line, "step": 50, "progress": 0.5, "minutes": 1.0, "minutes_left": 1.0},
        {**line, "step": 100, "progress": 0.8, "minutes": 100 / 60, "minutes_left": 100 / 60 / 4},
        {"type": "run", "step": 100, "machine": "cuda (Quadro P1000)", "devices": 1, "peak_flops_per_second": 4e12},
        {**line, "step": 160, "progress": 0.5, "minutes": 160 / 60, "minutes_left": 160 / 60},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    cost = compute_run_cost(tmp_path)
    assert cost.seconds == pytest.approx(160)
    assert cost.devices == pytest.approx((100 * 2 + 60) / 160)
    assert cost.paper_flops == pytest.approx(100 * 6e12 + 60 * 4e12)
    assert (cost.machine, cost.sustained_source) == ("cpu; cuda (Quadro P1000)", "measured in matrix products")
    assert compute_run_cost(tmp_path, sustained_flops=1e12).paper_flops == pytest.approx(260e12)


def test_cost_of_unfinished_run_is_from_newest_checkpoint(trained: Path, tmp_path: Path) -> None:
    """Check a run that was stopped at its end, whose checkpoint is newer than the last line of the metrics log."""
    for name in ("recipe.json", "metrics.jsonl"):
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    shutil.copytree(trained / "checkpoints", tmp_path / "checkpoints")
    whole = json.loads((trained / "report.json").read_text())
    cost = compute_run_cost(tmp_path)
    assert (cost.steps, cost.counted_flops) == (whole["steps"], whole["flops"])
    assert cost.seconds == pytest.approx(whole["seconds"], abs=0.1)


# --- table 3 -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def plain(tiny: MakeRecipe, tmp_path: Path) -> Recipe:
    return tiny(tmp_path / "unused", "training.warmup_steps=5")


def small_table(
    plain: Recipe,
    folder: Path,
    make_callback: MakeCallback = lambda _: ignore_event,
    *,
    seeds: int = 1,
    steps: int = 4,
    processes: int = 1,
) -> Table3:
    return train_table3(
        plain,
        rows=select_rows("C-n2"),
        scale_name="tiny",
        scale=MODEL_SCALES["tiny"],
        budget=Budget(steps=steps),
        seeds=seeds,
        folder=folder,
        make_callback=make_callback,
        processes=processes,
    )


def test_row_at_paper_scale_equals_its_size(subtests: pytest.Subtests) -> None:
    for row in PAPER_ROWS:
        with subtests.test(row=row):
            expected = make_recipe({"size": row.name}).model
            assert make_recipe({"model": make_row_model(row.name, MODEL_SCALES["paper"])}).model == expected


@pytest.mark.parametrize("scale", MODEL_SCALES)
def test_rows_differ_as_printed_at_every_scale(scale: str) -> None:
    base, whole = make_row_model("base", MODEL_SCALES[scale]), SIZES["base"]["model"]
    for row in PAPER_ROWS:
        model_keys, printed = make_row_model(row.name, MODEL_SCALES[scale]), SIZES[row.name]["model"]
        for key in ("encoder_layers", "decoder_layers", "d_model", "d_ff", "num_heads"):
            assert model_keys[key] / base[key] == printed[key] / whole[key], (row.name, key)
        model = make_recipe({"model": model_keys}).model
        assert model.num_heads * model.value_width == model.d_model


def test_printed_rows_are_in_series_and_presets() -> None:
    names = {name for names in ROW_SERIES.values() for name in names}
    assert {row.name for row in PAPER_ROWS} == SIZES.keys() - {"tiny", "small", "student"} == names
    assert select_rows(None) == list(PAPER_ROWS)
    assert [row.name for row in select_rows("B, big")] == ["base", "B-dk16", "B-dk32", "big"]


def test_row_recipe_has_the_settings_of_table_3(plain: Recipe, tmp_path: Path) -> None:
    settings = {"scale": MODEL_SCALES["small"], "seed": 2, "run": tmp_path / "row"}
    rows = {row.name: row for row in PAPER_ROWS}
    recipes = {
        name: make_row_recipe(plain, rows[name], budget=Budget(minutes=3.0), **settings)  # type: ignore[arg-type]
        for name in ("E", "D-ls0.2", "D-p0", "big")
    }
    for recipe in recipes.values():
        assert recipe.data.test == recipe.data.valid == plain.data.valid
        assert (recipe.training.checkpoint_averaging, recipe.training.seed, recipe.training.max_minutes) == ("none", 2, 3.0)
        assert (recipe.decoding.beam_size, recipe.decoding.alpha) == (4, 0.6)
        assert recipe.training.peak_lr == plain.training.peak_lr
    assert recipes["E"].model.position_encoding == "learned"
    assert recipes["D-p0"].model.position_encoding == plain.model.position_encoding
    assert recipes["D-ls0.2"].training.label_smoothing == 0.2
    assert recipes["D-p0"].model.residual_dropout == recipes["D-p0"].model.embedding_dropout == 0.0
    big = recipes["big"].model
    assert (big.d_model, big.num_heads, big.residual_dropout) == (
        256,
        16,
        0.3,
    )


@pytest.mark.parametrize(
    ("text", "budget"),
    [("2000", Budget(steps=2000)), ("1", Budget(steps=1)), ("50 steps", Budget(steps=50)), ("1.5min", Budget(minutes=1.5))],
)
def test_budget_is_steps_or_minutes(text: str, budget: Budget) -> None:
    assert parse_budget(text) == budget


def test_invalid_budget_is_one_line(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for text, message in [
        ("0", "too small to train one step"),
        ("0min", "too small"),
        ("1.5", "not a number of steps"),
        ("-3", "is not a budget"),
        ("", "is not a budget"),
        ("2 h", "is not a budget"),
        ("9" * 30, "not a number of steps"),
    ]:
        with subtests.test(text=text, message=message):
            tmp_path = tmp_path_factory.mktemp("case")
            assert message in refusal("table3", "--corpus", "multi30k-ende", f"--budget={text}", "--folder", tmp_path / "table")
            assert not (tmp_path / "table").exists()


def test_invalid_arguments_of_table_3_are_one_line(plain: Recipe, tmp_path: Path) -> None:
    folder = tmp_path / "table"
    arguments = ("table3", "--folder", folder, "--corpus")
    assert "'C-n3' is no row of Table 3; did you mean C-n" in refusal(*arguments, "multi30k-ende", "--rows", "A,C-n3")
    assert "names no row" in refusal(*arguments, "multi30k-ende", "--rows", ",")
    error = refusal(*arguments, "multi30k-ende", "training.max_steps=9")
    assert "'training.max_steps=9': Table 3 sets training.max_steps itself; use --budget" in error
    assert "leave it out" in refusal(*arguments, "multi30k-ende", "model.d_k=9")
    assert "leave it out" in refusal(*arguments, "multi30k-ende", "decoding.mbr=chrf")
    assert "there is no such recipe" in refusal(*arguments, tmp_path / "none.toml")
    assert "nowhere" in refusal(*arguments, "multi30k-ende", f"data.root={tmp_path / 'nowhere'}", "--rows", "E")
    without = make_recipe({"data": {"train": plain.data.train.model_dump() if plain.data.train else None}})
    with pytest.raises(RecipeError, match=r"data\.valid is missing"):
        small_table(without, folder)
    with pytest.raises(DataError):
        small_table(plain.model_copy(update={"data": plain.data.model_copy(update={"root": str(tmp_path)})}), folder)
    assert not any(path.is_file() for path in folder.rglob("*"))


def test_table_3_checks_folder_and_output_before_training(plain: Recipe, tmp_path: Path) -> None:
    """Check a foreign run in the folder of the last row."""
    folder = tmp_path / "table"
    foreign_run = folder / "C-n2-seed1"
    foreign_run.mkdir(parents=True)
    (foreign_run / "recipe.json").write_text(json.dumps(plain.model_dump()))
    with pytest.raises(RunError, match=r"C-n2-seed1: has another recipe: \S+ was [^\n]*--folder$"):
        small_table(plain, folder)
    with pytest.raises(RunError, match="has another recipe"):
        small_table(plain, folder, processes=2)
    assert [path.name for path in folder.rglob("*")] == ["C-n2-seed1", "recipe.json"]
    assert (foreign_run / "recipe.json").read_text() == json.dumps(plain.model_dump())
    drawing = tmp_path / "table.svg"
    drawing.write_text("mine")
    words = ("table3", "--corpus", "multi30k-ende", "--folder", tmp_path / "new", "-o", drawing)
    assert "table.svg: exists already" in refusal(*words)
    assert (drawing.read_text(), (tmp_path / "new").exists()) == ("mine", False)


@pytest.mark.slow
def test_rows_are_compared_over_one_text(plain: Recipe, corpus: Path, tmp_path: Path) -> None:
    folder, text = tmp_path / "table", Path(shutil.copytree(corpus, tmp_path / "text"))

    def with_root(root: Path) -> Recipe:
        return plain.model_copy(update={"data": plain.data.model_copy(update={"root": str(root)})})

    table = small_table(with_root(text), folder)
    assert table.remarks == []
    assert all(ordering.p_value is not None for ordering in table.compare_rows("bleu"))
    same_text = small_table(with_root(corpus), folder)  # in another folder
    assert describe_table3(same_text) == describe_table3(table)
    kept = (text / "valid.de").read_text()
    (text / "valid.de").write_text(kept.replace("e", "a"))
    with pytest.raises(
        RunError, match=r"base-seed1: was trained on another text than data\.root = \S+ now holds; [^\n]*--folder$"
    ):
        small_table(with_root(text), folder)
    (text / "valid.de").unlink()
    without = small_table(with_root(text), folder)
    (remark,) = without.remarks
    assert remark.startswith(f"no bootstrap: {text / 'valid.de'}: there is no such file")
    assert [ordering.p_value for ordering in without.compare_rows("bleu")] == [None]
    shutil.rmtree(folder / "C-n2-seed1")
    with raises_code("file-not-found", "valid.de"):
        small_table(with_root(text), folder)
    (text / "valid.de").write_text(kept)
    shutil.rmtree(folder)
    small_table(with_root(text), folder)
    (folder / "C-n2-seed1" / TRANSLATIONS_FILE).write_text("one\n")
    (remark,) = small_table(with_root(text), folder).remarks
    assert "translations.txt: has 1 line, but the test set has 10" in remark


def test_minutes_of_only_one_step_are_an_error() -> None:
    report = {"seconds": 30.0, "steps": 1, "valid": {"perplexity": 9.0}, "bleu": 1.0, "parameters": 5}
    with pytest.raises(RecipeError, match=r"too small for two steps of C-n2, of which one took 30\.0 seconds"):
        read_row_scores("C-n2", 1, report, Budget(minutes=0.1))
    assert read_row_scores("C-n2", 1, report, Budget(minutes=1.0))["steps"] == 1
    assert read_row_scores("C-n2", 1, {**report, "steps": 2}, Budget(minutes=0.1))["steps"] == 2
    assert read_row_scores("C-n2", 1, report, Budget(steps=1))["perplexity"] == 9.0


def scores(table: Table3) -> list[tuple[object, ...]]:
    return [(row.row, row.seed, row.perplexity, row.bleu, row.steps) for result in table.results for row in result.trained_rows]


@pytest.mark.slow
def test_parallel_rows_stop_resume_and_equal_sequential(plain: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_runs, "count_cores", lambda: 2)  # one thread each, so that sums have one order
    # A plan that no process would choose by itself, so that each must have it from the parent.
    kernels = KernelChoice("oneDNN", "fused")
    monkeypatch.setattr(compute_plan, "_select_fastest_kernels", lambda _: kernels)
    folder, started_names = tmp_path / "both", list[str]()

    def terminate(_: object) -> list[int]:
        """Send SIGTERM when a run is training, as a scheduler does."""
        for _ in range(2400):
            if any((folder / f"{row}-seed1" / "metrics.jsonl").is_file() for row in ("base", "C-n2")):
                os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)
        raise AssertionError("no run has begun, or none was interrupted")

    with monkeypatch.context() as patch:
        patch.setattr(parallel_runs, "wait", terminate)
        with raises_code("interrupted", "run the same command to resume"):
            small_table(plain, folder, steps=150, processes=2)
    logs = [read_metrics_log(path) for path in folder.glob("*-seed1/metrics.jsonl")]
    assert any(entry.get("event") == "stopped" for log in logs for entry in log)
    names = {"base": "base, seed 1 (1 of 2)", "C-n2": "C-n2, seed 1 (2 of 2)"}
    unfinished = [name for row, name in names.items() if not (folder / f"{row}-seed1" / "report.json").exists()]
    assert unfinished
    both = small_table(plain, folder, record_names(started_names), steps=150, processes=2)
    assert scores(both) == scores(small_table(plain, tmp_path / "each", steps=150))
    assert started_names == unfinished
    plans = [list_checkpoints(run / "checkpoints")[-1].compute_plan for run in folder.glob("*-seed1")]
    assert plans == [{"device": "cpu", "precision": "float32", "product": "oneDNN", "attention": "fused"}] * 2
    data = [folder / f"{row}-seed1" / "data" / "source.model" for row in ("base", "C-n2")]
    assert data[0].samefile(data[1])
    # The error of a run that cannot resume is one line with its name.
    (folder / "C-n2-seed1" / "report.json").unlink()
    newest = max((folder / "C-n2-seed1" / "checkpoints").iterdir())
    (newest / "manifest.json").write_text("{}")
    with pytest.raises(RunError, match=r"^C-n2, seed 1 \(2 of 2\): [^\n]*$"):
        small_table(plain, folder, steps=150, processes=2)


def record_names(names: list[str]) -> MakeCallback:
    """Return callbacks that record the names of the runs. They expect no event but the last."""

    def callback(event: TrainingEvent) -> None:
        assert isinstance(event, RunClosed)

    def make_callback(name: str) -> Callback:
        names.append(name)
        return callback

    return make_callback


@pytest.mark.slow
@pytest.mark.usefixtures("charts")
def test_table_3_command_trains_and_prints_rows(plain: Recipe, corpus: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'name = "words"\n[task]\ntarget_language = "de"\n[data]\nroot = "{corpus}"\nmax_length = 40\n'
        'train = { source = "train.en", target = "train.de" }\nvalid = { source = "valid.en", target = "valid.de" }\n'
        "[tokenizer]\nvocab_size = 80\nreserved_tokens = 0\nbyte_fallback = false\n"
        "[training]\nbatch_tokens = 130\nwarmup_steps = 2\n"
        "[decoding]\nmax_extra_tokens = 10\n"
    )
    words = ("table3", "--corpus", recipe, "--rows", "B-dk16", "--budget", 2, "--scale", "tiny", "--folder", tmp_path / "table")
    output = answer(*words, "-o", tmp_path / "table3.svg")
    for text in ("B-dk16", "5.16", "25.1", "58", "One seed has no standard deviation", "perplexity per subword token", "0.090"):
        assert text in output
    assert (tmp_path / "table3.svg").read_text().startswith("<svg")
    document = json.loads(answer(*words, "--json"))
    assert [row["printed"]["name"] for row in document["rows"]] == ["base", "B-dk16"]
    assert {ordering["outcome"] for ordering in document["orderings"] if ordering["metric"] == "perplexity"} == {"one seed"}
    # The p-value equals that of `dragoman compare` for the translations of the runs.
    (ordering,) = [item for item in document["orderings"] if item["metric"] == "bleu"]
    files = [tmp_path / "table" / f"{row}-seed1" / "translations.txt" for row in ("base", "B-dk16")]
    compared = CliRunner().invoke(cli, ["compare", *map(str, files), "--ref", str(corpus / "valid.de"), "--json"])
    assert ordering["p_value"] == json.loads(compared.stdout)["p_value"]


def make_table(**perplexities: list[float]) -> Table3:
    rows = {row.name.replace("-", "_"): row for row in PAPER_ROWS}
    results = [
        Table3Result(
            rows[name],
            [TrainedRow(rows[name].name, seed, value, 30.0 - value, "", 1, 10, 1.0) for seed, value in enumerate(values)],
        )
        for name, values in perplexities.items()
    ]
    return Table3("words", "tiny", Budget(steps=10), 2, results)


def resampled(value: float, *draws: float) -> ResampledScore:
    return ResampledScore(Score("BLEU", value, "signature"), np.array([value + draw for draw in draws] * 100), 1, False)


def test_ordering_within_sampling_noise_is_not_significant() -> None:
    """Check means over the seeds: base has 21, 20, 22 and one layer 20, 21, 20, so base leads in two samples of three."""
    rows = {row.name: row for row in PAPER_ROWS}

    def row(name: str, first: list[float], second: list[float]) -> Table3Result:
        trained = [TrainedRow(name, seed, 5.0, values[0], "", 1, 10, 1.0) for seed, values in enumerate((first, second))]
        draws = [resampled(0.0, *values[1:]) for values in (first, second)]
        return Table3Result(rows[name], trained, draws)

    base = row("base", [21.0, 20, 19, 21], [21.1, 22, 21, 23])
    for other_result, p_value, outcome in (
        (row("C-n2", [20.0, 19, 21, 20], [20.1, 21, 21, 20]), 2 * 101 / 301, "not significant"),
        (row("C-n2", [20.0, 19, 18, 20], [20.1, 21, 20, 22]), 2 * 1 / 301, "held"),
    ):
        table = Table3("words", "tiny", Budget(steps=10), 2, [base, other_result])
        (ordering,) = table.compare_rows("bleu")
        assert ordering.p_value == pytest.approx(p_value)
        assert ordering.outcome == outcome
        assert ordering.measured_margin == pytest.approx(1.0)
        assert all(item.p_value is None for item in table.compare_rows("perplexity"))
        assert describe_table3(table)["orderings"][-1].p_value == ordering.p_value
    incomplete = Table3("words", "tiny", Budget(steps=10), 2, [base, Table3Result(rows["C-n2"], other_result.trained_rows)])
    assert [ordering.p_value for ordering in incomplete.compare_rows("bleu")] == [None]


def test_ordering_holds_only_beyond_the_deviation() -> None:
    # Printed: base 4.92, N = 2 6.11, N = 4 5.19. The deviations of 5 and 6, 9 and 10, 5.5 and 6 are √½, √½ and √⅛.
    table = make_table(base=[5.0, 6.0], C_n2=[9.0, 10.0], C_n4=[5.5, 6.0])
    orderings = {(ordering.better_row, ordering.worse_row): ordering for ordering in table.compare_rows("perplexity")}
    assert orderings.keys() == {("base", "C-n2"), ("base", "C-n4"), ("C-n4", "C-n2")}
    best = orderings["base", "C-n2"]
    assert best.series == "C: layers"
    assert (best.paper_margin, best.measured_margin) == pytest.approx((1.19, 4.0))
    assert best.margin_std == pytest.approx(1.0)
    assert orderings["C-n4", "C-n2"].margin_std == pytest.approx(math.sqrt(0.5 + 0.125))
    assert [ordering.outcome for ordering in orderings.values()] == ["held", "within deviation", "held"]
    reversed_table = make_table(base=[9.0, 9.1], C_n2=[5.0, 5.1])
    assert {ordering.outcome for ordering in reversed_table.compare_rows("perplexity")} == {"reversed"}
    assert {ordering.outcome for ordering in make_table(base=[5.0], C_n2=[9.0]).compare_rows("bleu")} == {"one seed"}
    # E and base are printed with the same perplexity, so there is no order to hold; their BLEU differs.
    assert make_table(base=[5.0, 6.0], E=[5.0, 7.0]).compare_rows("perplexity") == []
    assert [ordering.better_row for ordering in make_table(base=[5.0, 6.0], E=[5.0, 7.0]).compare_rows("bleu")] == ["base"]
    assert "C: layers" in draw_table3(table)
    assert isinstance(orderings["base", "C-n2"], Ordering)


# --- the page ----------------------------------------------------------------------------------------------------------


def equations() -> list[list[str]]:
    """Return the cells of the page's table of equations."""
    section = PAGE.read_text(encoding="utf-8").split("## Equations")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def resolve(path: str) -> Any:
    """Return the object with this dotted path."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            target: Any = importlib.import_module(".".join(parts[:end]))
            for name in parts[end:]:
                target = getattr(target, name)
            return target
    raise AssertionError(path)


def test_page_names_existing_lines_and_tests(subtests: pytest.Subtests) -> None:
    for row in equations():
        with subtests.test(row=row):
            _, where, line, test, _ = row
            assert line.strip("`") in inspect.getsource(resolve(where.strip("`")))
            file, _, name = test.strip("`").partition("::")
            assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8")


def test_page_has_all_equations_and_model_sections() -> None:
    text = " ".join(row[0] for row in equations())
    for entry in ("equation 1", "equation 2", "equation 3", "3.1", "3.2.2", "3.2.3", "3.4", "3.5", "5.3", "5.4", "6.1"):
        assert entry in text


def test_page_has_the_numbers_of_the_worked_example() -> None:
    """`test_demonstrations` holds the same numbers against the output of `dragoman paper example`."""
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    for numbers in ("112 and 96", "14 and 12: 0.88 and 0.12", "z₁ = 0.88·v₁ + 0.12·v₂", "ten-millionth"):
        assert numbers in page
    assert math.exp(14) / (math.exp(14) + math.exp(12)) == pytest.approx(0.88, abs=0.001)
    assert math.exp(96 - 112) == pytest.approx(1e-7, rel=0.2)


def test_pages_name_all_paper_commands() -> None:
    group = cli.get_command(click.Context(cli), "paper")
    assert isinstance(group, click.Group)
    tutorial = ROOT / "docs" / "tutorials" / "reproduce-the-paper.md"
    names = {
        name for page in (PAGE, tutorial) for name in re.findall(r"dragoman paper (\w+)", page.read_text(encoding="utf-8"))
    }
    assert names == set(group.commands)
