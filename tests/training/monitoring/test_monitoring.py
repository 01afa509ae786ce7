"""Monitoring of a run: metrics log, loggers, cost, status, dashboard, diagnostics and progress on the terminal."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import os
import re
import resource
import subprocess
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from fnmatch import fnmatchcase
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from conftest import MakeRecipe
from dragoman.cli.info import diagnose as diagnose_command
from dragoman.config import ModelConfig, Recipe, make_recipe
from dragoman.data.collate import collate
from dragoman.errors import OutputError, RunError
from dragoman.model.attention import explicit_attention, set_attention_impl
from dragoman.model.factory import build_model
from dragoman.model.lora import add_adapters, find_linears
from dragoman.model.masks import causal_mask, window_mask
from dragoman.training.commands.dashboard import dashboard
from dragoman.training.commands.progress_bar import TrainingProgressBar, format_cost
from dragoman.training.commands.train import _ask_languages
from dragoman.training.losses.label_smoothing import batch_loss
from dragoman.training.monitoring.diagnostics import DIAGNOSTIC_RULES, diagnose
from dragoman.training.monitoring.events import (
    Callback,
    CallbackList,
    EvaluationCost,
    Notice,
    RunClosed,
    RunEvent,
    RunFinished,
    RunInfo,
    RunStarted,
    Sample,
    StepDone,
    StepReport,
    TrainingEvent,
    ValidationReport,
    ValidationSamples,
)
from dragoman.training.monitoring.flops import (
    BatchCost,
    Size,
    compute_batch_cost,
    count_forward_flops,
)
from dragoman.training.monitoring.loggers import with_loggers
from dragoman.training.monitoring.metrics_log import MetricsLog, read_metrics_log
from dragoman.training.monitoring.run_page import build_run_page
from dragoman.training.monitoring.run_status import RunStatus, read_run_status, summarize_run
from dragoman.training.monitoring.training_macs import count_training_macs
from dragoman.training.run import train
from dragoman.viz.run_page import diff_text
from expected_errors import raises_code

pytestmark = pytest.mark.usefixtures("one_core")

SMALL = ModelConfig(encoder_layers=2, decoder_layers=3, d_model=24, d_ff=40, num_heads=3, d_k=5, d_v=7, tie_embeddings="none")


def step_report(step: int, **values: Any) -> StepReport:
    defaults = dict(epoch=0.5, loss=2.0, perplexity=7.4, lr=1e-3, gradient_norm=1.0, tokens_per_second=900.0)
    times = {"progress": step / 100, "minutes": 1.0, "minutes_left": 3.0}
    return StepReport(step, **{**defaults, **times, **values})


class FailingRecorder:
    """Callback that records the types of its events, and that fails at one type if asked for."""

    def __init__(self, *, fails_at: str = "") -> None:
        self.event_types: list[str] = []
        self.notices: list[str] = []
        self.fails_at = fails_at

    def __call__(self, event: TrainingEvent) -> None:
        if isinstance(event, Notice):
            self.notices.append(event.text)
            return
        event_type = type(event).__name__
        self.event_types.append(event_type)
        if event_type == self.fails_at:
            raise ConnectionError("no\nroute")


SAMPLES = (Sample("one red", "eins rot", "eins"), Sample("two", "zwei", "zwei"))
EVENT_TYPES = ["RunStarted", "StepReport", "RunEvent", "ValidationReport", "ValidationSamples", "RunFinished", "RunClosed"]


def play(callback: Callback, folder: Path, *, recipe: Mapping[str, Any] | None = None, first: int = 1, last: int = 2) -> None:
    """Send the events of a run from step `first` to `last`."""
    callback(RunStarted(RunInfo("tiny", str(folder), "cpu", 1000, step=first - 1), recipe or {"training": {"seed": 1}}))
    for step in range(first, last + 1):
        callback(step_report(step, loss=3.0 - 0.1 * step))
    callback(RunEvent("skipped_steps", last, "left out"))
    callback(ValidationReport(last, 2.5, nll=math.log(6.0), perplexity=6.0, bleu=12.5, best=True))
    callback(ValidationSamples(last, SAMPLES))
    callback(RunFinished({"name": "tiny", "steps": last, "bleu": 33.25}))
    callback(RunClosed())


# Callbacks


def test_callback_list_sends_events_to_all() -> None:
    own, first, second = FailingRecorder(), FailingRecorder(), FailingRecorder()
    callbacks = CallbackList(own, {"first": first, "second": second})
    callbacks(Notice("hello"))
    play(callbacks, Path("run"))
    expected_types = [name for name in EVENT_TYPES for _ in range(2 if name == "StepReport" else 1)]
    assert own.event_types == first.event_types == second.event_types == expected_types
    assert (own.notices, first.notices) == (["hello"], [])


@pytest.mark.parametrize("fails_at", EVENT_TYPES)
def test_failing_logger_does_not_end_run(fails_at: str) -> None:
    own, failing, healthy = FailingRecorder(), FailingRecorder(fails_at=fails_at), FailingRecorder()
    play(CallbackList(own, {"failing": failing, "healthy": healthy}), Path("run"))
    assert own.notices == ["failing: no route; it receives no more events of this run"]
    assert own.event_types == healthy.event_types
    position = failing.event_types.index(fails_at) + 1
    assert failing.event_types[:position] == healthy.event_types[: healthy.event_types.index(fails_at) + 1]
    assert failing.event_types[-1] == "RunClosed"
    assert failing.event_types.count(fails_at) == (2 if fails_at == "RunClosed" else 1)


# Metrics log


@pytest.mark.parametrize("has_handler", [True, False])
def test_lines_wait_until_disk_has_space(has_handler: bool, tmp_path: Path) -> None:
    """A limit on the size of files lets half of the line through, as a full disk does."""
    path = tmp_path / "metrics.jsonl"
    messages: list[str] = []
    metrics_log = MetricsLog(path, on_error=messages.append if has_handler else None)
    metrics_log.write("train", step=1)
    whole = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, hard))
    try:
        for step in (2, 3):
            with nullcontext() if has_handler else pytest.raises(OutputError, match="cannot be written"):
                metrics_log.write("train", step=step)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == whole
    assert len(messages) == has_handler
    metrics_log.write("train", step=4)
    assert [entry["step"] for entry in read_metrics_log(path)] == [1, 2, 3, 4]


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('[1]\n{"type": "train", "step": 1}\n3\n{"step": 2}\n' + "[" * 100_000 + "\n")
    assert read_metrics_log(tmp_path / "metrics.jsonl") == [{"type": "train", "step": 1}]


# Cost


def test_flops_equal_those_of_torch_counter() -> None:
    """Torch counts the masked future too: T(T − 1)/2 pairs for each sentence, head and layer."""
    model = build_model(SMALL, source_vocab_size=50, target_vocab_size=61)
    set_attention_impl(model, explicit_attention)
    batch = collate([[5] * 9] * 4, [[6] * 6] * 4, start_id=2)
    with FlopCounterMode(display=False) as forward:
        model(batch.source_BS, batch.inputs_BT)
    with FlopCounterMode(display=False) as both:
        model(batch.source_BS, batch.inputs_BT).sum().backward()
    future = 2 * 3 * 4 * 3 * (5 + 7) * (7 * 6 // 2)
    counted = count_forward_flops(SMALL, 61, np.full(4, 9), np.full(4, 7))
    assert forward.get_total_flops() == counted + future
    assert both.get_total_flops() == 3 * (counted + future)
    assert compute_batch_cost(SMALL, 61, batch).flops == 3 * counted


@pytest.mark.parametrize(
    ("frozen", "lora_targets", "norm"),
    [
        (("encoder.*",), (), "pre"),
        (("encoder.*", "decoder.embedding.weight"), (), "post"),
        (("*attention.query.*", "*attention.key.*", "*attention.value.*"), (), "post"),
        (("*",), ("decoder.*.query", "decoder.*.value"), "post"),
        (("*",), ("encoder.layers.1.feed_forward.outer",), "pre"),
    ],
)
def test_flops_of_frozen_models_equal_those_of_torch_counter(
    frozen: tuple[str, ...], lora_targets: tuple[str, ...], norm: Literal["pre", "post"]
) -> None:
    model = build_model(SMALL.model_copy(update={"norm": norm}), source_vocab_size=50, target_vocab_size=61)
    set_attention_impl(model, explicit_attention)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(fnmatchcase(name, pattern) for pattern in frozen))
    if lora_targets:
        add_adapters(model, find_linears(model, lora_targets), rank=2, alpha=4.0, seed=1)
    batch = collate([[5] * 9] * 4, [[6] * 15] * 4, start_id=2)  # the loss computes 64 positions at a time
    with FlopCounterMode(display=False) as counter:
        loss, _ = batch_loss(model, batch, epsilon=0.1, smoothing_mode="uniform")
        torch.autograd.backward(loss)
    macs = count_training_macs(model)
    assert macs is not None
    future = 2 * macs[Size.DECODER_PAIRS] * 4 * (16 * 15 // 2)
    assert counter.get_total_flops() == compute_batch_cost(SMALL, 61, batch, training_macs=macs).flops + future


@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_attention_flops_follow_the_mask(window: int | None) -> None:
    wide = SMALL.model_copy(update={"attention_window": window})
    size = 100 if window is None else window
    for length in (1, 2, 4, 9):
        visible = window_mask(length, length, size, device=torch.device("cpu"))
        past = visible & causal_mask(length, length, device=torch.device("cpu"))
        lengths = np.array([length])
        without = SMALL.model_copy(update={"attention_window": 0})  # each position itself: `length` pairs
        extra_flops = count_forward_flops(wide, 61, lengths, lengths) - count_forward_flops(without, 61, lengths, lengths)
        pairs = 2 * (int(visible.sum()) - length) + 3 * (int(past.sum()) - length)
        assert extra_flops == 2 * 3 * (5 + 7) * pairs


def test_padding_has_no_flops_and_is_reported() -> None:
    sources, targets = [[5] * 2, [5] * 9, [5] * 4], [[6] * 8, [6], [6] * 3]
    together = compute_batch_cost(SMALL, 61, collate(sources, targets, start_id=2))
    alone = [compute_batch_cost(SMALL, 61, collate([s], [t], start_id=2)) for s, t in zip(sources, targets, strict=True)]
    assert together.flops == sum(work.flops for work in alone)
    assert (together.tokens, together.padded_tokens) == (15 + 15, 3 * 9 + 3 * 9)
    assert together.padding_fraction == pytest.approx(24 / 54)
    assert [work.padding_fraction for work in alone] == [0.0] * 3
    assert sum(alone, BatchCost()).tokens == together.tokens
    assert BatchCost().padding_fraction == 0.0


# Loggers


def recipe_with_loggers(folder: Path, *names: str) -> Recipe:
    return make_recipe({"name": "tiny", "run": str(folder), "training": {"loggers": list(names)}})


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_missing_logger_library_fails_before_training(
    name: str, tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda library: None if library == name else find(library))
    with raises_code("missing-dependency", "training.loggers = ", f"'dragoman[{name}]'"):
        train(tiny(tmp_path / "run", f"training.loggers=['{name}']"))
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_holds_each_step_once_after_resume(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    own = FailingRecorder()
    recipe = recipe_with_loggers(tmp_path, "tensorboard")
    play(with_loggers(tmp_path, recipe.training.loggers, own), tmp_path, recipe=recipe.model_dump(), last=4)
    play(with_loggers(tmp_path, recipe.training.loggers, own), tmp_path, first=3, last=6)
    assert own.notices == []
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    losses = [(scalar.step, scalar.value) for scalar in events.Scalars("train/loss")]
    assert [step for step, _ in losses] == [1, 2, 3, 4, 5, 6]
    assert [value for _, value in losses] == pytest.approx([3.0 - 0.1 * step for step in range(1, 7)])
    assert [(scalar.step, scalar.value) for scalar in events.Scalars("valid/bleu")] == [(6, 12.5)]
    assert [scalar.value for scalar in events.Scalars("valid/nll")] == pytest.approx(
        [math.log(6.0)]
    )  # to compare with train/loss
    texts = {tag: events.Tensors(tag)[-1].tensor_proto.string_val[0].decode() for tag in events.Tags()["tensors"]}
    assert "training.max_steps = 100000" in events.Tensors("recipe/text_summary")[0].tensor_proto.string_val[0].decode()
    assert texts["events/skipped_steps/text_summary"] == "left out"
    assert "one red" in texts["samples/text_summary"]
    assert "33.25" in texts["report/text_summary"]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, dict[str, Any]], None]:
    """Function that replaces a library by a small module."""

    def put(name: str, members: dict[str, Any]) -> None:
        module = types.ModuleType(name)
        module.__spec__ = ModuleSpec(name, None, origin="here")
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)

    return put


@pytest.mark.parametrize("uri", [None, "http://tracker:5000"])
def test_mlflow_resumes_the_same_run(
    uri: str | None,
    tmp_path: Path,
    install: Callable[[str, dict[str, Any]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if uri:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    client = mock.Mock()
    client.get_experiment_by_name.return_value = None
    client.create_run.return_value.info.run_id = "run0"
    make_client = mock.Mock(return_value=client)
    install("mlflow", {})
    metric_and_parameter = {"Metric": lambda *values: values, "Param": lambda key, value: (key, value)}
    install("mlflow.entities", metric_and_parameter)
    install("mlflow.tracking", {"MlflowClient": make_client})
    recipe, own = recipe_with_loggers(tmp_path, "mlflow"), FailingRecorder()
    play(with_loggers(tmp_path, recipe.training.loggers, own), tmp_path, recipe=recipe.model_dump())
    play(with_loggers(tmp_path, recipe.training.loggers, own), tmp_path, recipe=recipe.model_dump(), first=3, last=3)
    assert own.notices == []
    assert {call.kwargs["tracking_uri"] for call in make_client.call_args_list} == {
        uri or f"sqlite:///{tmp_path / 'mlflow.db'}"
    }
    location = None if uri else str(tmp_path / "mlflow-artifacts")
    client.create_experiment.assert_called_once_with("dragoman", artifact_location=location)
    client.create_run.assert_called_once()
    batches = [call.kwargs for call in client.log_batch.call_args_list]
    metrics = [(key, value, step) for batch in batches for key, value, _, step in batch.get("metrics", ())]
    assert [(value, step) for key, value, step in metrics if key == "train/loss"] == [
        (pytest.approx(3.0 - 0.1 * step), step) for step in (1, 2, 3)
    ]
    assert ("report/bleu", 33.25, 3) in metrics
    assert any(("training.max_steps", "100000") in batch.get("params", ()) for batch in batches)
    assert max(len(batch.get("params", ())) for batch in batches) <= 100
    client.set_tag.assert_called_with("run0", "event.skipped_steps", "step 3: left out")
    client.update_run.assert_called_once_with("run0", status="RUNNING")
    assert client.set_terminated.call_args_list == [mock.call("run0", "FINISHED")] * 2
    assert json.loads((tmp_path / "loggers.json").read_text()) == {"mlflow": "run0"}


def test_wandb_resumes_the_same_run(
    tmp_path: Path, install: Callable[[str, dict[str, Any]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    runs: list[mock.Mock] = []
    init_settings: list[dict[str, Any]] = []

    def init(**settings: Any) -> mock.Mock:
        init_settings.append(settings)
        runs.append(mock.Mock(summary={}))
        return runs[-1]

    install("wandb", {"init": init, "Table": lambda columns, data: {"columns": columns, "data": data}})
    recipe, own = recipe_with_loggers(tmp_path, "wandb"), FailingRecorder()
    play(with_loggers(tmp_path, recipe.training.loggers, own), tmp_path)
    play(with_loggers(tmp_path, recipe.training.loggers, own), tmp_path, first=2, last=3)
    assert own.notices == []
    assert init_settings[0]["id"] == init_settings[1]["id"] == json.loads((tmp_path / "loggers.json").read_text())["wandb"]
    assert {(settings["mode"], settings["resume"], settings["project"]) for settings in init_settings} == {
        ("offline", "allow", "dragoman")
    }
    logged = [call.args[0] for run in runs for call in run.log.call_args_list]
    assert [entry["step"] for entry in logged if "train/loss" in entry] == [1, 2, 2, 3]
    assert {"step": 2, "events/skipped_steps": "left out"} in logged
    assert next(entry["samples"] for entry in logged if "samples" in entry)["data"][0] == ["one red", "eins rot", "eins"]
    runs[1].define_metric.assert_called_with("*", step_metric="step")
    assert runs[1].summary == {"report/steps": 3.0, "report/bleu": 33.25}
    runs[1].finish.assert_called_once_with(exit_code=0)


# Status


RECIPE = {"name": "<b>tiny</b>", "training": {"max_steps": 1000, "warmup_steps": 100, "schedule": "inverse_sqrt"}}


def lines(count: int = 40, *, every: int = 25, **courses: Callable[[float], Any]) -> list[dict[str, Any]]:
    """Return "train" lines of a healthy run. A course gives a value for each share of the run."""
    defaults: dict[str, Callable[[float], Any]] = {
        "epoch": lambda t: 4 * t,
        "loss": lambda t: 2.0 + 6.0 * math.exp(-5 * t),
        "lr": lambda t: 7e-4,
        "gradient_norm": lambda t: 1.0,
        "tokens_per_second": lambda t: 900.0,
        "skipped_steps": lambda t: 0,
        "data_wait_fraction": lambda t: 0.01,
        "mfu": lambda t: 0.6,
        "memory_mib": lambda t: 800.0,
        "padding_fraction": lambda t: 0.05,
    }
    entries = []
    for number in range(1, count + 1):
        share = number / count
        values = {name: course(share) for name, course in (defaults | courses).items()}
        values["perplexity"] = math.exp(values["loss"])
        step = every * number
        times = {"progress": step / 1000, "minutes": step / 20, "minutes_left": 50 * (1 - step / 1000)}
        entries.append({"type": "train", "step": step, **values, **times})
    return entries


def validations(*nlls: float, every: int = 200) -> list[dict[str, Any]]:
    best = [min(nlls[: index + 1]) == nll for index, nll in enumerate(nlls)]
    return [
        {"type": "valid", "step": every * (index + 1), "loss": nll + 1, "nll": nll, "perplexity": math.exp(nll),
         "bleu": 10.0 * index, "best": best[index], "seconds": 1.0}
        for index, nll in enumerate(nlls)
    ]  # fmt: skip


def event(kind: str, step: int, text: str = "details") -> dict[str, Any]:
    return {"type": "event", "step": step, "event": kind, "text": text}


def written(folder: Path, entries: Sequence[Mapping[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.json").write_text(json.dumps({**RECIPE, "run": str(folder)}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return folder


def age(folder: Path, seconds: float) -> None:
    for path in folder.iterdir():
        then = path.stat().st_mtime - seconds
        os.utime(path, (then, then))


def test_run_without_writes_is_stalled(tmp_path: Path) -> None:
    """The log interval is 25 of 1,000 steps in 50 minutes, so 75 s. After ten times that the run is stalled."""
    run = written(tmp_path / "run", lines(20))
    assert read_run_status(run).state == "running"
    age(run, 740)
    assert read_run_status(run).state == "running"
    age(run, 20)
    assert read_run_status(run).state == "stalled"
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps(lines(21)[-1]) + "\n")
    assert read_run_status(run).state == "running"


def test_stopped_and_finished_runs_are_recognized(tmp_path: Path) -> None:
    run = written(tmp_path / "run", [*lines(20), event("stopped", 500)])
    assert read_run_status(run).state == "stopped"
    written(run, [*lines(20), event("stopped", 500), event("resumed", 500)])
    assert read_run_status(run).state == "running"
    (run / "report.json").write_text("{}")
    assert read_run_status(run).state == "finished"
    assert summarize_run(read_run_status(run)).step == 500
    written(run, [*lines(20), event("checkpoint", 507)])  # the last line of training is of step 500
    assert summarize_run(read_run_status(run)).step == 507
    age(run, 10)
    written(run, lines(21))  # a larger budget, so the run resumes
    assert read_run_status(run).state == "running"


@pytest.mark.slow
def test_run_at_end_of_budget_is_not_stalled(tmp_path: Path) -> None:
    """A budget of minutes ends between two log lines; scoring the test set may then take longer than a log interval."""
    run = written(tmp_path / "run", [*lines(38)[:-1], event("checkpoint", 940), event("budget_spent", 940)])
    age(run, 1700)
    status = read_run_status(run)
    assert status.state == "running"
    assert diagnose(status) == []
    assert (summarize_run(status).progress, summarize_run(status).minutes_left) == (1.0, 0.0)
    page = build_run_page(status, timestamp="now")
    assert "step 940 · training is complete; the bundle and the report are still to be written" in page
    assert "killed" not in page
    age(run, 200)
    assert read_run_status(run).state == "stalled"
    (diagnosis,) = diagnose(read_run_status(run))
    assert diagnosis.name == "stalled after training"
    assert "the same command writes the bundle and the report" in diagnosis.remedy
    (run / "report.json").write_text("{}")
    assert "killed" not in build_run_page(read_run_status(run), timestamp="now")


@pytest.mark.parametrize("damage", ["{", "[]", '{"name": 5}', "[" * 100_000])
def test_folder_without_run_is_one_line_error(damage: str, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(RunError, match=r"holds no recipe\.json"):
            read_run_status(folder)
    (tmp_path / "recipe.json").write_text(damage)
    result = CliRunner().invoke(diagnose_command, [str(tmp_path)])
    assert result.exit_code != 0
    assert "recipe.json" in str(result.exception)
    assert "\n" not in str(result.exception)


# Dashboard


def render_page(entries: Sequence[Mapping[str, Any]], folder: Path) -> str:
    return build_run_page(read_run_status(written(folder, entries)), timestamp="now")


def test_page_shows_curves_events_and_sentences_as_text(tmp_path: Path) -> None:
    sample_entries = [
        {"type": "samples", "step": 200 * (1 + number), "samples": [
            {"source": "<script>alert(1)</script>", "reference": "eins & zwei", "translation": text}
        ]}
        for number, text in enumerate(("nie", "eins", "eins zwei", "eins und zwei", "eins & zwei"))
    ]  # fmt: skip
    entries = [*lines(40), *validations(2.6, 2.4, 2.3), *sample_entries, event("skipped_steps", 450, "<i>left out</i>")]
    page = render_page(entries, tmp_path / "run")
    assert "<script" not in page
    assert "<i>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "&lt;b&gt;tiny&lt;/b&gt;" in page
    assert page.count("<svg") == 9
    assert page.count('class="mark"') == 9
    assert "&lt;i&gt;left out&lt;/i&gt;" in page
    assert "step 200<" not in page  # the newest four
    assert all(f"<small>step {200 * number:,}</small>" in page for number in (2, 3, 4, 5))
    assert "eins <mark>und</mark> zwei" in page
    assert "default-src 'none'" in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


def test_dashboard_replaces_only_pages(tmp_path: Path) -> None:
    run = written(tmp_path / "run", lines(10))
    before = (run / "metrics.jsonl").read_bytes()
    for output in (run / "metrics.jsonl", run):
        result = CliRunner().invoke(dashboard, [str(run), "-o", str(output)])
        assert isinstance(result.exception, OutputError)
        assert "\n" not in str(result.exception)
    assert (run / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
def test_dashboard_writes_page_or_json(tmp_path: Path) -> None:
    run = written(tmp_path / "run", lines(10))
    page = ["-o", str(tmp_path / "page.html")]
    assert CliRunner().invoke(dashboard, [str(run), *page]).exit_code == 0
    assert isinstance(CliRunner().invoke(dashboard, [str(run), *page]).exception, OutputError)
    assert CliRunner().invoke(dashboard, [str(run), *page, "--overwrite"]).exit_code == 0
    assert 'http-equiv="refresh"' in (tmp_path / "page.html").read_text()
    result = CliRunner().invoke(dashboard, [str(run), "--json"])
    assert json.loads(result.stdout)["step"] == 250
    assert not (run / "report.html").exists()
    assert CliRunner().invoke(dashboard, [str(run)]).exit_code == 0
    assert (run / "report.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["dashboard RUN", "diagnose RUN"])
def test_status_commands_import_no_torch(command: str, tmp_path: Path) -> None:
    """Torch takes seconds to import, and a quarter of a gigabyte beside the run."""
    run = written(tmp_path / "run", lines(10))
    words = ["dragoman", *command.replace("RUN", str(run)).split()]
    script = f"import sys\nsys.modules['torch'] = None\nsys.argv = {words!r}\nfrom dragoman.cli.main import main\nmain()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize(
    ("before", "text", "parts"),
    [
        (None, "eins", [("eins", False)]),
        ("eins", "", []),
        ("eins zwei", "eins zwei", [("eins zwei", False)]),
        ("eins zwei", "eins und zwei", [("eins ", False), ("und", True), (" ", False), ("zwei", False)]),
        ("他在", "他在公園", [("他在", False), ("公園", True)]),
        ("a " * 2000, "b " * 2000, [("b " * 2000, False)]),
    ],
)
def test_text_diff_marks_new_words(before: str | None, text: str, parts: list[tuple[str, bool]]) -> None:
    assert diff_text(before, text) == parts


# Diagnostics


def record(entries: Sequence[dict[str, Any]], *settings: str, **values: Any) -> RunStatus:
    return RunStatus(Path("run"), make_recipe(RECIPE, settings), list(entries), **values)


def course(*corners: float) -> Callable[[float], float]:
    """Return a function with straight lines through these values at equal distances."""
    return lambda share: float(np.interp(share, np.linspace(0, 1, len(corners)), corners))


HEALTHY = record([*lines(), *validations(2.6, 2.4, 2.3, 2.25), event("checkpoint", 1000)])
UNHEALTHY: dict[str, RunStatus] = {
    "diagnose_high_lr": record(lines(loss=course(9, 4, 3, 6, 7))),
    "diagnose_ignored_source": record(
        [
            *lines(epoch=course(0, 10)),
            *(
                {**entry, "nll_own_source": entry["nll"], "nll_shuffled_source": entry["nll"] + 0.01}
                for entry in validations(2.6, 2.4)
            ),
        ]
    ),
    "diagnose_gradient_spikes": record(lines(gradient_norm=lambda t: 30.0 if round(40 * t) % 10 == 0 else 1.0)),
    "diagnose_skipped_steps": record([*lines(skipped_steps=course(0, 8)), event("rolled_back", 700)]),
    "diagnose_overfitting": record([*lines(), *validations(2.6, 2.3, 2.4, 2.6, 2.9)]),
    "diagnose_no_progress": record([*lines(loss=course(9, 2.5, 2.5, 2.5, 2.5)), *validations(3.0, 2.7, 2.7, 2.7)]),
    "diagnose_long_warmup": record(lines(10), "training.warmup_steps=4000"),
    "diagnose_small_epochs": record(lines(epoch=lambda t: 250 * t)),
    "diagnose_data_wait": record(lines(data_wait_fraction=course(0.02, 0.1, 0.3))),
    "diagnose_memory_growth": record(lines(memory_mib=course(500, 1500))),
    "diagnose_out_of_memory": record([*lines(), event("oom_split", 300), event("oom_split", 500, "it is split")]),
    "diagnose_failed_checkpoints": record(
        [*lines(), event("checkpoint", 200), event("checkpoint_failed", 400, "the disk is full")]
    ),
    "diagnose_low_mfu": record(lines(mfu=lambda t: 0.1)),
    "diagnose_padding": record(lines(padding_fraction=lambda t: 0.4)),
    "diagnose_dead_run": record(lines(20), seconds_since_update=100_000.0),
}


def test_healthy_run_has_no_diagnosis() -> None:
    assert diagnose(HEALTHY) == []
    for count in range(12):
        assert diagnose(record(lines(40)[:count])) == []
    for falling_or_filling in (lines(gradient_norm=lambda t: 3.0 * 0.001**t), lines(memory_mib=course(500, 1200, 1250, 1250))):
        assert diagnose(record(falling_or_filling)) == []


def test_each_rule_fires_on_its_own_problem_only(subtests: pytest.Subtests) -> None:
    for rule in DIAGNOSTIC_RULES:
        with subtests.test(rule=rule):
            diagnosis = rule(UNHEALTHY[rule.__name__])
            assert diagnosis is not None
            assert all(text and "\n" not in text and not text.endswith(".") for text in vars(diagnosis).values())
            for name, status in UNHEALTHY.items():
                # A high learning rate may cause skipped steps, but each of these logs shows one problem only.
                assert (rule(status) is not None) == (name == rule.__name__), name


def test_loss_near_uniform_is_diagnosed() -> None:
    """ln 32,000 = 10.37 is the default without a line about the run."""
    (diagnosis,) = diagnose(record(lines(loss=lambda t: 7.0)))
    assert diagnosis.name == "learning rate too high"
    assert "ln V = 10.37" in diagnosis.evidence
    run_line = {"type": "run", "step": 0, "uniform_loss": math.log(100_000_000)}
    assert all(
        diagnosis.name != "learning rate too high" for diagnosis in diagnose(record([run_line, *lines(loss=lambda t: 7.0)]))
    )
    assert all(
        diagnosis.name != "learning rate too high"
        for diagnosis in diagnose(record(lines(loss=lambda t: 7.0), "training.warmup_steps=1000"))
    )


def test_many_epochs_and_damaged_checkpoints_are_diagnosed() -> None:
    (diagnosis,) = diagnose(record(lines(epoch=lambda t: 120 * t, every=100)))
    assert (diagnosis.name, "120 times" in diagnosis.evidence) == ("corpus exhausted", True)
    (diagnosis,) = diagnose(record(lines(), damaged_checkpoints=["damaged-step-00000100-1"]))
    assert diagnosis.name == "damaged checkpoints"


def test_failure_is_diagnosed_with_its_error() -> None:
    ended = record([*lines(20), event("failed", 510, "the disk is full.")])
    assert ended.state == "failed"
    assert [(diagnosis.name, diagnosis.evidence) for diagnosis in diagnose(ended)] == [("failed", "the disk is full")]
    assert record([*lines(20), event("failed", 510), event("resumed", 500)]).state == "running"


def test_first_epoch_is_no_overfitting() -> None:
    (diagnosis,) = diagnose(record([*lines(epoch=lambda t: 0.9 * t), *validations(2.6, 2.3, 2.4, 2.6, 2.9)]))
    assert diagnosis.name == "validation gets worse"
    assert "data.valid" in diagnosis.remedy


def test_remedies_leave_out_settings_in_use() -> None:
    """Far too high a learning rate becomes the paper's: (512 · 100)^-0.5 = 0.0044 for this width and warm-up."""
    for settings, remedy in (
        (["training.peak_lr=1.0"], "training.peak_lr = 0.0044; training.warmup_steps longer; training.clip_norm = 1.0; "),
        (["training.schedule=noam", "training.lr_factor=4.0"], "training.lr_factor = 1; training.warmup_steps longer; "),
        (["model.norm=pre", "training.clip_norm=1.0"], "training.peak_lr = 0.00035; training.warmup_steps longer"),
    ):
        (diagnosis,) = diagnose(record(lines(loss=course(9, 4, 3, 6, 7)), *settings))
        assert diagnosis.remedy.startswith(remedy)


