"""Training step: gradient guard, skipped steps, out of memory, and the moving average."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import MakeRecipe
from dragoman.bundle import load_bundle
from dragoman.data.collate import Batch, collate, split_in_half
from dragoman.errors import is_out_of_memory
from dragoman.model.weights import collect_weights
from dragoman.training.checkpoints.checkpoint import list_checkpoints
from dragoman.training.ema import MovingAverage
from dragoman.training.gradient_guard import GRAD_NORM_WINDOW, MIN_GRAD_NORMS, GradientGuard
from dragoman.training.monitoring.events import StepDone, TrainingEvent
from dragoman.training.monitoring.metrics_log import read_metrics_log
from dragoman.training.run import train
from dragoman.training.train_step import MicroBatch
from dragoman.training.trainer import Trainer
from dragoman.training.validation import Validator
from expected_errors import raises_code
from tiny_runs import NO_DROPOUT
from trainers import Recorder, assert_equal_states, assert_equal_tensors, new_trainer, without_times

pytestmark = pytest.mark.usefixtures("one_core")

CPU = torch.device("cpu")
ZERO = torch.tensor(0.0)


# Gradient guard


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nonfinite_steps_are_skipped(bad: float) -> None:
    guard = GradientGuard(CPU)
    finite = torch.tensor(1.0)
    assert bool(guard.should_apply(finite, finite))
    assert not bool(guard.should_apply(torch.tensor(bad), finite))
    assert not bool(guard.should_apply(finite, torch.tensor(bad)))
    assert (guard.skipped_steps, guard.consecutive_skips) == (2, 2)
    assert bool(guard.should_apply(finite, finite))
    assert (guard.skipped_steps, guard.consecutive_skips) == (2, 0)


def test_spike_threshold_is_mean_plus_sigmas() -> None:
    rng = random.Random(1)
    norms = [1.0 + rng.random() for _ in range(GRAD_NORM_WINDOW + 40)]
    guard = GradientGuard(CPU, grad_norm_spike_sigma=3.0)
    for norm in norms:
        assert bool(guard.should_apply(torch.tensor(norm), ZERO))
    window = np.array(norms[-GRAD_NORM_WINDOW:], dtype=np.float32).astype(np.float64)
    highest = window.mean() + 3.0 * window.std()  # numpy's, as the reference
    assert bool(guard.should_apply(torch.tensor(highest * 0.999), ZERO))
    restored = GradientGuard(CPU, grad_norm_spike_sigma=3.0, grad_norms=tuple(norms[-GRAD_NORM_WINDOW:]))
    assert not bool(restored.should_apply(torch.tensor(highest * 1.001), ZERO))
    # A spike enters the window as the threshold, so the window follows a lasting change of level.
    assert restored.grad_norms[-1] == pytest.approx(highest, rel=1e-5)
    assert restored.grad_norms[:-1] == pytest.approx(norms[-GRAD_NORM_WINDOW + 1 :])
    steps_until_applied = next(number for number in range(10_000) if bool(restored.should_apply(torch.tensor(5.0), ZERO)))
    assert steps_until_applied < GRAD_NORM_WINDOW


def test_few_norms_set_no_threshold() -> None:
    guard = GradientGuard(CPU, grad_norm_spike_sigma=1.0)
    assert all(bool(guard.should_apply(torch.tensor(float(10**exponent)), ZERO)) for exponent in range(MIN_GRAD_NORMS))
    assert not bool(guard.should_apply(torch.tensor(1e35), ZERO))


def test_restored_guard_equals_unbroken_guard() -> None:
    rng = random.Random(2)
    norms = [math.nan if rng.random() < 0.1 else rng.random() * 10 ** rng.randint(0, 3) for _ in range(400)]
    unbroken = GradientGuard(CPU, grad_norm_spike_sigma=2.0)
    broken = GradientGuard(CPU, grad_norm_spike_sigma=2.0)
    for norm in norms:
        decision = bool(unbroken.should_apply(torch.tensor(norm), ZERO))
        saved = json.loads(json.dumps([broken.skipped_steps, broken.consecutive_skips, broken.grad_norms]))
        broken = GradientGuard(
            CPU, grad_norm_spike_sigma=2.0, skipped_steps=saved[0], consecutive_skips=saved[1], grad_norms=saved[2]
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


def poison(trainer: Trainer, steps: set[int], *, target: str) -> None:
    """Make a gradient or the loss non-finite in these steps, or let the guard skip them (`skip`)."""
    backward, original_should_apply = trainer.train_step._backward, trainer.guard.should_apply
    current_step = [0]

    def poisoned_backward(step: int, micro_batch: MicroBatch, tokens: int, *, is_last: bool) -> Tensor:
        nll = backward(step, micro_batch, tokens, is_last=is_last)
        current_step[0] = step
        if step in steps and is_last:
            if target == "gradient":
                parameter = trainer.train_step.parameters[step % len(trainer.train_step.parameters)]
                assert parameter.grad is not None
                parameter.grad.view(-1)[step % parameter.grad.numel()] = math.nan if step % 2 else math.inf
            if target == "loss":
                return nll * math.nan
        return nll

    def poisoned_should_apply(norm: Tensor, nll: Tensor) -> Tensor:
        return original_should_apply(norm, nll * math.nan if current_step[0] in steps and target == "skip" else nll)

    trainer.train_step._backward = poisoned_backward  # type: ignore[method-assign]
    trainer.guard.should_apply = poisoned_should_apply  # type: ignore[method-assign]


@pytest.mark.parametrize("target", ["gradient", pytest.param("loss", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_r7_fifty_nonfinite_steps_change_nothing(target: str, tiny: MakeRecipe, tmp_path: Path) -> None:
    steps = set(random.Random(3).sample(range(2, 130), 50))
    long = ("training.max_steps=130", "training.log_every_steps=10", "training.ema_decay=0.9", "training.batches_per_update=2")
    trainers = {}
    for kind in (target, "skip"):
        recorder = Recorder()
        trainers[kind] = new_trainer(tiny(tmp_path / kind, *long, "training.num_validation_translations=0"), recorder)
        poison(trainers[kind], steps, target=kind)
        trainers[kind].run()
        assert [event.step for event in recorder.events if event.event == "skipped_steps"] == sorted(steps)
    mine, theirs = (trainers[kind].train_state.gather_state() for kind in (target, "skip"))
    assert_equal_tensors(mine.weights, theirs.weights)
    assert_equal_tensors(mine.optimizer, theirs.optimizer)
    assert all(bool(value.isfinite().all()) for value in mine.optimizer.values())
    assert mine.ema_weights is not None
    assert_equal_tensors(mine.ema_weights, theirs.ema_weights or {})
    assert mine.optimizer["output/step"] == 80.0
    assert list_checkpoints(tmp_path / target / "checkpoints")[-1].trainer_state.skipped_steps == 50


def test_skipped_step_is_not_in_logged_loss(tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(tmp_path / "run", "training.max_steps=6", "training.log_every_steps=3")
    trainer = new_trainer(recipe)
    poison(trainer, {2, 4, 5, 6}, target="loss")
    trainer.run()
    lines = [entry for entry in read_metrics_log(tmp_path / "run" / "metrics.jsonl") if entry["type"] == "train"]
    # All steps of the second line were skipped, so there is none.
    assert [line["step"] for line in lines] == [3]
    new_trainer(tiny(tmp_path / "other", "training.max_steps=1", "training.log_every_steps=1")).run()
    first = next(entry for entry in read_metrics_log(tmp_path / "other" / "metrics.jsonl") if entry["type"] == "train")
    assert 0.5 * first["loss"] < lines[0]["loss"] < 1.5 * first["loss"]
    assert trainer.guard.skipped_steps == 4


def test_consecutive_skips_stop_the_run(tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(tmp_path / "run", *SHORT, "training.max_consecutive_skips=4", "training.checkpoint_every_steps=10")
    trainer = new_trainer(recipe)
    poison(trainer, {5, 6, 7, *range(13, 99)}, target="gradient")
    with raises_code(
        "run-diverged", "step 16: the run has diverged: 4 steps in a row", "training.warmup_steps", "step-00000010 is saved"
    ):
        trainer.run()


# Out of memory


def test_halves_of_batch_hold_the_same_rows() -> None:
    batch = collate([[5, 6, 7], [8], [9, 5, 6, 7, 3]], [[4], [5, 6], [7, 8, 9]], start_id=2)
    upper, lower = split_in_half(batch)
    assert (upper.source_BS.tolist(), upper.inputs_BT.tolist(), upper.targets_BT.tolist()) == ([[5, 6, 7]], [[2, 4]], [[4, 3]])
    assert lower.source_BS.tolist() == [[8, 0, 0, 0, 0], [9, 5, 6, 7, 3]]
    assert lower.inputs_BT.tolist() == [[2, 5, 6, 0], [2, 7, 8, 9]]
    assert (upper.num_target_tokens, lower.num_target_tokens) == (2, 7)


class LimitedMemory:
    """Loss that raises torch's out-of-memory error for a batch of more than `capacity` padded source tokens."""

    def __init__(self, trainer: Trainer, capacity: int, *, phase: str = "forward") -> None:
        self.inner = trainer.train_step.loss
        self.capacity = capacity
        self.phase = phase
        self.num_failures = 0
        trainer.train_step.loss = self  # type: ignore[assignment]

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        is_too_large = batch.source_BS.numel() > self.capacity
        self.num_failures += is_too_large
        if is_too_large and self.phase == "forward":
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.")
        loss, nll = self.inner(batch)
        if is_too_large:
            loss.register_hook(raise_out_of_memory)
        return loss, nll


