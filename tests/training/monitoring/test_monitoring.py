"""What people see of a run: its cost, its trackers, its page, and what is wrong with it."""

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
import time
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from conftest import MakeRecipe
from dragoman.cli.console import TrainingProgressBar, format_cost
from dragoman.cli.info import doctor
from dragoman.cli.watch import watch
from dragoman.config import ModelConfig, Recipe, make_recipe
from dragoman.data.collate import collate
from dragoman.errors import MissingDependencyError, OutputError, RunError
from dragoman.model.attention import explicit_attention, set_attention_impl
from dragoman.model.factory import build_model
from dragoman.model.masks import causal_mask, window_mask
from dragoman.training.monitoring.callbacks import CallbackList, EventKind, NullCallback, RunInfo, StepReport, ValidationReport
from dragoman.training.monitoring.dashboard import format_duration, render_run_page
from dragoman.training.monitoring.diagnostics import DIAGNOSTIC_RULES, diagnose
from dragoman.training.monitoring.energy import EnergyMeter
from dragoman.training.monitoring.flops import BatchCost, compute_batch_cost, count_forward_flops, read_resident_mib
from dragoman.training.monitoring.metrics_log import MetricsLog, read_metrics_log
from dragoman.training.monitoring.run_status import RunStatus, read_run_status, summarize_run
from dragoman.training.monitoring.trackers import with_loggers
from dragoman.training.run import train
from dragoman.training.validation import Sample
from dragoman.viz.run_dashboard import diff_text

pytestmark = pytest.mark.usefixtures("one_core")

SMALL = ModelConfig(encoder_layers=2, decoder_layers=3, d_model=24, d_ff=40, num_heads=3, d_k=5, d_v=7, tie_embeddings="none")


def step_report(step: int, **values: Any) -> StepReport:
    usual = dict(epoch=0.5, loss=2.0, perplexity=7.4, rate=1e-3, gradient_norm=1.0, tokens_per_second=900.0)
    return StepReport(step, **{**usual, "share_spent": step / 100, "minutes_left": 3.0, **values})


class Heard(NullCallback):
    """A listener that remembers what it heard, and fails where it is told to."""

    def __init__(self, *, fails_at: str = "") -> None:
        self.heard: list[str] = []
        self.notices: list[str] = []
        self.fails_at = fails_at

    def _hear(self, what: str) -> None:
        self.heard.append(what)
        if what == self.fails_at:
            raise ConnectionError("no\nroute")

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def begin(self, about: RunInfo) -> None:
        self._hear("begin")

    def step(self, report: StepReport) -> None:
        self._hear("step")

    def event(self, kind: EventKind, step: int, text: str) -> None:
        self._hear("event")

    def validation(self, report: ValidationReport) -> None:
        self._hear("validation")

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        self._hear("samples")

    def finish(self, report: Mapping[str, Any]) -> None:
        self._hear("finish")

    def close(self) -> None:
        self._hear("close")


SAMPLES = [Sample("one red", "eins rot", "eins"), Sample("two", "zwei", "zwei")]
ALL = ["begin", "step", "event", "validation", "samples", "finish", "close"]


def play(
    listener: NullCallback, folder: Path, *, recipe: Mapping[str, Any] | None = None, first: int = 1, last: int = 2
) -> None:
    """A run from step `first` to `last` as a trainer would tell it."""
    listener.begin(RunInfo("tiny", recipe or {"training": {"seed": 1}}, str(folder), "cpu", 1000, step=first - 1))
    for step in range(first, last + 1):
        listener.step(step_report(step, loss=3.0 - 0.1 * step))
    listener.event("skipped", last, "left out")
    listener.validation(ValidationReport(last, 2.5, 6.0, 12.5, True))
    listener.samples(last, SAMPLES)
    listener.finish({"name": "tiny", "steps": last, "bleu": 33.25})
    listener.close()


# Listeners


def test_everyone_hears_everything() -> None:
    own, first, second = Heard(), Heard(), Heard()
    several = CallbackList(own, {"first": first, "second": second})
    several.notice("hello")
    play(several, Path("run"))
    calls = [name for name in ALL for _ in range(2 if name == "step" else 1)]
    assert own.heard == first.heard == second.heard == calls
    assert (own.notices, first.notices) == (["hello"], [])


@pytest.mark.parametrize("fails_at", ALL)
def test_a_tracker_that_fails_ends_no_run_and_is_told_once(fails_at: str) -> None:
    own, failing, other = Heard(), Heard(fails_at=fails_at), Heard()
    play(CallbackList(own, {"failing": failing, "other": other}), Path("run"))
    assert own.notices == ["failing failed and hears no more of this run: no route"]
    assert own.heard == other.heard
    assert failing.heard[: failing.heard.index(fails_at) + 1] == other.heard[: other.heard.index(fails_at) + 1]
    assert failing.heard[-1] == "close"
    assert failing.heard.count(fails_at) == (2 if fails_at == "close" else 1)


def test_a_failure_of_our_own_is_no_tracker_s() -> None:
    with pytest.raises(ConnectionError):
        play(CallbackList(Heard(fails_at="step"), {"other": Heard()}), Path("run"))


def test_trackers_of_a_run_that_never_began_hear_nothing() -> None:
    tracker = Heard()
    several = CallbackList(NullCallback(), {"one": tracker})
    several.finish({})
    several.close()
    assert tracker.heard == []


# Journal


