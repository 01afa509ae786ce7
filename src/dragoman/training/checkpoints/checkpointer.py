"""Checkpoint policy of a run: saves when a checkpoint is due, prunes old ones, and tries again after a failed write."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dragoman.config import TrainingConfig
from dragoman.errors import OutputError, RankError, RunError
from dragoman.io.storage import verify_checksums
from dragoman.training.checkpoints.checkpoint import (
    Checkpoint,
    StateTensors,
    TrainerState,
    find_latest_checkpoint,
    list_checkpoints,
    prune_checkpoints,
    read_checkpoint,
    save_checkpoint,
)
from dragoman.training.distributed.process_group import DistributedContext
from dragoman.training.monitoring.events import Callback, RunEvent


class Checkpointer:
    """Writer of a run's checkpoints. Rank 0 writes them; all ranks know whether they were saved. recipe: as JSON"""

    def __init__(
        self,
        folder: Path,
        recipe: Mapping[str, Any],
        config: TrainingConfig,
        data_digests: Mapping[str, str],
        compute_plan: Mapping[str, str],
        distributed: DistributedContext,
        callback: Callback,
        latest: Checkpoint | None,
    ) -> None:
        self.folder = folder
        self.recipe = dict(recipe)
        self.config = config
        self.data_digests = dict(data_digests)
        self.compute_plan = dict(compute_plan)
        self.distributed = distributed
        self.callback = callback
        self.latest = latest
        self.pending = False
        """True if the last scheduled checkpoint could not be written."""
        self.minutes_since_scheduled = 0.0
        """Minutes by the clock of rank 0, with validations. The trainer sets it after each step."""
        self._last_scheduled = time.monotonic()

    def describe_latest(self) -> str:
        """Return the end of a message: the checkpoint that the run can resume from."""
        if self.latest is None:
            return "no checkpoint is saved yet"
        return f"{self.latest.path} is saved, and the same command resumes from there"

    def describe_saved(self) -> str:
        """Return the end of a message about a run that the same command would end in the same way."""
        return "no checkpoint is saved yet" if self.latest is None else f"{self.latest.path} is saved"

    def describe_lost_steps(self, step: int) -> str:
        """Return the end of a message after a failure at `step`: what is lost, and how the run goes on."""
        if self.latest is None:
            return f"no checkpoint is saved yet, so the same command starts again, and {step} steps are lost"
        lost = step - self.latest.step
        return self.describe_latest() + (f"; the last {lost} steps are lost" if lost > 1 else "")

    def measure_minutes_since_scheduled(self) -> float:
        """Return the minutes since the last scheduled checkpoint or the start, by the clock of this rank."""
        return (time.monotonic() - self._last_scheduled) / 60.0

    def is_due(self, trainer_state: TrainerState) -> bool:
        """Return whether the recipe's steps or minutes ask for a checkpoint."""
        steps, minutes = self.config.checkpoint_every_steps, self.config.checkpoint_every_minutes
        by_steps = steps > 0 and trainer_state.step % steps == 0
        return by_steps or (minutes is not None and self.minutes_since_scheduled >= minutes)

    def save(
        self,
        tensors: StateTensors,
        trainer_state: TrainerState,
        *,
        metric: float | None,
        nll: float | None,
        scheduled: bool,
        is_final: bool,
    ) -> bool:
        """Save a checkpoint, prune old ones, and return whether it was saved.

        metric, nll: scores of the validation at this step

        After a failed write the run continues and tries again; for the final checkpoint OutputError is raised instead. Raises
        RunError if a weight is not finite, so that no good checkpoint is replaced.
        """
        step = trainer_state.step
        if self.distributed.broadcast_object(_has_nonfinite_weights(tensors)):
            raise RunError(
                f"step {step}: a weight is not a finite number; {self.describe_latest()}. Start in another folder with "
                "run=FOLDER and a lower learning rate, a longer training.warmup_steps or training.clip_norm=1.0",
                code="run-diverged",
            )
        failure = code = path = None
        if self.distributed.is_rank_zero:
            try:
                path = str(self._write(tensors, trainer_state, metric, nll, scheduled=scheduled).path)
            except OutputError as error:
                failure, code = str(error), error.code
        failure, code, path = self.distributed.broadcast_object((failure, code, path))
        if scheduled or self.pending:
            self._last_scheduled, self.minutes_since_scheduled = time.monotonic(), 0.0
        if path is not None:
            self.latest = Checkpoint(
                Path(path), trainer_state, self.recipe, metric, self.data_digests, scheduled, self.compute_plan, nll
            )
            self.pending = False
            self._report_saved()
        elif is_final:
            raise OutputError(f"{failure}; {self.describe_latest()}", code=code)
        else:
            self.pending = True
            message = f"{failure}; training continues and tries again; {self.describe_latest()}"
            self.callback(RunEvent("checkpoint_failed", step, message))
        return path is not None

    def save_alone(self, tensors: StateTensors, trainer_state: TrainerState) -> None:
        """Save a checkpoint on this rank, which may have lost the others, unless the folder has one of this step.

        Raises:
            OutputError: it cannot be written.
            RunError: a checkpoint in the folder cannot be read.
        """
        newest = max(list_checkpoints(self.folder), key=lambda checkpoint: checkpoint.step, default=None)
        if newest is not None and newest.step >= trainer_state.step:
            self.latest = newest
        elif not _has_nonfinite_weights(tensors):
            scheduled = self.is_due(trainer_state) and not trainer_state.consecutive_skips
            self.latest = self._write(tensors, trainer_state, None, None, scheduled=scheduled)
            self._report_saved()

    def _report_saved(self) -> None:
        if self.latest is not None:
            self.callback(RunEvent("checkpoint", self.latest.step, f"saved {self.latest.path.name}"))

    def _write(
        self,
        tensors: StateTensors,
        trainer_state: TrainerState,
        metric: float | None,
        nll: float | None,
        *,
        scheduled: bool,
    ) -> Checkpoint:
        checkpoint = save_checkpoint(
            self.folder,
            tensors,
            trainer_state=trainer_state,
            recipe=self.recipe,
            metric=metric,
            data_digests=self.data_digests,
            scheduled=scheduled,
            compute_plan=self.compute_plan,
            nll=nll,
        )
        prune_checkpoints(self.folder, keep_last=self.config.keep_last, keep_best=self.config.keep_best)
        return checkpoint


