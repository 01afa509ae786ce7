"""Training against closed forms, and exact resumption after stops, damage and full disks."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from xml.etree import ElementTree

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

import dragoman
import dragoman.training.checkpoints.checkpoint
import dragoman.training.checkpoints.checkpointer
import dragoman.training.losses.chunked
import dragoman.training.losses.label_smoothing
import dragoman.training.report
import dragoman.training.trainer
import dragoman.training.validation
from conftest import MakeRecipe
from dragoman.bundle import load_bundle
from dragoman.config import Recipe, TrainingConfig, recipe_from_dict
from dragoman.data.collate import Batch, collate
from dragoman.data.dataloader import DataPosition, TrainingBatches
from dragoman.data.encoded_corpus import Corpus, list_pair_files
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, PADDING_ID
from dragoman.errors import DataError, InterruptedRun, RunError
from dragoman.evaluation.metrics import bleu, chrf, exact_match
from dragoman.formats.text import read_lines
from dragoman.io.safetensors import save_tensors
from dragoman.model.factory import build_model
from dragoman.model.weights import collect_weights, load_weights
from dragoman.training.checkpoints.checkpoint import (
    StateTensors,
    TrainerState,
    list_checkpoints,
    prune_checkpoints,
    save_checkpoint,
)
from dragoman.training.finalize import average_run
from dragoman.training.losses.label_smoothing import batch_loss, label_smoothed_loss
from dragoman.training.lr_schedule import compute_budget_fraction, compute_learning_rate
from dragoman.training.monitoring.events import Sample, StepDone
from dragoman.training.monitoring.metrics_log import MetricsLog, read_metrics_log
from dragoman.training.resume_checks import check_recipe_unchanged
from dragoman.training.run import train
from expected_errors import raises_code
from tiny_runs import NO_DROPOUT
from torch_models import bundle_model
from trainers import (
    Recorder,
    assert_equal_states,
    assert_equal_tensors,
    fake_validations,
    new_trainer,
    read_metrics,
    without,
    without_times,
)

pytestmark = pytest.mark.usefixtures("one_core")


def checkpoint_names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# Loss


def target_distribution(form: str, epsilon: float, targets_X: Tensor, vocabulary: int) -> Tensor:
    """Return q of section 5.4, class by class."""
    q_XV = torch.zeros(len(targets_X), vocabulary, dtype=torch.float64)
    for row, true_class in enumerate(targets_X.tolist()):
        for column in range(vocabulary):
            match form:
                case "uniform":
                    q_XV[row, column] = epsilon / vocabulary + (1 - epsilon) * (column == true_class)
                case "exclude_target":
                    q_XV[row, column] = 1 - epsilon if column == true_class else epsilon / (vocabulary - 1)
                case "exclude_target_and_pad":
                    uniform_mass = 0.0 if column == PADDING_ID else epsilon / (vocabulary - 2)
                    q_XV[row, column] = 1 - epsilon if column == true_class else uniform_mass
    return q_XV


@pytest.fixture
def outputs_XD() -> Tensor:  # noqa: N802
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(3)) * 2


@pytest.fixture
def output_VD() -> Tensor:  # noqa: N802
    return torch.randn(7, 5, generator=torch.Generator().manual_seed(4))


TARGETS_X = torch.tensor([1, 2, 3, 6, 6, 4])


def test_smoothed_loss_has_gradients_of_its_distribution(
    subtests: pytest.Subtests, outputs_XD: Tensor, output_VD: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for chunk_logits in [1, 14, 35, 2**22]:
        for epsilon in [0.0, 0.1]:
            for form in ["uniform", "exclude_target", "exclude_target_and_pad"]:
                with subtests.test(chunk_logits=chunk_logits, epsilon=epsilon, form=form):
                    monkeypatch.setattr(dragoman.training.losses.chunked, "CPU_CHUNK_LOGITS", chunk_logits)
                    q_XV = target_distribution(form, epsilon, TARGETS_X, 7)
                    torch.testing.assert_close(q_XV.sum(dim=1), torch.ones(6, dtype=torch.float64))
                    ours = [tensor.clone().requires_grad_() for tensor in (outputs_XD, output_VD)]
                    exact = [tensor.double().requires_grad_() for tensor in (outputs_XD, output_VD)]
                    loss, nll = label_smoothed_loss(ours[0], ours[1], TARGETS_X, epsilon=epsilon, smoothing_mode=form)
                    expected = -(q_XV * F.linear(*exact).log_softmax(dim=-1)).sum()
                    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=0)
                    (3 * loss).backward()  # type: ignore[no-untyped-call]
                    (3 * expected).backward()  # type: ignore[no-untyped-call]
                    for tensor, reference in zip(ours, exact, strict=True):
                        assert tensor.grad is not None
                        assert reference.grad is not None
                        torch.testing.assert_close(tensor.grad.double(), reference.grad, rtol=0, atol=1e-5)
                    torch.testing.assert_close(
                        nll, F.cross_entropy(F.linear(outputs_XD, output_VD), TARGETS_X, reduction="sum")
                    )
                    assert not nll.requires_grad


def test_bfloat16_gradients_differ_by_rounding_only(subtests: pytest.Subtests) -> None:
    """The reference is float64 of the same rounded numbers. A probability, and a sum of its products, has eight bits.

    The gradient of a class with a probability near its target keeps eight bits too.
    """
    for sure in [1.0, 12.0]:
        for form in ["uniform", "exclude_target", "exclude_target_and_pad"]:
            with subtests.test(sure=sure, form=form):
                draw = torch.Generator().manual_seed(5)
                outputs_XD, output_VD = torch.randn(70, 32, generator=draw), torch.randn(150, 32, generator=draw) / 4
                targets_X = torch.randint(1, 150, (70,), generator=draw)
                if sure > 1.0:
                    outputs_XD = output_VD[targets_X] * (sure / output_VD[targets_X].square().sum(1, keepdim=True))
                ours = [tensor.clone().requires_grad_() for tensor in (outputs_XD, output_VD)]
                exact = [tensor.bfloat16().double().requires_grad_() for tensor in (outputs_XD, output_VD)]
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss, nll = label_smoothed_loss(ours[0], ours[1], targets_X, epsilon=0.1, smoothing_mode=form)
                log_probs_XV = F.linear(*exact).log_softmax(dim=-1)
                expected = -(target_distribution(form, 0.1, targets_X, 150) * log_probs_XV).sum()
                loss.backward()  # type: ignore[no-untyped-call]
                expected.backward()  # type: ignore[no-untyped-call]
                for tensor, reference in zip(ours, exact, strict=True):
                    assert tensor.grad is not None
                    assert reference.grad is not None
                    assert (tensor.grad - reference.grad).norm() < 2**-7 * reference.grad.norm()
                torch.testing.assert_close(loss.double(), expected, rtol=2**-10, atol=0)
                expected_nll = F.nll_loss(log_probs_XV, targets_X, reduction="sum")
                torch.testing.assert_close(nll.double(), expected_nll, rtol=2**-10, atol=len(targets_X) * 2**-12)


def test_row_with_zero_probabilities_has_finite_loss() -> None:
    """The sample classes for log Σ exp and the true class all have the probability 0 in bfloat16."""
    outputs_1V = torch.zeros(1, 300)
    outputs_1V[0, 299] = 200.0
    outputs_1V.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, nll = label_smoothed_loss(outputs_1V, torch.eye(300), torch.tensor([1]), epsilon=0.0, smoothing_mode="uniform")
    loss.backward()  # type: ignore[no-untyped-call]
    assert nll.item() == pytest.approx(-math.log(torch.finfo(torch.float32).tiny))
    assert outputs_1V.grad is not None
    assert outputs_1V.grad[0, [1, 299]].tolist() == pytest.approx([-1.0, 1.0])


def test_padding_does_not_change_the_loss(tiny: MakeRecipe, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build_model(tiny(tmp_path).model, source_vocab_size=20, target_vocab_size=20).eval()
    sources, targets = [[5, 6, 7, 3], [8, 3]], [[9, 10, 11], [12]]
    alone = [
        batch_loss(model, collate([s], [t], start_id=2), epsilon=0.1, smoothing_mode="uniform")
        for s, t in zip(sources, targets, strict=True)
    ]
    together = batch_loss(model, collate(sources, targets, start_id=2), epsilon=0.1, smoothing_mode="uniform")
    torch.testing.assert_close(together[0], alone[0][0] + alone[1][0])
    torch.testing.assert_close(together[1], alone[0][1] + alone[1][1])
    # By hand: the decoder input is start, 9, 10, 11 and the targets are 9, 10, 11, end.
    logits_TV = model(torch.tensor([sources[0]]), torch.tensor([[2, 9, 10, 11]]))[0]
    torch.testing.assert_close(alone[0][1], F.cross_entropy(logits_TV, torch.tensor([9, 10, 11, END_ID]), reduction="sum"))


# Schedule


def compute_lr(step: int, progress: float = 0.0, /, **settings: Any) -> float:
    return compute_learning_rate(TrainingConfig(**settings), d_model=512, step=step, progress=progress)


def test_noam_schedule_is_equation_3() -> None:
    # Section 5.3: d_model^-0.5 · min(step^-0.5, step · warmup^-1.5), with d_model = 512 and 4000 steps of warm-up.
    settings: dict[str, Any] = {"schedule": "noam", "warmup_steps": 4000}
    assert compute_lr(1, **settings) == pytest.approx(512**-0.5 * 4000**-1.5)
    assert compute_lr(1, **settings) == pytest.approx(1.7469e-7, rel=1e-4)
    assert compute_lr(4000, **settings) == pytest.approx(512**-0.5 * 4000**-0.5)
    assert compute_lr(4000, **settings) == pytest.approx(6.9877e-4, rel=1e-4)
    assert compute_lr(16_000, **settings) == pytest.approx(compute_lr(4000, **settings) / 2)
    assert compute_lr(4000, **settings, lr_factor=2.0) == pytest.approx(2 * compute_lr(4000, **settings))
    assert max(compute_lr(step, **settings) for step in range(3900, 4100)) == compute_lr(4000, **settings)


def test_other_schedules_peak_after_warmup() -> None:
    for schedule, later in (("inverse_sqrt", 0.5e-3), ("constant", 1e-3)):
        settings: dict[str, Any] = {"schedule": schedule, "peak_lr": 1e-3, "warmup_steps": 100}
        assert compute_lr(1, **settings) == pytest.approx(1e-5)
        assert compute_lr(50, **settings) == pytest.approx(5e-4)
        assert compute_lr(100, **settings) == pytest.approx(1e-3)
        assert compute_lr(400, **settings) == pytest.approx(later)


def test_lr_decay_is_linear_to_zero() -> None:
    settings: dict[str, Any] = {"schedule": "constant", "peak_lr": 1.0, "warmup_steps": 1, "lr_decay_ratio": 0.4}
    assert [compute_lr(5, share, **settings) for share in (0.0, 0.6, 0.8, 0.9, 1.0, 1.1)] == pytest.approx(
        [1, 1, 0.5, 0.25, 0, 0]
    )


def test_nearest_limit_determines_the_budget() -> None:
    config = TrainingConfig(max_steps=100, max_epochs=4, max_minutes=10)
    assert compute_budget_fraction(config, step=50, epochs=1, minutes=1) == 0.5
    assert compute_budget_fraction(config, step=1, epochs=3, minutes=1) == 0.75
    assert compute_budget_fraction(config, step=1, epochs=1, minutes=12) == 1.2
    assert compute_budget_fraction(TrainingConfig(max_steps=100), step=50, epochs=1e9, minutes=1e9, flops=1e99) == 0.5
    by_operations = TrainingConfig(max_steps=100, max_flops=1e12)
    assert compute_budget_fraction(by_operations, step=50, epochs=1, minutes=1, flops=7e11) == 0.7


def test_processor_clock_ignores_time_without_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dragoman.training.trainer, "time", SimpleNamespace(monotonic=lambda: 600.0, process_time=lambda: 90.0))
    assert dragoman.training.trainer.compute_elapsed_minutes(0.0, "wall") == 10.0
    assert dragoman.training.trainer.compute_elapsed_minutes(30.0, "processor") == 1.0


def count_batches(recipe: Recipe, count: int) -> tuple[list[float], list[int]]:
    """Return, for the first batches of a prepared run, the passes over the corpus after each, and its target tokens."""
    batches = TrainingBatches(recipe, Path(recipe.run) / "data", start_id=2)
    lengths = batches.corpora[0].lengths()[1]
    epochs: list[float] = []
    tokens: list[int] = []
    for epoch in range(count):
        in_epoch = batches.count_batches(epoch)
        epochs += [epoch + number / in_epoch for number in range(1, in_epoch + 1)]
        tokens += [int(lengths[batches.sampler.get_batch(epoch, number).pair_indices].sum()) for number in range(in_epoch)]
    return epochs[:count], tokens[:count]


# One step


class FixedStream:
    """Stream of given batches."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batches = iter(batches)
        self.position = DataPosition()

    def next_batch(self) -> list[Batch]:
        return [next(self.batches)]

    def count_epochs(self) -> float:
        return 0.0


