"""Early stopping, pending validations, and the end of a run: saved checkpoints and the bundle."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import pytest

from conftest import MakeRecipe
from dragoman.bundle import load_bundle
from dragoman.errors import WriteError
from dragoman.training.checkpoints import checkpoint, checkpointer
from dragoman.training.checkpoints.checkpoint import Checkpoint, TrainerState
from dragoman.training.finalize import average_run
from dragoman.training.monitoring.metrics_log import read_metrics_log
from dragoman.training.monitoring.run_status import read_run_status
from dragoman.training.report import TestSets
from dragoman.training.run import train
from dragoman.training.trainer import Trainer
from expected_errors import raises_code
from trainers import Recorder, fake_validations, new_trainer

pytestmark = pytest.mark.usefixtures("one_core")


# Validations


@pytest.mark.slow
def test_shortened_budget_validates_the_last_step(tiny: MakeRecipe, tmp_path: Path) -> None:
    settings = ("training.validate_every_steps=4", "training.checkpoint_averaging=best", "training.num_averaged_checkpoints=1")
    trainer = new_trainer(tiny(tmp_path / "run", "training.max_steps=12", *settings))
    with closing(trainer.stream):
        for _ in range(6):
            trainer._after_step(trainer._step(), is_stopping=trainer.state.step == 6)
    shortened, unbroken = (train(tiny(tmp_path / run, "training.max_steps=6", *settings)) for run in ("run", "other"))
    assert [name.removesuffix("-2") for name in shortened["averaged_checkpoints"]] == unbroken["averaged_checkpoints"]
    assert shortened["valid"] == unbroken["valid"]
    recorder = Recorder()
    train(tiny(tmp_path / "run", "training.max_steps=3", *settings), recorder)
    assert "the budget is spent after step 6; nothing is left to train" in recorder.notices


def test_worse_validation_saves_no_checkpoint(tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_validations(monkeypatch, [1.0, 2.0, 3.0, 4.0])
    train(tiny(tmp_path / "run", "training.max_steps=8", "training.validate_every_steps=2"))
    entries = read_metrics_log(tmp_path / "run" / "metrics.jsonl")
    assert [entry["step"] for entry in entries if entry.get("event") == "checkpoint"] == [2, 8]


def test_unsaved_best_checkpoint_does_not_count(tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_validations(monkeypatch, [3.0, 1.0, 2.0, 2.5])
    save = checkpoint.save_checkpoint

    def fail_at_step_4(folder: Path, tensors: Any, *, trainer_state: TrainerState, **options: Any) -> Checkpoint:
        if trainer_state.step == 4:
            raise WriteError("the disk is full")
        return save(folder, tensors, trainer_state=trainer_state, **options)

    monkeypatch.setattr(checkpointer, "save_checkpoint", fail_at_step_4)
    settings = (
        "training.max_steps=8",
        "training.validate_every_steps=2",
        "training.checkpoint_averaging=best",
        "training.num_averaged_checkpoints=1",
    )
    assert train(tiny(tmp_path / "run", *settings))["averaged_checkpoints"] == ["step-00000006"]


# End of a run


@pytest.fixture
def ended(tiny: MakeRecipe, tmp_path: Path) -> Path:
    """Run of six steps with checkpoints after two, four and six."""
    train(tiny(tmp_path / "run", *EVERY_SECOND_STEP))
    return tmp_path / "run"


EVERY_SECOND_STEP = ("training.checkpoint_every_steps=2", "training.checkpoint_averaging=none")


def test_unreadable_checkpoint_is_set_aside_at_end(tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Trainer.run

    def truncate_state_after(trainer: Trainer) -> None:
        run(trainer)
        state = trainer.checkpoint_dir / "step-00000006" / "state.json"
        state.write_bytes(state.read_bytes()[:200])

    monkeypatch.setattr(Trainer, "run", truncate_state_after)
    recorder = Recorder()
    assert train(tiny(tmp_path / "run", *EVERY_SECOND_STEP), recorder)["averaged_checkpoints"] == ["step-00000004"]
    (notice,) = [text for text in recorder.notices if "set aside" in text]
    assert "set aside as damaged-step-00000006" in notice
    assert "the bundle is made without it" in notice


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["everything", "config.json"])
def test_incomplete_bundle_is_replaced(missing: str, tiny: MakeRecipe, ended: Path) -> None:
    for file in (ended / "bundle").iterdir():
        if missing in ("everything", file.name):
            file.unlink()
    (ended / "bundle" / ".DS_Store").touch()
    train(tiny(ended, *EVERY_SECOND_STEP))
    assert load_bundle(ended / "bundle").metadata.averaged_checkpoints == ["step-00000006"]


@pytest.mark.slow
@pytest.mark.parametrize("output", ["checkpoints/step-00000006", "data", "."])
def test_average_replaces_only_bundles(output: str, ended: Path, tmp_path: Path) -> None:
    before = sorted(ended.rglob("*"))
    with raises_code("not-replaceable"):
        average_run(ended, ended / output, averaging="last", count=1, overwrite=True)
    assert sorted(ended.rglob("*")) == before
    average_run(ended, ended / "bundle", averaging="last", count=1, overwrite=True)


def run_out_of_memory(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("CUDA out of memory. Tried to allocate 20 MiB")


def receive_sigterm_twice(*_: Any, **__: Any) -> None:
    try:
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.raise_signal(signal.SIGTERM)  # a scheduler sends it to every process, and a launcher sends it again


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failure", "code", "names", "state"),
    [
        (run_out_of_memory, "out-of-memory", ["writing or scoring the bundle", "decoding.batch_tokens"], "failed"),
        (receive_sigterm_twice, "interrupted", ["after step 6", "step-00000006 is saved"], "stopped"),
    ],
)
def test_failure_at_end_is_reported_and_logged(
    failure: Any,
    code: str,
    names: list[str],
    state: str,
    tiny: MakeRecipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = tiny(tmp_path / "run", *EVERY_SECOND_STEP)
    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patched:
        patched.setattr(TestSets, "evaluate", failure)
        with raises_code(code, *names):
            train(recipe)
    assert read_run_status(tmp_path / "run").state == state
    assert signal.getsignal(signal.SIGTERM) == before
    assert train(recipe)["steps"] == 6