def _has_nonfinite_weights(tensors: StateTensors) -> bool:
    return not all(math.isfinite(float(weight.sum())) for weight in tensors.weights.values())


def find_latest_on_all_ranks(
    checkpoint_dir: Path,
    notice: Callable[[str], None],
    distributed: DistributedContext,
    accept: Callable[[Checkpoint | None], None] = lambda checkpoint: None,
    is_eligible: Callable[[Checkpoint], bool] = lambda _: True,
) -> Checkpoint | None:
    """Return the newest intact and eligible checkpoint. Rank 0 finds it; every other rank verifies its own view of the folder.

    accept: runs on rank 0 and raises an error if the checkpoint must not be used

    Raises RankError if a rank cannot read the checkpoint.
    """
    checkpoint = None
    with distributed.rank_zero_first():
        if distributed.is_rank_zero:
            checkpoint = find_latest_checkpoint(checkpoint_dir, notice, is_eligible)
            accept(checkpoint)
    name = distributed.broadcast_object(checkpoint.path.name if checkpoint is not None else None)
    if name is None or distributed.is_rank_zero:
        return checkpoint
    try:
        verify_checksums(checkpoint_dir / name, RunError)
        return read_checkpoint(checkpoint_dir / name)
    except RunError as error:
        raise RankError(f"rank {distributed.rank}: {error}; rank 0 resumes from this checkpoint") from None
