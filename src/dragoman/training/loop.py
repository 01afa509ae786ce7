"""The training loop: a recipe becomes a run folder, and at its end a bundle.

    runs/NAME/  recipe.json  data/  checkpoints/  metrics.jsonl  bundle/  report.json  curve.svg  report.html

Every random draw is a function of (seed, step, batch in the step): a run that stops and goes on is the run that did not.
"""

from __future__ import annotations

import math
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch

from dragoman.bundle import put_weights, weights_of
from dragoman.config import Recipe, section_with
from dragoman.data.loader import BatchStream, TrainingBatches, telling_of_lost_loaders
from dragoman.data.prepare import VALID, prepare
from dragoman.errors import Interrupted, OutputError, RecipeError, RunError
from dragoman.model.build import build_model
from dragoman.storage import cannot_write, write_json
from dragoman.tasks.generation import most_positions, start_id
from dragoman.training.checkpoint import (
    Progress,
    newest_checkpoint,
    prune_checkpoints,
    remove_unfinished,
    restore_optimiser,
    save_checkpoint,
)
from dragoman.training.identity import refuse_changed_corpus, refuse_changes, refuse_to_start_over
from dragoman.training.journal import Journal
from dragoman.training.listener import Listener, StepReport, ValidationReport
from dragoman.training.loss import batch_loss
from dragoman.training.machine import bound_kernel_cache, choose_machine
from dragoman.training.schedule import learning_rate, spent
from dragoman.training.stop import stop_on_signals
from dragoman.training.validation import judge, mean_loss, perplexity, read_text


