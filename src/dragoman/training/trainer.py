"""Training loop: steps, validations and checkpoints until the budget is spent.

Every random draw is a function of (seed, step, index of the batch in the step). So a run that stops and resumes equals one
that does not, and a run on another number of devices equals it up to rounding. All ranks decide alike. Rank 0 alone validates,
writes files and reports.
"""

from __future__ import annotations

import math
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, NoReturn

import torch

from dragoman.config import Recipe
from dragoman.data.collate import Batch
from dragoman.data.dataloader import BatchStream, translate_worker_errors
from dragoman.data.prepare import PreparedData
from dragoman.errors import InterruptedRun, OutOfMemoryError, OutputError, RankZeroError, RunError
from dragoman.runtime.progress import RecentRate
from dragoman.training.checkpoints.checkpoint import TrainerState
from dragoman.training.checkpoints.checkpointer import Checkpointer, find_latest_on_all_ranks
from dragoman.training.compute_plan import measure_peak_flops
from dragoman.training.distributed.process_group import DistributedContext
from dragoman.training.distributed.signals import stop_on_signals
from dragoman.training.early_stopping import EarlyStopping
from dragoman.training.losses.ctc import count_learned
from dragoman.training.lr_schedule import compute_budget_fraction, compute_learning_rate
from dragoman.training.monitoring.events import (
    Callback,
    EventKind,
    Notice,
    RunEvent,
    RunInfo,
    RunStarted,
    StepDone,
    StepReport,
)
from dragoman.training.monitoring.flops import BatchCost, compute_batch_cost, measure_memory_mib
from dragoman.training.monitoring.throughput import Throughput
from dragoman.training.monitoring.training_macs import count_training_macs
from dragoman.training.train_state import TrainState
from dragoman.training.train_step import TrainStep
from dragoman.training.validation import compute_perplexity

# After this many rollbacks without recovery the run ends.
MAX_ROLLBACKS = 3
# The time left is computed from the pace of the last minutes of training steps.
PACE_WINDOW_SECONDS = 300.0