def one_step(recipe: Recipe, batches: Sequence[Batch]) -> tuple[dict[str, Tensor], dict[str, Tensor], float]:
    """Return the gradients before the optimizer, the weights after it, and the reported norm."""
    trainer = new_trainer(recipe)
    trainer.stream = FixedStream(batches)  # type: ignore[assignment]
    gradients: dict[str, Tensor] = {}

    def copy_gradients(*_: object) -> None:
        for name, parameter in trainer.model.named_parameters():
            assert parameter.grad is not None
            gradients[name] = parameter.grad.clone()

    trainer.optimizer.register_step_pre_hook(copy_gradients)
    trainer.model.train()
    norm = trainer._step().item()
    return gradients, collect_weights(trainer.model), norm


# Targets of unequal length, so that a mean of means differs from the mean over all tokens.
PAIRS = [([5, 6, 3], [7, 8, 9, 10, 11, 12]), ([9, 3], [13]), ([10, 11, 12, 3], [14, 15]), ([13, 3], [16, 17, 18])]


def batch(pairs: Sequence[tuple[list[int], list[int]]]) -> Batch:
    return collate([source for source, _ in pairs], [target for _, target in pairs], start_id=2)


def test_four_batches_equal_one_large_batch(tiny: MakeRecipe, tmp_path: Path) -> None:
    small = tiny(tmp_path / "a", *NO_DROPOUT, "training.batches_per_update=4")
    large = tiny(tmp_path / "b", *NO_DROPOUT)
    gradients, weights, norm = one_step(small, [batch([pair]) for pair in PAIRS])
    expected_gradients, expected_weights, expected_norm = one_step(large, [batch(PAIRS)])
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=0, atol=1e-6)
        torch.testing.assert_close(weights[name], expected_weights[name], rtol=0, atol=1e-6)
    assert norm == pytest.approx(expected_norm, rel=1e-5)