def raise_out_of_memory(gradient: Tensor) -> None:
    raise torch.OutOfMemoryError("out of memory")


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_r8_split_batch_has_the_same_loss(phase: str, tiny: MakeRecipe, tmp_path: Path) -> None:
    settings = (*NO_DROPOUT, "training.max_steps=8", "training.log_every_steps=1", "training.batches_per_update=2")
    plain = new_trainer(tiny(tmp_path / "plain", *settings))
    plain.run()
    trainer = new_trainer(tiny(tmp_path / "limited", *settings), recorder := Recorder())
    memory = LimitedMemory(trainer, 50, phase=phase)
    trainer.run()
    losses = {
        run: [entry["loss"] for entry in read_metrics_log(tmp_path / run / "metrics.jsonl") if entry["type"] == "train"]
        for run in ("plain", "limited")
    }
    assert losses["limited"] == pytest.approx(losses["plain"], rel=1e-5)
    for name, weight in collect_weights(trainer.model).items():
        torch.testing.assert_close(weight, collect_weights(plain.model)[name], rtol=0, atol=2e-4)
    texts = recorder.texts("oom_split")
    assert 0 < len(texts) == memory.num_failures  # a size that failed once is not tried again
    assert all("out of memory with" in text and "it is split, with the same loss" in text for text in texts)
    assert "training.batch_tokens = 130" in texts[0]
    assert memory.num_failures < 8


