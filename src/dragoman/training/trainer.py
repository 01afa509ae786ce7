"""Training loop: steps, validations and checkpoints until the budget is spent.

Every random draw is a function of (seed, step, index of the batch in the step). So a run that stops and resumes equals one
that does not, and a run on another number of devices equals it up to rounding. All ranks decide alike. Rank 0 alone validates,
writes files and reports.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, NoReturn

import torch

from dragoman.config import Recipe
from dragoman.data.collate import Batch
from dragoman.data.dataloader import BatchStream, translate_worker_errors
from dragoman.data.prepare import PreparedData
from dragoman.errors import InterruptedRun, OutOfMemoryError, OutputError, RankZeroError, RunError, WorkerLostError
from dragoman.evaluation.metrics import compute_perplexity
from dragoman.runtime.progress import RecentRate
from dragoman.training.checkpoints.checkpoint import Checkpoint, TrainerState
from dragoman.training.checkpoints.checkpointer import Checkpointer, find_latest_on_all_ranks
from dragoman.training.compute_plan import measure_peak_flops
from dragoman.training.distributed.signals import stop_on_signals
from dragoman.training.divergence import find_divergence
from dragoman.training.early_stopping import EarlyStopping, ValidationOutcome
from dragoman.training.losses.function import count_learned
from dragoman.training.lr_schedule import compute_budget_fraction, compute_learning_rate
from dragoman.training.monitoring.events import (
    Callback,
    EventKind,
    Notice,
    RecentSteps,
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

# After this many rollbacks without recovery the run ends.
MAX_ROLLBACKS = 3
# The time left is computed from the pace of the last minutes of training steps.
PACE_WINDOW_SECONDS = 300.0
# A device is asked for the loss at most this often between two reports.
RECENT_SECONDS = 3.0


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
        self.distributed = train_state.distributed
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
        self._measured_at = -math.inf
        self._is_divergence_reported = False
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
            stop_on_signals() as stop,
            self.distributed.exit_cleanly_on_disconnect(self._save_after_lost_rank),
        ):
            if self._is_validation_pending():
                self._validate_and_save(
                    scheduled=self.checkpointer.latest is not None and self.checkpointer.latest.scheduled, was_pending=True
                )
            while self.budget_fraction() < 1.0 and not self._should_stop_early():
                self.distributed.start_watchdog()
                started = read_clock(self.config.clock)
                gradient_norm = self._step()
                self.callback(StepDone(self.state.step, self.budget_fraction(), self._measure_recent_steps()))
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
        self.callback(RunStarted(run_info, self.recipe.model_dump()))
        if latest is not None:
            self.log_event("resumed", f"resuming from {latest.path}")
        self.throughput.reset()
        self.pace.update(self.budget_fraction())

    def _after_step(self, gradient_norm: torch.Tensor, *, is_stopping: bool) -> None:
        """Log, validate and save a checkpoint, as far as they are due after this step."""
        step, is_budget_spent = self.state.step, self.budget_fraction() >= 1.0
        should_validate = step % self.config.validate_every_steps == 0 or is_budget_spent
        should_log = step % self.config.log_every_steps == 0
        is_due = self.checkpointer.is_due(self.state) or (should_log and self.checkpointer.pending)
        # A skipped step changes no weight. Its checkpoint would take the place of one that a rollback needs.
        scheduled = is_due and not self.guard.consecutive_skips
        if should_validate or step % (1 if self.plan.device.type == "cpu" else self.config.max_consecutive_skips) == 0:
            self._check_skipped_steps()  # first, so that a rollback precedes the validation
        if should_log or is_budget_spent:
            self._report_infeasible_pairs()
        if should_log:
            self._log_step(gradient_norm)
        if is_budget_spent and self.early_stopping.validator is None:
            self._check_training_loss()
        if should_validate:
            self._validate_and_save(scheduled=scheduled, is_stopping=is_stopping)
        elif scheduled or is_stopping:
            self._save_checkpoint(None, scheduled=scheduled, is_final=is_stopping)

    def _validate_and_save(self, *, scheduled: bool, is_stopping: bool = False, was_pending: bool = False) -> None:
        """Validate, and save a checkpoint if it is due, the best, or the last, or if the validation was pending."""
        previous_state = self.state
        outcome = self._validate()
        metric, nll = (None, None) if outcome is None else (outcome.metric, outcome.nll)
        is_best = metric is not None and self.state.best_step == previous_state.step
        if self._should_stop_early():
            self.log_event("early_stop", f"step {self.state.step}: {self.early_stopping.describe_stop(self.state)}")
        is_final = is_stopping or self.budget_fraction() >= 1.0 or self._should_stop_early()
        if not (scheduled or is_best or is_final or was_pending):
            return
        is_saved = self._save_checkpoint(
            metric if scheduled or is_best else None, nll=nll, scheduled=scheduled, is_final=is_final
        )
        if is_best and not is_saved:  # a later checkpoint need not be better than one that does not exist
            best, best_nll, best_step = previous_state.best, previous_state.best_nll, previous_state.best_step
            self.state = replace(self.state, best=best, best_nll=best_nll, best_step=best_step)

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
        try:
            with translate_worker_errors():
                batches = [(batch_index, self.stream.next_batch()) for batch_index in batch_indices]
        except WorkerLostError as error:
            self._raise_worker_lost(str(error))
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
        if self.state.first_nll is None and bool(applied):
            self.state = replace(self.state, first_nll=nll.item() / tokens)
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
        """Report the pairs without a loss since the last report, if there are any."""
        num_pairs = self.state.infeasible_pairs
        if num_pairs == self._infeasible_logged:
            return
        self.log_event(
            "infeasible_pairs",
            f"step {self.state.step}: {num_pairs - self._infeasible_logged} pairs had no loss, because their targets have more "
            f"tokens than the decoder has positions; {num_pairs} so far; raise model.ctc_upsampling to learn them",
        )
        self._infeasible_logged = num_pairs

    def _compute_cost(self, batch: Batch) -> BatchCost:
        return compute_batch_cost(
            self.recipe.model,
            len(self.prepared.tokenizer.target),
            batch,
            has_teacher=self.config.has_teacher,
            num_candidates=self.config.num_candidates,
            training_macs=self.training_macs,
        )

    def _set_lr(self, step: int) -> None:
        lr = compute_learning_rate(self.config, d_model=self.recipe.model.d_model, step=step, progress=self.budget_fraction())
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def _measure_recent_steps(self) -> RecentSteps | None:
        """Return the means over the steps since the last report; None if they were computed a few seconds ago."""
        throughput = self.throughput
        if time.monotonic() - self._measured_at < RECENT_SECONDS or not (tokens := int(self._tokens_since_log)):
            return None
        self._measured_at = time.monotonic()
        return RecentSteps(
            self.epochs(),
            self._nll_since_log.item() / tokens,
            throughput.target_tokens / throughput.seconds,
            self.compute_mfu(throughput.cost.flops / throughput.seconds),
        )

    def compute_mfu(self, flops_per_second: float) -> float | None:
        """Return the share of the peak. Steps that are faster raise it, because other work ran while it was measured."""
        if not self.peak_flops:
            return None
        self.peak_flops = max(self.peak_flops, flops_per_second)
        return flops_per_second / self.peak_flops

    def _log_step(self, gradient_norm: torch.Tensor) -> None:
        tokens, throughput = int(self._tokens_since_log), self.throughput
        if tokens:  # if every step was skipped, there is no loss
            nll = self._nll_since_log.item() / tokens
            self.state = replace(self.state, logged_nll=nll)
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
                    mfu=self.compute_mfu(flops_per_second),
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
        if (num_consecutive := self.guard.consecutive_skips) >= self.config.max_consecutive_skips:
            self._rollback_or_stop(f"{num_consecutive} steps in a row were skipped because of {self._describe_skip_cause()}")

    def _check_training_loss(self) -> None:
        """Raise RunError at the end of a run without a validation set if its last steps show that it has diverged."""
        reason = find_divergence(
            validation_nll=None,
            training_nll=self._get_training_nll(),
            initial_nll=self.state.first_nll,
            vocab_size=len(self.prepared.tokenizer.target),
        )
        num_consecutive = self.guard.consecutive_skips
        if reason is None and self.config.grad_norm_spike_sigma is None and num_consecutive > 1:
            reason = f"the last {num_consecutive} steps were skipped because of {self._describe_skip_cause()}"
        if reason is not None:
            self._raise_diverged(reason)

    def _get_training_nll(self) -> float | None:
        """Return the mean training loss since the last line of the metrics log, or that of this line, in nats per token."""
        tokens = int(self._tokens_since_log)
        return self._nll_since_log.item() / tokens if tokens else self.state.logged_nll

    def _handle_divergence(self, reason: str) -> None:
        """React to a validation that shows a divergence. Continue if the bundle will be of an earlier checkpoint."""
        if self.config.on_divergence == "rollback":
            self._rollback_or_stop(reason)
        elif self.config.checkpoint_averaging != "best" or self.state.best is None:
            self._raise_diverged(reason)
        else:
            if self._is_divergence_reported:
                return
            self._is_divergence_reported = True
            consequence = f"training continues, and the best checkpoint is still that of step {self.state.best_step}"
            self.log_event("diverged", f"step {self.state.step}: the run has diverged: {reason}; {consequence}")

    def _raise_diverged(self, reason: str) -> NoReturn:
        raise RunError(
            f"step {self.state.step}: the run has diverged: {reason}; lower the learning rate, raise training.warmup_steps or "
            f"set training.clip_norm=1.0, in another run=FOLDER; {self.checkpointer.describe_saved()}",
            code="run-diverged",
        )

    def _rollback_or_stop(self, reason: str) -> None:
        """Restore a checkpoint from before the divergence. Raise RunError if the recipe asks for that, or after some rollbacks.

        A rollback that did not help is followed by one to an earlier checkpoint, if there is one.
        """
        state, applied_steps = self.state, self.state.step - self.guard.skipped_steps
        has_recovered = applied_steps - state.applied_steps_at_rollback >= state.steps_to_recover
        recent_rollbacks = 0 if has_recovered else state.recent_rollbacks
        if self.config.on_divergence == "stop":
            self._raise_diverged(reason)
        if recent_rollbacks == MAX_ROLLBACKS:
            self._raise_diverged(f"{reason}, after {MAX_ROLLBACKS} rollbacks without a recovery")
        checkpoint = self._find_earlier_checkpoint(applied_steps, before=state.rollback_step if recent_rollbacks else None)
        if checkpoint is None:
            self._raise_diverged(f"{reason}, and no earlier checkpoint can be restored")
        self.checkpointer.latest = checkpoint
        self.train_state.restore(checkpoint)
        self.guard.reset_streak()
        self._nll_since_log.zero_()
        self._tokens_since_log.zero_()
        self.state = replace(
            state,
            num_rollbacks=state.num_rollbacks + 1,
            recent_rollbacks=recent_rollbacks + 1,
            applied_steps_at_rollback=applied_steps,
            # The run has recovered when it is past the place where it diverged.
            steps_to_recover=max(self.config.max_consecutive_skips, applied_steps - checkpoint.applied_steps + 1),
            rollback_step=checkpoint.step,
            logged_nll=None,
        )
        self.log_event(
            "rolled_back", f"step {state.step}: rolled back to {checkpoint.path.name}; training continues with the next data"
        )

    def _find_earlier_checkpoint(self, applied_steps: int, *, before: int | None) -> Checkpoint | None:
        """Return the newest intact checkpoint with other weights than the last applied step; None if there is none.

        before: step of the last checkpoint that was restored, to prefer an earlier one
        """

        def find(is_eligible: Callable[[Checkpoint], bool]) -> Checkpoint | None:
            return find_latest_on_all_ranks(
                self.checkpoint_dir,
                lambda text: self.callback(Notice(text)),
                self.distributed,
                is_eligible=lambda checkpoint: checkpoint.applied_steps < applied_steps and is_eligible(checkpoint),
            )

        earlier = None if before is None else find(lambda checkpoint: checkpoint.step < before)
        return earlier or find(lambda checkpoint: True)

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

    def _raise_worker_lost(self, message: str) -> NoReturn:
        """Raise WorkerLostError for a process that loads data. Save a checkpoint first, if this rank can."""
        self._save_alone()
        raise WorkerLostError(f"{message}; {self.checkpointer.describe_lost_steps(self.state.step)}") from None

    def _save_after_lost_rank(self) -> str:
        """Save a checkpoint, if this rank can, and return the end of the message: what is lost, and how the run goes on.

        A GPU may still wait for the gradients of the lost rank, so its weights are not read.
        """
        if self.plan.device.type == "cpu":
            self._save_alone()
        return self.checkpointer.describe_lost_steps(self.state.step)

    def _save_alone(self) -> None:
        """Save a checkpoint without the other ranks, which may be lost.

        Rank 0 saves it. Of two ranks, rank 1 does so too, because it is alone if it has lost rank 0.
        """
        tensors = self.train_state.get_whole_state()
        is_writer = self.distributed.is_rank_zero or self.distributed.world_size == 2
        if tensors is None or not is_writer or self.state.step == 0:
            return
        self.distributed.start_watchdog()
        self._update_state()
        with suppress(OutputError, RunError):
            self.checkpointer.save_alone(tensors, self.state)

    # Validation and checkpoints

    def _validate(self) -> ValidationOutcome | None:
        """Validate if there is a validation set."""
        if self.early_stopping.validator is None:
            return None
        with self.throughput.paused():
            self.distributed.start_watchdog()
            outcome = self.early_stopping.validate(
                self.train_state.gather_full_model(), self.state, training_nll=self._get_training_nll()
            )
        if outcome is None:
            self._raise_out_of_memory(self.early_stopping.describe_out_of_memory(self.state.step), on_all_ranks=True)
        self.state = outcome.state
        if outcome.divergence is not None:
            self._handle_divergence(outcome.divergence)
        return outcome

    def _save_checkpoint(self, metric: float | None, *, scheduled: bool, is_final: bool, nll: float | None = None) -> bool:
        """Save a checkpoint of the current state, and return whether it was saved."""
        self.distributed.start_watchdog()
        self._check_skipped_steps()
        with self.throughput.paused():
            self._update_state()
            return self.checkpointer.save(
                self.train_state.gather_state(), self.state, metric=metric, nll=nll, scheduled=scheduled, is_final=is_final
            )

    def _update_state(self) -> None:
        """Copy the sums and counts that the device has into the state."""
        self.state = replace(
            self.state,
            nll_since_log=self._nll_since_log.item(),
            tokens_since_log=int(self._tokens_since_log),
            skipped_steps=self.guard.skipped_steps,
            consecutive_skips=self.guard.consecutive_skips,
            grad_norms=self.guard.grad_norms,
        )


def read_clock(clock: Literal["wall", "processor"]) -> float:
    """Return the seconds of a clock: of the monotonic clock, or of the processor time of this process."""
    return time.process_time() if clock == "processor" else time.monotonic()


def compute_elapsed_minutes(started: float, clock: Literal["wall", "processor"]) -> float:
    """Return the minutes since a time of this clock."""
    return (read_clock(clock) - started) / 60.0