def test_shorter_noam_warmup_keeps_the_peak() -> None:
    """The peak is lr_factor · (d_model · warmup)^-0.5, and 100 steps are a fortieth of the warm-up: 2 / √40 = 0.32."""
    settings = ("training.warmup_steps=4000", "training.schedule=noam", "training.lr_factor=2.0", "training.max_steps=1000")
    (diagnosis,) = diagnose(record(lines(10), *settings))
    assert diagnosis.remedy.startswith("training.warmup_steps = 100 with training.lr_factor = 0.32, which keeps the peak; ")


def test_diagnose_command_prints_text_and_json(tmp_path: Path) -> None:
    run = written(tmp_path / "run", [*lines(), *validations(2.6, 2.3, 2.4, 2.6, 2.9)])

    def diagnose_run(*options: str) -> str:
        return CliRunner().invoke(diagnose_command, [str(run), *options], catch_exceptions=False).stdout

    assert "1. overfits: validation was best at step 400" in diagnose_run()
    assert [diagnosis["name"] for diagnosis in json.loads(diagnose_run("--json"))["diagnoses"]] == ["overfits"]
    written(run, lines())
    assert "No problem found in the metrics log" in diagnose_run()
    written(run, lines(2))
    assert "too few lines; try again later" in diagnose_run()
    (run / "report.json").write_text("{}", encoding="utf-8")
    assert "too few lines; the run was too short" in diagnose_run()


