"""Ends of a run that mislead: equal scores, divergence, rollbacks, and missing checkpoints."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from conftest import MakeRecipe
from dragoman.bundle import read_config
from dragoman.training.checkpoints.checkpoint import list_checkpoints, read_checkpoint, select_best
from dragoman.training.divergence import find_divergence
from dragoman.training.run import train
from dragoman.training.trainer import MAX_ROLLBACKS, Trainer
from dragoman.training.validation import ValidationResult, Validator
from expected_errors import raises_code
from trainers import Recorder, fake_validations, new_trainer, without

pytestmark = pytest.mark.usefixtures("one_core")

EVERY_STEP = ("training.validate_every_steps=1", "training.checkpoint_every_steps=1", "training.keep_last=9")


# Equal scores


def test_equal_bleu_is_decided_by_loss(tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_validations(monkeypatch, [4.0, 3.5, 3.6, 3.0, 3.1, 3.0, 0.0], bleu=[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    settings = ("training.best_metric=bleu", "training.patience=2", "training.max_steps=40", "training.keep_best=9")
    trainer = new_trainer(tiny(tmp_path / "run", *EVERY_STEP, *settings))
    trainer.run()
    # The loss of step 4 is the lowest; 3.1 and an equal 3.0 are the two without a better one.
    assert (trainer.state.step, trainer.state.best_step, trainer.state.best, trainer.state.best_nll) == (6, 4, 0.0, 3.0)
    best = select_best(list_checkpoints(tmp_path / "run" / "checkpoints"), 9)
    assert [checkpoint.step for checkpoint in best] == [4, 6, 5, 2, 3, 1]


# Divergence


@pytest.mark.parametrize(
    ("validation", "training", "initial", "diverged"),
    [
        (1480.0, 900.0, 6.0, True),
        (1480.0, None, None, True),
        (None, 900.0, 6.0, True),
        (math.nan, 1.0, 6.0, True),
        (12.0, 0.5, 6.0, False),  # overfitted: the loss of training is low
        (8.8, 8.8, 6.0, False),  # below 1.5 · log 360 = 8.83
        (8.9, 8.9, 5.9, True),
        (20.0, 20.0, 15.0, False),  # a CTC decoder starts far above a uniform guess of one token
        (None, None, None, False),
    ],
)
def test_divergence_follows_both_losses(
    validation: float | None, training: float | None, initial: float | None, diverged: bool
) -> None:
    reason = find_divergence(validation_nll=validation, training_nll=training, initial_nll=initial, vocab_size=360)
    assert (reason is not None) == diverged


@pytest.mark.slow
@pytest.mark.parametrize(
    ("averaging", "lr", "max_steps"),
    [("last", "100", 12), ("best", "100", 12), ("ema", "100", 12), ("no validation", "1e30", 6)],
)
def test_diverged_run_is_an_error(averaging: str, lr: str, max_steps: int, tiny: MakeRecipe, tmp_path: Path) -> None:
    settings = [
        f"training.peak_lr={lr}", "training.schedule=constant", "training.warmup_steps=1", f"training.max_steps={max_steps}",
        "training.validate_every_steps=6", "training.num_validation_translations=0",
        "training.num_averaged_checkpoints=1", "training.ema_decay=0.5",
    ]  # fmt: skip
    recorder = Recorder()
    has_validation = averaging != "no validation"
    recipe = tiny(tmp_path / "run", *settings, *([f"training.checkpoint_averaging={averaging}"] if has_validation else []))
    with raises_code("run-diverged", "step 6: the run has diverged", "training.warmup_steps"):
        train(recipe if has_validation else without(recipe, "valid"), recorder)
    assert [report.best for report in recorder.validations] == [False] * has_validation
    assert not (tmp_path / "run" / "bundle").exists()


@pytest.mark.slow
def test_diverged_end_keeps_the_best_checkpoint(tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_validations(monkeypatch, [2.0, 900.0, 950.0], bleu=[0.0, 0.0, 0.0])
    monkeypatch.setattr(Trainer, "_get_training_nll", lambda self: 900.0)
    settings = ("training.checkpoint_averaging=best", "training.num_averaged_checkpoints=2", "training.keep_best=9")
    recorder = Recorder()
    report = train(tiny(tmp_path / "run", *EVERY_STEP, *settings, "training.max_steps=3"), recorder)
    assert report["averaged_checkpoints"] == ["step-00000001"]
    (text,) = recorder.texts("diverged")
    assert "the best checkpoint is still that of step 1" in text
    assert any("num_averaged_checkpoints = 2, but the run has saved 1 such checkpoint" in text for text in recorder.notices)


# Rollbacks


def poison(trainer: Trainer, steps: set[int]) -> None:
    """Make the gradient norm of these steps infinite."""
    should_apply = trainer.guard.should_apply

    def should_apply_poisoned(norm: Tensor, nll: Tensor) -> Tensor:
        return should_apply(norm * (math.inf if trainer.state.step + 1 in steps else 1.0), nll)

    trainer.guard.should_apply = should_apply_poisoned  # type: ignore[method-assign]


ROLLBACK = (
    "training.on_divergence=rollback", "training.max_consecutive_skips=4", "training.checkpoint_every_steps=1",
    "training.keep_last=3", "training.checkpoint_averaging=none", "training.num_validation_translations=0",
)  # fmt: skip


def test_each_rollback_goes_further_back(tiny: MakeRecipe, tmp_path: Path) -> None:
    trainer = new_trainer(tiny(tmp_path / "run", *ROLLBACK, "training.max_steps=99"), recorder := Recorder())
    poison(trainer, set(range(11, 99)))
    with raises_code("run-diverged", f"after {MAX_ROLLBACKS} rollbacks without a recovery"):
        trainer.run()
    assert [text.rpartition("-")[2][:8] for text in recorder.texts("rolled_back")] == ["00000009", "00000008", "00000009"]


@pytest.mark.slow
def test_rollback_without_earlier_checkpoint_ends_the_run(tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(tmp_path / "run", *ROLLBACK, "training.peak_lr=1e30", "training.max_steps=60")
    for _ in range(2):  # the same command ends in the same way
        with raises_code("run-diverged", "and no earlier checkpoint can be restored"):
            train(recipe)


# Lost workers and missing checkpoints


def test_deleted_best_checkpoint_is_named(tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_validations(monkeypatch, [2.0, 3.0, 4.0], bleu=[0.0, 0.0, 0.0])
    run = Trainer.run

    def delete_best_after(trainer: Trainer) -> None:
        run(trainer)
        shutil.rmtree(trainer.checkpoint_dir / "step-00000001")

    monkeypatch.setattr(Trainer, "run", delete_best_after)
    settings = ("training.checkpoint_averaging=best", "training.num_averaged_checkpoints=1", "training.max_steps=3")
    recorder = Recorder()
    train(tiny(tmp_path / "run", *EVERY_STEP, *settings), recorder)
    (notice,) = [text for text in recorder.notices if "best checkpoint" in text]
    assert "of step 1, is no longer in" in notice
    assert read_config(tmp_path / "run" / "bundle")[2].averaged_checkpoints == ["step-00000002"]


def test_validation_says_once_why_bleu_is_zero(tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    validate = Validator.validate

    def validate_short_outputs(self: Validator, *arguments: Any) -> ValidationResult:
        return replace(validate(self, *arguments), bleu=0.0, note="no output has 4 tokens")

    monkeypatch.setattr(Validator, "validate", validate_short_outputs)
    recorder = Recorder()
    train(tiny(tmp_path / "run", "training.max_steps=3", "training.validate_every_steps=1"), recorder)
    assert [text for text in recorder.notices if "4 tokens" in text][:1] == ["validation: no output has 4 tokens"]
    assert recorder.notices.count("validation: no output has 4 tokens") == 1


def test_checkpoint_without_new_fields_is_read(tiny: MakeRecipe, tmp_path: Path) -> None:
    """Checkpoints of earlier runs lack the losses, and resume."""
    recipe = tiny(tmp_path / "run", "training.checkpoint_every_steps=3", "training.max_steps=3")
    new_trainer(recipe).run()
    state_file = tmp_path / "run" / "checkpoints" / "step-00000003" / "state.json"
    document = json.loads(state_file.read_text(encoding="utf-8"))
    del document["nll"]
    for name in ("best_nll", "first_nll", "logged_nll", "steps_to_recover", "rollback_step"):
        del document["trainer_state"][name]
    state_file.write_text(json.dumps(document), encoding="utf-8")
    assert read_checkpoint(state_file.parent).step == 3