def test_the_journal_holds_events_samples_and_what_the_run_is(tmp_path: Path) -> None:
    journal = MetricsLog(tmp_path / "metrics.jsonl", step=0)
    journal.begin(RunInfo("tiny", {"name": "tiny"}, "runs/tiny", "cpu", 1000, ceiling=1e9))
    journal.event("skipped", 3, "left out")
    journal.samples(4, SAMPLES[:1])
    about, event, samples = read_metrics_log(tmp_path / "metrics.jsonl")
    assert (about["type"], about["step"], about["ceiling"], "recipe" in about) == ("run", 0, 1e9, False)
    assert event == {"type": "event", "step": 3, "event": "skipped", "text": "left out"}
    line = {"source": "one red", "reference": "eins rot", "translation": "eins"}
    assert samples == {"type": "samples", "step": 4, "samples": [line]}


def test_numbers_that_are_not_finite_are_null(tmp_path: Path) -> None:
    MetricsLog(tmp_path / "metrics.jsonl", step=0).write("train", step=1, loss=math.nan, gradient_norm=math.inf, rate=0.5)
    assert read_metrics_log(tmp_path / "metrics.jsonl")[0] == {
        "type": "train", "step": 1, "loss": None, "gradient_norm": None, "rate": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize("tells", [True, False])
def test_what_finds_no_room_is_written_when_there_is_some(tells: bool, tmp_path: Path) -> None:
    """A limit on the size of files lets half of the line through, as a full disk does."""
    path = tmp_path / "metrics.jsonl"
    told: list[str] = []
    journal = MetricsLog(path, step=0, on_error=told.append if tells else None)
    journal.write("train", step=1)
    whole = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, hard))
    try:
        for step in (2, 3):
            with nullcontext() if tells else pytest.raises(OutputError, match="cannot be written"):
                journal.write("train", step=step)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == whole
    assert len(told) == tells
    journal.write("train", step=4)
    assert [entry["step"] for entry in read_metrics_log(path)] == [1, 2, 3, 4]


def test_lines_that_are_no_entries_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('[1]\n{"type": "train", "step": 1}\n3\n{"step": 2}\n' + "[" * 100_000 + "\n")
    assert read_metrics_log(tmp_path / "metrics.jsonl") == [{"type": "train", "step": 1}]


# Cost


def test_operations_are_those_that_torch_counts() -> None:
    """Torch multiplies the future as well, which the mask then takes out: T(T − 1)/2 pairs a sentence, head and layer."""
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


def test_one_layer_of_width_one_by_hand() -> None:
    """A source of 2 and a target of 3 places: each weight is one multiplication a token, each pair two."""
    config = ModelConfig(encoder_layers=1, decoder_layers=1, d_model=2, d_ff=1, num_heads=1, d_k=1, d_v=1)
    weights = 8  # W^Q, W^K, W^V, W^O of 2 each; W₁ and W₂ are 2 each as well
    encoder = 2 * (weights + 4) + 2 * 2 * 2
    decoder = 3 * (weights + 4 + 4) + 2 * 4 + (3 + 2 + 1) * 2 + 3 * 2 * 2
    output = 3 * 2 * 10
    assert count_forward_flops(config, 10, np.array([2]), np.array([3])) == 2 * (encoder + decoder + output)


@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_attention_is_counted_where_its_mask_lets_places_see(window: int | None) -> None:
    wide = SMALL.model_copy(update={"attention_window": window})
    size = 100 if window is None else window
    for length in (1, 2, 4, 9):
        sees = window_mask(length, length, size, device=torch.device("cpu"))
        past = sees & causal_mask(length, length, device=torch.device("cpu"))
        lengths = np.array([length])
        without = SMALL.model_copy(update={"attention_window": 0})  # each place itself, which is `length` pairs
        more = count_forward_flops(wide, 61, lengths, lengths) - count_forward_flops(without, 61, lengths, lengths)
        pairs = 2 * (int(sees.sum()) - length) + 3 * (int(past.sum()) - length)
        assert more == 2 * 3 * (5 + 7) * pairs


def test_padding_costs_nothing_and_is_told() -> None:
    sources, targets = [[5] * 2, [5] * 9, [5] * 4], [[6] * 8, [6], [6] * 3]
    together = compute_batch_cost(SMALL, 61, collate(sources, targets, start_id=2))
    alone = [compute_batch_cost(SMALL, 61, collate([s], [t], start_id=2)) for s, t in zip(sources, targets, strict=True)]
    assert together.flops == sum(work.flops for work in alone)
    assert (together.tokens, together.padded_tokens) == (15 + 15, 3 * 9 + 3 * 9)
    assert together.padding_fraction == pytest.approx(24 / 54)
    assert [work.padding_fraction for work in alone] == [0.0] * 3
    assert sum(alone, BatchCost()).tokens == together.tokens
    assert BatchCost().padding_fraction == 0.0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_is_what_the_system_says() -> None:
    told = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    assert read_resident_mib() == pytest.approx(int(told.split()[1]) / 1024, rel=0.05)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert read_resident_mib(Path("/no/such/file")) == pytest.approx(peak, rel=0.05)


# Energy