# Terminal


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=400, highlight=False)


def get_output(console: Console) -> str:
    return str(console.file.getvalue())  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [40, 80, 140])
def test_bar_fits_the_terminal(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    bar = TrainingProgressBar(console)
    intervals = {"max_steps": 30_500, "validate_every_steps": 500, "checkpoint_every_steps": 0, "checkpoint_every_minutes": 10}
    bar(RunStarted(RunInfo("tiny", "run", "cpu", 1000), {"training": intervals}))
    bar(StepDone(12_200, 0.4))
    bar(step_report(12_200, loss=2.123, perplexity=8.36, tokens_per_second=18_800, gradient_norm=0.8123, mfu=0.637))
    bar.bar.refresh()
    lines = re.sub(r"\x1b\[[0-9]*[A-Z]", "", get_output(console).split("1000 parameters")[-1].split("\r")[-1]).splitlines()
    bar(RunClosed())
    assert all(len(line) <= width for line in lines)
    if width == 40:
        return
    words = " ".join(" ".join(lines).split())
    assert " 40 % step 12,200 of 30,500 epoch 0.50 loss 2.123" in f" {words}"
    for part in ("18,800 tokens/s, 64% of peak", "validation at step 12,500", "checkpoint every 10 min", "left"):
        assert part in words


def test_time_left_follows_the_pace_after_resume() -> None:
    now = 100.0
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None, get_time=lambda: now)
    bar = TrainingProgressBar(console)
    bar.rate.clock = lambda: now
    now = 400.0  # the corpora are prepared until now
    bar(StepDone(900, 0.90))
    bar.bar.refresh()
    assert "-:-- left" in get_output(console)
    now = 460.0
    bar(StepDone(910, 0.91))
    bar.bar.refresh()
    bar(RunClosed())
    assert "9:00 left" in get_output(console)


