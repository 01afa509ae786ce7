"""Early stopping: validates a run, reports the scores, and tracks the best step and the patience."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dragoman.config import TrainingConfig
from dragoman.errors import is_out_of_memory
from dragoman.evaluation.metrics import compute_perplexity
from dragoman.formats.pair import Pair
from dragoman.model.transformer import Transformer
from dragoman.training.checkpoints.checkpoint import TrainerState, rank_validation
from dragoman.training.distributed.process_group import DistributedContext
from dragoman.training.divergence import find_divergence
from dragoman.training.monitoring.events import Callback, Notice, PreparationProgress, ValidationReport, ValidationSamples
from dragoman.training.validation import ValidationResult, Validator


@dataclass(frozen=True)
class ValidationOutcome:
    """State of a run after a validation.

    Attributes:
        state: the new state
        metric: metric of the validation, higher is better; None if the run has diverged
        nll: loss of the validation in nats per token
        divergence: why the run has diverged, as the end of a sentence; None if it has not
    """

    state: TrainerState
    metric: float | None
    nll: float
    divergence: str | None


class EarlyStopping:
    """Validation policy of a run. Rank 0 validates if there is a validation set; all ranks receive its scores."""

    def __init__(
        self,
        config: TrainingConfig,
        validator: Validator | None,
        distributed: DistributedContext,
        callback: Callback,
        vocab_size: int,
    ) -> None:
        self.config = config
        self.validator = validator
        self.distributed = distributed
        self.callback = callback
        self.vocab_size = vocab_size
        self._reported_notes: set[str] = set()

    @property
    def pairs(self) -> Sequence[Pair]:
        """The validation pairs that are translated."""
        return [] if self.validator is None else self.validator.pairs

    def validate(
        self, model: Transformer | None, trainer_state: TrainerState, *, training_nll: float | None
    ) -> ValidationOutcome | None:
        """Validate, and return the new state of the run; None if memory is short. A diverged step is never the best.

        model: None if memory is too short for the whole model
        training_nll: mean loss of the last training steps; None if it is not known
        """
        started = time.monotonic()
        local_result = self._run_validation(model) if self.distributed.is_rank_zero and model is not None else None
        scores = self.distributed.broadcast_object(
            None if local_result is None else (local_result.loss, local_result.nll, local_result.bleu, local_result.f1)
        )
        if scores is None:
            return None
        loss, nll, bleu, f1 = scores
        step = trainer_state.step
        divergence = find_divergence(
            validation_nll=nll,
            training_nll=training_nll,
            initial_nll=trainer_state.first_nll,
            vocab_size=self.vocab_size,
        )
        result = replace(local_result or ValidationResult(0.0, 0.0, None, ()), loss=loss, nll=nll, bleu=bleu, f1=f1)
        metric = result.metric(self.config.best_metric)
        best_rank = rank_validation(trainer_state.best, trainer_state.best_nll)
        is_best = divergence is None and rank_validation(metric, nll) > best_rank
        updated_state = replace(
            trainer_state, last_validated_step=step, validations_since_best=trainer_state.validations_since_best + 1
        )
        if is_best:
            updated_state = replace(updated_state, best=metric, best_nll=nll, best_step=step, validations_since_best=0)
        self._report(step, result, is_best, seconds=time.monotonic() - started)
        return ValidationOutcome(updated_state, metric if divergence is None else None, nll, divergence)

    def _run_validation(self, model: Transformer) -> ValidationResult | None:
        assert self.validator is not None
        total, num_done = len(self.validator.pairs) or None, 0

        def report_progress(num_newly_done: int) -> None:
            nonlocal num_done
            num_done += num_newly_done
            self.callback(PreparationProgress("validating", num_done, total, unit="sentences"))

        report_progress(0)
        try:
            return self.validator.validate(model, report_progress)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        return None

    def _report(self, step: int, result: ValidationResult, is_best: bool, *, seconds: float) -> None:
        report = ValidationReport(
            step,
            loss=result.loss,
            nll=result.nll,
            perplexity=compute_perplexity(result.nll),
            bleu=result.bleu,
            best=is_best,
            token_accuracy=result.token_accuracy,
            f1=result.f1,
            f1_gold_tags=result.f1_gold_tags,
            nll_own_source=result.nll_own_source,
            nll_shuffled_source=result.nll_shuffled_source,
            pair_scores=result.pair_scores,
            seconds=seconds,
        )
        self.callback(report)
        if result.note is not None and result.note not in self._reported_notes:
            self.callback(Notice(f"validation: {result.note}"))
            self._reported_notes.add(result.note)
        if result.samples:
            self.callback(ValidationSamples(step, result.samples))

    def describe_out_of_memory(self, step: int) -> str:
        """Return the error message for a validation that ran out of memory."""
        remedy = f"decoding.batch_tokens, or training.batch_tokens = {self.config.batch_tokens} in another run=FOLDER"
        location = " on rank 0" if self.distributed.world_size > 1 else ""
        return f"step {step}: out of memory in the validation{location}; lower {remedy}"

    def is_validation_pending(self, trainer_state: TrainerState, *, is_budget_spent: bool) -> bool:
        """Return whether the step that a run starts or resumes from still needs its validation.

        The reason is a shortage of memory before, or a budget that now ends at this step. The start of a fine-tuning run needs
        one if the best checkpoint makes the bundle, because the start may be the best.
        """
        step = trainer_state.step
        if self.validator is not None and step == 0:
            is_fine_tuning = self.config.init_from is not None and self.config.checkpoint_averaging == "best"
            return is_fine_tuning and trainer_state.best is None
        if self.validator is None or trainer_state.last_validated_step == step:
            return False
        return is_budget_spent or step % self.config.validate_every_steps == 0

    def should_stop(self, trainer_state: TrainerState) -> bool:
        """Return whether `training.patience` validations in a row were no better than the best one."""
        return self.config.patience is not None and trainer_state.validations_since_best >= self.config.patience

    def describe_stop(self, trainer_state: TrainerState) -> str:
        """Return the reason for early stopping as text."""
        num_validations, best_step = trainer_state.validations_since_best, trainer_state.best_step
        setting = f"training.patience = {self.config.patience} ends the run"
        return f"{num_validations} validations were no better than that of step {best_step}: {setting}"
