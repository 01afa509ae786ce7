"""One update: what the guard lets through, what memory does not hold, and what the moving average follows."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import NO_DROPOUT, MakeRecipe
from dragoman.bundle import collect_weights, load_bundle
from dragoman.data.collate import Batch, collate, split_in_half
from dragoman.errors import OutOfMemoryError, RecipeError, RunError, is_out_of_memory
from dragoman.training.checkpoints.checkpoint import Checkpoint, list_checkpoints
from dragoman.training.ema import MovingAverage
from dragoman.training.gradient_guard import GRAD_NORM_WINDOW, MIN_GRAD_NORMS, GradientGuard
from dragoman.training.monitoring.callbacks import NullCallback
from dragoman.training.monitoring.metrics_log import read_metrics_log
from dragoman.training.run import train
from dragoman.training.train_step import MicroBatch, derive_seed
from dragoman.training.trainer import MAX_ROLLBACKS, Trainer
from dragoman.training.validation import Validator

pytestmark = pytest.mark.usefixtures("one_core")

CPU = torch.device("cpu")
ZERO = torch.tensor(0.0)


class Events(NullCallback):
    def __init__(self) -> None:
        self.events: list[tuple[str, int, str]] = []

    def event(self, kind: str, step: int, text: str) -> None:
        self.events.append((kind, step, text))


# The guard


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_finite_number_is_not_let_through(bad: float) -> None:
    guard = GradientGuard(CPU)
    one = torch.tensor(1.0)
    assert bool(guard.should_apply(one, one))
    assert not bool(guard.should_apply(torch.tensor(bad), one))
    assert not bool(guard.should_apply(one, torch.tensor(bad)))
    assert (guard.skipped_steps, guard.consecutive_skips) == (2, 2)
    assert bool(guard.should_apply(one, one))
    assert (guard.skipped_steps, guard.consecutive_skips) == (2, 0)


def test_a_spike_is_so_many_standard_deviations_above_the_mean_of_the_last() -> None:
    chance = random.Random(1)
    norms = [1.0 + chance.random() for _ in range(GRAD_NORM_WINDOW + 40)]
    guard = GradientGuard(CPU, grad_norm_spike_sigma=3.0)
    for norm in norms:
        assert bool(guard.should_apply(torch.tensor(norm), ZERO))
    window = np.array(norms[-GRAD_NORM_WINDOW:], dtype=np.float32).astype(np.float64)
    highest = window.mean() + 3.0 * window.std()  # numpy's, as the reference
    assert bool(guard.should_apply(torch.tensor(highest * 0.999), ZERO))
    again = GradientGuard(CPU, grad_norm_spike_sigma=3.0, grad_norms=tuple(norms[-GRAD_NORM_WINDOW:]))
    assert not bool(again.should_apply(torch.tensor(highest * 1.001), ZERO))
    # A spike enters the window as the highest that would have passed, so that a lasting change of level is followed.
    assert again.grad_norms[-1] == pytest.approx(highest, rel=1e-5)
    assert again.grad_norms[:-1] == pytest.approx(norms[-GRAD_NORM_WINDOW + 1 :])
    taken = next(number for number in range(10_000) if bool(again.should_apply(torch.tensor(5.0), ZERO)))
    assert taken < GRAD_NORM_WINDOW


def test_few_norms_say_nothing_of_their_spread() -> None:
    guard = GradientGuard(CPU, grad_norm_spike_sigma=1.0)
    assert all(bool(guard.should_apply(torch.tensor(float(10**place)), ZERO)) for place in range(MIN_GRAD_NORMS))
    assert not bool(guard.should_apply(torch.tensor(1e35), ZERO))


def test_a_guard_that_goes_on_is_the_guard_that_did_not_stop() -> None:
    chance = random.Random(2)
    norms = [math.nan if chance.random() < 0.1 else chance.random() * 10 ** chance.randint(0, 3) for _ in range(400)]
    unbroken = GradientGuard(CPU, grad_norm_spike_sigma=2.0)
    broken = GradientGuard(CPU, grad_norm_spike_sigma=2.0)
    for norm in norms:
        decision = bool(unbroken.should_apply(torch.tensor(norm), ZERO))
        kept = json.loads(json.dumps([broken.skipped_steps, broken.consecutive_skips, broken.grad_norms]))
        broken = GradientGuard(
            CPU, grad_norm_spike_sigma=2.0, skipped_steps=kept[0], consecutive_skips=kept[1], grad_norms=kept[2]
        )
        assert bool(broken.should_apply(torch.tensor(norm), ZERO)) == decision
        assert (broken.skipped_steps, broken.consecutive_skips, broken.grad_norms) == (
            unbroken.skipped_steps,
            unbroken.consecutive_skips,
            unbroken.grad_norms,
        )
    assert 40 < unbroken.skipped_steps < 200


# Skipped steps

SHORT = ("training.max_steps=60", "training.log_every_steps=5", "training.validate_every_steps=1000")


def poison(trainer: Trainer, steps: set[int], *, what: str) -> None:
    """Spoil a gradient or the loss in some steps; or have the guard leave them out (`skip`)."""
    backward, admit, step_now = trainer.train_step._backward, trainer.guard.should_apply, [0]

    def poisoned(step: int, part: MicroBatch, tokens: int, *, last: bool) -> Tensor:
        nll = backward(step, part, tokens, is_last=last)
        step_now[0] = step
        if step in steps and last:
            if what == "gradient":
                parameter = trainer.train_step.parameters[step % len(trainer.train_step.parameters)]
                assert parameter.grad is not None
                parameter.grad.view(-1)[step % parameter.grad.numel()] = math.nan if step % 2 else math.inf
            if what == "loss":
                return nll * math.nan
        return nll

    def admitted(norm: Tensor, nll: Tensor) -> Tensor:
        return admit(norm, nll * math.nan if step_now[0] in steps and what == "skip" else nll)

    trainer.train_step._backward = poisoned  # type: ignore[method-assign]
    trainer.guard.should_apply = admitted  # type: ignore[method-assign]


@pytest.mark.parametrize("what", ["gradient", pytest.param("loss", marks=pytest.mark.slow)])
def test_r7_what_is_no_number_at_fifty_steps_leaves_the_weights_as_if_the_steps_were_left_out(
    what: str, tiny: MakeRecipe, tmp_path: Path
) -> None:
    steps = set(random.Random(3).sample(range(2, 130), 50))
    long = ("training.max_steps=130", "training.log_every_steps=10", "training.ema_decay=0.9", "training.batches_per_update=2")
    trainers = {}
    for how in (what, "skip"):
        trainers[how] = Trainer(tiny(tmp_path / how, *long, "training.num_validation_translations=0"), listener := Events())
        poison(trainers[how], steps, what=how)
        trainers[how].run()
        told = [step for kind, step, _ in listener.events if kind == "skipped"]
        assert told == sorted(steps)
    mine, theirs = (trainers[how].learner.state() for how in (what, "skip"))
    for name, weight in mine.weights.items():
        assert torch.equal(weight, theirs.weights[name])
    for name, value in mine.optimiser.items():
        assert torch.equal(value, theirs.optimiser[name])
        assert bool(value.isfinite().all())
    assert mine.averages is not None
    assert theirs.averages is not None
    for name, average in mine.averages.items():
        assert torch.equal(average, theirs.averages[name])
    assert mine.optimiser["output/step"] == 80.0
    assert list_checkpoints(tmp_path / what / "checkpoints")[-1].trainer_state.skipped_steps == 50


def test_a_skipped_step_is_not_in_the_loss_of_its_line(tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(tmp_path / "run", "training.max_steps=6", "training.log_every_steps=3")
    trainer = Trainer(recipe, NullCallback())
    poison(trainer, {2, 4, 5, 6}, what="loss")
    trainer.run()
    lines = [entry for entry in read_metrics_log(tmp_path / "run" / "metrics.jsonl") if entry["type"] == "train"]
    # Of the second line no step was left, so there is none.
    assert [line["step"] for line in lines] == [3]
    other = Trainer(tiny(tmp_path / "other", "training.max_steps=1", "training.log_every_steps=1"), NullCallback())
    other.run()
    first = next(entry for entry in read_metrics_log(tmp_path / "other" / "metrics.jsonl") if entry["type"] == "train")
    assert 0.5 * first["loss"] < lines[0]["loss"] < 1.5 * first["loss"]
    assert trainer.guard.skipped_steps == 4


def test_so_many_in_a_row_stop_the_run_with_a_diagnosis(tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(tmp_path / "run", *SHORT, "training.max_consecutive_skips=4", "training.checkpoint_every_steps=10")
    trainer = Trainer(recipe, NullCallback())
    poison(trainer, {5, 6, 7, *range(13, 99)}, what="gradient")
    with pytest.raises(RunError, match=r"step 16: 4 steps in a row were skipped, .*step-00000010 is kept") as told:
        trainer.run()
    assert "training.warmup_steps" in str(told.value)
    assert "\n" not in str(told.value)


def test_so_many_in_a_row_send_the_run_back_where_it_may(tiny: MakeRecipe, tmp_path: Path) -> None:
    settings = ("training.max_consecutive_skips=4", "training.checkpoint_every_steps=10", "training.keep_last=9")
    recipe = tiny(tmp_path / "run", *SHORT, *settings, "training.on_divergence='rollback'")
    trainer = Trainer(recipe, listener := Events())
    poison(trainer, set(range(13, 17)), what="gradient")
    before: dict[str, Tensor] = {}
    restore = trainer.train_state.restore

    def restoring(found: Any) -> None:
        restore(found)
        before.update({name: weight.clone() for name, weight in collect_weights(trainer.model).items()})
        assert found.step == 10

    trainer.train_state.restore = restoring  # type: ignore[method-assign]
    trainer.run()
    wanted = list_checkpoints(tmp_path / "run" / "checkpoints")
    ten = next(one for one in wanted if one.step == 10)
    assert before.keys() == ten.weights().keys()
    for name, weight in ten.weights().items():
        assert torch.equal(before[name], weight)
    # Steps and data go on, the optimiser's own count does not: 60 steps less four skipped and the two after step 10.
    last = wanted[-1]
    assert (last.step, last.trainer_state.skipped_steps, last.trainer_state.num_rollbacks) == (60, 4, 1)
    assert last.optimizer_state()["output/step"] == 54.0
    assert [kind for kind, _, _ in listener.events if kind == "restored"] == ["restored"]


@pytest.mark.parametrize("every", [3, 10])
def test_a_run_that_is_sent_back_again_and_again_is_given_up(every: int, tiny: MakeRecipe, tmp_path: Path) -> None:
    """Also where checkpoints are committed in between: they hold the same weights."""
    settings = (
        "training.max_consecutive_skips=2",
        f"training.checkpoint_every_steps={every}",
        "training.on_divergence='rollback'",
    )
    trainer = Trainer(tiny(tmp_path / "run", *SHORT, *settings), listener := Events())
    poison(trainer, set(range(13, 99)), what="gradient")
    with pytest.raises(RunError, match="2 steps in a row were skipped"):
        trainer.run()
    assert [kind for kind, _, _ in listener.events].count("restored") == MAX_ROLLBACKS


# Memory


def test_a_batch_in_halves_is_the_same_rows() -> None:
    batch = collate([[5, 6, 7], [8], [9, 5, 6, 7, 3]], [[4], [5, 6], [7, 8, 9]], start_id=2)
    upper, lower = split_in_half(batch)
    assert (upper.source_BS.tolist(), upper.inputs_BT.tolist(), upper.targets_BT.tolist()) == ([[5, 6, 7]], [[2, 4]], [[4, 3]])
    assert lower.source_BS.tolist() == [[8, 0, 0, 0, 0], [9, 5, 6, 7, 3]]
    assert lower.inputs_BT.tolist() == [[2, 5, 6, 0], [2, 7, 8, 9]]
    assert (upper.num_target_tokens, lower.num_target_tokens) == (2, 7)


class Narrow:
    """Memory that holds so many padded source tokens at once, and says so as torch does."""

    def __init__(self, trainer: Trainer, room: int, *, when: str = "forward") -> None:
        self.inner = trainer.train_step.loss
        self.room = room
        self.when = when
        self.refused = 0
        trainer.train_step.loss = self  # type: ignore[assignment]

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        full = batch.source_BS.numel() > self.room
        self.refused += full
        if full and self.when == "forward":
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.")
        loss, nll = self.inner(batch)
        if full:
            loss.register_hook(refuse)
        return loss, nll


def refuse(gradient: Tensor) -> None:
    raise torch.OutOfMemoryError("out of memory")


@pytest.mark.parametrize("when", ["forward", "backward"])
def test_r8_a_batch_that_memory_does_not_hold_is_split_with_the_same_loss(when: str, tiny: MakeRecipe, tmp_path: Path) -> None:
    settings = (*NO_DROPOUT, "training.max_steps=8", "training.log_every_steps=1", "training.batches_per_update=2")
    plain = Trainer(tiny(tmp_path / "plain", *settings), NullCallback())
    plain.run()
    trainer = Trainer(tiny(tmp_path / "narrow", *settings), listener := Events())
    narrow = Narrow(trainer, 50, when=when)
    trainer.run()
    losses = {
        run: [entry["loss"] for entry in read_metrics_log(tmp_path / run / "metrics.jsonl") if entry["type"] == "train"]
        for run in ("plain", "narrow")
    }
    assert losses["narrow"] == pytest.approx(losses["plain"], rel=1e-5)
    for name, weight in collect_weights(trainer.model).items():
        torch.testing.assert_close(weight, collect_weights(plain.model)[name], rtol=0, atol=2e-4)
    told = [text for kind, _, text in listener.events if kind == "memory"]
    assert 0 < len(told) == narrow.refused  # what was too large once is not tried again
    assert all("out of memory with" in text and "it is split, with the same loss" in text for text in told)
    assert "training.batch_tokens = 130" in told[0]
    assert narrow.refused < 8


def test_parts_of_a_split_batch_have_a_dropout_each() -> None:
    places = {0, 1, 2**20, 2**40, 2**40 + 1, 2**41}
    assert len({derive_seed(1, 5, place) for place in places}) == len(places)


def test_a_pair_that_memory_does_not_hold_stops_the_run_with_its_state_kept(tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(tmp_path / "run", "training.max_steps=9")
    trainer = Trainer(recipe, NullCallback())
    trainer.callback = Shrinking(Narrow(trainer, 10**9))
    with pytest.raises(
        OutOfMemoryError, match=r"step 5: out of memory with 1 pairs of \d+ source .* lower data.max_length"
    ) as told:
        trainer.run()
    assert "step-00000004 is kept" in str(told.value)
    assert "\n" not in str(told.value)
    kept = list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    assert kept.step == kept.optimizer_state()["output/step"] == 4
    # With memory again, the run is the one that never wanted any.
    train(recipe)
    train(tiny(tmp_path / "other", "training.max_steps=9"))
    mine, theirs = (list_checkpoints(run / "checkpoints")[-1].weights() for run in (tmp_path / "run", tmp_path / "other"))
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("at", [4, 8])
def test_a_validation_that_memory_does_not_hold_is_made_by_who_goes_on(
    at: int, tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("training.max_steps=8", "training.validate_every_steps=4", "training.checkpoint_every_steps=3")
    recipe = tiny(tmp_path / "run", *settings)
    judge, wanted = Validator.validate, iter([at == 8, False])  # whether there is memory for each of the validations
    with monkeypatch.context() as patched:
        patched.setattr(Validator, "judge", lambda *those: judge(*those) if next(wanted) else refuse(torch.zeros(())))
        for _ in range(2):  # the second time at once, before a step
            with pytest.raises(
                OutOfMemoryError, match=rf"step {at}: out of memory in the validation; lower .*step-0000000{at} is kept"
            ) as told:
                train(recipe)
            assert "\n" not in str(told.value)
            wanted = iter([False])
    train(recipe)
    train(tiny(tmp_path / "other", *settings))
    mine, theirs = (list_checkpoints(run / "checkpoints") for run in (tmp_path / "run", tmp_path / "other"))
    assert [place(one) for one in mine] == [place(one) for one in theirs]
    weights, others = mine[-1].weights(), theirs[-1].weights()
    assert all(torch.equal(weights[name], others[name]) for name in weights)


def place(checkpoint: Checkpoint) -> tuple[object, ...]:
    """All that a checkpoint tells of validations."""
    progress = checkpoint.trainer_state
    judged = (progress.best, progress.best_step, progress.validations_since_best, progress.last_validated_step)
    return checkpoint.step, checkpoint.metric, checkpoint.scheduled, *judged


def test_want_of_memory_takes_no_checkpoint_s_place(tiny: MakeRecipe, tmp_path: Path) -> None:
    """The one of this very step was due, and may be one of those that the bundle is the mean of."""
    recipe = tiny(tmp_path / "run", "training.max_steps=9", "training.checkpoint_every_steps=2")
    trainer = Trainer(recipe, NullCallback())
    trainer.callback = Shrinking(Narrow(trainer, 10**9))
    with pytest.raises(OutOfMemoryError, match="step-00000004 is kept"):
        trainer.run()
    kept = list_checkpoints(tmp_path / "run" / "checkpoints")
    assert [(one.path.name, one.scheduled) for one in kept] == [("step-00000002", True), ("step-00000004", True)]


def test_a_run_is_sent_back_to_what_is_whole_alone(tiny: MakeRecipe, tmp_path: Path) -> None:
    settings = ("training.max_consecutive_skips=4", "training.checkpoint_every_steps=5", "training.keep_last=9")
    recipe = tiny(tmp_path / "run", *SHORT, *settings, "training.on_divergence='rollback'")
    trainer = Trainer(recipe, listener := Events())
    poison(trainer, set(range(13, 17)), what="gradient")
    admit = trainer.guard.should_apply

    def damaging(norm: Tensor, nll: Tensor) -> Tensor:
        if trainer.state.step == 15:
            path = trainer.checkpointer.latest.path / "model.safetensors"  # type: ignore[union-attr]
            path.write_bytes(path.read_bytes()[:-1])
        return admit(norm, nll)

    trainer.guard.should_apply = damaging  # type: ignore[method-assign]
    trainer.run()
    (told,) = [text for kind, _, text in listener.events if kind == "restored"]
    assert "back to step-00000010" in told
    assert len(list((tmp_path / "run" / "checkpoints").glob("damaged-step-00000015-*"))) == 1


class Shrinking(NullCallback):
    """Takes all memory away after the fourth step."""

    def __init__(self, narrow: Narrow) -> None:
        self.narrow = narrow
        self.taken = 0

    def advance(self, share_spent: float) -> None:
        self.taken += 1
        if self.taken == 4:
            self.narrow.room = 0


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: not enough memory: you tried"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
    ids=str,
)
def test_want_of_memory_is_known_by_how_it_is_told(error: BaseException, is_it: bool) -> None:
    assert is_out_of_memory(error) == is_it


# The moving average


def test_the_moving_average_is_what_its_equation_says() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    average = MovingAverage(model, 0.8)
    wanted = model.weight.item()
    for step in range(1, 60):
        with torch.no_grad():
            model.weight.fill_(float(step))
        good = step % 7 != 0
        average.update(step, torch.tensor(good))
        if good:
            decay = min(0.8, (1 + step) / (10 + step))
            wanted = decay * wanted + (1 - decay) * step
    assert average.ema_weights["weight"].item() == pytest.approx(wanted, rel=1e-5)


def test_the_bundle_may_be_the_moving_average(tiny: MakeRecipe, tmp_path: Path) -> None:
    settings = (
        "training.max_steps=20",
        "training.checkpoint_every_steps=5",
        "training.ema_decay=0.9",
        "training.checkpoint_averaging='ema'",
    )
    train(tiny(tmp_path / "run", *settings))
    last = list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    averages = last.ema_weights()
    assert averages is not None
    found = collect_weights(load_bundle(tmp_path / "run" / "bundle").model)
    for name, average in averages.items():
        assert torch.equal(found[name], average)
    assert not torch.equal(averages["output"], last.weights()["output"])


def test_a_moving_average_that_is_not_kept_cannot_be_asked_for(tiny: MakeRecipe, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="checkpoint_averaging = 'ema' needs a moving average: set ema_decay"):
        tiny(tmp_path / "run", "training.checkpoint_averaging='ema'")