@pytest.mark.usefixtures("progress_lines")
def test_line_is_written_every_thirty_seconds(console: Console) -> None:
    """The lines come without a terminal, and before the first step report."""
    bar = TrainingProgressBar(console)
    now = 0.0
    bar.rate.clock = bar.step_rate.clock = bar.timer.clock = lambda: now
    bar.timer.restart()
    for step in range(1, 101):
        now = float(step)
        bar(StepDone(step, step / 1000))
    lines = get_output(console).splitlines()
    assert lines[0] == "training: step 20, 2.0% of the budget, 1 steps/s, 16 min left"
    assert len(lines) == 5


def test_events_are_lines_except_checkpoints(console: Console) -> None:
    bar = TrainingProgressBar(console)
    bar(RunEvent("checkpoint", 1, "saved"))
    bar(RunEvent("stopped", 3, "the error message of the command"))
    bar(RunEvent("skipped_steps", 2, "step 2: [left] out"))
    run_info = RunInfo("tiny", "run", "cpu (2 threads), float32, lean attention", 44_000_000, devices=2)
    bar(RunStarted(run_info, {}))
    assert get_output(console).splitlines() == [
        "step 2: [left] out",
        "44,000,000 parameters on 2 devices, each cpu (2 threads), float32",
    ]


def test_minutes_of_steps_name_what_evaluations_add(console: Console) -> None:
    """A machine with 1e10 operations a second takes 4 s for 4e10. It takes twice that, so the test set takes 2 × 20 s."""
    bar = TrainingProgressBar(console)
    bar(EvaluationCost(4e10, 20e10))
    training = {"max_minutes": 5, "validate_every_steps": 100}
    bar(RunStarted(RunInfo("tiny", "run", "cpu", 1000, peak_flops_per_second=1e10), {"training": training}))
    bar(StepDone(100, 0.1))
    for step in (100, 200):
        bar(ValidationReport(step, 2.5, nll=1.25, perplexity=math.exp(1.25), bleu=None, best=True, seconds=8.0))
    lines = [line for line in get_output(console).splitlines() if "max_minutes" in line]
    assert [line.split("; ")[1] for line in lines] == [
        "each validation adds about 4 s, the test set about 20 s",
        "all 10 validations add about 1 min 20 s, the test set about 40 s",
    ]


