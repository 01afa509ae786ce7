"""What only a GPU can show; `make test-gpu` runs it where there is one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import NO_DROPOUT, MakeRecipe
from dragoman.config import DecodingConfig, make_recipe
from dragoman.data.collate import collate, pad_sequences
from dragoman.inference.backends.cuda.graphs import CudaGraph
from dragoman.inference.backends.cuda.model import StaticTransformer, build_cuda_inference_model
from dragoman.model.factory import build_model
from dragoman.tasks.generation import generate
from dragoman.tasks.inference_model import InferenceModel, as_inference_model
from dragoman.training.gradient_guard import GradientGuard
from dragoman.training.losses.label_smoothing import batch_loss
from dragoman.training.monitoring.metrics_log import read_metrics_log
from dragoman.training.run import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

RECIPE = make_recipe({"preset": "modern", "size": "tiny", "model": {"residual_dropout": 0.0, "embedding_dropout": 0.0}})
SOURCES = [[7, 8, 9, 3], [5, 3], [11, 6, 4, 10, 3]]
TARGETS = [[9, 8, 7], [5], [10, 4, 6, 11]]


def test_loss_and_gradients_equal_those_of_the_processor() -> None:
    torch.manual_seed(3)
    model = build_model(RECIPE.model, source_vocab_size=12, target_vocab_size=12).eval()
    batch = collate(SOURCES, TARGETS, start_id=2)
    found = {}
    for name in ("cpu", "cuda"):
        model.to(name).zero_grad()
        loss, _ = batch_loss(model, batch.to(torch.device(name)), epsilon=0.1, smoothing_mode="exclude_target")
        loss.backward()  # type: ignore[no-untyped-call]
        assert model.output.grad is not None
        found[name] = (loss.item(), model.output.grad.cpu().clone())
    assert found["cuda"][0] == pytest.approx(found["cpu"][0], rel=1e-5)
    torch.testing.assert_close(found["cuda"][1], found["cpu"][1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", ["greedy", "beam", "sample"])
def test_search_finds_what_the_processor_finds(method: str) -> None:
    torch.manual_seed(3)
    model = build_model(RECIPE.model, source_vocab_size=12, target_vocab_size=12).eval().double()
    config = DecodingConfig.model_validate({"method": method, "max_extra_tokens": 6})
    found = [
        [
            [one.tokens for one in hypotheses]
            for hypotheses in generate(as_inference_model([model.to(name)]), SOURCES, config, start_id=2)
        ]
        for name in ("cpu", "cuda")
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("method", ["greedy", "beam", "sample"])
@pytest.mark.parametrize(
    "knobs", [{}, {"norm": "post", "attention_window": 3}, {"d_k": 5, "d_v": 3, "position_encoding": "learned"}]
)
def test_graphs_find_what_the_processor_finds(knobs: dict[str, Any], method: str) -> None:
    """First while they are recorded, then by repetition alone; over more places than there is room for at first."""
    torch.manual_seed(3)
    config = RECIPE.model.model_copy(update=knobs)
    model = build_model(config, source_vocab_size=12, target_vocab_size=12).eval().double()
    decoding = DecodingConfig.model_validate({"method": method, "max_extra_tokens": 40})

    def found(speaker: InferenceModel) -> list[list[tuple[int, ...]]]:
        results = generate(speaker, SOURCES * 3, decoding, start_id=2)
        return [[one.tokens for one in hypotheses] for hypotheses in results]

    expected = found(as_inference_model([model]))
    speaker = build_cuda_inference_model(model.to("cuda"))
    assert [found(speaker) for _ in range(3)] == [expected] * 3


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_graphs_compute_what_the_plain_step_computes(precision: torch.dtype) -> None:
    """Logits of 40 given tokens in two rooms, in float32 whatever the weights are; the second time all by repetition."""
    torch.manual_seed(3)
    model = build_model(RECIPE.model, source_vocab_size=12, target_vocab_size=12).eval()
    source, tokens_TN = pad_sequences(SOURCES), torch.randint(3, 12, (40, 6))
    rows_N = torch.tensor([1, 0, 3, 3, 4, 5])
    state, expected = model.start(source), []
    for tokens_N in tokens_TN:
        logits, state = model.step(tokens_N, state.reorder(rows_N))
        expected.append(logits)
    ours = StaticTransformer(model.to("cuda", precision))
    rtol, atol = (1e-4, 1e-4) if precision == torch.float32 else (0.05, 0.1)
    for _ in range(2):
        fixed = ours.start(source.cuda())
        for tokens_N, plain in zip(tokens_TN.cuda(), expected, strict=True):
            logits, fixed = ours.step(tokens_N, fixed.reorder(rows_N.cuda()))
            assert logits.dtype == torch.float32
            torch.testing.assert_close(logits.cpu(), plain, rtol=rtol, atol=atol)
    advances = [bucket.run_step for bucket in ours.buckets]
    assert len(advances) == 2
    assert all(isinstance(one, CudaGraph) and one.graph is not None for one in advances)


def test_steps_wait_for_nothing_and_leave_no_memory_behind() -> None:
    """Searches of several sizes; from the third on buffers and graphs are there, and the processor never asks the GPU."""
    model = build_model(RECIPE.model, source_vocab_size=12, target_vocab_size=12).eval().to("cuda", torch.bfloat16)
    ours, held = StaticTransformer(model), []
    kept_B, rows_N = torch.tensor([2, 0], device="cuda"), torch.tensor([1, 1, 2, 3], device="cuda")
    for turn in range(5):
        for count in (1, 3, 6):
            state = ours.start(pad_sequences([SOURCES[0]] * count).cuda())
            tokens_N = torch.full((2 * count,), 5, device="cuda")
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error" if turn > 1 else "default")
            try:
                for _ in range(40):
                    _, state = ours.step(tokens_N, state)
                if count > 2:
                    state = state.select_sentences(kept_B).reorder(rows_N)
                    for _ in range(4):
                        _, state = ours.step(tokens_N[:4], state)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            del state
        held.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    assert held[2] == held[3] == held[4]


def test_batches_made_ahead_in_pinned_memory_are_the_same(tiny: MakeRecipe, tmp_path: Path) -> None:
    """Losses agree but for the order of sums, over two passes."""
    losses = []
    for loaders in (0, 2):
        run = tmp_path / f"run{loaders}"
        report = train(tiny(run, *NO_DROPOUT, f"data.num_workers={loaders}", "training.max_steps=12"))
        assert report["machine"].startswith("cuda")
        losses.append([entry["loss"] for entry in read_metrics_log(run / "metrics.jsonl") if entry["type"] == "train"])
    assert len(losses[0]) == 12
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_run_that_stops_and_goes_on_learns_as_the_one_that_did_not(precision: str, tiny: MakeRecipe, tmp_path: Path) -> None:
    settings = (f"training.precision='{precision}'", "training.max_steps=60", "training.checkpoint_every_steps=20")
    train(tiny(tmp_path / "unbroken", *settings))
    train(tiny(tmp_path / "broken", *settings, "training.max_steps=20"))
    train(tiny(tmp_path / "broken", *settings))
    losses = [
        [entry["loss"] for entry in read_metrics_log(tmp_path / run / "metrics.jsonl") if entry["type"] == "train"]
        for run in ("unbroken", "broken")
    ]
    assert losses[0][-1] < 0.8 * losses[0][0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3 if precision == "float32" else 0.05)


def test_the_guard_lets_nothing_through_and_waits_for_nothing() -> None:
    device = torch.device("cuda")
    guard = GradientGuard(device, grad_norm_spike_sigma=3.0)
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
            guard.should_apply(norm, norm)
        for norm in numbers[-3:]:
            good = guard.should_apply(norm, numbers[0])
            optimiser.found_inf = (~good).float()  # type: ignore[attr-defined]
            optimiser.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(parameter, before)
    assert guard.consecutive_skips == 3
    assert optimiser.state[parameter]["step"].item() == 1.0
