"""Keeps a run: commits its checkpoints when they are due, prunes them, and tries again where a disk refused."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dragoman.config import Recipe
from dragoman.errors import OutputError, RunError
from dragoman.training.checkpoints.checkpoint import Checkpoint, TrainerState, prune_checkpoints, save_checkpoint
from dragoman.training.distributed.process_group import DistributedContext
from dragoman.training.monitoring.callbacks import EventKind
from dragoman.training.train_state import StateTensors

EventLogger = Callable[[EventKind, int, str], None]


class Checkpointer:
    """The checkpoints of a run. Rank 0 writes them; all ranks know what was kept."""

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        data_digests: Mapping[str, str],
        compute_plan: Mapping[str, str],
        distributed: DistributedContext,
        log_event: EventLogger,
        latest: Checkpoint | None,
    ) -> None:
        self.folder = folder
        self.recipe = recipe.model_dump(mode="json")
        self.config = recipe.training
        self.data_digests = dict(data_digests)
        self.compute_plan = dict(compute_plan)
        self.distributed = distributed
        self.log_event = log_event
        self.latest = latest
        self.pending = False
        """Whether one that was due could not be written."""
        self.minutes_since_scheduled = 0.0
        """By the clock of rank 0, validations and all; whoever has it tells it."""
        self._last_scheduled = time.monotonic()

    def describe_latest(self) -> str:
        """What there is to go on from, as the end of a message."""
        if self.latest is None:
            return "nothing was kept yet"
        return f"{self.latest.path} is kept, and the same command goes on from there"

    def measure_minutes_since_scheduled(self) -> float:
        """Since the last checkpoint that was due, or the start, by this rank's clock."""
        return (time.monotonic() - self._last_scheduled) / 60.0

    def is_due(self, trainer_state: TrainerState) -> bool:
        """Whether the recipe's steps or minutes ask for a checkpoint."""
        steps, minutes = self.config.checkpoint_every_steps, self.config.checkpoint_every_minutes
        by_steps = steps > 0 and trainer_state.step % steps == 0
        return by_steps or (minutes is not None and self.minutes_since_scheduled >= minutes)

    def save(
        self, tensors: StateTensors, trainer_state: TrainerState, *, metric: float | None, scheduled: bool, is_final: bool
    ) -> bool:
        """Write a checkpoint, then remove those that are no longer wanted; returns whether it was kept.

        Where it cannot be written, that is told, and the run is to go on and try again; the `last` one raises OutputError.
        Raises RunError where weights are lost: they replace no good ones.
        """
        has_nonfinite_weights = not all(math.isfinite(float(weight.sum())) for weight in tensors.weights.values())
        if self.distributed.broadcast_object(has_nonfinite_weights):
            raise RunError(
                f"step {trainer_state.step}: a weight is not a finite number; {self.describe_latest()}. Start elsewhere with run=FOLDER and a "
                "lower learning rate, a longer training.warmup_steps or training.clip_norm=1.0"
            )
        failure = path = None
        if self.distributed.is_rank_zero:
            try:
                path = str(self._write(tensors, trainer_state, metric, scheduled=scheduled))
            except OutputError as error:
                failure = str(error)
        failure, path = self.distributed.broadcast_object((failure, path))
        if scheduled or self.pending:
            self._last_scheduled, self.minutes_since_scheduled = time.monotonic(), 0.0
        if path is not None:
            self.latest = Checkpoint(
                Path(path), trainer_state, self.recipe, metric, self.data_digests, scheduled, self.compute_plan
            )
            self.pending = False
            self.log_event("checkpoint", trainer_state.step, f"kept {Path(path).name}")
        elif is_final:
            raise OutputError(f"{failure}; {self.describe_latest()}")
        else:
            self.pending = True
            self.log_event(
                "unsaved", trainer_state.step, f"{failure}; training goes on and tries again; {self.describe_latest()}"
            )
        return path is not None

    def _write(self, tensors: StateTensors, trainer_state: TrainerState, metric: float | None, *, scheduled: bool) -> Path:
        checkpoint = save_checkpoint(
            self.folder,
            trainer_state=trainer_state,
            recipe=self.recipe,
            metric=metric,
            data_digests=self.data_digests,
            scheduled=scheduled,
            compute_plan=self.compute_plan,
            weights=tensors.weights,
            optimizer_state=tensors.optimizer,
            ema_weights=tensors.ema_weights,
        )
        prune_checkpoints(self.folder, keep_last=self.config.keep_last, keep_best=self.config.keep_best)
        return checkpoint.path