def test_load_of_other_programs_is_named_once(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (8.0, 8.0, 8.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    bar = TrainingProgressBar(console)
    for step in (100, 200):
        bar(step_report(step))
    assert get_output(console).count("other programs slow this training: load 8.0 on 2 cores") == 1


def test_training_and_validation_losses_are_comparable(console: Console) -> None:
    """Both are the logarithm of the perplexity beside them. The perplexity of a diverged run stays short."""
    bar = TrainingProgressBar(console)
    bar(ValidationReport(100, 2.5, nll=1.25, perplexity=math.exp(1.25), bleu=12.5, best=True))
    bar(step_report(150, loss=600.0, perplexity=math.exp(600)))
    first, second = get_output(console).splitlines()
    assert first == "step     100  validation  loss 1.250  perplexity 3.49  BLEU 12.50 (greedy)  best so far"
    assert "loss 600.000  perplexity    > 1e9  gradient norm" in second


def test_cost_of_a_run_is_one_line() -> None:
    report = {
        "seconds": 90.0, "steps": 1000, "target_tokens": 90_000, "target_tokens_per_second": 1000, "flops": 1.5e12,
        "mfu": 0.61, "data_wait_fraction": 0.004, "skipped_steps": 2,
    }  # fmt: skip
    cost = format_cost(report)
    assert cost.startswith(
        "cost: 1 min 30 s, 1,000 steps, 90,000 target tokens (1,000/s), 1.50e+12 floating-point operations, "
    )
    assert "61% of the peak FLOP/s of this machine, 0.4% of the time waiting for batches, 2 steps skipped" in cost
    del report["mfu"]
    assert "peak" not in format_cost(report)


def test_train_asks_for_languages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpora = {name: {"source": "a.en", "target": "a.de"} for name in ("train", "valid")}
    recipe = make_recipe({"name": "tiny", "run": str(tmp_path / "run"), "data": corpora})
    assert _ask_languages(recipe) == ()
    assert "states no languages" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(isatty=lambda: True))
    answers = iter(["English", "pt-BR"])
    monkeypatch.setattr("click.prompt", lambda _text, value_proc, **_options: value_proc(next(answers)))
    assert _ask_languages(recipe) == ("task.source_language=en", "task.target_language=pt-BR")
