"""Compute plan: kernels, peak FLOP/s, compiled layers. No kernel changes the result."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch

import dragoman.runtime.malloc
from conftest import MakeRecipe
from dragoman.config import make_recipe
from dragoman.data.collate import Batch, collate
from dragoman.model.factory import build_model
from dragoman.model.transformer import Transformer
from dragoman.runtime.malloc import tune_malloc
from dragoman.training import compute_plan as compute_plan_module
from dragoman.training.checkpoints.checkpoint import list_checkpoints
from dragoman.training.compute_plan import (
    ATTENTION_IMPLS,
    MATMUL_IMPLS,
    ComputePlan,
    KernelChoice,
    bf16_is_faster,
    choose_compute_plan,
    compile_layers,
    measure_peak_flops,
)
from dragoman.training.losses.label_smoothing import batch_loss
from dragoman.training.run import train
from trainers import new_trainer

pytestmark = pytest.mark.usefixtures("one_core")

CPU = torch.device("cpu")
PRECISIONS = [torch.float32, torch.bfloat16]


def small_model(dropout: float = 0.0, layers: int = 2) -> Transformer:
    dropouts = {f"{kind}_dropout": dropout for kind in ("residual", "embedding", "attention", "activation")}
    sizes = {"encoder_layers": layers, "decoder_layers": layers, "d_model": 16, "d_ff": 32, "num_heads": 2}
    recipe = make_recipe({"preset": "t2t-2017", "size": "tiny", "model": {**sizes, **dropouts}})
    torch.manual_seed(3)
    return build_model(recipe.model, source_vocab_size=20, target_vocab_size=20)


def batch() -> Batch:
    return collate([[7, 8, 9, 3], [5, 3], [11, 6, 4, 10, 3]], [[9, 8, 7], [5], [10, 4, 6, 11]], start_id=2)


def losses(model: Transformer, plan: ComputePlan, *, steps: int = 3) -> list[float]:
    """Return the losses of a few steps of Adam, with dropout from one seed."""
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    step_losses = []
    for step in range(steps):
        torch.manual_seed(step)
        with plan.autocast():
            loss, _ = batch_loss(model, batch(), epsilon=0.1, smoothing_mode="exclude_target")
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        step_losses.append(loss.item())
    return step_losses


# Kernels


@pytest.mark.parametrize("product", MATMUL_IMPLS)
@pytest.mark.parametrize("attention", ATTENTION_IMPLS)
def test_every_kernel_gives_the_same_losses(product: str, attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = ComputePlan(CPU, torch.float32)
    expected = losses(small_model(), plan)
    monkeypatch.setattr(compute_plan_module, "_select_fastest_kernels", lambda _: KernelChoice(product, attention))
    model = small_model()
    names = {name: parameter.shape for name, parameter in model.state_dict().items()}
    plan.apply_to(model)
    assert losses(model, plan) == pytest.approx(expected, rel=1e-5)
    assert {name: parameter.shape for name, parameter in model.state_dict().items()} == names
    assert f"{product} products, {attention} attention" in plan.describe()


def test_only_a_clearly_faster_kernel_is_chosen() -> None:
    trials: dict[str, Callable[[], object]] = {"PyTorch": object, "oneDNN": object}
    # Seconds of the trials, round by round. The machine is slow in the first round.
    for seconds, fastest in (
        ([30.0, 28.0, *4 * (10.0, 9.0)], "PyTorch"),
        ([10.0, 9.0, *4 * (30.0, 28.0)], "PyTorch"),
        ([30.0, 28.0, *4 * (10.0, 5.0)], "oneDNN"),
    ):
        ticks = iter([tick for duration in seconds for tick in (0.0, duration)])
        with mock.patch("time.thread_time", side_effect=lambda ticks=ticks: next(ticks)):
            assert compute_plan_module._select_fastest(trials, "products") == fastest
        assert not list(ticks)


def test_emulated_bfloat16_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute_plan_module, "has_bf16_matmul", lambda: False)
    select_kernels = compute_plan_module._select_fastest_kernels.__wrapped__
    with mock.patch.object(compute_plan_module, "_select_fastest", side_effect=AssertionError):
        assert select_kernels(ComputePlan(CPU, torch.bfloat16)) == KernelChoice("PyTorch", "fused")


@pytest.mark.parametrize("variable", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_malloc_settings_of_user_take_precedence(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = mock.Mock()
    monkeypatch.setattr(dragoman.runtime.malloc, "get_c_function", lambda name: getattr(library, name))
    for name in [name for name in os.environ if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES"]:
        monkeypatch.delenv(name)
    tune_malloc()
    assert library.mallopt.call_args_list == [mock.call(-3, 32 << 20), mock.call(-1, 128 << 20)]
    library.mallopt.reset_mock()
    monkeypatch.setenv(variable, "1")
    tune_malloc()
    library.mallopt.assert_not_called()


# Peak FLOP/s


# The products of bfloat16 take a second and a half on a processor without its instructions.
@pytest.mark.parametrize("precision", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)], ids=str)
def test_peak_flops_is_the_fastest_call(precision: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 · 2,048 · 512 · 2,048 operations in the shortest of 0.5, 0.25 and 0.5 seconds."""
    ticks = iter([0.0, 0.0, 0.5, 0.6, 1.0, 1.25, 1.3, 2.0, 2.5, 99.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    monkeypatch.setattr(compute_plan_module, "PEAK_FLOPS_SECONDS", 1.5)
    monkeypatch.setattr(compute_plan_module, "_select_fastest_kernels", lambda _: KernelChoice("PyTorch", "fused"))
    assert measure_peak_flops(ComputePlan(CPU, precision)) == 2.0 * 2048 * 512 * 2048 / 0.25


# Compiled layers


@pytest.mark.filterwarnings("ignore")  # the tracer warns about its own code
@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.slow  # the import of PyTorch's compiler takes three seconds
def test_compiled_layers_compute_the_same(backend: str, precision: torch.dtype) -> None:
    """These backends need no compiler: one traces the layers, the other their gradients as well."""
    plan = ComputePlan(CPU, precision)
    model = small_model(layers=1)
    plan.apply_to(model)
    compiled = copy.deepcopy(model)
    compile_layers(compiled, backend=backend)
    assert list(compiled.state_dict()) == list(model.state_dict())
    tolerance = 1e-5 if precision == torch.float32 else 1e-2
    assert losses(compiled, plan) == pytest.approx(losses(model, plan), rel=tolerance)


# Chunks of the loss


def test_resumed_run_keeps_its_kernels(tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    initial, fastest_now = KernelChoice("PyTorch", "lean"), KernelChoice("oneDNN", "fused")
    monkeypatch.setattr(compute_plan_module, "_select_fastest_kernels", lambda _: initial)
    train(tiny(tmp_path / "run", "training.max_steps=2"))
    monkeypatch.setattr(compute_plan_module, "_select_fastest_kernels", lambda _: fastest_now)
    recipe = tiny(tmp_path / "run", "training.max_steps=3")
    assert new_trainer(recipe).plan.select_kernels() == initial
    saved_plan = list_checkpoints(tmp_path / "run" / "checkpoints")[-1].compute_plan
    assert saved_plan == {"device": "cpu", "precision": "float32", "product": "PyTorch", "attention": "lean"}
    # A new run may reuse the plan, but a resumed run keeps its own.
    compared = new_trainer(tiny(tmp_path / "compared"), reuse_plan=saved_plan)
    assert compared.plan.select_kernels() == initial
    reuse_plan = {"device": "cpu", "product": "oneDNN", "attention": "lean"}
    assert new_trainer(recipe, reuse_plan=reuse_plan).plan.select_kernels() == initial
    # A plan of another kind of device, or with unknown kernels, is ignored.
    for unusable_plan in ({**saved_plan, "device": "cuda"}, {**saved_plan, "product": "magic"}, {}, None):
        assert choose_compute_plan(recipe.training, reuse_plan=unusable_plan).select_kernels() == fastest_now


def test_auto_precision_is_the_clearly_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_recipe({"preset": "modern", "training": {"precision": "auto"}}).training
    monkeypatch.setattr(compute_plan_module, "_select_fastest_kernels", lambda _: KernelChoice("PyTorch", "lean"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    saved_plan = {"device": "cpu", "precision": "bfloat16"}
    for has_bf16, fastest, expected in (
        (True, "bfloat16", torch.bfloat16),
        (True, "float32", torch.float32),
        (False, "bfloat16", torch.float32),
    ):
        monkeypatch.setattr(compute_plan_module, "has_bf16_matmul", lambda has_bf16=has_bf16: has_bf16)
        monkeypatch.setattr(compute_plan_module, "_select_fastest", lambda trials, title, fastest=fastest: fastest)
        bf16_is_faster.cache_clear()
        assert choose_compute_plan(config).precision == expected
        # A resumed run keeps its precision, unless the recipe sets another.
        assert choose_compute_plan(config, reuse_plan=saved_plan).precision == torch.bfloat16
        float32_config = config.model_copy(update={"precision": "float32"})
        assert choose_compute_plan(float32_config, reuse_plan=saved_plan).precision == torch.float32
    bf16_is_faster.cache_clear()
