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
from dragoman.data.dataloader import BatchStream, TrainingBatches, telling_of_lost_loaders
from dragoman.errors import FollowedError, Interrupted, MemoryShortError, OutputError, RunError
from dragoman.tasks.inference_model import most_positions, start_id
from dragoman.training.checkpoints.checkpoint import Progress
from dragoman.training.checkpoints.checkpointer import Keeper
from dragoman.training.device import bound_kernel_cache, choose_machine, measure_ceiling
from dragoman.training.distributed.process_group import World, refuse_uneven
from dragoman.training.distributed.signals import stop_on_signals
from dragoman.training.early_stopping import Judge
from dragoman.training.gradient_guard import Guard
from dragoman.training.lr_schedule import learning_rate, spent
from dragoman.training.monitoring.callbacks import EventKind, Listener, RunReport, StepReport
from dragoman.training.monitoring.energy import EnergyMeter
from dragoman.training.monitoring.flops import Work, batch_work, memory_mib
from dragoman.training.monitoring.metrics_log import Journal
from dragoman.training.monitoring.throughput import Meter
from dragoman.training.setup import find_checkpoint, newest_of_all, prepare_run
from dragoman.training.train_state import Learner
from dragoman.training.train_step import Stepper
from dragoman.training.validation import Validator, perplexity

# Times that a run goes back to a checkpoint without finding its way before it is given up.
RETURNS = 3


