"""The training loop: a recipe becomes a run folder, and at its end a bundle.

    runs/NAME/  recipe.json  data/  checkpoints/  metrics.jsonl  bundle/  report.json  curve.svg  report.html

Every random draw is a function of (seed, step, place of the batch in the step): a run that stops and goes on is the run that
did not, and so is one on another number of devices, but for rounding. Every decision is made alike on all ranks; rank 0 alone
prepares, judges, writes and tells.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import torch

from dragoman.config import Recipe
from dragoman.data.dataloader import BatchStream, TrainingBatches, translate_worker_errors
from dragoman.errors import InterruptedRun, OutOfMemoryError, OutputError, RankZeroError, RunError
from dragoman.tasks.inference_model import get_decoder_start_id, get_max_positions
from dragoman.training.checkpoints.checkpoint import TrainerState
from dragoman.training.checkpoints.checkpointer import Checkpointer
from dragoman.training.device import choose_compute_plan, limit_kernel_cache, measure_peak_flops
from dragoman.training.distributed.process_group import DistributedContext, check_even_split
from dragoman.training.distributed.signals import stop_on_signals
from dragoman.training.early_stopping import EarlyStopping
from dragoman.training.gradient_guard import GradientGuard
from dragoman.training.lr_schedule import compute_budget_fraction, compute_learning_rate
from dragoman.training.monitoring.callbacks import Callback, EventKind, RunInfo, StepReport
from dragoman.training.monitoring.energy import EnergyMeter
from dragoman.training.monitoring.flops import BatchCost, compute_batch_cost, measure_memory_mib
from dragoman.training.monitoring.metrics_log import MetricsLog
from dragoman.training.monitoring.throughput import Throughput
from dragoman.training.setup import find_checkpoint, find_latest_on_all_ranks, prepare_run
from dragoman.training.train_state import TrainState
from dragoman.training.train_step import TrainStep
from dragoman.training.validation import Validator, compute_perplexity

# Times that a run goes back to a checkpoint without finding its way before it is given up.
MAX_ROLLBACKS = 3


class Trainer:
    """One run: what learns, its place in the data, and the folder that it all goes to."""

    def __init__(
        self,
        recipe: Recipe,
        callback: Callback,
        distributed: DistributedContext | None = None,
        *,
        reuse_plan: Mapping[str, str] | None = None,
    ) -> None:
        """like: the ways to compute in, as `Machine.memory` tells them, where no checkpoint says what the run began with."""
        self.recipe = recipe
        self.config = recipe.training
        self.callback = callback
        self.distributed = distributed or DistributedContext()
        self.folder = Path(recipe.run)
        self.checkpoint_dir = self.folder / "checkpoints"
        check_even_split(recipe, self.distributed)
        checkpoint = find_checkpoint(self.folder, recipe, callback, self.distributed)
        self.prepared, data_digests = prepare_run(self.folder, recipe, checkpoint, callback, self.distributed)
        self.state = checkpoint.trainer_state if checkpoint is not None else TrainerState()
        limit_kernel_cache()
        previous_plan = checkpoint.compute_plan if checkpoint is not None else reuse_plan
        measured_plan = (
            choose_compute_plan(self.config, reuse_plan=previous_plan).to_dict() if self.distributed.is_rank_zero else None
        )
        self.plan = choose_compute_plan(self.config, reuse_plan=self.distributed.broadcast_object(measured_plan))
        self.train_state = TrainState(recipe, self.prepared.tokenizer, self.plan, self.distributed, checkpoint)
        self.model, self.optimizer = self.train_state.model, self.train_state.optimizer
        validator = self._build_validator()
        self.guard = GradientGuard.from_state(
            self.state, self.plan.device, grad_norm_spike_sigma=self.config.grad_norm_spike_sigma
        )
        self.train_step = TrainStep(
            self.train_state.loss,
            self.optimizer,
            config=self.config,
            plan=self.plan,
            distributed=self.distributed,
            guard=self.guard,
            on_split=lambda text: self.log_event("memory", self.state.step + 1, text),
        )
        self.stream = BatchStream(
            TrainingBatches(recipe, self.prepared.folder, start_id=get_decoder_start_id(recipe.model)),
            position=self.state.data_position,
            num_workers=recipe.data.num_workers,
            rank=self.distributed.rank,
            world_size=self.distributed.world_size,
            pin_memory=self.plan.device.type == "cuda",
        )
        log_path = self.folder / "metrics.jsonl"
        self.metrics_log = (
            MetricsLog(log_path, step=self.state.step, on_error=callback.notice) if self.distributed.is_rank_zero else None
        )
        plan_dict = self.plan.to_dict()
        self.checkpointer = Checkpointer(
            self.checkpoint_dir, recipe, data_digests, plan_dict, self.distributed, self.log_event, checkpoint
        )
        self.early_stopping = EarlyStopping(
            self.config, validator, self.distributed, self.metrics_log, callback, self.describe_latest
        )
        self.throughput = Throughput()
        self.energy_meter = EnergyMeter(self.plan.device, count_cpu=self.distributed.local_rank == 0)
        self.peak_flops: float | None = None
        self._joules_before = self.state.joules or 0.0
        self._skipped_logged = self.state.skipped_steps
        # In float64, which sums the steps of a line exactly enough to be the same in any order.
        self._nll_since_log = torch.tensor(self.state.nll_since_log, device=self.plan.device, dtype=torch.float64)
        self._tokens_since_log = torch.tensor(self.state.tokens_since_log, device=self.plan.device)

    def _build_validator(self) -> Validator | None:
        if self.recipe.data.valid is None:
            return None
        return Validator(self.recipe, self.prepared, self.plan, max_positions=get_max_positions([self.model]))

    def epochs(self) -> float:
        """Passes over the corpus so far."""
        return self.stream.count_epochs()

    def budget_fraction(self) -> float:
        return compute_budget_fraction(self.config, step=self.state.step, epochs=self.epochs(), minutes=self.state.minutes)

    def describe_latest(self) -> str:
        """What there is to go on from, as the end of a message."""
        return self.checkpointer.describe_latest()

    def run(self) -> None:
        """Train until the budget is spent or patience ends; on a request to stop, commit and raise Interrupted."""
        self._begin()
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
                started = time.monotonic()
                gradient_norm = self._step()
                self.callback.advance(self.budget_fraction())
                clock_minutes = [
                    self.distributed.is_rank_zero * minutes
                    for minutes in (compute_elapsed_minutes(started), self.checkpointer.measure_minutes_since_scheduled())
                ]
                num_stop_requests, minutes, self.checkpointer.minutes_since_scheduled = self.distributed.all_reduce_sum(
                    stop.reason is not None, *clock_minutes
                )
                self.state = replace(self.state, minutes=self.state.minutes + minutes)
                self._after_step(gradient_norm, is_stopping=num_stop_requests > 0)
                if num_stop_requests:
                    self._interrupt(stop.reason or "another rank was asked to stop")
            self.distributed.stop_watchdog()
            if stop.reason is not None and self.distributed.is_rank_zero:  # since the last step was taken
                self._interrupt(stop.reason)

    def _interrupt(self, reason: str) -> None:
        """Raise Interrupted, with everything kept."""
        message = f"{reason}: stopped after step {self.state.step}; {self.describe_latest()}"
        self.log_event("stopped", self.state.step, message)
        raise InterruptedRun(message)

    def _begin(self) -> None:
        """Tell who listens what begins, and what the machine can do."""
        self.model.train()
        self.peak_flops = self.distributed.all_reduce_sum(measure_peak_flops(self.plan))[0]
        resume_message = f"going on from {self.checkpointer.latest.path}" if self.checkpointer.latest is not None else None
        if not self._is_validation_pending() and (self.budget_fraction() >= 1.0 or self._should_stop_early()):
            budget_message = f"the budget is spent after step {self.state.step}"
            stop_reason = self.early_stopping.describe_stop(self.state) if self._should_stop_early() else budget_message
            self.callback.notice(f"{stop_reason}; nothing is left to train")
            return
        run_info = RunInfo(
            name=self.recipe.name,
            recipe=self.recipe.model_dump(mode="json"),
            folder=str(self.folder),
            machine=self.plan.describe(),
            parameters=self.model.num_parameters(),
            step=self.state.step,
            devices=self.distributed.world_size,
            ceiling=self.peak_flops,
            uniform_loss=math.log(len(self.prepared.tokenizer.target)),
        )
        if self.metrics_log is not None:
            self.metrics_log.begin(run_info)
        self.callback.begin(run_info)
        if resume_message is not None:
            self.log_event("resumed", self.state.step, resume_message)
        self.throughput.reset()

    def _after_step(self, gradient_norm: torch.Tensor, *, is_stopping: bool) -> None:
        """What is due after a step: a line in the journal, a validation, a checkpoint."""
        step, is_budget_spent = self.state.step, self.budget_fraction() >= 1.0
        should_validate = step % self.config.validate_every_steps == 0 or is_budget_spent
        if should_validate or step % (1 if self.plan.device.type == "cpu" else self.config.max_consecutive_skips) == 0:
            self._check_skipped_steps()  # before others are judged than those that are kept
        should_log = step % self.config.log_every_steps == 0
        if should_log:
            self._log_step(gradient_norm)
        scheduled = self.checkpointer.is_due(self.state) or (should_log and self.checkpointer.pending)
        if should_validate:
            self._validate_and_save(scheduled=scheduled, is_stopping=is_stopping)
        elif scheduled or is_stopping:
            self._save_checkpoint(None, scheduled=scheduled, is_final=is_stopping)

    def _validate_and_save(self, *, scheduled: bool, is_stopping: bool = False, was_pending: bool = False) -> None:
        """A validation, and a checkpoint where it is due, or the best, or the run's last, or the validation was owed."""
        previous_state = self.state
        metric = self._validate()
        is_best = metric is not None and self.state.best_step == previous_state.step
        if self._should_stop_early():
            self.log_event(
                "patience", previous_state.step, f"step {previous_state.step}: {self.early_stopping.describe_stop(self.state)}"
            )
        is_final = is_stopping or self.budget_fraction() >= 1.0 or self._should_stop_early()
        if not (scheduled or is_best or is_final or was_pending):
            return
        is_saved = self._save_checkpoint(metric if scheduled or is_best else None, scheduled=scheduled, is_final=is_final)
        if is_best and not is_saved:  # there is nothing that a later one would have to be better than
            self.state = replace(self.state, best=previous_state.best, best_step=previous_state.best_step)

    def _is_validation_pending(self) -> bool:
        return self.early_stopping.is_validation_pending(self.state, is_budget_spent=self.budget_fraction() >= 1.0)

    def _should_stop_early(self) -> bool:
        return self.early_stopping.should_stop(self.state)

    def _step(self) -> torch.Tensor:
        """One update from `accumulation` batches; returns the gradient's norm before clipping."""
        step = self.state.step + 1
        started = time.monotonic()
        # Ranks take turns at the batches of a step, so that each batch has the same place whatever their number.
        batch_indices = range(self.distributed.rank, self.config.batches_per_update, self.distributed.world_size)
        batches = [(batch_index, self.stream.next_batch()) for batch_index in batch_indices]
        data_wait_seconds = time.monotonic() - started
        parts = [part for _, group in batches for part in group]
        cost = sum(
            (compute_batch_cost(self.recipe.model, len(self.prepared.tokenizer.target), part) for part in parts), BatchCost()
        )
        flops = self.config.num_forward_passes * cost.flops
        totals = self.distributed.all_reduce_sum(
            sum(part.num_target_tokens for part in parts), flops, cost.tokens, cost.padded_tokens
        )
        tokens, cost = int(totals[0]), BatchCost(totals[1], int(totals[2]), int(totals[3]))
        self._set_lr(step)
        try:
            norm, applied, nll = self.train_step.__call__(step, batches, tokens=tokens)
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
            judged=self.state.last_validated_step or 0,  # that of version 0.1 is not known, but that this step is not judged is
            cursor=self.stream.position,
            target_tokens=self.state.target_tokens + tokens,
            flops=self.state.flops + cost.flops,
            waited_minutes=self.state.data_wait_minutes + data_wait_seconds / 60.0,
        )
        return norm

    def _set_lr(self, step: int) -> None:
        lr = compute_learning_rate(self.config, d_model=self.recipe.model.d_model, step=step, progress=self.budget_fraction())
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def _log_step(self, gradient_norm: torch.Tensor) -> None:
        tokens, throughput, step = int(self._tokens_since_log), self.throughput, self.state.step
        if tokens:  # of none, where every step was skipped, there is no loss
            nll = self._nll_since_log.item() / tokens
            progress = self.budget_fraction()
            flops_per_second = throughput.cost.flops / throughput.seconds
            report = StepReport(
                step=step,
                epoch=self.epochs(),
                loss=nll,
                perplexity=compute_perplexity(nll),
                lr=self.optimizer.param_groups[0]["lr"],
                gradient_norm=gradient_norm.item(),
                tokens_per_second=throughput.target_tokens / throughput.seconds,
                progress=progress,
                minutes_left=self.state.minutes / progress * (1.0 - progress),
                skipped_steps=self.guard.skipped_steps,
                data_wait_fraction=throughput.data_wait_seconds / throughput.seconds,
                flops_per_second=flops_per_second,
                mfu=flops_per_second / self.peak_flops if self.peak_flops else None,
                memory_mib=measure_memory_mib(self.plan.device),
                devices=self.distributed.world_size,
                padding_fraction=throughput.cost.padding_fraction,
            )
            if self.metrics_log is not None:
                self.metrics_log.write("train", **vars(report))
            self.callback.step(report)
        self._nll_since_log.zero_()
        self._tokens_since_log.zero_()
        self.throughput.reset()

    def log_event(self, kind: EventKind, step: int, text: str) -> None:
        """Something that people should know of: a line in the journal, and a word to who listens."""
        if self.metrics_log is not None:
            self.metrics_log.event(kind, step, text)
        self.callback.event(kind, step, text)

    # What goes wrong

    def _check_skipped_steps(self) -> None:
        """Tell of steps that were skipped since; after max_consecutive_skips of them in a row, go back or stop."""
        skipped, step = self.guard.skipped_steps, self.state.step
        if skipped == self._skipped_logged:
            return
        self.log_event("skipped", step, f"step {step}: {self._describe_skip_cause()}; {skipped} skipped so far")
        self._skipped_logged = skipped
        if self.guard.consecutive_skips >= self.config.max_consecutive_skips:
            self._rollback_or_stop(step, skipped)

    def _rollback_or_stop(self, step: int, skipped: int) -> None:
        diagnosis = (
            f"step {step}: {self.guard.consecutive_skips} steps in a row were skipped, for {self._describe_skip_cause()}. They changed no "
            "weight; lower the learning rate, raise training.warmup_steps or set training.clip_norm=1.0, in another run=FOLDER"
        )
        latest, applied_steps = self.checkpointer.latest, step - skipped
        # So many good steps in between, and the run had found its way again.
        recent_rollbacks = (
            0 if applied_steps - self.state.applied_steps_at_rollback >= self.config.max_consecutive_skips else self.state.recent_rollbacks
        )
        if self.config.on_divergence == "stop" or latest is None or recent_rollbacks == MAX_ROLLBACKS:
            raise RunError(f"{diagnosis}; {self.describe_latest()}")
        latest = self.checkpointer.latest = find_latest_on_all_ranks(
            self.checkpoint_dir, self.callback.notice, self.distributed
        )
        if latest is None:
            raise RunError(f"{diagnosis}; no checkpoint is whole any more")
        self.train_state.restore(latest)
        self.guard.reset_streak()
        num_rollbacks = self.state.num_rollbacks + 1
        self.state = replace(self.state, restored=num_rollbacks, returns=recent_rollbacks + 1, good_at_return=applied_steps)
        self.log_event("restored", step, f"step {step}: back to {latest.path.name}, on with the data that follow")

    def _describe_skip_cause(self) -> str:
        limit = self.config.grad_norm_spike_sigma
        nonfinite_cause = "a loss or gradient that is not a finite number"
        return nonfinite_cause if limit is None else f"{nonfinite_cause}, or {limit:g} standard deviations above those before"

    def _raise_out_of_memory(self, message: str, *, on_all_ranks: bool) -> NoReturn:
        """Raise MemoryShortError; where all ranks come here `together`, with everything kept, and rank 0 alone tells why."""
        latest, step = self.checkpointer.latest, self.state.step
        if on_all_ranks and step > 0 and (latest is None or latest.step < step):
            with suppress(OutputError):
                self._save_checkpoint(None, scheduled=self.checkpointer.is_due(self.state), is_final=True)
        if on_all_ranks and not self.distributed.is_rank_zero:
            raise RankZeroError(OutOfMemoryError.exit_code)
        raise OutOfMemoryError(f"{message}; {self.describe_latest()}") from None

    # Judging and keeping

    def _validate(self) -> float | None:
        """Let the run be judged, if there is anything to judge it by; returns the merit, higher is better."""
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
        """Keep a checkpoint of where the run stands; returns whether it was kept."""
        self.distributed.start_watchdog()
        self._check_skipped_steps()
        with self.throughput.paused():
            self.state = replace(
                self.state,
                nll_since_log=self._nll_since_log.item(),
                tokens_since_log=int(self._tokens_since_log),
                skipped=self.guard.skipped_steps,
                skipped_in_a_row=self.guard.consecutive_skips,
                norms=self.guard.grad_norms,
                joules=self._compute_total_joules(),
            )
            return self.checkpointer.save(
                self.train_state.gather_state(), self.state, metric=metric, scheduled=scheduled, is_final=is_final
            )

    def _compute_total_joules(self) -> float | None:
        """Energy so far, over all stretches of the run and all ranks that are told theirs."""
        used_joules = self.energy_meter.read_joules()
        total_joules, num_reporting = self.distributed.all_reduce_sum(used_joules or 0.0, used_joules is not None)
        return self._joules_before + total_joules if num_reporting else None


def compute_elapsed_minutes(started: float) -> float:
    return (time.monotonic() - started) / 60.0