class Trainer:
    """Training loop of one run. `setup.build_trainer` builds its parts."""

    def __init__(
        self,
        recipe: Recipe,
        *,
        prepared: PreparedData,
        trainer_state: TrainerState,
        train_state: TrainState,
        train_step: TrainStep,
        stream: BatchStream,
        checkpointer: Checkpointer,
        early_stopping: EarlyStopping,
        callback: Callback,
        distributed: DistributedContext,
    ) -> None:
        self.recipe = recipe
        self.config = recipe.training
        self.prepared = prepared
        self.state = trainer_state
        self.train_state = train_state
        self.train_step = train_step
        self.stream = stream
        self.checkpointer = checkpointer
        self.early_stopping = early_stopping
        self.callback = callback
        self.distributed = distributed
        self.folder = Path(recipe.run)
        self.checkpoint_dir = checkpointer.folder
        self.model = train_state.model
        self.optimizer = train_state.optimizer
        self.plan = train_state.plan
        has_paper_layers = not recipe.model.find_unusual_layers()  # other layers count as if all weights were trained
        self.training_macs = count_training_macs(train_state.model) if has_paper_layers else None
        self.guard = train_step.guard
        self.throughput = Throughput()
        self.pace = RecentRate(window_seconds=PACE_WINDOW_SECONDS, clock=lambda: 60.0 * self.state.minutes)
        self.peak_flops: float | None = None
        self._skipped_logged = trainer_state.skipped_steps
        self._infeasible_logged = trainer_state.infeasible_pairs
        # The sum is in float64, so it does not depend on the order of the steps.
        self._nll_since_log = torch.tensor(trainer_state.nll_since_log, device=self.plan.device, dtype=torch.float64)
        self._tokens_since_log = torch.tensor(trainer_state.tokens_since_log, device=self.plan.device)

    def epochs(self) -> float:
        """Return the passes over the corpus so far."""
        return self.stream.count_epochs()

    def budget_fraction(self) -> float:
        """Return the share of the budget that is spent; 1 or more ends the run."""
        state = self.state
        return compute_budget_fraction(
            self.config, step=state.step, epochs=self.epochs(), minutes=state.minutes, flops=state.flops
        )

    def describe_latest(self) -> str:
        """Return the end of a message: the checkpoint that the run can resume from."""
        return self.checkpointer.describe_latest()

    def run(self) -> None:
        """Train until the budget is spent or early stopping ends the run.

        On a request to stop, save a checkpoint and raise InterruptedRun.
        """
        self.model.train()
        self.peak_flops = self.distributed.all_reduce_sum(measure_peak_flops(self.plan))[0]
        is_complete = self.budget_fraction() >= 1.0 or self._should_stop_early()
        if is_complete and not self._is_validation_pending():
            self.callback(Notice(f"{self._describe_completion()}; nothing is left to train"))
            return
        self._report_start()
        with (
            closing(self.stream),
            translate_worker_errors(),
            stop_on_signals() as stop,
            self.distributed.exit_cleanly_on_disconnect(),
        ):
            if self._is_validation_pending():
                self._validate_and_save(
                    scheduled=self.checkpointer.latest is not None and self.checkpointer.latest.scheduled, was_pending=True
                )
            while self.budget_fraction() < 1.0 and not self._should_stop_early():
                self.distributed.start_watchdog()
                started = read_clock(self.config.clock)
                gradient_norm = self._step()
                self.callback(StepDone(self.state.step, self.budget_fraction()))
                clock_minutes = [
                    self.distributed.is_rank_zero * minutes
                    for minutes in (
                        compute_elapsed_minutes(started, self.config.clock),
                        self.checkpointer.measure_minutes_since_scheduled(),
                    )
                ]
                num_stop_requests, minutes, self.checkpointer.minutes_since_scheduled = self.distributed.all_reduce_sum(
                    stop.reason is not None, *clock_minutes
                )
                self.state = replace(self.state, minutes=self.state.minutes + minutes)
                self.pace.update(self.budget_fraction())
                self._after_step(gradient_norm, is_stopping=num_stop_requests > 0)
                if num_stop_requests:
                    self._interrupt(stop.reason or "another rank was asked to stop")
            self.distributed.stop_watchdog()
            if stop.reason is not None and self.distributed.is_rank_zero:  # the request came after the last step
                self._interrupt(stop.reason)
        if not self._should_stop_early():
            self.log_event("budget_spent", self._describe_completion())

    def log_event(self, kind: EventKind, text: str) -> None:
        """Report an event of the current step."""
        self.callback(RunEvent(kind, self.state.step, text))

    def _describe_completion(self) -> str:
        """Return the reason why no step is left to train."""
        if self._should_stop_early():
            return self.early_stopping.describe_stop(self.state)
        return f"the budget is spent after step {self.state.step}"

    def _interrupt(self, reason: str) -> NoReturn:
        """Raise InterruptedRun after a checkpoint was saved."""
        message = f"{reason}: stopped after step {self.state.step}; {self.describe_latest()}"
        self.log_event("stopped", message)
        raise InterruptedRun(message)

    def _report_start(self) -> None:
        """Report what starts, and the machine's speed."""
        run_info = RunInfo(
            name=self.recipe.name,
            folder=str(self.folder),
            machine=self.plan.describe(),
            parameters=self.model.num_parameters(),
            step=self.state.step,
            devices=self.distributed.world_size,
            peak_flops_per_second=self.peak_flops,
            uniform_loss=math.log(len(self.prepared.tokenizer.target)),
        )
        latest = self.checkpointer.latest
        self.callback(RunStarted(run_info, self.recipe.model_dump(mode="json")))
        if latest is not None:
            self.log_event("resumed", f"resuming from {latest.path}")
        self.throughput.reset()
        self.pace.update(self.budget_fraction())

    def _after_step(self, gradient_norm: torch.Tensor, *, is_stopping: bool) -> None:
        """Log, validate and save a checkpoint, as far as they are due after this step."""
        step, is_budget_spent = self.state.step, self.budget_fraction() >= 1.0
        should_validate = step % self.config.validate_every_steps == 0 or is_budget_spent
        if should_validate or step % (1 if self.plan.device.type == "cpu" else self.config.max_consecutive_skips) == 0:
            self._check_skipped_steps()  # first, so that a rollback precedes the validation
        should_log = step % self.config.log_every_steps == 0
        if should_log or is_budget_spent:
            self._report_infeasible_pairs()
        if should_log:
            self._log_step(gradient_norm)
        scheduled = self.checkpointer.is_due(self.state) or (should_log and self.checkpointer.pending)
        if should_validate:
            self._validate_and_save(scheduled=scheduled, is_stopping=is_stopping)
        elif scheduled or is_stopping:
            self._save_checkpoint(None, scheduled=scheduled, is_final=is_stopping)

    def _validate_and_save(self, *, scheduled: bool, is_stopping: bool = False, was_pending: bool = False) -> None:
        """Validate, and save a checkpoint if it is due, the best, or the last, or if the validation was pending."""
        previous_state = self.state
        metric = self._validate()
        is_best = metric is not None and self.state.best_step == previous_state.step
        if self._should_stop_early():
            self.log_event("early_stop", f"step {self.state.step}: {self.early_stopping.describe_stop(self.state)}")
        is_final = is_stopping or self.budget_fraction() >= 1.0 or self._should_stop_early()
        if not (scheduled or is_best or is_final or was_pending):
            return
        is_saved = self._save_checkpoint(metric if scheduled or is_best else None, scheduled=scheduled, is_final=is_final)
        if is_best and not is_saved:  # a later checkpoint need not be better than one that does not exist
            self.state = replace(self.state, best=previous_state.best, best_step=previous_state.best_step)

    def _is_validation_pending(self) -> bool:
        return self.early_stopping.is_validation_pending(self.state, is_budget_spent=self.budget_fraction() >= 1.0)

    def _should_stop_early(self) -> bool:
        return self.early_stopping.should_stop(self.state)

    def _step(self) -> torch.Tensor:
        """Update the weights once from `batches_per_update` batches, and return the gradient norm before clipping."""
        step = self.state.step + 1
        started = time.monotonic()
        # Ranks take turns at the batches of a step, so each batch has the same index on any number of ranks.
        batch_indices = range(self.distributed.rank, self.config.batches_per_update, self.distributed.world_size)
        batches = [(batch_index, self.stream.next_batch()) for batch_index in batch_indices]
        data_wait_seconds = time.monotonic() - started
        parts = [part for _, group in batches for part in group]
        cost = sum(map(self._compute_cost, parts), BatchCost())
        learned = [count_learned(self.model, part) for part in parts]
        totals = self.distributed.all_reduce_sum(
            sum(num_tokens for num_tokens, _ in learned),
            cost.flops,
            cost.tokens,
            cost.padded_tokens,
            sum(num_infeasible for _, num_infeasible in learned),
        )
        # A step without any token to learn has the loss 0, whatever it is divided by.
        tokens, cost = max(int(totals[0]), 1), BatchCost(totals[1], int(totals[2]), int(totals[3]))
        self._set_lr(step)
        try:
            norm, applied, nll = self.train_step(step, batches, tokens=tokens)
        except OutOfMemoryError as error:
            self._raise_out_of_memory(str(error), on_all_ranks=self.distributed.world_size == 1)
        if self.train_state.ema is not None:
            self.train_state.ema.update(step, applied)
        self._nll_since_log += torch.where(applied, nll, 0.0)
        self._tokens_since_log += applied * tokens
        self.throughput.add_step(cost, target_tokens=tokens, data_wait_seconds=data_wait_seconds)
        self.state = replace(
            self.state,
            step=step,
            data_position=self.stream.position,
            target_tokens=self.state.target_tokens + tokens,
            infeasible_pairs=self.state.infeasible_pairs + int(totals[4]),
            flops=self.state.flops + cost.flops,
            data_wait_minutes=self.state.data_wait_minutes + data_wait_seconds / 60.0,
        )
        return norm

    def _report_infeasible_pairs(self) -> None:
        """Report the pairs that a CTC decoder could not learn since the last report, if there are any."""
        num_pairs = self.state.infeasible_pairs
        if num_pairs == self._infeasible_logged:
            return
        self.log_event(
            "infeasible_pairs",
            f"step {self.state.step}: {num_pairs - self._infeasible_logged} pairs had no loss, because their targets have more "
            f"tokens than the CTC decoder has positions; {num_pairs} so far; raise model.ctc_upsampling to learn them",
        )
        self._infeasible_logged = num_pairs

    def _compute_cost(self, batch: Batch) -> BatchCost:
        return compute_batch_cost(
            self.recipe.model,
            len(self.prepared.tokenizer.target),
            batch,
            num_forward_passes=self.config.num_forward_passes,
            has_teacher=self.config.kl_to_init > 0,
            num_candidates=self.config.num_sequence_candidates,
            training_macs=self.training_macs,
        )

    def _set_lr(self, step: int) -> None:
        lr = compute_learning_rate(self.config, d_model=self.recipe.model.d_model, step=step, progress=self.budget_fraction())
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def _log_step(self, gradient_norm: torch.Tensor) -> None:
        tokens, throughput = int(self._tokens_since_log), self.throughput
        if tokens:  # if every step was skipped, there is no loss
            nll = self._nll_since_log.item() / tokens
            flops_per_second = throughput.cost.flops / throughput.seconds
            self.callback(
                StepReport(
                    step=self.state.step,
                    epoch=self.epochs(),
                    loss=nll,
                    perplexity=compute_perplexity(nll),
                    lr=self.optimizer.param_groups[0]["lr"],
                    gradient_norm=gradient_norm.item(),
                    tokens_per_second=throughput.target_tokens / throughput.seconds,
                    progress=self.budget_fraction(),
                    minutes=self.state.minutes,
                    minutes_left=self._estimate_minutes_left(),
                    skipped_steps=self.guard.skipped_steps,
                    data_wait_fraction=throughput.data_wait_seconds / throughput.seconds,
                    flops_per_second=flops_per_second,
                    mfu=flops_per_second / self.peak_flops if self.peak_flops else None,
                    memory_mib=measure_memory_mib(self.plan.device),
                    devices=self.distributed.world_size,
                    padding_fraction=throughput.cost.padding_fraction,
                )
            )
        self._nll_since_log.zero_()
        self._tokens_since_log.zero_()
        self.throughput.reset()

    def _estimate_minutes_left(self) -> float:
        """Return the minutes of training steps until the budget is spent, at the recent pace."""
        seconds_left = self.pace.seconds_left(1.0)
        if seconds_left is not None:
            return seconds_left / 60.0
        progress = self.budget_fraction()
        return self.state.minutes / progress * (1.0 - progress)

    # Failures

    def _check_skipped_steps(self) -> None:
        """Report newly skipped steps. After `max_consecutive_skips` of them in a row, roll back or stop."""
        num_skipped = self.guard.skipped_steps
        if num_skipped == self._skipped_logged:
            return
        self.log_event("skipped_steps", f"step {self.state.step}: {self._describe_skip_cause()}; {num_skipped} skipped so far")
        self._skipped_logged = num_skipped
        if self.guard.consecutive_skips >= self.config.max_consecutive_skips:
            self._rollback_or_stop(num_skipped)

    def _rollback_or_stop(self, num_skipped: int) -> None:
        step = self.state.step
        diagnosis = (
            f"step {step}: {self.guard.consecutive_skips} steps in a row were skipped because of "
            f"{self._describe_skip_cause()}; lower the learning rate, raise training.warmup_steps or set "
            "training.clip_norm=1.0, in another run=FOLDER"
        )
        latest, applied_steps = self.checkpointer.latest, step - num_skipped
        # After this many applied steps the run has recovered from the last rollback.
        has_recovered = applied_steps - self.state.applied_steps_at_rollback >= self.config.max_consecutive_skips
        recent_rollbacks = 0 if has_recovered else self.state.recent_rollbacks
        if self.config.on_divergence == "stop" or latest is None or recent_rollbacks == MAX_ROLLBACKS:
            raise RunError(f"{diagnosis}; {self.describe_latest()}", code="run-diverged")
        latest = self.checkpointer.latest = find_latest_on_all_ranks(
            self.checkpoint_dir, lambda text: self.callback(Notice(text)), self.distributed
        )
        if latest is None:
            raise RunError(f"{diagnosis}; no checkpoint is intact", code="run-diverged")
        self.train_state.restore(latest)
        self.guard.reset_streak()
        self.state = replace(
            self.state,
            num_rollbacks=self.state.num_rollbacks + 1,
            recent_rollbacks=recent_rollbacks + 1,
            applied_steps_at_rollback=applied_steps,
        )
        self.log_event("rolled_back", f"step {step}: rolled back to {latest.path.name}; training continues with the next data")

    def _describe_skip_cause(self) -> str:
        sigma = self.config.grad_norm_spike_sigma
        nonfinite_cause = "a loss or gradient that is not a finite number"
        return (
            nonfinite_cause if sigma is None else f"{nonfinite_cause}, or a gradient norm above {sigma:g} standard deviations"
        )

    def _raise_out_of_memory(self, message: str, *, on_all_ranks: bool) -> NoReturn:
        """Raise OutOfMemoryError. If all ranks call it, save a checkpoint first, and report the error on rank 0 alone."""
        latest, step = self.checkpointer.latest, self.state.step
        if on_all_ranks and step > 0 and (latest is None or latest.step < step):
            with suppress(OutputError):
                self._save_checkpoint(None, scheduled=self.checkpointer.is_due(self.state), is_final=True)
        if on_all_ranks and not self.distributed.is_rank_zero:
            raise RankZeroError(OutOfMemoryError.exit_code)
        raise OutOfMemoryError(f"{message}; {self.describe_latest()}") from None

    # Validation and checkpoints

    def _validate(self) -> float | None:
        """Validate if there is a validation set, and return the metric; higher is better."""
        if self.early_stopping.validator is None:
            return None
        with self.throughput.paused():
            self.distributed.start_watchdog()
            result = self.early_stopping.validate(self.train_state.gather_full_model(), self.state)
        if result is None:
            self._raise_out_of_memory(self.early_stopping.describe_out_of_memory(self.state.step), on_all_ranks=True)
        self.state, metric = result
        return metric

    def _save_checkpoint(self, metric: float | None, *, scheduled: bool, is_final: bool) -> bool:
        """Save a checkpoint of the current state, and return whether it was saved."""
        self.distributed.start_watchdog()
        self._check_skipped_steps()
        with self.throughput.paused():
            self.state = replace(
                self.state,
                nll_since_log=self._nll_since_log.item(),
                tokens_since_log=int(self._tokens_since_log),
                skipped_steps=self.guard.skipped_steps,
                consecutive_skips=self.guard.consecutive_skips,
                grad_norms=self.guard.grad_norms,
            )
            return self.checkpointer.save(
                self.train_state.gather_state(), self.state, metric=metric, scheduled=scheduled, is_final=is_final
            )


def read_clock(clock: Literal["wall", "processor"]) -> float:
    """Return the seconds of a clock: of the monotonic clock, or of the processor time of this process."""
    return time.process_time() if clock == "processor" else time.monotonic()


def compute_elapsed_minutes(started: float, clock: Literal["wall", "processor"]) -> float:
    """Return the minutes since a time of this clock."""
    return (read_clock(clock) - started) / 60.0