class Trainer:
    """One run in memory: model, optimiser, place in the data, and the folder that it all goes to."""

    def __init__(self, recipe: Recipe, listener: Listener) -> None:
        self.recipe = recipe
        self.config = recipe.training
        self.listener = listener
        self.folder = Path(recipe.run)
        self.checkpoints = self.folder / "checkpoints"
        found = newest_checkpoint(self.checkpoints, listener.notice)
        if found is not None:
            refuse_changes(found.recipe, recipe, self.folder)
        else:
            refuse_to_start_over(self.folder)
        self.corpus: dict[str, str] = {}

        def accept(digests: dict[str, str]) -> None:
            if found is not None:
                refuse_changed_corpus(found, digests, self.folder)
            self.corpus = digests

        self.prepared = prepare(recipe, self.folder / "data", listener.notice, progress=listener.progress, accept=accept)
        self.valid = self.prepared.corpus(VALID) if recipe.data.valid is not None else None
        for name, fate in self.prepared.fates.items():
            for sentence in fate.sentences(recipe.data.over_long):
                listener.notice(f"{name}: {sentence}")
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / "recipe.json", recipe.model_dump(mode="json"), overwrite=True)
        except OSError as error:
            raise OutputError(cannot_write(self.checkpoints, error)) from None
        remove_unfinished(self.checkpoints)
        bound_kernel_cache()
        self.machine = choose_machine(self.config)
        torch.manual_seed(self.config.seed)
        self.start_id = start_id(recipe.model)
        self.model = build_model(
            recipe.model,
            source_vocabulary=len(self.prepared.tokeniser.source),
            target_vocabulary=len(self.prepared.tokeniser.target),
        ).to(self.machine.device)
        self.machine.settle(self.model)
        self._refuse_long_validation()
        self.progress = Progress()
        if found is not None:
            put_weights(self.model, found.weights(), where=found.path)
            self.model.to(self.machine.device)
        self.names = dict(enumerate(name for name, _ in self.model.named_parameters()))
        self.optimiser = self._optimiser()
        if found is not None:
            restore_optimiser(self.optimiser, found.optimiser_state(), self.names)
            self.progress = found.progress
            listener.notice(f"going on from {found.path}")
        self.stream = BatchStream(
            TrainingBatches(recipe, self.prepared.folder, start_id=self.start_id),
            cursor=self.progress.cursor,
            loaders=recipe.data.loaders,
            pin=self.machine.device.type == "cuda",
        )
        self.journal = Journal(self.folder / "metrics.jsonl", step=self.progress.step)
        self.newest = found
        self._minutes_of_newest = self.progress.minutes
        self._nll_since_log = torch.tensor(self.progress.nll_since_log, device=self.machine.device)
        self._logged_at = time.monotonic()
        self._tokens_here = 0

    def _refuse_long_validation(self) -> None:
        """Training pairs were cut to data.max_length; those of validation stay as they are."""
        most = most_positions([self.model])
        if most is not None and self.valid is not None:
            longest = max(int(lengths.max()) for lengths in self.valid.lengths())
            if longest > most:
                raise RecipeError(f"data.valid: {longest} tokens in a sentence, but model.max_positions = {most}; raise it")

    def _optimiser(self) -> torch.optim.Optimizer:
        config = self.config
        kind = torch.optim.AdamW if config.weight_decay else torch.optim.Adam
        betas = (config.adam_beta1, config.adam_beta2)
        return kind(
            self.model.parameters(), lr=0.0, betas=betas, eps=config.adam_epsilon, weight_decay=config.weight_decay, fused=True
        )

    def epochs(self) -> float:
        """Passes over the corpus so far."""
        return self.stream.epochs()

    def share_spent(self) -> float:
        return spent(self.config, step=self.progress.step, epochs=self.epochs(), minutes=self.progress.minutes)

    def run(self) -> None:
        """Train until the budget is spent or patience ends; on a request to stop, commit and raise Interrupted."""
        self.model.train()
        with closing(self.stream), telling_of_lost_loaders(), stop_on_signals() as stop:
            while self.share_spent() < 1.0 and not self._out_of_patience():
                started = time.monotonic()
                gradient_norm = self._step()
                self._count_minutes(started)
                self.listener.advance(self.share_spent())
                step = self.progress.step
                if step % self.config.log_every_steps == 0:
                    self._log(gradient_norm)
                validates = step % self.config.validate_every_steps == 0 or self.share_spent() >= 1.0
                merit = self._validate() if validates else None
                due = self._checkpoint_is_due()
                best = merit is not None and self.progress.best_step == step
                if due or best or stop.reason is not None or self.share_spent() >= 1.0 or self._out_of_patience():
                    self._commit(merit if due or best else None, due=due)
                if stop.reason is not None:
                    raise Interrupted(f"{stop.reason}: stopped after step {step}; {self.kept()}")

    def kept(self) -> str:
        """What there is to go on from, as the end of a message."""
        if self.newest is None:
            return "nothing was kept yet"
        return f"{self.newest.path} is kept, and the same command goes on from there"

    def _count_minutes(self, started: float) -> None:
        self.progress = replace(self.progress, minutes=self.progress.minutes + (time.monotonic() - started) / 60.0)

    def _out_of_patience(self) -> bool:
        return self.config.patience is not None and self.progress.validations_since_best >= self.config.patience

    def _step(self) -> torch.Tensor:
        """One update from `accumulation` batches; returns the gradient's norm before clipping."""
        config = self.config
        batches = [part for _ in range(config.accumulation) for part in self.stream.next()]
        tokens = sum(batch.num_target_tokens for batch in batches)
        step = self.progress.step + 1
        for place, batch in enumerate(batches):
            torch.manual_seed(random_stream(config.seed, step, place))
            with self.machine.autocast():
                loss, nll = batch_loss(
                    self.model, batch.to(self.machine.device), epsilon=config.label_smoothing, form=config.smoothing_form
                )
            (loss / tokens).backward()  # type: ignore[no-untyped-call]
            self._nll_since_log += nll
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.clip_norm or math.inf)
        self._set_rate(step)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self._tokens_here += tokens
        self.progress = replace(
            self.progress,
            step=step,
            cursor=self.stream.cursor,
            target_tokens=self.progress.target_tokens + tokens,
            tokens_since_log=self.progress.tokens_since_log + tokens,
        )
        return norm

    def _set_rate(self, step: int) -> None:
        rate = learning_rate(self.config, d_model=self.recipe.model.d_model, step=step, share_spent=self.share_spent())
        for group in self.optimiser.param_groups:
            group["lr"] = rate

    def _log(self, gradient_norm: torch.Tensor) -> None:
        seconds = time.monotonic() - self._logged_at
        nll = self._nll_since_log.item() / self.progress.tokens_since_log
        self._refuse_divergence(nll + gradient_norm.item())
        share = self.share_spent()
        report = StepReport(
            step=self.progress.step,
            epoch=self.epochs(),
            loss=nll,
            perplexity=perplexity(nll),
            rate=self.optimiser.param_groups[0]["lr"],
            gradient_norm=gradient_norm.item(),
            tokens_per_second=self._tokens_here / seconds,
            share_spent=share,
            minutes_left=self.progress.minutes / share * (1.0 - share),
        )
        self.journal.write("train", **vars(report))
        self.listener.step(report)
        self._nll_since_log.zero_()
        self.progress = replace(self.progress, tokens_since_log=0)
        self._logged_at = time.monotonic()
        self._tokens_here = 0

    def _refuse_divergence(self, value: float) -> None:
        if not math.isfinite(value):
            kept = f"the last good state is {self.newest.path}" if self.newest else "nothing was kept yet"
            raise RunError(
                f"step {self.progress.step}: the loss or its gradient is not a finite number; {kept}. Start elsewhere with "
                "run=FOLDER and a lower learning rate, a longer training.warmup_steps or training.clip_norm=1.0"
            )

    def _validate(self) -> float | None:
        """Validate if there is anything to validate on; returns the merit, higher is better."""
        if self.valid is None or self.recipe.data.valid is None:
            return None
        started = time.monotonic()
        self.model.eval()
        loss, nll = mean_loss(self.model, self.valid, self.machine, self.config, start_id=self.start_id)
        self._refuse_divergence(nll)
        bleu = None
        if self.config.validate_sentences:
            pairs = read_text(self.recipe.data.valid, self.recipe, most=self.config.validate_sentences)
            greedy = section_with(self.recipe.decoding, {"method": "greedy", "nbest": 1}, where="decoding")
            with self.machine.autocast():
                bleu = judge(self.model, self.prepared.tokeniser, self.recipe, pairs, greedy).scores["bleu"].value
        self.model.train()
        merit = bleu if self.config.best_by == "bleu" and bleu is not None else -nll
        is_best = self.progress.best is None or merit > self.progress.best
        if is_best:
            self.progress = replace(self.progress, best=merit, best_step=self.progress.step, validations_since_best=0)
        else:
            self.progress = replace(self.progress, validations_since_best=self.progress.validations_since_best + 1)
        report = ValidationReport(self.progress.step, loss, perplexity(nll), bleu, is_best)
        self.journal.write("valid", **vars(report), nll=nll, seconds=time.monotonic() - started)
        self.listener.validation(report)
        self._logged_at += time.monotonic() - started
        return merit

    def _checkpoint_is_due(self) -> bool:
        steps, minutes = self.config.checkpoint_every_steps, self.config.checkpoint_every_minutes
        by_steps = steps > 0 and self.progress.step % steps == 0
        return by_steps or (minutes is not None and self.progress.minutes - self._minutes_of_newest >= minutes)

    def _commit(self, merit: float | None, *, due: bool) -> None:
        """Write a checkpoint, then remove those that are no longer wanted. Weights that are lost replace no good ones."""
        self._refuse_divergence(self._nll_since_log.item())
        self._refuse_divergence(sum(float(parameter.detach().sum()) for parameter in self.model.parameters()))
        self.progress = replace(self.progress, nll_since_log=self._nll_since_log.item())
        self.newest = save_checkpoint(
            self.checkpoints,
            progress=self.progress,
            recipe=self.recipe.model_dump(mode="json"),
            merit=merit,
            corpus=self.corpus,
            due=due,
            weights=weights_of(self.model),
            optimiser=self.optimiser,
            names=self.names,
        )
        if due:
            self._minutes_of_newest = self.progress.minutes
        prune_checkpoints(self.checkpoints, keep_last=self.config.keep_last, keep_best=self.config.keep_best)


def random_stream(seed: int, step: int, place: int) -> int:
    """The seed of the dropout of batch `place` in update `step`: another 64-bit number for each."""
    value = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + place * 0x94D049BB133111EB) % 2**64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    return value ^ value >> 31
