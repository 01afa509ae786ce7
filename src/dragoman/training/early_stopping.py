"""Judges a run as it goes: validates it, tells what came of that, and knows its best step and when patience ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from dragoman.config import TrainingConfig
from dragoman.errors import RunError, is_out_of_memory
from dragoman.formats.pair import Pair
from dragoman.model.transformer import Transformer
from dragoman.training.checkpoints.checkpoint import TrainerState
from dragoman.training.distributed.process_group import DistributedContext
from dragoman.training.monitoring.callbacks import Callback, ValidationReport
from dragoman.training.monitoring.metrics_log import MetricsLog
from dragoman.training.validation import ValidationResult, Validator, compute_perplexity


class EarlyStopping:
    """Rank 0 validates, where there is text to validate by; all ranks know what it found."""

    def __init__(
        self,
        config: TrainingConfig,
        validator: Validator | None,
        distributed: DistributedContext,
        metrics_log: MetricsLog | None,
        callback: Callback,
        describe_latest: Callable[[], str],
    ) -> None:
        self.config = config
        self.validator = validator
        self.distributed = distributed
        self.metrics_log = metrics_log
        self.callback = callback
        self.describe_latest = describe_latest

    @property
    def pairs(self) -> Sequence[Pair]:
        """The text that validations are made by."""
        return [] if self.validator is None else self.validator.pairs

    def validate(self, model: Transformer | None, trainer_state: TrainerState) -> tuple[TrainerState, float] | None:
        """Where a run stands after a validation, and its merit, higher is better; none where memory does not hold it.

        model: none where memory did not even hold the whole of it. Raises RunError where the loss is no finite number.
        """
        started = time.monotonic()
        local_result = self._run_validation(model) if self.distributed.is_rank_zero and model is not None else None
        scores = self.distributed.broadcast_object(
            None if local_result is None else (local_result.loss, local_result.nll, local_result.bleu, local_result.f1)
        )
        if scores is None:
            return None
        loss, nll, bleu, f1 = scores
        if not math.isfinite(nll):
            raise RunError(
                f"step {trainer_state.step}: the loss of the validation is not a finite number; {self.describe_latest()}"
            )
        result = replace(local_result or ValidationResult(0.0, 0.0, None, ()), loss=loss, nll=nll, bleu=bleu, f1=f1)
        metric = result.metric(self.config.best_metric)
        is_best = trainer_state.best is None or metric > trainer_state.best
        if is_best:
            updated_state = replace(
                trainer_state, judged=trainer_state.step, best=metric, best_step=trainer_state.step, validations_since_best=0
            )
        else:
            updated_state = replace(
                trainer_state, judged=trainer_state.step, validations_since_best=trainer_state.validations_since_best + 1
            )
        self._log_validation(trainer_state.step, result, is_best, seconds=time.monotonic() - started)
        return updated_state, metric

    def _run_validation(self, model: Transformer) -> ValidationResult | None:
        assert self.validator is not None
        try:
            return self.validator.validate(model)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        return None

    def _log_validation(self, step: int, result: ValidationResult, is_best: bool, *, seconds: float) -> None:
        score_names = ("f1", "f1_gold_tags", "nll_own_source", "nll_shuffled_source")
        optional_scores = {name: getattr(result, name) for name in score_names}
        report = ValidationReport(step, result.loss, compute_perplexity(result.nll), result.bleu, is_best, **optional_scores)
        if self.metrics_log is not None:
            self.metrics_log.write("valid", **vars(report), nll=result.nll, seconds=seconds)
        self.callback.validation(report)
        if result.samples:
            if self.metrics_log is not None:
                self.metrics_log.samples(step, result.samples)
            self.callback.samples(step, result.samples)

    def describe_out_of_memory(self, step: int) -> str:
        """What a user is told where memory did not hold a validation."""
        remedy = f"decoding.batch_tokens, or training.batch_tokens = {self.config.batch_tokens} in another run=FOLDER"
        location = " on rank 0" if self.distributed.world_size > 1 else ""
        return f"step {step}: out of memory in the validation{location}; lower {remedy}"

    def is_validation_pending(self, trainer_state: TrainerState, *, is_budget_spent: bool) -> bool:
        """Whether the step that a run goes on from is still to be judged: memory was short, or its budget now `ends` there."""
        step, last_validated_step = trainer_state.step, trainer_state.last_validated_step
        if self.validator is None or step == 0 or last_validated_step is None or last_validated_step == step:
            return False
        return is_budget_spent or step % self.config.validate_every_steps == 0

    def should_stop(self, trainer_state: TrainerState) -> bool:
        return self.config.patience is not None and trainer_state.validations_since_best >= self.config.patience

    def describe_stop(self, trainer_state: TrainerState) -> str:
        """As the reason that a user is given."""
        num_validations, best_step = trainer_state.validations_since_best, trainer_state.best_step
        setting = f"training.patience = {self.config.patience} ends the run"
        return f"{num_validations} validations were no better than that of step {best_step}: {setting}"