@pytest.mark.slow
def test_too_large_pair_stops_with_a_checkpoint(tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(tmp_path / "run", "training.max_steps=9")
    trainer = new_trainer(recipe)
    memory = LimitedMemory(trainer, 10**9)

    def remove_memory(event: TrainingEvent) -> None:
        if isinstance(event, StepDone) and event.step == 4:
            memory.capacity = 0

    trainer.callback = remove_memory
    with raises_code("out-of-memory", "step 5", "data.max_length", "step-00000004 is saved"):
        trainer.run()
    saved = list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    assert saved.step == saved.optimizer_state()["output/step"] == 4
    # With enough memory again, the run equals one that always had it.
    train(recipe)
    train(tiny(tmp_path / "other", "training.max_steps=9"))
    assert_equal_states(*(list_checkpoints(run / "checkpoints")[-1] for run in (tmp_path / "run", tmp_path / "other")))


@pytest.mark.slow
def test_validation_without_memory_is_made_after_resume(
    tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("training.max_steps=8", "training.validate_every_steps=4", "training.checkpoint_every_steps=3")
    recipe = tiny(tmp_path / "run", *settings)

    def raise_memory_error(*_: Any) -> NoReturn:
        raise torch.OutOfMemoryError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(Validator, "validate", raise_memory_error)
        for _ in range(2):  # the second time before any step
            with raises_code("out-of-memory", "step 4", "step-00000004 is saved"):
                train(recipe)
    train(recipe)
    train(tiny(tmp_path / "other", *settings))
    mine, theirs = (list_checkpoints(run / "checkpoints") for run in (tmp_path / "run", tmp_path / "other"))
    assert [without_times(checkpoint.trainer_state) for checkpoint in mine] == [
        without_times(checkpoint.trainer_state) for checkpoint in theirs
    ]
    assert_equal_states(mine[-1], theirs[-1])


@pytest.mark.parametrize(
    ("error", "expected"),
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
def test_out_of_memory_errors_are_recognized(error: BaseException, expected: bool) -> None:
    assert is_out_of_memory(error) == expected


# Moving average


def test_moving_average_follows_its_equation() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    average = MovingAverage(model, 0.8)
    expected = model.weight.item()
    for step in range(1, 60):
        with torch.no_grad():
            model.weight.fill_(float(step))
        is_applied = step % 7 != 0
        average.update(step, torch.tensor(is_applied))
        if is_applied:
            decay = min(0.8, (1 + step) / (10 + step))
            expected = decay * expected + (1 - decay) * step
    assert average.ema_weights["weight"].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_bundle_holds_the_moving_average(tiny: MakeRecipe, tmp_path: Path) -> None:
    settings = ("training.max_steps=20", "training.ema_decay=0.9", "training.checkpoint_averaging='ema'")
    train(tiny(tmp_path / "run", *settings))
    last = list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    averages = last.ema_weights()
    assert averages is not None
    bundle_weights = collect_weights(load_bundle(tmp_path / "run" / "bundle").model)
    assert_equal_tensors(bundle_weights, averages)
    assert not torch.equal(averages["output"], last.weights()["output"])
