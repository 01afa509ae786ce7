"""What only a GPU can show; `make test-gpu` runs it where there is one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from conftest import NO_DROPOUT, MakeRecipe
from dragoman.config import DecodingConfig, make_recipe
from dragoman.data.batches import collate
from dragoman.model.build import build_model
from dragoman.tasks.generation import generate, speaker_of
from dragoman.training.finish import train
from dragoman.training.guard import Guard
from dragoman.training.journal import read_journal
from dragoman.training.loss import batch_loss

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

RECIPE = make_recipe({"preset": "modern", "size": "tiny", "model": {"residual_dropout": 0.0, "embedding_dropout": 0.0}})
SOURCES = [[7, 8, 9, 3], [5, 3], [11, 6, 4, 10, 3]]
TARGETS = [[9, 8, 7], [5], [10, 4, 6, 11]]


def test_loss_and_gradients_equal_those_of_the_processor() -> None:
    torch.manual_seed(3)
    model = build_model(RECIPE.model, source_vocabulary=12, target_vocabulary=12).eval()
    batch = collate(SOURCES, TARGETS, start_id=2)
    found = {}
    for name in ("cpu", "cuda"):
        model.to(name).zero_grad()
        loss, _ = batch_loss(model, batch.to(torch.device(name)), epsilon=0.1, form="others")
        loss.backward()  # type: ignore[no-untyped-call]
        assert model.output.grad is not None
        found[name] = (loss.item(), model.output.grad.cpu().clone())
    assert found["cuda"][0] == pytest.approx(found["cpu"][0], rel=1e-5)
    torch.testing.assert_close(found["cuda"][1], found["cpu"][1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", ["greedy", "beam", "sample"])
def test_search_finds_what_the_processor_finds(method: str) -> None:
    torch.manual_seed(3)
    model = build_model(RECIPE.model, source_vocabulary=12, target_vocabulary=12).eval().double()
    config = DecodingConfig.model_validate({"method": method, "extra_length": 6})
    found = [
        [[one.tokens for one in hypotheses] for hypotheses in generate(speaker_of([model.to(name)]), SOURCES, config, start_id=2)]
        for name in ("cpu", "cuda")
    ]
    assert found[0] == found[1]


def test_batches_made_ahead_in_pinned_memory_are_the_same(tiny: MakeRecipe, tmp_path: Path) -> None:
    """Losses agree but for the order of sums, over two passes."""
    losses = []
    for loaders in (0, 2):
        run = tmp_path / f"run{loaders}"
        report = train(tiny(run, *NO_DROPOUT, f"data.loaders={loaders}", "training.max_steps=12"))
        assert report["machine"].startswith("cuda")
        losses.append([entry["loss"] for entry in read_journal(run / "metrics.jsonl") if entry["kind"] == "train"])
    assert len(losses[0]) == 12
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_run_that_stops_and_goes_on_learns_as_the_one_that_did_not(precision: str, tiny: MakeRecipe, tmp_path: Path) -> None:
    settings = (f"training.precision='{precision}'", "training.max_steps=60", "training.checkpoint_every_steps=20")
    train(tiny(tmp_path / "unbroken", *settings))
    train(tiny(tmp_path / "broken", *settings, "training.max_steps=20"))
    train(tiny(tmp_path / "broken", *settings))
    losses = [
        [entry["loss"] for entry in read_journal(tmp_path / run / "metrics.jsonl") if entry["kind"] == "train"]
        for run in ("unbroken", "broken")
    ]
    assert losses[0][-1] < 0.8 * losses[0][0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3 if precision == "float32" else 0.05)


def test_the_guard_lets_nothing_through_and_waits_for_nothing() -> None:
    device = torch.device("cuda")
    guard = Guard(device, spike_limit=3.0)
    parameter = torch.nn.Parameter(torch.ones(4, device=device))
    optimiser = torch.optim.Adam([parameter], lr=0.1, fused=True)
    numbers = [torch.tensor(float(value), device=device) for value in [*range(1, 40), math.nan, math.inf, 1e9]]
    parameter.grad = torch.ones(4, device=device)
    optimiser.step()
    before = parameter.detach().clone()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for norm in numbers[:-3]:
            guard.admit(norm, norm)
        for norm in numbers[-3:]:
            good = guard.admit(norm, numbers[0])
            optimiser.found_inf = (~good).float()  # type: ignore[attr-defined]
            optimiser.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(parameter, before)
    assert guard.in_a_row == 3
    assert optimiser.state[parameter]["step"].item() == 1.0