def test_gradient_is_per_target_token(tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(tmp_path / "run", *NO_DROPOUT, "training.label_smoothing=0.1")
    gradients, _, norm = one_step(recipe, [batch(PAIRS)])
    model = new_trainer(replace_run(recipe, tmp_path / "other")).model.eval()
    whole = batch(PAIRS)
    logits_BTV = model(whole.source_BS, whole.inputs_BT)
    loss = F.cross_entropy(logits_BTV.transpose(1, 2), whole.targets_BT, ignore_index=PADDING_ID, label_smoothing=0.1)
    loss.backward()  # type: ignore[no-untyped-call]
    squares = 0.0
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=0, atol=1e-6)
        squares += parameter.grad.double().square().sum().item()
    assert norm == pytest.approx(math.sqrt(squares), rel=1e-5)


def replace_run(recipe: Recipe, run: Path) -> Recipe:
    return recipe.model_copy(update={"run": str(run)})


def test_only_long_gradients_are_clipped(tiny: MakeRecipe, tmp_path: Path) -> None:
    free, _, norm = one_step(tiny(tmp_path / "a", *NO_DROPOUT), [batch(PAIRS)])
    for number, limit in enumerate((norm / 3, norm * 3)):
        recipe = tiny(tmp_path / f"clip{number}", *NO_DROPOUT, f"training.clip_norm={limit}")
        clipped, _, reported = one_step(recipe, [batch(PAIRS)])
        assert reported == pytest.approx(norm, rel=1e-6)
        for name, gradient in free.items():
            torch.testing.assert_close(clipped[name], gradient * min(1.0, limit / norm), rtol=1e-4, atol=1e-9)


def test_adam_has_the_settings_of_recipe(tiny: MakeRecipe, tmp_path: Path) -> None:
    settings = ("training.adam_beta1=0.8", "training.adam_beta2=0.95", "training.adam_epsilon=1e-8")
    plain = new_trainer(tiny(tmp_path / "a", *settings)).optimizer
    decayed = new_trainer(tiny(tmp_path / "b", *settings, "training.weight_decay=0.1")).optimizer
    assert type(plain) is torch.optim.Adam
    assert type(decayed) is torch.optim.AdamW
    for optimizer, decay in ((plain, 0.0), (decayed, 0.1)):
        (group,) = optimizer.param_groups
        assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.8, 0.95), 1e-8, decay)


# Stop and resume

LONG = (
    "training.max_steps=9", "training.batches_per_update=2", "training.log_every_steps=3", "training.validate_every_steps=2",
    "training.checkpoint_every_steps=4", "training.keep_last=3", "training.num_averaged_checkpoints=3",
)  # fmt: skip


