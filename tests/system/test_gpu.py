"""Tests that need a GPU: `make test-gpu`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import MakeRecipe
from dragoman.config import DecodingConfig, make_recipe
from dragoman.data.collate import collate
from dragoman.data.padding import pad_sequences
from dragoman.model.factory import build_model
from dragoman.tasks.generation import BatchSearch, generate
from dragoman.tasks.inference_model import InferenceModel
from dragoman.torch_engine.graphs import CudaGraph
from dragoman.torch_engine.inference_model import as_inference_model
from dragoman.torch_engine.static_model import StaticTransformer, build_static_inference_model
from dragoman.training.gradient_guard import GradientGuard
from dragoman.training.losses.label_smoothing import batch_loss
from dragoman.training.monitoring.metrics_log import read_metrics_log
from dragoman.training.run import train
from tiny_runs import NO_DROPOUT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning"),
]

RECIPE = make_recipe({"preset": "modern", "size": "tiny", "model": {"residual_dropout": 0.0, "embedding_dropout": 0.0}})
SOURCES = [[7, 8, 9, 3], [5, 3], [11, 6, 4, 10, 3]]
TARGETS = [[9, 8, 7], [5], [10, 4, 6, 11]]


def test_loss_and_gradients_equal_those_on_cpu() -> None:
    torch.manual_seed(3)
    model = build_model(RECIPE.model, source_vocab_size=12, target_vocab_size=12).eval()
    batch = collate(SOURCES, TARGETS, start_id=2)
    results = {}
    for name in ("cpu", "cuda"):
        model.to(name).zero_grad()
        loss, _ = batch_loss(model, batch.to(torch.device(name)), epsilon=0.1, smoothing_mode="exclude_target")
        loss.backward()  # type: ignore[no-untyped-call]
        assert model.output.grad is not None
        results[name] = (loss.item(), model.output.grad.cpu().clone())
    assert results["cuda"][0] == pytest.approx(results["cpu"][0], rel=1e-5)
    torch.testing.assert_close(results["cuda"][1], results["cpu"][1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", ["greedy", "beam", "sample"])
def test_search_equals_search_on_cpu(method: str) -> None:
    torch.manual_seed(3)
    model = build_model(RECIPE.model, source_vocab_size=12, target_vocab_size=12).eval().double()
    config = DecodingConfig.model_validate({"method": method, "max_extra_tokens": 6})
    outputs = [
        [
            [hypothesis.tokens for hypothesis in hypotheses]
            for hypotheses in generate(BatchSearch(as_inference_model([model.to(name)]), config, start_id=2), SOURCES)
        ]
        for name in ("cpu", "cuda")
    ]
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("method", ["greedy", "beam", "sample"])
@pytest.mark.parametrize(
    "settings", [{}, {"norm": "post", "attention_window": 3}, {"d_k": 5, "d_v": 3, "position_encoding": "learned"}]
)
def test_graph_search_equals_search_on_cpu(settings: dict[str, Any], method: str) -> None:
    """The first search records the graphs, and the others replay them. The outputs outgrow the first buffers."""
    torch.manual_seed(3)
    config = RECIPE.model.model_copy(update=settings)
    model = build_model(config, source_vocab_size=12, target_vocab_size=12).eval().double()
    decoding = DecodingConfig.model_validate({"method": method, "max_extra_tokens": 40})

    def decode(inference_model: InferenceModel) -> list[list[tuple[int, ...]]]:
        results = generate(BatchSearch(inference_model, decoding, start_id=2), SOURCES * 3)
        return [[hypothesis.tokens for hypothesis in hypotheses] for hypotheses in results]

    expected = decode(as_inference_model([model]))
    inference_model = build_static_inference_model(model.to("cuda"))
    assert [decode(inference_model) for _ in range(3)] == [expected] * 3


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_graph_step_equals_plain_step(precision: torch.dtype) -> None:
    """The logits of 40 fixed tokens in two buckets are in float32 for any weights. The second round replays all graphs."""
    torch.manual_seed(3)
    model = build_model(RECIPE.model, source_vocab_size=12, target_vocab_size=12).eval()
    source, tokens_TN = torch.from_numpy(pad_sequences(SOURCES)), torch.randint(3, 12, (40, 6))
    rows_N = torch.tensor([1, 0, 3, 3, 4, 5])
    state, expected = model.start(source), []
    for tokens_N in tokens_TN:
        logits, state = model.step(tokens_N, state.reorder(rows_N))
        expected.append(logits)
    static_model = StaticTransformer(model.to("cuda", precision))
    rtol, atol = (1e-4, 1e-4) if precision == torch.float32 else (0.05, 0.1)
    for _ in range(2):
        static_state = static_model.start(source.cuda())
        for tokens_N, plain in zip(tokens_TN.cuda(), expected, strict=True):
            logits, static_state = static_model.step(tokens_N, static_state.reorder(rows_N.cuda()))
            assert logits.dtype == torch.float32
            torch.testing.assert_close(logits.cpu(), plain, rtol=rtol, atol=atol)
    steps = [bucket.run_step for bucket in static_model.buckets]
    assert len(steps) == 2
    assert all(isinstance(step, CudaGraph) and step.graph is not None for step in steps)


def test_steps_never_synchronize_and_free_memory() -> None:
    """Buffers and graphs exist from the third round of searches on, and the CPU never waits for the GPU."""
    model = build_model(RECIPE.model, source_vocab_size=12, target_vocab_size=12).eval().to("cuda", torch.bfloat16)
    static_model, memory = StaticTransformer(model), []
    selected_B, rows_N = torch.tensor([2, 0], device="cuda"), torch.tensor([1, 1, 2, 3], device="cuda")
    for round_number in range(5):
        for count in (1, 3, 6):
            state = static_model.start(torch.from_numpy(pad_sequences([SOURCES[0]] * count)).cuda())
            tokens_N = torch.full((2 * count,), 5, device="cuda")
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error" if round_number > 1 else "default")
            try:
                for _ in range(40):
                    _, state = static_model.step(tokens_N, state)
                if count > 2:
                    state = state.select_sentences(selected_B).reorder(rows_N)
                    for _ in range(4):
                        _, state = static_model.step(tokens_N[:4], state)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            del state
        memory.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    assert memory[2] == memory[3] == memory[4]


def test_data_workers_pin_memory_without_changes(tiny: MakeRecipe, tmp_path: Path) -> None:
    """The losses of two epochs are equal up to the order of sums."""
    losses = []
    for num_workers in (0, 2):
        run = tmp_path / f"run{num_workers}"
        report = train(tiny(run, *NO_DROPOUT, f"data.num_workers={num_workers}", "training.max_steps=12"))
        assert report["machine"].startswith("cuda")
        losses.append([entry["loss"] for entry in read_metrics_log(run / "metrics.jsonl") if entry["type"] == "train"])
    assert len(losses[0]) == 12
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_resumed_run_learns_as_unbroken_run(precision: str, tiny: MakeRecipe, tmp_path: Path) -> None:
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


def test_guard_skips_steps_without_synchronization() -> None:
    device = torch.device("cuda")
    guard = GradientGuard(device, grad_norm_spike_sigma=3.0)
    parameter = torch.nn.Parameter(torch.ones(4, device=device))
    optimizer = torch.optim.Adam([parameter], lr=0.1, fused=True)
    numbers = [torch.tensor(float(value), device=device) for value in [*range(1, 40), math.nan, math.inf, 1e9]]
    parameter.grad = torch.ones(4, device=device)
    optimizer.step()
    initial = parameter.detach().clone()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for norm in numbers[:-3]:
            guard.should_apply(norm, norm)
        for norm in numbers[-3:]:
            applied = guard.should_apply(norm, numbers[0])
            optimizer.found_inf = (~applied).float()  # type: ignore[attr-defined]
            optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(parameter, initial)
    assert guard.consecutive_skips == 3
    assert optimizer.state[parameter]["step"].item() == 1.0