class Trainer:
    """One run: what learns, its place in the data, and the folder that it all goes to."""

    def __init__(
        self, recipe: Recipe, listener: Listener, world: World | None = None, *, like: Mapping[str, str] | None = None
    ) -> None:
        """like: the ways to compute in, as `Machine.memory` tells them, where no checkpoint says what the run began with."""
        self.recipe = recipe
        self.config = recipe.training
        self.listener = listener
        self.world = world or World()
        self.folder = Path(recipe.run)
        self.checkpoints = self.folder / "checkpoints"
        refuse_uneven(recipe, self.world)
        found = find_checkpoint(self.folder, recipe, listener, self.world)
        self.prepared, corpus = prepare_run(self.folder, recipe, found, listener, self.world)
        self.progress = found.progress if found is not None else Progress()
        bound_kernel_cache()
        before = found.machine if found is not None else like
        measured = choose_machine(self.config, before=before).memory() if self.world.leads else None
        self.machine = choose_machine(self.config, before=self.world.from_leader(measured))
        self.learner = Learner(recipe, self.prepared.tokeniser, self.machine, self.world, found)
        self.model, self.optimiser = self.learner.model, self.learner.optimiser
        validator = self._validator()
        self.guard = Guard.of(self.progress, self.machine.device, grad_norm_spike_sigma=self.config.grad_norm_spike_sigma)
        self.stepper = Stepper(
            self.learner.loss,
            self.optimiser,
            config=self.config,
            machine=self.machine,
            world=self.world,
            guard=self.guard,
            split=lambda text: self.happened("memory", self.progress.step + 1, text),
        )
        self.stream = BatchStream(
            TrainingBatches(recipe, self.prepared.folder, start_id=start_id(recipe.model)),
            cursor=self.progress.cursor,
            loaders=recipe.data.num_workers,
            rank=self.world.rank,
            ranks=self.world.size,
            pin=self.machine.device.type == "cuda",
        )
        journal = self.folder / "metrics.jsonl"
        self.journal = Journal(journal, step=self.progress.step, trouble=listener.notice) if self.world.leads else None
        told = self.machine.memory()
        self.keeper = Keeper(self.checkpoints, recipe, corpus, told, self.world, self.happened, found)
        self.judge = Judge(self.config, validator, self.world, self.journal, listener, self.kept)
        self.meter = Meter()
        self.energy = EnergyMeter(self.machine.device, processor=self.world.local_rank == 0)
        self.ceiling: float | None = None
        self._joules_before = self.progress.joules or 0.0
        self._skipped_told = self.progress.skipped
        # In float64, which sums the steps of a line exactly enough to be the same in any order.
        self._nll_since_log = torch.tensor(self.progress.nll_since_log, device=self.machine.device, dtype=torch.float64)
        self._tokens_since_log = torch.tensor(self.progress.tokens_since_log, device=self.machine.device)

    def _validator(self) -> Validator | None:
        if self.recipe.data.valid is None:
            return None
        return Validator(self.recipe, self.prepared, self.machine, most=most_positions([self.model]))

    def epochs(self) -> float:
        """Passes over the corpus so far."""
        return self.stream.epochs()

    def share_spent(self) -> float:
        return spent(self.config, step=self.progress.step, epochs=self.epochs(), minutes=self.progress.minutes)

    def kept(self) -> str:
        """What there is to go on from, as the end of a message."""
        return self.keeper.kept()

    def run(self) -> None:
        """Train until the budget is spent or patience ends; on a request to stop, commit and raise Interrupted."""
        self._begin()
        with closing(self.stream), telling_of_lost_loaders(), stop_on_signals() as stop, self.world.heard_out():
            if self._owes_validation():
                self._validate_and_keep(due=self.keeper.newest is not None and self.keeper.newest.due, owed=True)
            while self.share_spent() < 1.0 and not self._out_of_patience():
                self.world.watch()
                started = time.monotonic()
                gradient_norm = self._step()
                self.listener.advance(self.share_spent())
                clocks = [self.world.leads * minutes for minutes in (minutes_since(started), self.keeper.minutes_passed())]
                stops, minutes, self.keeper.minutes_since_due = self.world.total(stop.reason is not None, *clocks)
                self.progress = replace(self.progress, minutes=self.progress.minutes + minutes)
                self._after_step(gradient_norm, stops=stops > 0)
                if stops:
                    self._stop(stop.reason or "another rank was asked to stop")
            self.world.rest()
            if stop.reason is not None and self.world.leads:  # since the last step was taken
                self._stop(stop.reason)

    def _stop(self, reason: str) -> None:
        """Raise Interrupted, with everything kept."""
        told = f"{reason}: stopped after step {self.progress.step}; {self.kept()}"
        self.happened("stopped", self.progress.step, told)
        raise Interrupted(told)

    def _begin(self) -> None:
        """Tell who listens what begins, and what the machine can do."""
        self.model.train()
        self.ceiling = self.world.total(measure_ceiling(self.machine))[0]
        going_on = f"going on from {self.keeper.newest.path}" if self.keeper.newest is not None else None
        if not self._owes_validation() and (self.share_spent() >= 1.0 or self._out_of_patience()):
            spent = f"the budget is spent after step {self.progress.step}"
            why = self.judge.why_patience_ends(self.progress) if self._out_of_patience() else spent
            self.listener.notice(f"{why}; nothing is left to train")
            return
        about = RunReport(
            name=self.recipe.name,
            recipe=self.recipe.model_dump(mode="json"),
            folder=str(self.folder),
            machine=self.machine.describe(),
            parameters=self.model.num_parameters(),
            step=self.progress.step,
            devices=self.world.size,
            ceiling=self.ceiling,
            uniform_loss=math.log(len(self.prepared.tokeniser.target)),
        )
        if self.journal is not None:
            self.journal.begin(about)
        self.listener.begin(about)
        if going_on is not None:
            self.happened("resumed", self.progress.step, going_on)
        self.meter.begin()

    def _after_step(self, gradient_norm: torch.Tensor, *, stops: bool) -> None:
        """What is due after a step: a line in the journal, a validation, a checkpoint."""
        step, ends = self.progress.step, self.share_spent() >= 1.0
        validates = step % self.config.validate_every_steps == 0 or ends
        if validates or step % (1 if self.machine.device.type == "cpu" else self.config.max_consecutive_skips) == 0:
            self._look_at_the_guard()  # before others are judged than those that are kept
        logs = step % self.config.log_every_steps == 0
        if logs:
            self._log(gradient_norm)
        due = self.keeper.is_due(self.progress) or (logs and self.keeper.owed)
        if validates:
            self._validate_and_keep(due=due, stops=stops)
        elif due or stops:
            self._commit(None, due=due, last=stops)

    def _validate_and_keep(self, *, due: bool, stops: bool = False, owed: bool = False) -> None:
        """A validation, and a checkpoint where it is due, or the best, or the run's last, or the validation was owed."""
        before = self.progress
        merit = self._validate()
        best = merit is not None and self.progress.best_step == before.step
        if self._out_of_patience():
            self.happened("patience", before.step, f"step {before.step}: {self.judge.why_patience_ends(self.progress)}")
        last = stops or self.share_spent() >= 1.0 or self._out_of_patience()
        if not (due or best or last or owed):
            return
        kept = self._commit(merit if due or best else None, due=due, last=last)
        if best and not kept:  # there is nothing that a later one would have to be better than
            self.progress = replace(self.progress, best=before.best, best_step=before.best_step)

    def _owes_validation(self) -> bool:
        return self.judge.is_owed(self.progress, ends=self.share_spent() >= 1.0)

    def _out_of_patience(self) -> bool:
        return self.judge.out_of_patience(self.progress)

    def _step(self) -> torch.Tensor:
        """One update from `accumulation` batches; returns the gradient's norm before clipping."""
        step = self.progress.step + 1
        started = time.monotonic()
        # Ranks take turns at the batches of a step, so that each batch has the same place whatever their number.
        places = range(self.world.rank, self.config.batches_per_update, self.world.size)
        batches = [(place, self.stream.next()) for place in places]
        waited = time.monotonic() - started
        parts = [part for _, many in batches for part in many]
        work = sum((batch_work(self.recipe.model, len(self.prepared.tokeniser.target), part) for part in parts), Work())
        flops = self.config.passes * work.flops
        sums = self.world.total(sum(part.num_target_tokens for part in parts), flops, work.tokens, work.places)
        tokens, work = int(sums[0]), Work(sums[1], int(sums[2]), int(sums[3]))
        self._set_rate(step)
        try:
            norm, good, nll = self.stepper.take(step, batches, tokens=tokens)
        except MemoryShortError as error:
            self._give_up(str(error), together=self.world.size == 1)
        if self.learner.averages is not None:
            self.learner.averages.follow(step, good)
        self._nll_since_log += torch.where(good, nll, 0.0)
        self._tokens_since_log += good * tokens
        self.meter.count(work, target_tokens=tokens, waited=waited)
        self.progress = replace(
            self.progress,
            step=step,
            judged=self.progress.judged or 0,  # that of version 0.1 is not known, but that this step is not judged is
            cursor=self.stream.cursor,
            target_tokens=self.progress.target_tokens + tokens,
            flops=self.progress.flops + work.flops,
            waited_minutes=self.progress.waited_minutes + waited / 60.0,
        )
        return norm

    def _set_rate(self, step: int) -> None:
        rate = learning_rate(self.config, d_model=self.recipe.model.d_model, step=step, share_spent=self.share_spent())
        for group in self.optimiser.param_groups:
            group["lr"] = rate

    def _log(self, gradient_norm: torch.Tensor) -> None:
        tokens, meter, step = int(self._tokens_since_log), self.meter, self.progress.step
        if tokens:  # of none, where every step was skipped, there is no loss
            nll = self._nll_since_log.item() / tokens
            share = self.share_spent()
            per_second = meter.work.flops / meter.seconds
            report = StepReport(
                step=step,
                epoch=self.epochs(),
                loss=nll,
                perplexity=perplexity(nll),
                rate=self.optimiser.param_groups[0]["lr"],
                gradient_norm=gradient_norm.item(),
                tokens_per_second=meter.target_tokens / meter.seconds,
                share_spent=share,
                minutes_left=self.progress.minutes / share * (1.0 - share),
                skipped=self.guard.skipped,
                waiting=meter.waited / meter.seconds,
                flops_per_second=per_second,
                ceiling=per_second / self.ceiling if self.ceiling else None,
                memory_mib=memory_mib(self.machine.device),
                devices=self.world.size,
                padding=meter.work.padding,
            )
            if self.journal is not None:
                self.journal.write("train", **vars(report))
            self.listener.step(report)
        self._nll_since_log.zero_()
        self._tokens_since_log.zero_()
        self.meter.begin()

    def happened(self, kind: EventKind, step: int, text: str) -> None:
        """Something that people should know of: a line in the journal, and a word to who listens."""
        if self.journal is not None:
            self.journal.event(kind, step, text)
        self.listener.event(kind, step, text)

    # What goes wrong

    def _look_at_the_guard(self) -> None:
        """Tell of steps that were skipped since; after max_consecutive_skips of them in a row, go back or stop."""
        skipped, step = self.guard.skipped, self.progress.step
        if skipped == self._skipped_told:
            return
        self.happened("skipped", step, f"step {step}: {self._why_skipped()}; {skipped} skipped so far")
        self._skipped_told = skipped
        if self.guard.in_a_row >= self.config.max_consecutive_skips:
            self._go_back_or_stop(step, skipped)

    def _go_back_or_stop(self, step: int, skipped: int) -> None:
        diagnosis = (
            f"step {step}: {self.guard.in_a_row} steps in a row were skipped, for {self._why_skipped()}. They changed no "
            "weight; lower the learning rate, raise training.warmup_steps or set training.clip_norm=1.0, in another run=FOLDER"
        )
        newest, good = self.keeper.newest, step - skipped
        # So many good steps in between, and the run had found its way again.
        returns = 0 if good - self.progress.good_at_return >= self.config.max_consecutive_skips else self.progress.returns
        if self.config.on_divergence == "stop" or newest is None or returns == RETURNS:
            raise RunError(f"{diagnosis}; {self.kept()}")
        newest = self.keeper.newest = newest_of_all(self.checkpoints, self.listener.notice, self.world)
        if newest is None:
            raise RunError(f"{diagnosis}; no checkpoint is whole any more")
        self.learner.restore(newest)
        self.guard.forgive()
        restored = self.progress.restored + 1
        self.progress = replace(self.progress, restored=restored, returns=returns + 1, good_at_return=good)
        self.happened("restored", step, f"step {step}: back to {newest.path.name}, on with the data that follow")

    def _why_skipped(self) -> str:
        limit = self.config.grad_norm_spike_sigma
        what = "a loss or gradient that is not a finite number"
        return what if limit is None else f"{what}, or {limit:g} standard deviations above those before"

    def _give_up(self, why: str, *, together: bool) -> NoReturn:
        """Raise MemoryShortError; where all ranks come here `together`, with everything kept, and rank 0 alone tells why."""
        newest, step = self.keeper.newest, self.progress.step
        if together and step > 0 and (newest is None or newest.step < step):
            with suppress(OutputError):
                self._commit(None, due=self.keeper.is_due(self.progress), last=True)
        if together and not self.world.leads:
            raise FollowedError(MemoryShortError.exit_code)
        raise MemoryShortError(f"{why}; {self.kept()}") from None

    # Judging and keeping

    def _validate(self) -> float | None:
        """Let the run be judged, if there is anything to judge it by; returns the merit, higher is better."""
        if self.judge.validator is None:
            return None
        with self.meter.beside():
            self.world.watch()
            found = self.judge.validate(self.learner.whole_model(), self.progress)
        if found is None:
            self._give_up(self.judge.why_not(self.progress.step), together=True)
        self.progress, merit = found
        return merit

    def _commit(self, merit: float | None, *, due: bool, last: bool) -> bool:
        """Keep a checkpoint of where the run stands; returns whether it was kept."""
        self.world.watch()
        self._look_at_the_guard()
        with self.meter.beside():
            self.progress = replace(
                self.progress,
                nll_since_log=self._nll_since_log.item(),
                tokens_since_log=int(self._tokens_since_log),
                skipped=self.guard.skipped,
                skipped_in_a_row=self.guard.in_a_row,
                norms=self.guard.norms,
                joules=self._joules(),
            )
            return self.keeper.commit(self.learner.state(), self.progress, merit=merit, due=due, last=last)

    def _joules(self) -> float | None:
        """Energy so far, over all stretches of the run and all ranks that are told theirs."""
        used = self.energy.joules()
        total, told = self.world.total(used or 0.0, used is not None)
        return self._joules_before + total if told else None


def minutes_since(moment: float) -> float:
    return (time.monotonic() - moment) / 60.0