@pytest.fixture(scope="module")
def unbroken(tiny: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run of nine steps of two batches each, with dropout, over about three epochs."""
    run = tmp_path_factory.mktemp("unbroken") / "run"
    recipe = tiny(run, *LONG)
    assert recipe.model.residual_dropout > 0
    assert recipe.model.attention_dropout > 0
    train(recipe)
    last = list_checkpoints(run / "checkpoints")[-1]
    assert last.step == 9
    batches = TrainingBatches(recipe, run / "data", start_id=2)
    before = sum(batches.count_batches(epoch) for epoch in range(last.trainer_state.data_position.epoch))
    assert before + last.trainer_state.data_position.batch == 18
    assert last.trainer_state.data_position.epoch >= 2
    return run


def assert_same_run(run: Path, other_run: Path) -> None:
    """Assert that two runs are equal to the last bit, except for values that depend on the clock."""
    assert checkpoint_names(run) == checkpoint_names(other_run)
    for mine, theirs in zip(list_checkpoints(run / "checkpoints"), list_checkpoints(other_run / "checkpoints"), strict=True):
        assert without_times(mine.trainer_state) == without_times(theirs.trainer_state)
        assert mine.metric == theirs.metric
        assert_equal_states(mine, theirs)
    assert read_metrics(run) == read_metrics(other_run)
    assert_equal_tensors(*(load_file(folder / "bundle" / "weights.safetensors") for folder in (run, other_run)))


def test_resumed_run_equals_unbroken_run(unbroken: Path, tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(tmp_path / "run", *LONG)
    for stop in (3, 3):
        with raises_code("interrupted", "SIGTERM: stopped after step", " is saved"):
            train(recipe, Recorder(stop_after=stop))
    recorder = Recorder()
    train(recipe, recorder)
    assert recorder.num_steps == 3
    assert_same_run(tmp_path / "run", unbroken)


def test_finished_run_trains_no_more(unbroken: Path, tiny: MakeRecipe, tmp_path: Path) -> None:
    run = Path(shutil.copytree(unbroken, tmp_path / "run"))
    before = files_of(run)
    recorder = Recorder()
    report = train(tiny(run, *LONG), recorder)
    assert recorder.num_steps == 0
    assert report["steps"] == 9
    after = files_of(run)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    rewritten = {"bundle/config.json", "bundle/manifest.json", "recipe.json", "report.json", "report.html"}
    assert changed <= rewritten | {"data/prepared.json"}  # it records whether the text is old enough to compare by time stamp


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.d_ff=64", "model.d_ff was 32 and is 64"),
        ("training.clip_norm=1.0", "training.clip_norm was None and is 1.0"),
    ],
)
def test_resume_with_another_recipe_names_difference(
    change: str, message: str, unbroken: Path, tiny: MakeRecipe, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(unbroken, tmp_path / "run"))
    before = files_of(run)
    with raises_code("recipe-changed", message, str(run)):
        train(tiny(run, *LONG, change))
    assert files_of(run) == before


def test_run_without_a_new_key_resumes(tiny: MakeRecipe, tmp_path: Path) -> None:
    before = tiny(tmp_path / "run").model_dump()
    del before["training"]["ema_decay"]
    check_recipe_unchanged(before, tiny(tmp_path / "run", "card.purpose=captions").model_dump(), tmp_path)
    with raises_code("recipe-changed", "training.ema_decay was None and is 0.9"):
        check_recipe_unchanged(before, tiny(tmp_path / "run", "training.ema_decay=0.9").model_dump(), tmp_path)


def test_resume_accepts_changeable_keys_and_prepares_again(unbroken: Path, tiny: MakeRecipe, tmp_path: Path) -> None:
    run = Path(shutil.copytree(unbroken, tmp_path / "moved"))
    shutil.rmtree(run / "data")
    changes = ("name='other'", "training.max_steps=10", "training.patience=99", "decoding.beam_size=2", "training.keep_best=2")
    recorder = Recorder()
    assert train(tiny(run, *LONG, *changes), recorder)["steps"] == 10
    assert recorder.num_steps == 1


@pytest.mark.slow
def test_resume_with_another_corpus_fails(corpus: Path, tiny: MakeRecipe, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(corpus, tmp_path / "corpus"))
    recipe = tiny(tmp_path / "run", f"data.root='{folder}'", "training.max_steps=2")
    train(recipe)
    text = (folder / "train.de").read_text(encoding="utf-8")
    (folder / "train.de").write_text(text.replace("blau", "grau"), encoding="utf-8")
    with raises_code("data-changed", "(source.model, target.model, train-00000.arrow, "):
        train(recipe)
    (folder / "train.de").write_text(text, encoding="utf-8")
    assert train(recipe)["steps"] == 2


@pytest.mark.slow
def test_resumed_mixture_run_equals_unbroken_run(tiny: MakeRecipe, corpus: Path, tmp_path: Path) -> None:
    """Corpus weights, noise and subword sampling are functions of seed, epoch and pair."""
    mixture = {
        "whole": {"source": "train.en", "target": "train.de", "weight": 1.0},
        "part": {"source": "valid.en", "target": "valid.de", "weight": 3.0},
    }
    settings = (
        *LONG, "tokenizer.byte_fallback=true", "tokenizer.vocab_size=300", "tokenizer.sampling_alpha=0.2",
        "data.noise.upper_case=0.3", "data.noise.concat_next=0.3",
    )  # fmt: skip

    def recipe(run: Path) -> Recipe:
        document = tiny(run, *settings).model_dump()
        document["data"] |= {"train": None, "corpora": mixture}
        return recipe_from_dict(document, where="recipe")

    report = train(recipe(tmp_path / "unbroken"))
    assert report["pairs"] == 70
    assert report["training_files"] == [str(corpus / f"{name}.{side}") for name in ("train", "valid") for side in ("en", "de")]
    for stop in (2, 3):
        with pytest.raises(InterruptedRun):
            train(recipe(tmp_path / "run"), Recorder(stop_after=stop))
    train(recipe(tmp_path / "run"))
    assert_same_run(tmp_path / "run", tmp_path / "unbroken")


def test_run_ends_well_without_its_text(tiny: MakeRecipe, corpus: Path, tmp_path: Path) -> None:
    """The corpora are read before training only."""
    folder = Path(shutil.copytree(corpus, tmp_path / "corpus"))
    recipe = tiny(tmp_path / "run", f"data.root='{folder}'", "data.train={source='train*.en', target='train*.de'}")

    class CorpusRemover(Recorder):
        def after_step(self, event: StepDone) -> None:
            for path in folder.glob("train*"):
                path.unlink()

    assert train(recipe, CorpusRemover())["steps"] == 6
    average_run(tmp_path / "run", tmp_path / "out", averaging="last", count=1)


WORKER_SCRIPT = """
import json, multiprocessing, os, signal, sys, time
from pathlib import Path
from dragoman.config import recipe_from_dict
from dragoman.data.dataloader import BatchStream
from dragoman.training.run import train

taken = 0
take = BatchStream.next_batch

def interrupted(stream):
    global taken
    taken += 1
    batches = take(stream)
    if taken == int(sys.argv[2]):
        if sys.argv[3] == "worker":
            for process in multiprocessing.active_children():
                process.kill()
        else:
            os.killpg(0, signal.Signals[sys.argv[3]])
            time.sleep(0.5)
    return batches

if __name__ == "__main__":
    os.setpgid(0, 0)
    BatchStream.next_batch = interrupted
    try:
        train(recipe_from_dict(json.loads(Path(sys.argv[1]).read_bytes()), where="recipe"))
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
        print(f"processes left: {len(multiprocessing.active_children())}")
"""


def run_with_workers(recipe: Recipe, folder: Path, stop: int, sent: str) -> subprocess.CompletedProcess[str]:
    """Train in another process. After batch `stop`, its data worker is killed, or all processes get the signal `sent`."""
    (folder / "recipe.json").write_text(json.dumps(recipe.model_dump()))
    (folder / "run_with_workers.py").write_text(WORKER_SCRIPT)
    words = [sys.executable, str(folder / "run_with_workers.py"), str(folder / "recipe.json"), str(stop), sent]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signal_to_all_processes_stops_with_workers(name: str, tiny: MakeRecipe, tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to all of its processes, and a scheduler sends its signals to all processes of a job."""
    recipe = tiny(tmp_path / "run", *LONG, "data.num_workers=1", "data.preprocessing_workers=1", "training.max_steps=1000")
    # The signals come between the two batches of the first step, and after both batches of the third step.
    for stop, step in ((1, 1), (4, 3)):
        done = run_with_workers(recipe, tmp_path, stop, name)
        assert done.stdout.startswith(f"InterruptedRun: {name}: stopped after step {step}; "), done.stdout + done.stderr
        # Python's resource tracker may warn in two lines about a semaphore that no longer exists.
        unexpected_lines = [
            line for line in done.stderr.splitlines() if "resource_tracker" not in line and "  warnings.warn(" not in line
        ]
        assert unexpected_lines == []


@pytest.mark.slow
def test_killed_data_worker_is_reported(tiny: MakeRecipe, tmp_path: Path) -> None:
    """The training has a process of its own, because torch's handler of SIGCHLD raises wherever the main thread is then."""
    recipe = tiny(tmp_path / "run", "data.num_workers=1", "training.max_steps=100000")
    done = run_with_workers(recipe, tmp_path, 1, "worker")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("WorkerLostError: data.num_workers: a worker process was killed")
    assert done.stdout.endswith("is saved, and the same command resumes from there\nprocesses left: 0\n")


# Damage


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_run_without_intact_checkpoint_is_not_replaced(unbroken: Path, tiny: MakeRecipe, tmp_path: Path) -> None:
    run = Path(shutil.copytree(unbroken, tmp_path / "run"))
    for checkpoint in list_checkpoints(run / "checkpoints"):
        flip_bit(checkpoint.path / "model.safetensors")
    for _ in range(2):
        with raises_code("checkpoint-not-found", "run=FOLDER"):
            train(tiny(run, *LONG))
    shutil.rmtree(run / "checkpoints")
    with raises_code("checkpoint-not-found"):
        train(tiny(run, *LONG))
    assert (run / "bundle" / "weights.safetensors").read_bytes() == (unbroken / "bundle" / "weights.safetensors").read_bytes()


@pytest.mark.parametrize("problem", ["another format", "unreadable"])
def test_checkpoint_that_cannot_be_verified_is_kept(
    problem: str, unbroken: Path, tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(unbroken, tmp_path / "run"))
    before = checkpoint_names(run)
    if problem == "unreadable":

        def failing(*_: object) -> NoReturn:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(dragoman.io.storage, "_compute_checksum", failing)
    else:
        manifest = list_checkpoints(run / "checkpoints")[-1].path / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 2'))
    message = "reads format 1" if problem == "another format" else "cannot be read: Input/output error"
    with pytest.raises(RunError, match=message):
        train(tiny(run, *LONG, "training.max_steps=12"))
    assert checkpoint_names(run) == before


def test_average_of_damaged_checkpoint_fails(unbroken: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(unbroken, tmp_path / "run"))
    flip_bit(list_checkpoints(run / "checkpoints")[-1].path / "model.safetensors")
    with raises_code("checkpoint-damaged", "model.safetensors"):
        average_run(run, tmp_path / "out", averaging="last", count=2)
    assert not (tmp_path / "out").exists()


def full(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.slow
def test_full_disk_keeps_last_checkpoint_and_continues(
    unbroken: Path, tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    recipe = tiny(tmp_path / "run", *LONG)
    written: list[Path] = []

    def full_for_a_while(path: Path, tensors: Mapping[str, Tensor]) -> str:
        written.append(path)
        return full() if 6 <= len(written) <= 7 else save_tensors(path, tensors)

    monkeypatch.setattr(dragoman.training.checkpoints.checkpoint, "save_tensors", full_for_a_while)
    train(recipe, recorder)
    messages = recorder.texts("checkpoint_failed")
    # Two files each: the third checkpoint was cut in its second file, the one after in its first.
    assert len(messages) == 2
    assert all("the disk is full" in text and "training continues and tries again" in text for text in messages)
    assert "step-00000004 is saved" in messages[0]
    assert not any("\n" in text for text in messages)
    last, theirs = (list_checkpoints(run / "checkpoints")[-1] for run in (tmp_path / "run", unbroken))
    assert_equal_states(last, theirs)


def test_run_folder_that_cannot_be_created(tiny: MakeRecipe, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises_code("write-failed", "file/run"):
        train(tiny(tmp_path / "file" / "run"))


# Signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signal_saves_a_checkpoint_and_names_it(number: signal.Signals, tiny: MakeRecipe, tmp_path: Path) -> None:
    before = signal.getsignal(number)
    saved = tmp_path / "run" / "checkpoints" / "step-00000003"
    with pytest.raises(InterruptedRun) as caught:
        train(tiny(tmp_path / "run"), Recorder(stop_after=3, signals=[number]))
    assert (
        str(caught.value) == f"{number.name}: stopped after step 3; {saved} is saved, and the same command resumes from there"
    )
    assert caught.value.exit_code == 130
    assert signal.getsignal(number) is before
    assert list_checkpoints(tmp_path / "run" / "checkpoints")[-1].path == saved


def test_second_ctrl_c_stops_at_once(tiny: MakeRecipe, tmp_path: Path) -> None:
    recipe = tiny(tmp_path / "run", "training.checkpoint_every_steps=2")
    with raises_code("interrupted", "after step 3", "step-00000002 is saved"):
        train(recipe, Recorder(stop_after=3, signals=[signal.SIGINT, signal.SIGINT]))
    assert checkpoint_names(tmp_path / "run") == ["step-00000002"]
    with raises_code("interrupted", "after step 1", "no checkpoint is saved"):
        train(tiny(tmp_path / "other"), Recorder(stop_after=1, signals=[signal.SIGINT, signal.SIGINT]))


def test_run_works_in_another_thread(tiny: MakeRecipe, tmp_path: Path) -> None:
    reports: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: reports.append(train(tiny(tmp_path / "run", "training.max_steps=2"))))
    thread.start()
    thread.join()
    assert reports[0]["steps"] == 2


# Validation, patience, and what is saved


EVERY_STEP = ("training.validate_every_steps=1", "training.max_steps=12")


def read_log_lines(recipe: Recipe, kind: str) -> list[dict[str, Any]]:
    return [entry for entry in read_metrics_log(Path(recipe.run) / "metrics.jsonl") if entry["type"] == kind]


def test_patience_ends_a_run(tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_validations(monkeypatch, nll=[5, 4, 4, 3.9, 4, 3.9, 4, 0, 0])
    recipe = tiny(tmp_path / "run", *EVERY_STEP, "training.patience=3", "training.num_validation_translations=0")
    trainer = new_trainer(recipe)
    trainer.run()
    # 3.9 at step 4 is the best; 4, an equal 3.9 and 4 are the three without a better one.
    assert (trainer.state.step, trainer.state.best_step, trainer.state.best) == (7, 4, -3.9)
    assert [entry["step"] for entry in read_log_lines(recipe, "valid")] == [1, 2, 3, 4, 5, 6, 7]
    assert [entry["step"] for entry in read_log_lines(recipe, "valid") if entry["best"]] == [1, 2, 4]
    assert checkpoint_names(tmp_path / "run")[-1] == "step-00000007"
    resumed = new_trainer(recipe, recorder := Recorder())
    resumed.run()
    assert recorder.num_steps == 0


@pytest.mark.parametrize(("best_metric", "best_step"), [("loss", 2), ("bleu", 3)])
def test_best_metric_selects_the_best_step(
    best_metric: str, best_step: int, tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_validations(monkeypatch, nll=[3, 1, 2, 4], bleu=[10, 20, 30, 25])
    recipe = tiny(
        tmp_path / "run", "training.validate_every_steps=1", "training.max_steps=4", f"training.best_metric='{best_metric}'"
    )
    trainer = new_trainer(recipe)
    trainer.run()
    assert trainer.state.best_step == best_step
    assert [entry["bleu"] for entry in read_log_lines(recipe, "valid")] == [10, 20, 30, 25]


def test_last_step_is_validated_once(tiny: MakeRecipe, tmp_path: Path) -> None:
    for steps in (4, 6):
        recipe = tiny(
            tmp_path / f"run{steps}", f"training.max_steps={steps}", "training.validate_every_steps=3",
            "training.checkpoint_every_steps=2",
        )  # fmt: skip
        new_trainer(recipe).run()
        assert [entry["step"] for entry in read_log_lines(recipe, "valid")] == ([3, 4] if steps == 4 else [3, 6])


def test_validation_loss_equals_forced_scoring(trained: Path, corpus: Path) -> None:
    # The end token counts; the smoothed loss is another number.
    lines = [list(read_lines(corpus / f"valid.{language}")) for language in ("en", "de")]
    checkpoint = list_checkpoints(trained / "checkpoints")[-1]
    bundle = load_bundle(trained / "bundle")
    load_weights(bundle.model, checkpoint.weights(), location=checkpoint.path)
    bundle = bundle_model(bundle.recipe, bundle.tokenizer, bundle.model, bundle.metadata)
    scored = dragoman.Translator.from_bundles([bundle], device="cpu").score(*lines)
    log_probs = [value for output in scored for value in output.token_log_probs]
    last = [entry for entry in read_metrics_log(trained / "metrics.jsonl") if entry["type"] == "valid"][-1]
    assert last["step"] == checkpoint.step == 200
    assert last["nll"] == pytest.approx(-sum(log_probs) / len(log_probs), rel=1e-5)
    assert last["perplexity"] == pytest.approx(math.exp(last["nll"]))
    data, hits = Corpus(list_pair_files(trained / "data", "valid")), list[bool]()
    for row in range(len(data)):
        targets = [*data.target(row).tolist(), END_ID]
        source_1S = torch.tensor([data.source(row).tolist()])
        logits_TV = bundle.model(source_1S, torch.tensor([[BEGIN_ID, *targets[:-1]]]))[0]
        hits += (logits_TV.argmax(dim=-1) == torch.tensor(targets)).tolist()
    assert last["token_accuracy"] == pytest.approx(100 * sum(hits) / len(hits))
    assert 0 < last["token_accuracy"] < 100
    assert last["loss"] > last["nll"] * 1.01


def test_log_line_is_mean_over_its_steps(tiny: MakeRecipe, tmp_path: Path) -> None:
    single, grouped = Recorder(), Recorder()
    new_trainer(tiny(tmp_path / "a", "training.log_every_steps=1"), single).run()
    trainer = new_trainer(tiny(tmp_path / "b", "training.log_every_steps=3"), grouped)
    trainer.run()
    assert [report.step for report in grouped.steps] == [3, 6]
    epochs, tokens = count_batches(trainer.recipe, 6)
    assert trainer.state.target_tokens == sum(tokens)
    for index, report in enumerate(grouped.steps):
        part = slice(3 * index, 3 * index + 3)
        mean = sum(n * step.loss for n, step in zip(tokens[part], single.steps[part], strict=True)) / sum(tokens[part])
        assert report.loss == pytest.approx(mean, rel=1e-5)
        assert report.perplexity == pytest.approx(math.exp(mean), rel=1e-4)
        assert report.lr == pytest.approx(1e-2 * report.step / 20)
        assert report.epoch == epochs[report.step - 1]
        assert report.progress == report.step / 6


def names(*steps: int) -> list[str]:
    return [f"step-{step:08d}" for step in steps]


def use_fake_clock(monkeypatch: pytest.MonkeyPatch, *, minutes_a_step: float) -> None:
    """Use a clock that advances with each step only."""
    steps = count(1)
    now = 0.0

    def step_taken(started: float, clock: str) -> float:
        nonlocal now
        now = 60.0 * minutes_a_step * next(steps)
        return minutes_a_step

    monkeypatch.setattr(dragoman.training.trainer, "compute_elapsed_minutes", step_taken)
    monkeypatch.setattr(dragoman.training.checkpoints.checkpointer, "time", SimpleNamespace(monotonic=lambda: now))


def test_checkpoints_follow_the_clock(tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_fake_clock(monkeypatch, minutes_a_step=1.0)
    recipe = tiny(tmp_path / "run", "training.checkpoint_every_minutes=2.5", "training.max_minutes=8", "training.max_steps=99")
    new_trainer(recipe).run()
    assert checkpoint_names(tmp_path / "run") == names(3, 6, 8)


def mean_of(run: Path, *steps: int) -> dict[str, Tensor]:
    weight_sets = [load_file(run / "checkpoints" / name / "model.safetensors") for name in names(*steps)]
    means = {}
    for name in weight_sets[0]:
        first, *others = [weights[name].double() for weights in weight_sets]
        means[name] = (sum(others, first) / len(weight_sets)).float()
    return means


@pytest.mark.slow
def test_bundle_is_mean_of_selected_checkpoints(tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_validations(monkeypatch, nll=[5, 3, 1, 4, 3.5, 9])
    every = ("training.validate_every_steps=1", "training.checkpoint_every_steps=1", "training.num_validation_translations=0")
    averaging = ("training.checkpoint_averaging='best'", "training.num_averaged_checkpoints=2", "training.keep_best=2")
    report = train(tiny(tmp_path / "run", *every, *averaging, "training.keep_last=1"))
    assert sorted(report["averaged_checkpoints"]) == names(2, 3)
    weights = load_file(tmp_path / "run" / "bundle" / "weights.safetensors")
    assert_equal_tensors(weights, mean_of(tmp_path / "run", 2, 3))


def test_unvalidated_run_has_no_best_checkpoint(tiny: MakeRecipe, tmp_path: Path) -> None:
    train(without(tiny(tmp_path / "run"), "valid"))
    with raises_code("checkpoint-not-found", "1 validated checkpoints", "holds 0"):
        average_run(tmp_path / "run", tmp_path / "out", averaging="best", count=1)


def test_interrupted_run_can_be_averaged(tiny: MakeRecipe, tmp_path: Path) -> None:
    with pytest.raises(InterruptedRun):
        train(tiny(tmp_path / "run", *LONG), Recorder(stop_after=5))
    metadata = average_run(tmp_path / "run", tmp_path / "out", averaging="last", count=1)
    assert metadata["steps"] == 5
    assert load_bundle(tmp_path / "out").metadata.to_dict() == metadata
    (tmp_path / "run" / "data" / "source.model").write_bytes(b"another")
    with raises_code("data-changed", "(source.model differ)"):
        average_run(tmp_path / "run", tmp_path / "other", averaging="last", count=1)
    assert not (tmp_path / "other").exists()


def test_average_run_writes_another_bundle(trained: Path, tmp_path: Path) -> None:
    metadata = average_run(trained, tmp_path / "last", averaging="last", count=2)
    assert metadata["averaged_checkpoints"] == names(150, 200)
    assert metadata["steps"] == 200
    assert_equal_tensors(load_file(tmp_path / "last" / "weights.safetensors"), mean_of(trained, 150, 200))
    assert load_bundle(tmp_path / "last").metadata.to_dict() == metadata
    with raises_code("checkpoint-not-found", "99 checkpoints", "holds 4", "training.keep_last"):
        average_run(trained, tmp_path / "many", averaging="last", count=99)
    with raises_code("output-exists"):
        average_run(trained, tmp_path / "last", averaging="last", count=1)
    with raises_code("checkpoint-not-found", "nowhere"):
        average_run(tmp_path / "nowhere", tmp_path / "none", averaging="last", count=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last"]


def save_small(folder: Path, step: int, *, metric: float | None, scheduled: bool = True) -> None:
    tensors, state = StateTensors({"a": torch.zeros(1)}, {}), TrainerState(step=step)
    save_checkpoint(folder, tensors, trainer_state=state, recipe={}, metric=metric, data_digests={}, scheduled=scheduled)


def test_unscheduled_checkpoints_are_pruned(tmp_path: Path) -> None:
    """The newest one stays, whether it is scheduled or not."""
    for step, scheduled, steps in ((1, True, (1,)), (2, False, (1, 2)), (3, True, (1, 3)), (4, False, (3, 4))):
        save_small(tmp_path, step, metric=None, scheduled=scheduled)
        prune_checkpoints(tmp_path, keep_last=2, keep_best=0)
        assert sorted(path.name for path in tmp_path.iterdir()) == names(*steps)


def test_newest_and_best_checkpoints_are_kept(subtests: pytest.Subtests, tmp_path: Path) -> None:
    """The best in order are 3 (1.0), 2 (3.0) and 5 (3.5)."""
    for keep_last, keep_best, steps in ((1, 0, (6,)), (3, 0, (4, 5, 6)), (1, 2, (2, 3, 6)), (2, 3, (2, 3, 5, 6))):
        with subtests.test(keep_last=keep_last, keep_best=keep_best):
            folder = tmp_path / f"{keep_last}-{keep_best}"
            folder.mkdir()
            for step, nll in enumerate((5, 3, 1, 4, 3.5, 9), start=1):
                save_small(folder, step, metric=-nll)
                prune_checkpoints(folder, keep_last=keep_last, keep_best=keep_best)
            assert sorted(path.name for path in folder.iterdir()) == names(*steps)


# Non-finite numbers


@pytest.mark.parametrize("every", [1, 1000])
def test_nonfinite_loss_stops_the_run(every: int, tiny: MakeRecipe, tmp_path: Path) -> None:
    intervals = f"training.log_every_steps={every}", f"training.checkpoint_every_steps={every}"
    settings = ("training.peak_lr=1e30", "training.num_validation_translations=0", "training.max_steps=40")
    with raises_code("run-diverged", "step 1", "10 steps in a row", "a loss or gradient") as caught:
        train(tiny(tmp_path / "run", *intervals, *settings))
    saved = list_checkpoints(tmp_path / "run" / "checkpoints")
    for checkpoint in saved:
        assert all(bool(weight.isfinite().all()) for weight in checkpoint.weights().values())
    message = f"{saved[-1].path} is saved" if saved else "no checkpoint is saved yet"
    assert message in str(caught.value)
    read_strict_log(tmp_path / "run" / "metrics.jsonl")


def test_nonfinite_weights_are_not_saved(tiny: MakeRecipe, tmp_path: Path) -> None:
    class WeightSpoiler(Recorder):
        def after_step(self, event: StepDone) -> None:
            if self.num_steps == 3:
                trainer.model.output.data[5, 5] = math.nan

    settings = ("training.checkpoint_every_steps=1", "training.log_every_steps=1000", "training.keep_last=1")
    trainer = new_trainer(tiny(tmp_path / "run", *settings, "training.checkpoint_averaging='none'"), WeightSpoiler())
    with raises_code("run-diverged", "step 3: a weight", "step-00000002 is saved"):
        trainer.run()
    assert checkpoint_names(tmp_path / "run") == names(2)


# Files of a run


def read_strict_log(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a metrics log, as strict JSON without NaN and Infinity."""
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=_refuse) for line in text.splitlines()]


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def test_metrics_log_holds_every_line_once(trained: Path) -> None:
    entries = read_strict_log(trained / "metrics.jsonl")
    for kind, steps in (("train", range(20, 201, 20)), ("valid", (100, 200))):
        entries_of_kind = [entry for entry in entries if entry["type"] == kind]
        assert [entry["step"] for entry in entries_of_kind] == list(steps)
        for entry in entries_of_kind:
            assert {"loss", "perplexity"} <= entry.keys()
    train_losses = [entry["loss"] for entry in entries if entry["type"] == "train"]
    assert train_losses[-1] < 0.5 * train_losses[0]


def test_metrics_log_is_cut_at_resumed_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [{"type": "train", "step": step} for step in (1, 2, 3)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"type": "train", "st')
    MetricsLog.resume(path, step=2).write("train", step=3, loss=1.5)
    assert read_strict_log(path) == [*lines[:2], {"type": "train", "step": 3, "loss": 1.5}]


def test_report_describes_the_run(trained: Path, corpus: Path) -> None:
    report = json.loads((trained / "report.json").read_text(encoding="utf-8"), parse_constant=_refuse)
    assert report["name"] == "tiny"
    assert report["bundle"] == str(trained / "bundle")
    assert report["training_files"] == [str(corpus / "train.en"), str(corpus / "train.de")]
    assert (report["pairs"], report["steps"], report["test_sentences"]) == (60, 200, 8)
    assert report["averaged_checkpoints"] == names(50, 100, 150, 200)
    assert report["parameters"] == load_bundle(trained / "bundle").model.num_parameters()
    recipe = recipe_from_dict(json.loads((trained / "recipe.json").read_text(encoding="utf-8")), where="recipe.json")
    epochs, tokens = count_batches(recipe, 200)
    assert report["epochs"] == round(epochs[-1], 2)
    last = [entry for entry in read_metrics_log(trained / "metrics.jsonl") if entry["type"] == "valid"][-1]
    assert report["valid"] == {key: last[key] for key in ("step", "loss", "perplexity", "token_accuracy", "bleu")}
    assert report["signatures"].keys() == {"bleu", "paper_bleu", "chrf", "exact_match"}
    assert {"machine", "torch", "dragoman", "finished", "seconds", "paper_deviations"} <= report.keys()
    assert report["target_tokens"] == sum(tokens)


def test_report_scores_are_those_of_bundle(trained: Path, corpus: Path) -> None:
    report = json.loads((trained / "report.json").read_text(encoding="utf-8"))
    sources, references = (list(read_lines(corpus / f"test.{language}")) for language in ("en", "de"))
    texts = [
        translation.text
        for translation in dragoman.load(trained / "bundle", task="translation", device="cpu", precision="float32").translate(
            sources
        )
    ]
    assert [sample["translation"] for sample in report["samples"]] == texts
    assert [sample["source"] for sample in report["samples"]] == sources
    for name, score in (("bleu", bleu), ("chrf", chrf), ("exact_match", exact_match)):
        assert report[name] == round(score(texts, [references]).value, 2)
    assert report["exact_match"] > 0


def test_run_works_without_validation_test_set_and_matplotlib(tiny: MakeRecipe, tmp_path: Path) -> None:
    report = train(without(tiny(tmp_path / "run"), "valid", "test"))
    assert report["steps"] == 6
    assert "valid" not in report
    assert "bleu" not in report
    assert {entry["type"] for entry in read_strict_log(tmp_path / "run" / "metrics.jsonl")} == {"run", "train", "event"}
    assert not (tmp_path / "run" / "curve.svg").exists()
    assert not (tmp_path / "run" / "attention.svg").exists()
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "no curves: drawing a chart needs matplotlib" in page
    assert "dragoman[plots]" in page


@pytest.mark.usefixtures("charts")
def test_run_shorter_than_log_interval_has_report(tiny: MakeRecipe, tmp_path: Path) -> None:
    assert train(without(tiny(tmp_path / "run", "training.log_every_steps=100"), "valid", "test"))["steps"] == 6
    assert ElementTree.parse(tmp_path / "run" / "curve.svg").getroot().tag.endswith("svg")


def test_learned_positions_up_to_the_last(tiny: MakeRecipe, corpus: Path, tmp_path: Path) -> None:
    # The test lines have one token less than positions, as many, and more. Outputs reach the last position.
    folder = Path(shutil.copytree(corpus, tmp_path / "corpus"))
    for language, word in (("en", "ten"), ("de", "zehn")):
        (folder / f"test.{language}").write_text("".join(f"{' '.join([word] * n)}\n" for n in (1, 28, 29, 30, 31, 60)))
    recipe = tiny(
        tmp_path / "run", f"data.root='{folder}'", "model.position_encoding='learned'", "model.max_positions=30",
        "data.max_length=30", "decoding.max_extra_tokens=100",
    )  # fmt: skip
    report = train(recipe)
    assert report["test_sentences"] == 6
    assert report["samples"][-1]["translation"] == ""


@pytest.mark.usefixtures("charts")
def test_attention_figure_uses_a_drawable_sample(bundle: Path) -> None:
    whole = load_bundle(bundle)
    empty, long = Sample("one two three", "", ""), Sample("one two three", "", "zehn " * 20)
    single, fitting = Sample("one", "", "eins"), Sample("one two three", "", "zwei")
    for samples, requested, expected in (
        ([empty, single, fitting], None, fitting),
        ([empty, single, fitting], "one", single),
        ([empty, single], None, single),
        ([long, single], None, long),
    ):
        sample = dragoman.training.report._select_attention_sample(whole, samples, requested)
        assert sample == expected
        ElementTree.fromstring(dragoman.training.report.draw_attention(whole, sample))


# Bad input


@pytest.mark.parametrize(
    ("split", "content", "expected"),
    [
        ("train", "eins\n", "1 lines"),
        ("test", None, "there is no such file (data.root = "),
        ("test", b"ein\xff\n", "not UTF-8 (byte 0xff at column 4)"),
        ("test", " \n" * 8, "all references are blank"),
    ],
)
def test_bad_corpus_fails_before_training(
    split: str, content: str | bytes | None, expected: str, tiny: MakeRecipe, corpus: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(corpus, tmp_path / "corpus"))
    path = folder / f"{split}.de"
    path.unlink()
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    recipe = tiny(tmp_path / "run", f"data.root='{folder}'")
    with pytest.raises(DataError) as caught:
        train(recipe)
    message = str(caught.value)
    assert str(path) in message
    assert expected in message
    assert "\n" not in message
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_validation_sentence_beyond_positions_fails(tiny: MakeRecipe, corpus: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(corpus, tmp_path / "corpus"))
    for language, word in (("en", "ten"), ("de", "zehn")):
        (folder / f"valid.{language}").write_text(" ".join([word] * 50) + "\n")
    recipe = tiny(
        tmp_path / "run",
        f"data.root='{folder}'",
        "model.position_encoding='learned'",
        "model.max_positions=30",
        "data.max_length=30",
    )
    with raises_code("invalid-recipe", "data.valid", "model.max_positions = 30"):
        train(recipe)


@pytest.fixture(autouse=True)
def check_signal_handlers_are_restored() -> Iterator[None]:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)] == before