def package(root: Path, name: str, kind: str, microjoules: int, largest: int = 1_000_000) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(kind + "\n")
    (folder / "max_energy_range_uj").write_text(f"{largest}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    return folder


def test_energy_is_that_of_the_packages_over_the_ends_of_their_counters(tmp_path: Path) -> None:
    first = package(tmp_path, "intel-rapl:0", "package-0", 900_000)
    second = package(tmp_path, "intel-rapl:1", "package-1", 100)
    package(tmp_path, "intel-rapl:0:0", "core", 0)
    package(tmp_path, "intel-rapl:2", "psys", 0)
    meter = EnergyMeter(torch.device("cpu"), powercap=tmp_path)
    assert meter.read_joules() == 0.0
    (first / "energy_uj").write_text("950000")
    (second / "energy_uj").write_text("250100")
    for other in ("intel-rapl:0:0", "intel-rapl:2"):
        (tmp_path / other / "energy_uj").write_text("999999")
    assert meter.read_joules() == pytest.approx(0.3)
    (first / "energy_uj").write_text("50000")  # 50,000 to the end of the counter, 50,000 after it
    assert meter.read_joules() == pytest.approx(0.4)
    assert meter.read_joules() == pytest.approx(0.4)


def test_no_energy_is_told_where_nothing_tells_it(tmp_path: Path) -> None:
    assert EnergyMeter(torch.device("cpu"), powercap=tmp_path / "none").read_joules() is None
    folder = package(tmp_path, "intel-rapl:0", "package-0", 5)
    assert EnergyMeter(torch.device("cpu"), count_cpu=False, powercap=tmp_path).read_joules() is None
    meter = EnergyMeter(torch.device("cpu"), powercap=tmp_path)
    (folder / "energy_uj").unlink()
    assert meter.read_joules() is None
    assert EnergyMeter(torch.device("cpu"), powercap=tmp_path).read_joules() is None


# Trackers


def tracked(folder: Path, *names: str) -> Recipe:
    return make_recipe({"name": "tiny", "run": str(folder), "training": {"loggers": list(names)}})


def test_no_tracker_is_no_wrapper(tmp_path: Path) -> None:
    own = NullCallback()
    assert with_loggers(tracked(tmp_path), own) is own


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_extra_is_told_before_anything_is_done(
    name: str, tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda wanted: None if wanted == name else find(wanted))
    with pytest.raises(MissingDependencyError, match=rf"training.loggers = .* pip install 'dragoman\[{name}\]'"):
        train(tiny(tmp_path / "run", f"training.loggers=['{name}']"))
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_holds_each_step_once_after_a_run_that_went_on(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    own = Heard()
    recipe = tracked(tmp_path, "tensorboard")
    play(with_loggers(recipe, own), tmp_path, recipe=recipe.model_dump(mode="json"), last=4)  # type: ignore[arg-type]
    play(with_loggers(recipe, own), tmp_path, first=3, last=6)  # type: ignore[arg-type]
    assert own.notices == []
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    losses = [(one.step, one.value) for one in events.Scalars("train/loss")]
    assert [step for step, _ in losses] == [1, 2, 3, 4, 5, 6]
    assert [value for _, value in losses] == pytest.approx([3.0 - 0.1 * step for step in range(1, 7)])
    assert [(one.step, one.value) for one in events.Scalars("valid/bleu")] == [(6, 12.5)]
    assert [one.value for one in events.Scalars("valid/nll")] == pytest.approx([math.log(6.0)])  # to compare with train/loss
    texts = {tag: events.Tensors(tag)[-1].tensor_proto.string_val[0].decode() for tag in events.Tags()["tensors"]}
    assert "training.max_steps = 100000" in events.Tensors("recipe/text_summary")[0].tensor_proto.string_val[0].decode()
    assert texts["events/skipped/text_summary"] == "left out"
    assert "one red" in texts["samples/text_summary"]
    assert "33.25" in texts["report/text_summary"]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, dict[str, Any]], None]:
    """Put a small module in the place of a large one."""

    def put(name: str, members: dict[str, Any]) -> None:
        module = types.ModuleType(name)
        module.__spec__ = ModuleSpec(name, None, origin="here")
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)

    return put


class Client:
    """What MLflow's client does with the calls that it gets."""

    stores: ClassVar[dict[str, dict[str, Any]]] = {}

    def __init__(self, tracking_uri: str) -> None:
        self.store = self.stores.setdefault(tracking_uri, {"experiments": {}, "runs": {}})

    def get_experiment_by_name(self, name: str) -> Any:
        place = self.store["experiments"].get(name)
        return place and types.SimpleNamespace(experiment_id=name, artifact_location=place)

    def create_experiment(self, name: str, artifact_location: str | None) -> str:
        self.store["experiments"][name] = artifact_location or "elsewhere"
        return name

    def create_run(self, experiment: str, run_name: str, tags: dict[str, str]) -> Any:
        name = f"run{len(self.store['runs'])}"
        self.store["runs"][name] = {
            "experiment": experiment, "name": run_name, "tags": dict(tags), "metrics": [], "params": {}, "texts": {},
            "status": [],
        }  # fmt: skip
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=name))

    def log_batch(self, run: str, metrics: Sequence[Any] = (), params: Sequence[Any] = ()) -> None:
        assert len(params) <= 100
        self.store["runs"][run]["metrics"] += metrics
        for key, value in params:
            assert key not in self.store["runs"][run]["params"]
            self.store["runs"][run]["params"][key] = value

    def set_tag(self, run: str, key: str, value: str) -> None:
        self.store["runs"][run]["tags"][key] = value

    def log_text(self, run: str, text: str, name: str) -> None:
        self.store["runs"][run]["texts"][name] = text

    def update_run(self, run: str, status: str) -> None:
        self.store["runs"][run]["status"].append(status)

    def set_terminated(self, run: str, status: str) -> None:
        self.store["runs"][run]["status"].append(status)


def metric(key: str, value: float, timestamp: int, step: int) -> tuple[str, float, int]:
    assert timestamp > 1e12  # milliseconds
    return key, value, step


