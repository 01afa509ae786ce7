"""Keeps a run: commits its checkpoints when they are due, prunes them, and tries again where a disk refused."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dragoman.config import Recipe
from dragoman.errors import OutputError, RunError
from dragoman.training.checkpoints.checkpoint import Checkpoint, Progress, prune_checkpoints, save_checkpoint
from dragoman.training.distributed.process_group import World
from dragoman.training.monitoring.callbacks import EventKind
from dragoman.training.train_state import State

Tell = Callable[[EventKind, int, str], None]


class Keeper:
    """The checkpoints of a run. Rank 0 writes them; all ranks know what was kept."""

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        corpus: Mapping[str, str],
        machine: Mapping[str, str],
        world: World,
        tell: Tell,
        newest: Checkpoint | None,
    ) -> None:
        self.folder = folder
        self.recipe = recipe.model_dump(mode="json")
        self.config = recipe.training
        self.corpus = dict(corpus)
        self.machine = dict(machine)
        self.world = world
        self.tell = tell
        self.newest = newest
        self.owed = False
        """Whether one that was due could not be written."""
        self.minutes_since_due = 0.0
        """By the clock of rank 0, validations and all; whoever has it tells it."""
        self._last_due = time.monotonic()

    def kept(self) -> str:
        """What there is to go on from, as the end of a message."""
        if self.newest is None:
            return "nothing was kept yet"
        return f"{self.newest.path} is kept, and the same command goes on from there"

    def minutes_passed(self) -> float:
        """Since the last checkpoint that was due, or the start, by this rank's clock."""
        return (time.monotonic() - self._last_due) / 60.0

    def is_due(self, progress: Progress) -> bool:
        """Whether the recipe's steps or minutes ask for a checkpoint."""
        steps, minutes = self.config.checkpoint_every_steps, self.config.checkpoint_every_minutes
        by_steps = steps > 0 and progress.step % steps == 0
        return by_steps or (minutes is not None and self.minutes_since_due >= minutes)

    def commit(self, state: State, progress: Progress, *, merit: float | None, due: bool, last: bool) -> bool:
        """Write a checkpoint, then remove those that are no longer wanted; returns whether it was kept.

        Where it cannot be written, that is told, and the run is to go on and try again; the `last` one raises OutputError.
        Raises RunError where weights are lost: they replace no good ones.
        """
        lost = not all(math.isfinite(float(weight.sum())) for weight in state.weights.values())
        if self.world.from_leader(lost):
            raise RunError(
                f"step {progress.step}: a weight is not a finite number; {self.kept()}. Start elsewhere with run=FOLDER and a "
                "lower learning rate, a longer training.warmup_steps or training.clip_norm=1.0"
            )
        trouble = path = None
        if self.world.leads:
            try:
                path = str(self._save(state, progress, merit, due=due))
            except OutputError as error:
                trouble = str(error)
        trouble, path = self.world.from_leader((trouble, path))
        if due or self.owed:
            self._last_due, self.minutes_since_due = time.monotonic(), 0.0
        if path is not None:
            self.newest = Checkpoint(Path(path), progress, self.recipe, merit, self.corpus, due, self.machine)
            self.owed = False
            self.tell("checkpoint", progress.step, f"kept {Path(path).name}")
        elif last:
            raise OutputError(f"{trouble}; {self.kept()}")
        else:
            self.owed = True
            self.tell("unsaved", progress.step, f"{trouble}; training goes on and tries again; {self.kept()}")
        return path is not None

    def _save(self, state: State, progress: Progress, merit: float | None, *, due: bool) -> Path:
        saved = save_checkpoint(
            self.folder,
            progress=progress,
            recipe=self.recipe,
            merit=merit,
            corpus=self.corpus,
            due=due,
            machine=self.machine,
            weights=state.weights,
            optimiser_state=state.optimiser,
            averages=state.averages,
        )
        prune_checkpoints(self.folder, keep_last=self.config.keep_last, keep_best=self.config.keep_best)
        return saved.path
