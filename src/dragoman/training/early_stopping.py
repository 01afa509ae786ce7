"""Judges a run as it goes: validates it, tells what came of that, and knows its best step and when patience ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from dragoman.config import TrainingConfig
from dragoman.errors import RunError, out_of_memory
from dragoman.formats.pair import Pair
from dragoman.model.transformer import Transformer
from dragoman.training.checkpoints.checkpoint import Progress
from dragoman.training.distributed.process_group import World
from dragoman.training.monitoring.callbacks import Listener, ValidationReport
from dragoman.training.monitoring.metrics_log import Journal
from dragoman.training.validation import Validator, Verdict, perplexity


class Judge:
    """Rank 0 validates, where there is text to validate by; all ranks know what it found."""

    def __init__(
        self,
        config: TrainingConfig,
        validator: Validator | None,
        world: World,
        journal: Journal | None,
        listener: Listener,
        kept: Callable[[], str],
    ) -> None:
        self.config = config
        self.validator = validator
        self.world = world
        self.journal = journal
        self.listener = listener
        self.kept = kept

    @property
    def pairs(self) -> Sequence[Pair]:
        """The text that validations are made by."""
        return [] if self.validator is None else self.validator.pairs

    def validate(self, model: Transformer | None, progress: Progress) -> tuple[Progress, float] | None:
        """Where a run stands after a validation, and its merit, higher is better; none where memory does not hold it.

        model: none where memory did not even hold the whole of it. Raises RunError where the loss is no finite number.
        """
        started = time.monotonic()
        found = self._verdict(model) if self.world.leads and model is not None else None
        figures = self.world.from_leader(None if found is None else (found.loss, found.nll, found.bleu, found.f1))
        if figures is None:
            return None
        loss, nll, bleu, f1 = figures
        if not math.isfinite(nll):
            raise RunError(f"step {progress.step}: the loss of the validation is not a finite number; {self.kept()}")
        verdict = replace(found or Verdict(0.0, 0.0, None, ()), loss=loss, nll=nll, bleu=bleu, f1=f1)
        merit = verdict.merit(self.config.best_metric)
        is_best = progress.best is None or merit > progress.best
        if is_best:
            after = replace(progress, judged=progress.step, best=merit, best_step=progress.step, validations_since_best=0)
        else:
            after = replace(progress, judged=progress.step, validations_since_best=progress.validations_since_best + 1)
        self._tell(progress.step, verdict, is_best, seconds=time.monotonic() - started)
        return after, merit

    def _verdict(self, model: Transformer) -> Verdict | None:
        assert self.validator is not None
        try:
            return self.validator.judge(model)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
        return None

    def _tell(self, step: int, verdict: Verdict, is_best: bool, *, seconds: float) -> None:
        names = ("f1", "f1_gold_tags", "nll_own_source", "nll_shuffled_source")
        rest = {name: getattr(verdict, name) for name in names}
        report = ValidationReport(step, verdict.loss, perplexity(verdict.nll), verdict.bleu, is_best, **rest)
        if self.journal is not None:
            self.journal.write("valid", **vars(report), nll=verdict.nll, seconds=seconds)
        self.listener.validation(report)
        if verdict.samples:
            if self.journal is not None:
                self.journal.samples(step, verdict.samples)
            self.listener.samples(step, verdict.samples)

    def why_not(self, step: int) -> str:
        """What a user is told where memory did not hold a validation."""
        lower = f"decoding.batch_tokens, or training.batch_tokens = {self.config.batch_tokens} in another run=FOLDER"
        where = " on rank 0" if self.world.size > 1 else ""
        return f"step {step}: out of memory in the validation{where}; lower {lower}"

    def is_owed(self, progress: Progress, *, ends: bool) -> bool:
        """Whether the step that a run goes on from is still to be judged: memory was short, or its budget now `ends` there."""
        step, judged = progress.step, progress.judged
        if self.validator is None or step == 0 or judged is None or judged == step:
            return False
        return ends or step % self.config.validate_every_steps == 0

    def out_of_patience(self, progress: Progress) -> bool:
        return self.config.patience is not None and progress.validations_since_best >= self.config.patience

    def why_patience_ends(self, progress: Progress) -> str:
        """As the reason that a user is given."""
        since, best = progress.validations_since_best, progress.best_step
        ends = f"training.patience = {self.config.patience} ends the run"
        return f"{since} validations were no better than that of step {best}: {ends}"