@pytest.mark.parametrize("uri", [None, "http://tracker:5000"])
def test_mlflow_goes_on_in_the_same_run(
    uri: str | None,
    tmp_path: Path,
    install: Callable[[str, dict[str, Any]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Client, "stores", {})
    if uri:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    else:
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    install("mlflow", {})
    install("mlflow.entities", {"Metric": metric, "Param": lambda key, value: (key, value)})
    install("mlflow.tracking", {"MlflowClient": Client})
    recipe, own = tracked(tmp_path, "mlflow"), Heard()
    play(with_loggers(recipe, own), tmp_path, recipe=recipe.model_dump(mode="json"))  # type: ignore[arg-type]
    play(with_loggers(recipe, own), tmp_path, recipe=recipe.model_dump(mode="json"), first=3, last=3)  # type: ignore[arg-type]
    assert own.notices == []
    assert list(Client.stores) == [uri or f"sqlite:///{tmp_path / 'mlflow.db'}"]
    store = next(iter(Client.stores.values()))
    assert store["experiments"] == {"dragoman": "elsewhere" if uri else str(tmp_path / "mlflow-artifacts")}
    run = store["runs"].pop("run0")
    assert store["runs"] == {}
    assert [(value, step) for key, value, step in run["metrics"] if key == "train/loss"] == [
        (pytest.approx(3.0 - 0.1 * step), step) for step in (1, 2, 3)
    ]
    assert ("report/bleu", 33.25, 3) in run["metrics"]
    assert run["params"]["training.max_steps"] == "100000"
    assert run["tags"]["event.skipped"] == "step 3: left out"
    assert "one red" in run["texts"]["samples/step-00000003.txt"]
    assert run["status"] == ["FINISHED", "RUNNING", "FINISHED"]
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"mlflow": "run0"}


@pytest.mark.parametrize("mode", [None, "online"])
def test_wandb_goes_on_in_the_same_run(
    mode: str | None, tmp_path: Path, install: Callable[[str, dict[str, Any]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if mode:
        monkeypatch.setenv("WANDB_MODE", mode)
    else:
        monkeypatch.delenv("WANDB_MODE", raising=False)
    runs: list[mock.Mock] = []
    asked: list[dict[str, Any]] = []

    def init(**settings: Any) -> mock.Mock:
        asked.append(settings)
        runs.append(mock.Mock(summary={}))
        return runs[-1]

    install("wandb", {"init": init, "Table": lambda columns, data: {"columns": columns, "data": data}})
    recipe, own = tracked(tmp_path, "wandb"), Heard()
    play(with_loggers(recipe, own), tmp_path)  # type: ignore[arg-type]
    play(with_loggers(recipe, own), tmp_path, first=2, last=3)  # type: ignore[arg-type]
    assert own.notices == []
    assert asked[0]["id"] == asked[1]["id"] == json.loads((tmp_path / "trackers.json").read_text())["wandb"]
    assert {(one["mode"], one["resume"], one["project"]) for one in asked} == {(mode or "offline", "allow", "dragoman")}
    logged = [call.args[0] for run in runs for call in run.log.call_args_list]
    assert [one["step"] for one in logged if "train/loss" in one] == [1, 2, 2, 3]
    assert {"step": 2, "events/skipped": "left out"} in logged
    assert next(one["samples"] for one in logged if "samples" in one)["data"][0] == ["one red", "eins rot", "eins"]
    runs[1].define_metric.assert_called_with("*", step_metric="step")
    assert runs[1].summary == {"report/steps": 3.0, "report/bleu": 33.25}
    runs[1].finish.assert_called_once_with(exit_code=0)


# Records


RECIPE = {"name": "<b>tiny</b>", "training": {"max_steps": 1000, "warmup_steps": 100, "schedule": "inverse_sqrt"}}


def lines(count: int = 40, *, every: int = 25, **courses: Callable[[float], Any]) -> list[dict[str, Any]]:
    """Journal lines of a run that is well; a course gives a value for each share of the run."""
    usual: dict[str, Callable[[float], Any]] = {
        "epoch": lambda t: 4 * t,
        "loss": lambda t: 2.0 + 6.0 * math.exp(-5 * t),
        "rate": lambda t: 7e-4,
        "gradient_norm": lambda t: 1.0,
        "tokens_per_second": lambda t: 900.0,
        "skipped": lambda t: 0,
        "waiting": lambda t: 0.01,
        "ceiling": lambda t: 0.6,
        "memory_mib": lambda t: 800.0,
        "padding": lambda t: 0.05,
    }
    made = []
    for number in range(1, count + 1):
        share = number / count
        values = {name: course(share) for name, course in (usual | courses).items()}
        values["perplexity"] = math.exp(values["loss"])
        step = every * number
        made.append(
            {"type": "train", "step": step, **values, "share_spent": step / 1000, "minutes_left": 50 * (1 - step / 1000)}
        )
    return made


def validations(*nlls: float, every: int = 200) -> list[dict[str, Any]]:
    best = [min(nlls[: index + 1]) == nll for index, nll in enumerate(nlls)]
    return [
        {"type": "valid", "step": every * (index + 1), "loss": nll + 1, "nll": nll, "perplexity": math.exp(nll),
         "bleu": 10.0 * index, "best": best[index], "seconds": 1.0}
        for index, nll in enumerate(nlls)
    ]  # fmt: skip


def event(kind: str, step: int, text: str = "so it was") -> dict[str, Any]:
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


def test_a_run_is_running_then_silent_and_running_again(tmp_path: Path) -> None:
    """Its lines lie 25 steps of 1000 in 50 minutes apart: 75 s. After ten times that it is silent."""
    run = written(tmp_path / "run", lines(20))
    assert read_run_status(run).state == "running"
    age(run, 740)
    assert read_run_status(run).state == "running"
    age(run, 20)
    assert read_run_status(run).state == "silent"
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps(lines(21)[-1]) + "\n")
    assert read_run_status(run).state == "running"


def test_a_run_goes_on_after_the_end_of_its_budget(tmp_path: Path) -> None:
    """Nothing is to be reckoned from a line at the end, where no time was left."""
    ended = lines(40)
    assert ended[-1]["share_spent"] == 1.0
    run = written(tmp_path / "run", [*ended, {**lines(20)[-1], "step": 1025}])
    assert read_run_status(run).state == "running"
    assert summarize_run(read_run_status(run))["step"] == 1025


def test_a_run_that_was_stopped_or_finished_is_so(tmp_path: Path) -> None:
    run = written(tmp_path / "run", [*lines(20), event("stopped", 500)])
    assert read_run_status(run).state == "stopped"
    written(run, [*lines(20), event("stopped", 500), event("resumed", 500)])
    assert read_run_status(run).state == "running"
    (run / "report.json").write_text("{}")
    assert read_run_status(run).state == "finished"
    assert summarize_run(read_run_status(run))["step"] == 500
    written(run, [*lines(20), event("checkpoint", 507)])  # the last line of training is of step 500
    assert summarize_run(read_run_status(run))["step"] == 507
    age(run, 10)
    written(run, lines(21))  # a larger budget, and it goes on
    assert read_run_status(run).state == "running"


def test_standing_is_json_for_every_length_of_journal(tmp_path: Path) -> None:
    for entries in ([], lines(1), [*lines(40), *validations(2.5, 2.2), event("skipped", 900)]):
        now = summarize_run(read_run_status(written(tmp_path / "run", entries)))
        assert json.loads(json.dumps(now)) == now
    assert (now["step"], now["state"], now["best"]["step"], now["valid"]["bleu"]) == (1000, "running", 400, 10.0)
    assert now["last_event"] == {"event": "skipped", "step": 900, "text": "so it was"}


@pytest.mark.parametrize("damage", ["{", "[]", '{"name": 5}', "[" * 100_000])
def test_what_is_no_run_is_told_in_one_line(damage: str, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(RunError, match=r"holds no recipe\.json"):
            read_run_status(folder)
    (tmp_path / "recipe.json").write_text(damage)
    result = CliRunner().invoke(doctor, [str(tmp_path)])
    assert result.exit_code != 0
    assert "recipe.json" in str(result.exception)
    assert "\n" not in str(result.exception)


# The page


def the_page(entries: Sequence[Mapping[str, Any]], folder: Path, **settings: Any) -> str:
    return render_run_page(read_run_status(written(folder, entries)), timestamp="now", **settings)


def test_the_page_shows_curves_events_and_sentences_as_text(tmp_path: Path) -> None:
    rounds = [
        {"type": "samples", "step": 200 * (1 + number), "samples": [
            {"source": "<script>alert(1)</script>", "reference": "eins & zwei", "translation": text}
        ]}
        for number, text in enumerate(("nie", "eins", "eins zwei", "eins und zwei", "eins & zwei"))
    ]  # fmt: skip
    entries = [*lines(40), *validations(2.6, 2.4, 2.3), *rounds, event("skipped", 450, "<i>left out</i>")]
    page = the_page(entries, tmp_path / "run")
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
    assert 'http-equiv="refresh"' not in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


def test_the_page_of_a_lost_run_fits_the_screen(tmp_path: Path) -> None:
    """A perplexity of exp(600) has 261 digits, and a model that repeats itself says thousands of letters."""
    sample = {"source": "one", "reference": "eins", "translation": "x" * 10_000}
    page = the_page(
        [
            *lines(loss=course(9, 4, 3, 300, 600)),
            *validations(500.0, 600.0),
            {"type": "samples", "step": 1000, "samples": [sample]},
        ],
        tmp_path,
    )
    assert "perplexity 3.77e+260" in page
    assert "… (10,000 letters)" in page
    assert (
        max(map(len, re.findall(r"[^\s<>=\"]+", re.sub(r"<svg.*?</svg>|<style.*?</style>", "", page, flags=re.DOTALL)))) <= 300
    )
    assert "What the doctor says" in page
    assert "rate too high" in page


def test_the_page_of_a_run_without_a_line_stands(tmp_path: Path) -> None:
    page = the_page([], tmp_path / "run", refresh=5)
    assert '<meta http-equiv="refresh" content="5">' in page
    assert "no step is journaled yet" in page
    assert page.count("<svg") == 1


def test_the_page_of_a_run_that_failed_at_once_says_why(tmp_path: Path) -> None:
    page = the_page([*(event("skipped", step) for step in range(2, 12)), event("failed", 11, "all was <lost>")], tmp_path)
    assert '<span class="failed">failed</span> · no step is journaled yet · all was &lt;lost&gt;</p>' in page


def test_a_journal_of_before_has_a_page(tmp_path: Path) -> None:
    """Version 0.1 wrote fewer numbers a line, and no events."""
    new = {"skipped", "waiting", "ceiling", "memory_mib", "padding"}
    old = [{name: value for name, value in entry.items() if name not in new} for entry in lines(30)]
    page = the_page([*old, *validations(2.5)], tmp_path / "run")
    assert page.count("<svg") == 6
    assert diagnose(read_run_status(tmp_path / "run")) == []


def test_the_page_is_written_until_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = written(tmp_path / "run", lines(10))
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert '<meta http-equiv="refresh" content="7">' in (run / "watch.html").read_text()
        if len(slept) == 3:
            (run / "report.json").write_text("{}")

    monkeypatch.setattr(time, "sleep", sleep)
    result = CliRunner().invoke(watch, [str(run), "--every", "7"])
    assert result.exit_code == 0
    assert slept == [7, 7, 7]
    page = (run / "watch.html").read_text()
    assert "refresh" not in page
    assert '<span class="finished">' in page
    assert sorted(path.name for path in run.iterdir()) == ["metrics.jsonl", "recipe.json", "report.json", "watch.html"]


def test_watch_replaces_nothing_but_pages(tmp_path: Path) -> None:
    run = written(tmp_path / "run", lines(10))
    before = (run / "metrics.jsonl").read_bytes()
    for other in (run / "metrics.jsonl", run):
        result = CliRunner().invoke(watch, [str(run), "--once", "-o", str(other)])
        assert isinstance(result.exception, OutputError)
        assert "\n" not in str(result.exception)
    assert (run / "metrics.jsonl").read_bytes() == before


def test_watch_puts_no_page_into_the_bundle(trained: Path) -> None:
    """Whose manifest names all that is in it."""
    page = trained / "bundle" / "page.html"
    result = CliRunner().invoke(watch, [str(trained), "--once", "-o", str(page)])
    assert isinstance(result.exception, OutputError)
    assert "is what is read, and is left as it is" in str(result.exception)
    assert not page.exists()


def test_watch_once_elsewhere_and_as_json(tmp_path: Path) -> None:
    run = written(tmp_path / "run", lines(10))
    assert CliRunner().invoke(watch, [str(run), "--once", "-o", str(tmp_path / "page.html")]).exit_code == 0
    assert "refresh" not in (tmp_path / "page.html").read_text()
    assert not (run / "watch.html").exists()
    result = CliRunner().invoke(watch, [str(run), "--json"])
    assert json.loads(result.stdout)["step"] == 250
    assert not (run / "watch.html").exists()


@pytest.mark.parametrize("command", ["watch RUN --once", "watch RUN --json", "doctor RUN"])
def test_whoever_looks_needs_no_torch(command: str, tmp_path: Path) -> None:
    """It takes seconds to import, and a quarter of a gigabyte beside the run."""
    run = written(tmp_path / "run", lines(10))
    words = ["dragoman", *command.replace("RUN", str(run)).split()]
    script = f"import sys\nsys.modules['torch'] = None\nsys.argv = {words!r}\nfrom dragoman.cli.main import main\nmain()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_the_page_of_a_whole_run(trained: Path, tmp_path: Path) -> None:
    assert CliRunner().invoke(watch, [str(trained), "-o", str(tmp_path / "page.html")]).exit_code == 0
    page = (tmp_path / "page.html").read_text()
    assert '<span class="finished">' in page
    assert page.count("<svg") >= 6


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
def test_what_is_new_in_a_translation(before: str | None, text: str, parts: list[tuple[str, bool]]) -> None:
    assert diff_text(before, text) == parts


@pytest.mark.parametrize(("minutes", "told"), [(0.5, "30 s"), (59.4, "59 min"), (59.9, "1 h 0 min"), (200, "3 h 20 min")])
def test_durations_in_words(minutes: float, told: str) -> None:
    assert format_duration(minutes) == told


# The doctor


def record(entries: Sequence[dict[str, Any]], *settings: str, **values: Any) -> RunStatus:
    return RunStatus(Path("run"), make_recipe(RECIPE, settings), list(entries), **values)


def course(*corners: float) -> Callable[[float], float]:
    """Straight lines through these values at equal distances."""
    return lambda share: float(np.interp(share, np.linspace(0, 1, len(corners)), corners))


HEALTHY = record([*lines(), *validations(2.6, 2.4, 2.3, 2.25), event("checkpoint", 1000)])
ILL: dict[str, RunStatus] = {
    "rate_too_high": record(lines(loss=course(9, 4, 3, 6, 7))),
    "ignores_source": record(
        [
            *lines(epoch=course(0, 10)),
            *({**one, "nll_own_source": one["nll"], "nll_shuffled_source": one["nll"] + 0.01} for one in validations(2.6, 2.4)),
        ]
    ),
    "gradient_spikes": record(lines(gradient_norm=lambda t: 30.0 if round(40 * t) % 10 == 0 else 1.0)),
    "skipped_steps": record([*lines(skipped=course(0, 8)), event("restored", 700)]),
    "overfits": record([*lines(), *validations(2.6, 2.3, 2.4, 2.6, 2.9)]),
    "no_progress": record([*lines(loss=course(9, 2.5, 2.5, 2.5, 2.5)), *validations(3.0, 2.7, 2.7, 2.7)]),
    "ends_in_warmup": record(lines(10), "training.warmup_steps=4000"),
    "small_epochs": record(lines(epoch=lambda t: 250 * t)),
    "waits_for_data": record(lines(waiting=course(0.02, 0.1, 0.3))),
    "memory_grows": record(lines(memory_mib=course(500, 1500))),
    "short_of_memory": record([*lines(), event("memory", 300), event("memory", 500, "it is split")]),
    "checkpoints_fail": record([*lines(), event("checkpoint", 200), event("unsaved", 400, "the disk is full")]),
    "slow": record(lines(ceiling=lambda t: 0.1)),
    "padded": record(lines(padding=lambda t: 0.4)),
    "died": record(lines(20), quiet_seconds=100_000.0),
}


def test_a_run_that_is_well_has_no_finding() -> None:
    assert diagnose(HEALTHY) == []
    for count in range(12):
        assert diagnose(record(lines(40)[:count])) == []


@pytest.mark.parametrize("rule", DIAGNOSTIC_RULES, ids=lambda rule: str(rule.__name__))
def test_each_rule_fires_where_it_should_and_nowhere_else(rule: Callable[[RunStatus], Any]) -> None:
    finding = rule(ILL[rule.__name__])
    assert finding is not None
    assert all(text and "\n" not in text and not text.endswith(".") for text in vars(finding).values())
    for name, other in ILL.items():
        # Steps that are left out come of a rate too high, say, but each of these journals shows one thing only.
        assert (rule(other) is not None) == (name == rule.__name__), name


@pytest.mark.parametrize(
    ("name", "seen", "turn"),
    [
        ("rate_too_high", r"was 3\.\d+ and is 6\.\d+", "training.peak_lr = 0.00035"),
        ("gradient_spikes", "4 of 36 lines .* usually 1; the highest is 30 at step 250", r"clip_norm = 2, "),
        ("skipped_steps", r"8 of 1,000 steps were left out, and the run went back .* 1 times", "clip_norm = 1.0"),
        ("ignores_source", r"after [34]\.\d passes .* has 2\.400 nats .* and 2\.410 with", "compare some lines"),
        ("overfits", r"best at step 400 \(2\.300 nats per token\) and is 2\.900 at step 1,000", "patience = 3"),
        ("no_progress", r"was 2\.500 and is 2\.500 \(means of steps 275 to 500 and 775 to 1,000\)", "patience"),
        ("ends_in_warmup", "ends at step 1,000 or so, and the rate grows until step 4,000", "warmup_steps = 100"),
        ("small_epochs", r"an epoch is 4\.0 steps", "batch_tokens"),
        ("waits_for_data", r"\d+% of the time of steps 525 to 1,000", r"data.num_workers = 1 \(it is 0\)"),
        ("memory_grows", r"1,000 MiB in a thousand steps", "data.num_workers = 0"),
        ("short_of_memory", "2 times, last at step 500: it is split", "batch_tokens below 25000"),
        ("checkpoints_fail", "1 failed; the last good one is of step 200; step 400: the disk is full", "keep_last"),
        ("slow", "10% of the machine", "precision = 'auto'"),
        ("padded", "40% of the places", "max_ratio"),
        ("died", "nothing was written for 1,667 minutes, after step 500", "goes on from the newest checkpoint"),
    ],
)
def test_a_finding_has_the_numbers_and_the_knob(name: str, seen: str, turn: str) -> None:
    (finding,) = diagnose(ILL[name])
    assert re.search(seen, finding.evidence), finding.evidence
    assert re.search(turn, finding.remedy), finding.remedy


def test_compiling_is_advised_where_it_may_pay() -> None:
    turns = {}
    for machine in ("cpu (2 threads), float32", "cuda (some GPU), bfloat16"):
        (finding,) = diagnose(record([{"type": "run", "step": 0, "machine": machine}, *lines(ceiling=lambda t: 0.1)]))
        turns[machine[:4]] = "training.compile = true" in finding.remedy
    assert turns == {"cpu ": False, "cuda": True}


def test_a_loss_that_never_left_the_uniform_one_is_told() -> None:
    """ln 32,000 = 10.37 where the run does not say itself what its vocabulary is."""
    (finding,) = diagnose(record(lines(loss=lambda t: 7.0)))
    assert finding.name == "rate too high"
    assert "ln V = 10.37" in finding.evidence
    about = {"type": "run", "step": 0, "uniform_loss": math.log(100_000_000)}
    assert all(one.name != "rate too high" for one in diagnose(record([about, *lines(loss=lambda t: 7.0)])))
    assert all(one.name != "rate too high" for one in diagnose(record(lines(loss=lambda t: 7.0), "training.warmup_steps=1000")))


def test_many_epochs_and_damaged_checkpoints_are_told() -> None:
    (finding,) = diagnose(record(lines(epoch=lambda t: 120 * t, every=100)))
    assert (finding.name, "120 times" in finding.evidence) == ("corpus exhausted", True)
    (finding,) = diagnose(record(lines(), damaged=["damaged-step-00000100-1"]))
    assert finding.name == "damaged checkpoints"


def test_a_failure_is_told_in_its_own_words() -> None:
    ended = record([*lines(20), event("failed", 510, "the disk is full.")])
    assert ended.state == "failed"
    assert [(one.name, one.evidence) for one in diagnose(ended)] == [("failed", "the disk is full")]
    assert record([*lines(20), event("failed", 510), event("resumed", 500)]).state == "running"


def test_steps_that_were_left_out_before_the_first_line_are_told() -> None:
    (finding,) = diagnose(record([event("skipped", step) for step in range(2, 12)]))
    assert (finding.name, finding.evidence) == ("skipped steps", "10 of 11 steps were left out")


def test_norms_that_fall_are_no_spikes() -> None:
    """From 3 to 0.003: the first lines have eighteen times the norm of the middle one, as where all is learnt by heart."""
    assert diagnose(record(lines(gradient_norm=lambda t: 3.0 * 0.001**t))) == []


def test_what_is_not_yet_a_pass_is_not_learnt_by_heart() -> None:
    (finding,) = diagnose(record([*lines(epoch=lambda t: 0.9 * t), *validations(2.6, 2.3, 2.4, 2.6, 2.9)]))
    assert finding.name == "validation gets worse"
    assert "data.valid" in finding.remedy


@pytest.mark.parametrize(
    ("settings", "turn"),
    [
        (
            ["training.peak_lr=1.0"],
            "training.peak_lr = 0.0044; training.warmup_steps longer; training.clip_norm = 1.0; model.norm = 'pre'",
        ),
        (
            ["training.schedule=noam", "training.lr_factor=4.0", "model.norm=pre"],
            "training.lr_factor = 1; training.warmup_steps longer; training.clip_norm = 1.0",
        ),
        (["model.norm=pre", "training.clip_norm=1.0"], "training.peak_lr = 0.00035; training.warmup_steps longer"),
    ],
)
def test_no_knob_is_to_be_turned_that_stands_there_already(settings: list[str], turn: str) -> None:
    """Far too high a rate becomes the paper's: (512 · 100)^-0.5 = 0.0044 for this width and warm-up."""
    (finding,) = diagnose(record(lines(loss=course(9, 4, 3, 6, 7)), *settings))
    assert finding.remedy == turn


def test_caches_that_fill_are_no_growth() -> None:
    assert diagnose(record(lines(memory_mib=course(500, 1000, 1200, 1250, 1250)))) == []


def test_doctor_tells_a_run_to_people_and_machines(tmp_path: Path) -> None:
    run = written(tmp_path / "run", [*lines(), *validations(2.6, 2.3, 2.4, 2.6, 2.9)])
    told = CliRunner().invoke(doctor, [str(run)]).stdout
    assert "1. overfits: validation was best at step 400" in told
    assert "Turn: training.patience = 3" in told
    found = json.loads(CliRunner().invoke(doctor, [str(run), "--json"]).stdout)
    assert [one["name"] for one in found["findings"]] == ["overfits"]
    written(run, lines())
    assert "Nothing is wrong that the journal shows" in CliRunner().invoke(doctor, [str(run)]).stdout
    written(run, lines(2))
    assert "too few lines" in CliRunner().invoke(doctor, [str(run)]).stdout


# The screen


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=400, highlight=False)


def shown(console: Console) -> str:
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_a_line_tells_norm_and_share_of_the_ceiling_where_it_is_known(console: Console) -> None:
    screen = TrainingProgressBar(console)
    screen.step(step_report(50, gradient_norm=1.234, ceiling=0.637))
    screen.step(step_report(100))
    first, second = shown(console).splitlines()
    assert "loss 2.000  perplexity     7.40  norm 1.23  rate 1.00e-03  900 tokens/s (64% of ceiling)  3.0 min left" in first
    assert "900 tokens/s  3.0" in second


@pytest.mark.parametrize(
    ("width", "told"),
    [
        (80, "  40 % step 12,200  loss 2.123  ppl 8.4  18,800 tokens/s (64%) "),
        (100, "  40 % step 12,200  loss 2.123  ppl 8.4  18,800 tokens/s (64%)  norm 0.812 "),
        (140, " 40 % step 12,200  loss 2.123  ppl 8.4  18,800 tokens/s (64%)  norm 0.812 "),
    ],
)
def test_the_bar_fits_the_screen(width: int, told: str) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    screen = TrainingProgressBar(console)
    screen.advance(0.4)
    screen.step(step_report(12_200, loss=2.123, perplexity=8.36, tokens_per_second=18_800, gradient_norm=0.8123, ceiling=0.637))
    screen.bar.refresh()
    line = shown(console).split("\r")[-1].removeprefix("\x1b[2K")
    screen.close()
    assert told in f" {line}"
    assert "left" in line
    assert len(line) <= width


def test_time_left_is_reckoned_by_what_this_stretch_of_the_run_took() -> None:
    now = 100.0
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None, get_time=lambda: now)
    screen = TrainingProgressBar(console)
    now = 400.0  # corpora are prepared meanwhile
    screen.advance(0.90)
    screen.bar.refresh()
    assert "-:-- left" in shown(console)
    now = 460.0
    screen.advance(0.91)
    screen.bar.refresh()
    screen.close()
    assert "9:00 left" in shown(console)


def test_events_are_lines_but_for_checkpoints(console: Console) -> None:
    screen = TrainingProgressBar(console)
    screen.event("checkpoint", 1, "kept")
    screen.event("stopped", 3, "what the command ends with")
    screen.event("skipped", 2, "step 2: [left] out")
    screen.begin(RunInfo("tiny", {}, "run", "cpu (2 threads)", 44_000_000, ceiling=2.9e11, devices=2))
    assert shown(console).splitlines() == [
        "step 2: [left] out",
        "44,000,000 parameters on 2 devices, each cpu (2 threads), 0.29 TFLOP/s in matrix products",
    ]


def test_losses_of_training_and_validation_can_be_compared(console: Console) -> None:
    """Both are the logarithm of the perplexity beside them; that of a run that was lost stays short."""
    screen = TrainingProgressBar(console)
    screen.validation(ValidationReport(100, 2.5, math.exp(1.25), 12.5, True))
    screen.step(step_report(150, loss=600.0, perplexity=math.exp(600)))
    first, second = shown(console).splitlines()
    assert first == "step     100  validation  loss 1.250  perplexity 3.49  BLEU 12.50 (greedy)  best so far"
    assert "loss 600.000  perplexity 3.77e+260  norm" in second


def test_the_cost_of_a_run_in_a_line() -> None:
    report = {
        "seconds": 90.0, "steps": 1000, "target_tokens": 90_000, "target_tokens_per_second": 1000, "flops": 1.5e12,
        "share_of_ceiling": 0.61, "kilowatt_hours": 0.0123, "share_waiting_for_batches": 0.004, "skipped_steps": 2,
    }  # fmt: skip
    assert format_cost(report) == (
        "cost: 1.5 min, 1,000 steps, 90,000 target tokens (1,000 a second), 1.50e+12 floating-point operations, "
        "61% of this machine's ceiling, 0.0123 kWh, 0.4% waiting for batches, 2 steps skipped"
    )
    assert "104% of this machine's ceiling, which was measured while" in format_cost({**report, "share_of_ceiling": 1.04})
    del report["share_of_ceiling"], report["kilowatt_hours"]
    assert "ceiling" not in format_cost(report)


def test_the_report_of_a_run_tells_its_cost(trained: Path) -> None:
    report = json.loads((trained / "report.json").read_text())
    assert report["flops"] > 0
    assert 0 <= report["share_waiting_for_batches"] <= 1
    assert report["skipped_steps"] == 0
    assert "floating-point operations" in format_cost(report)
