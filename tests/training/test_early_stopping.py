"""What a run makes of its validations, and of its end: when it is judged, what is kept, what the bundle is made from."""

from __future__ import annotations

import signal
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from conftest import MakeRecipe
from dragoman.bundle import check_bundle, read_config
from dragoman.errors import InterruptedRun, OutOfMemoryError, OutputError, RunError, WriteError
from dragoman.training import report
from dragoman.training.checkpoints import checkpoint
from dragoman.training.checkpoints import checkpointer as keeper
from dragoman.training.checkpoints.checkpoint import Checkpoint, TrainerState
from dragoman.training.monitoring.callbacks import NullCallback
from dragoman.training.monitoring.metrics_log import read_metrics_log
from dragoman.training.monitoring.run_status import read_run_status
from dragoman.training.run import average_run, train
from dragoman.training.trainer import Trainer
from dragoman.training.validation import Validator

pytestmark = pytest.mark.usefixtures("one_core")


class Notices(NullCallback):
    def __init__(self) -> None:
        self.told: list[str] = []

    def notice(self, text: str) -> None:
        self.told.append(text)


# Validations


def test_a_budget_that_is_cut_to_where_the_run_stands_is_judged_there(tiny: MakeRecipe, tmp_path: Path) -> None:
    settings = ("training.validate_every_steps=4", "training.checkpoint_averaging=best", "training.num_averaged_checkpoints=1")
    trainer = Trainer(tiny(tmp_path / "run", "training.max_steps=12", *settings), NullCallback())
    with closing(trainer.stream):
        for _ in range(6):
            trainer._after_step(trainer._step(), is_stopping=trainer.state.step == 6)
    cut, whole = (train(tiny(tmp_path / run, "training.max_steps=6", *settings)) for run in ("run", "other"))
    assert [name.removesuffix("-2") for name in cut["averaged"]] == whole["averaged"]
    assert cut["valid"] == whole["valid"]
    less = Notices()
    train(tiny(tmp_path / "run", "training.max_steps=3", *settings), less)
    assert "the budget is spent after step 6; nothing is left to train" in less.told


