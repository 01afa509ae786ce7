"""Helpers to build a trainer without running it, and to record the events of a run."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.config import Recipe
from dragoman.training.checkpoints.checkpoint import Checkpoint, TrainerState
from dragoman.training.distributed.process_group import DistributedContext
from dragoman.training.monitoring.events import (
    Callback,
    Notice,
    RunEvent,
    StepDone,
    StepReport,
    TrainingEvent,
    ValidationReport,
    ignore_event,
)
from dragoman.training.monitoring.metrics_log import read_metrics_log
from dragoman.training.setup import build_trainer, find_checkpoint, prepare_run
from dragoman.training.trainer import Trainer
from dragoman.training.validation import ValidationResult, Validator

CLOCK_KEYS = {
    "tokens_per_second", "minutes", "minutes_left", "seconds", "data_wait_fraction", "flops_per_second", "mfu", "memory_mib",
    "padding_fraction",
}  # fmt: skip
"""Keys of the metrics log whose values depend on the clock or on the process."""


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the lines of a metrics log without values that depend on the clock or on interruptions."""
    metrics = [entry for entry in read_metrics_log(run / "metrics.jsonl") if entry["type"] not in ("event", "run")]
    return [{key: value for key, value in entry.items() if key not in CLOCK_KEYS} for entry in metrics]


def without_times(trainer_state: TrainerState) -> TrainerState:
    return replace(trainer_state, minutes=0.0, data_wait_minutes=0.0)


def without(recipe: Recipe, *splits: str) -> Recipe:
    """Return the recipe without these corpora."""
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=dict.fromkeys(splits))})


def new_trainer(
    recipe: Recipe,
    callback: Callback = ignore_event,
    distributed: DistributedContext | None = None,
    *,
    reuse_plan: Mapping[str, str] | None = None,
) -> Trainer:
    """Return the trainer that `train` would run."""
    distributed = distributed or DistributedContext()
    checkpoint = find_checkpoint(recipe, callback, distributed)
    prepared, data_digests = prepare_run(recipe, checkpoint, callback, distributed)
    return build_trainer(recipe, prepared, data_digests, checkpoint, callback, distributed, reuse_plan=reuse_plan)


def fake_validations(monkeypatch: pytest.MonkeyPatch, nll: Sequence[float], bleu: Sequence[float] = ()) -> None:
    """Give the validations of a run these losses, and scores if there are any, one after the other."""
    validate, losses, scores = Validator.validate, iter(nll), iter(bleu)

    def validate_with_fake_scores(self: Validator, *arguments: Any) -> ValidationResult:
        result = replace(validate(self, *arguments), nll=next(losses))
        return replace(result, bleu=next(scores)) if bleu else result

    monkeypatch.setattr(Validator, "validate", validate_with_fake_scores)


def assert_equal_tensors(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    """Assert that tensors are equal to the last bit."""
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), name


def assert_equal_states(mine: Checkpoint, theirs: Checkpoint) -> None:
    """Assert that the weights and the moments of two checkpoints are equal to the last bit."""
    assert_equal_tensors(mine.weights(), theirs.weights())
    assert_equal_tensors(mine.optimizer_state(), theirs.optimizer_state())


class Recorder:
    """Callback that records events, and that sends signals to this process after the n-th step."""

    def __init__(self, *, stop_after: int | None = None, signals: Sequence[signal.Signals] = (signal.SIGTERM,)) -> None:
        self.notices: list[str] = []
        self.steps: list[StepReport] = []
        self.validations: list[ValidationReport] = []
        self.events: list[RunEvent] = []
        self.num_steps = 0
        self.stop_after = stop_after
        self.signals = signals

    def __call__(self, event: TrainingEvent) -> None:
        match event:
            case Notice(text):
                self.notices.append(text)
            case StepReport():
                self.steps.append(event)
            case ValidationReport():
                self.validations.append(event)
            case RunEvent():
                self.events.append(event)
            case StepDone():
                self.num_steps += 1
                self.after_step(event)

    def after_step(self, event: StepDone) -> None:
        """Send the signals when it is time. Subclasses do other damage."""
        if self.num_steps == self.stop_after:
            for number in self.signals:
                os.kill(os.getpid(), number)

    def texts(self, kind: str) -> list[str]:
        """Return the texts of the events of one kind."""
        return [event.text for event in self.events if event.event == kind]