def test_patience_that_ends_a_run_is_told(tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge, losses = Validator.validate, iter([1.0, 2.0, 3.0])
    monkeypatch.setattr(Validator, "judge", lambda self, model: replace(judge(self, model), nll=next(losses)))
    settings = ("training.validate_every_steps=2", "training.patience=2")
    assert train(tiny(tmp_path / "run", "training.max_steps=100", *settings))["steps"] == 6
    why = "2 validations were no better than that of step 2: training.patience = 2 ends the run"
    events = [entry for entry in read_metrics_log(tmp_path / "run" / "metrics.jsonl") if entry["type"] == "event"]
    assert [entry["text"] for entry in events if entry["event"] == "patience"] == [f"step 6: {why}"]
    again = Notices()
    train(tiny(tmp_path / "run", "training.max_steps=200", *settings), again)
    assert f"{why}; nothing is left to train" in again.told


def test_a_validation_that_is_no_better_is_no_reason_for_a_checkpoint(
    tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, losses = Validator.validate, iter([1.0, 2.0, 3.0, 4.0])
    monkeypatch.setattr(Validator, "judge", lambda self, model: replace(judge(self, model), nll=next(losses)))
    train(tiny(tmp_path / "run", "training.max_steps=8", "training.validate_every_steps=2"))
    events = [one for one in read_metrics_log(tmp_path / "run" / "metrics.jsonl") if one.get("event") == "checkpoint"]
    assert [one["step"] for one in events] == [2, 8]


def test_a_best_checkpoint_that_was_not_written_is_no_mark_to_beat(
    tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, losses = Validator.validate, iter([3.0, 1.0, 2.0, 2.5])
    monkeypatch.setattr(Validator, "judge", lambda self, model: replace(judge(self, model), nll=next(losses)))
    save = checkpoint.save_checkpoint

    def full(folder: Path, *, progress: TrainerState, **rest: Any) -> Checkpoint:
        if progress.step == 4:
            raise WriteError("the disk is full")
        return save(folder, trainer_state=progress, **rest)

    monkeypatch.setattr(keeper, "save_checkpoint", full)
    settings = (
        "training.max_steps=8",
        "training.validate_every_steps=2",
        "training.checkpoint_averaging=best",
        "training.num_averaged_checkpoints=1",
    )
    assert train(tiny(tmp_path / "run", *settings))["averaged"] == ["step-00000006"]


# The end


@pytest.fixture
def ended(tiny: MakeRecipe, tmp_path: Path) -> Path:
    """A run of six steps with checkpoints after two, four and six."""
    train(tiny(tmp_path / "run", *KEPT))
    return tmp_path / "run"


KEPT = ("training.checkpoint_every_steps=2", "training.checkpoint_averaging=none")


def test_a_checkpoint_that_cannot_even_be_read_is_set_aside_at_the_end(
    tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Trainer.run

    def cut_after(trainer: Trainer) -> None:
        run(trainer)
        state = trainer.checkpoint_dir / "step-00000006" / "state.json"
        state.write_bytes(state.read_bytes()[:200])

    monkeypatch.setattr(Trainer, "run", cut_after)
    said = Notices()
    assert train(tiny(tmp_path / "run", *KEPT), said)["averaged"] == ["step-00000004"]
    assert any("set aside as damaged-step-00000006" in text and "the bundle is made without it" in text for text in said.told)


def test_what_cannot_be_read_is_not_passed_over_by_average(ended: Path, tmp_path: Path) -> None:
    (ended / "checkpoints" / "step-00000006" / "state.json").write_text("")
    with pytest.raises(RunError, match=r"step-00000006/state\.json: this dragoman cannot read it"):
        average_run(ended, tmp_path / "bundle", averaging="last", count=1)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("lost", ["everything", "config.json"])
def test_a_run_s_bundle_is_replaced_whatever_is_left_of_it(lost: str, tiny: MakeRecipe, ended: Path) -> None:
    for file in (ended / "bundle").iterdir():
        if lost in ("everything", file.name):
            file.unlink()
    (ended / "bundle" / ".DS_Store").touch()
    train(tiny(ended, *KEPT))
    check_bundle(ended / "bundle")


@pytest.mark.parametrize("place", ["checkpoints/step-00000006", "data", "."])
def test_average_takes_the_place_of_bundles_alone(place: str, ended: Path, tmp_path: Path) -> None:
    before = sorted(ended.rglob("*"))
    with pytest.raises(OutputError, match="holds no bundle, and is left as it is"):
        average_run(ended, ended / place, averaging="last", count=1, overwrite=True)
    assert sorted(ended.rglob("*")) == before
    average_run(ended, ended / "bundle", averaging="last", count=1, overwrite=True)


def test_a_place_that_cannot_be_is_told(ended: Path) -> None:
    with pytest.raises(OutputError, match="File name too long"):
        average_run(ended, ended / ("x" * 300), averaging="last", count=1, overwrite=True)


def test_an_averaged_bundle_aligns_by_the_head_that_the_run_s_does(tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(tmp_path / "run", *KEPT)
    train(recipe)
    average_run(tmp_path / "run", tmp_path / "averaged", averaging="last", count=1)
    heads = [read_config(bundle)[2]["alignment"] for bundle in (tmp_path / "run" / "bundle", tmp_path / "averaged")]
    assert heads[0] == heads[1]


def short_of_memory(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("CUDA out of memory. Tried to allocate 20 MiB")


def signalled(*_: Any, **__: Any) -> None:
    try:
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.raise_signal(signal.SIGTERM)  # as schedulers do that send it to every process, launchers among them


@pytest.mark.parametrize(
    ("what", "error", "told", "state"),
    [
        (short_of_memory, OutOfMemoryError, "out of memory as the bundle was made and judged; lower decoding.batch", "failed"),
        (signalled, InterruptedRun, "interrupted after step 6; .*step-00000006 is kept", "stopped"),
    ],
)
def test_the_end_of_a_run_that_comes_to_nothing_is_told_and_journaled(
    what: Any, error: type[Exception], told: str, state: str, tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny(tmp_path / "run", *KEPT)
    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patched:
        patched.setattr(report, "judge", what)
        with pytest.raises(error, match=told):
            train(recipe)
    assert read_run_status(tmp_path / "run").state == state
    assert signal.getsignal(signal.SIGTERM) == before
    assert train(recipe)["steps"] == 6


def test_the_curve_has_the_run_s_name(ended: Path) -> None:
    assert "tiny: learning curve" in (ended / "curve.svg").read_text(encoding="utf-8")
