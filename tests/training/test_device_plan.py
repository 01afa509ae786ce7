"""What the machine is asked to do: the routes, the ceiling, compiled layers; and that no route changes what is computed."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch

from conftest import MakeRecipe
from dragoman.config import make_recipe
from dragoman.data.collate import Batch, collate
from dragoman.model.attention import Attention, fused_attention
from dragoman.model.factory import build_model
from dragoman.model.linear import Linear
from dragoman.model.transformer import Transformer
from dragoman.runtime.malloc import tune_malloc
from dragoman.training import device as machine_module
from dragoman.training.checkpoints.checkpoint import list_checkpoints
from dragoman.training.device import (
    ATTENTION_IMPLS,
    MATMUL_IMPLS,
    ComputePlan,
    KernelChoice,
    bf16_is_faster,
    choose_compute_plan,
    compile_layers,
    measure_peak_flops,
)
from dragoman.training.losses.chunked import CHUNK_SIZE_MULTIPLE, CPU_CHUNK_LOGITS, choose_chunk_size
from dragoman.training.losses.label_smoothing import batch_loss
from dragoman.training.monitoring.callbacks import NullCallback
from dragoman.training.run import train
from dragoman.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("one_core")

CPU = torch.device("cpu")
PRECISIONS = [torch.float32, torch.bfloat16]


def small_model(dropout: float = 0.0, layers: int = 2) -> Transformer:
    knobs = {f"{place}_dropout": dropout for place in ("residual", "embedding", "attention", "activation")}
    sizes = {"encoder_layers": layers, "decoder_layers": layers, "d_model": 16, "d_ff": 32, "num_heads": 2}
    recipe = make_recipe({"preset": "t2t-2017", "size": "tiny", "model": {**sizes, **knobs}})
    torch.manual_seed(3)
    return build_model(recipe.model, source_vocab_size=20, target_vocab_size=20)


def batch() -> Batch:
    return collate([[7, 8, 9, 3], [5, 3], [11, 6, 4, 10, 3]], [[9, 8, 7], [5], [10, 4, 6, 11]], start_id=2)


def losses(model: Transformer, machine: ComputePlan, *, steps: int = 3) -> list[float]:
    """Of a few steps of Adam, dropout and all from one seed."""
    model.train()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    found = []
    for step in range(steps):
        torch.manual_seed(step)
        with machine.autocast():
            loss, _ = batch_loss(model, batch(), epsilon=0.1, smoothing_mode="exclude_target")
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad()
        found.append(loss.item())
    return found


# Routes


@pytest.mark.parametrize("product", MATMUL_IMPLS)
@pytest.mark.parametrize("attention", ATTENTION_IMPLS)
def test_every_route_gives_the_same_losses_and_the_same_names(
    product: str, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = ComputePlan(CPU, torch.float32)
    expected = losses(small_model(), machine)
    monkeypatch.setattr(machine_module, "_fastest_routes", lambda _: KernelChoice(product, attention))
    model = small_model()
    names = {name: parameter.shape for name, parameter in model.state_dict().items()}
    machine.apply_to(model)
    assert losses(model, machine) == pytest.approx(expected, rel=1e-5)
    assert {name: parameter.shape for name, parameter in model.state_dict().items()} == names
    assert f"{product} products, {attention} attention" in machine.describe()


def test_padded_products_learn_as_pytorch_s_do_in_bfloat16() -> None:
    models = [small_model() for _ in range(2)]
    machines = [ComputePlan(CPU, torch.bfloat16, KernelChoice(product, "lean")) for product in ("PyTorch", "padded")]
    for model, machine in zip(models, machines, strict=True):
        machine.apply_to(model)
    plain, padded = (losses(model, machine) for model, machine in zip(models, machines, strict=True))
    assert padded == pytest.approx(plain, rel=1e-3)  # bfloat16 itself is good to 4e-3
    assert padded[-1] < padded[0]


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
def test_settling_tells_every_layer_and_every_seed_its_losses(precision: torch.dtype) -> None:
    machine = ComputePlan(CPU, precision)
    models = [small_model(dropout=0.3) for _ in range(2)]
    for model in models:
        machine.apply_to(model)
    attends = {module.attention_impl for module in models[0].modules() if isinstance(module, Attention)}
    products = {module.matmul for module in models[0].modules() if isinstance(module, Linear | Transformer)}
    assert attends == {ATTENTION_IMPLS[machine.select_kernels().attention]}
    assert products == {MATMUL_IMPLS[machine.select_kernels().product]}
    assert losses(models[0], machine) == losses(models[1], machine)


def test_a_route_is_taken_where_it_clearly_wins_and_not_for_a_tie() -> None:
    ways: dict[str, Callable[[], object]] = {"PyTorch": object, "oneDNN": object}
    # A way's seconds, turn by turn: the machine is slow at first, whoever has its turn then.
    for seconds, fastest in (
        ([30.0, 28.0, *4 * (10.0, 9.0)], "PyTorch"),
        ([10.0, 9.0, *4 * (30.0, 28.0)], "PyTorch"),
        ([30.0, 28.0, *4 * (10.0, 5.0)], "oneDNN"),
    ):
        times = iter(seconds)
        with mock.patch.object(machine_module, "_seconds_of", side_effect=lambda _, times=times: next(times)):
            assert machine_module._select_fastest(ways) == fastest
        assert not list(times)


def test_a_route_that_this_pytorch_lacks_is_not_taken() -> None:
    def missing() -> object:
        return torch.ops.mkldnn.no_such_product

    def slow() -> object:
        return sum(itertools.repeat(1, 100_000))

    threads = torch.get_num_threads()
    assert machine_module._select_fastest({"PyTorch": slow, "oneDNN": missing}) == "PyTorch"
    assert torch.get_num_threads() == threads


def test_a_gpu_has_pytorch_s_own_routes_unmeasured() -> None:
    with mock.patch.object(machine_module, "_fastest", side_effect=AssertionError):
        assert ComputePlan(torch.device("cuda"), torch.bfloat16).select_kernels() == KernelChoice("PyTorch", "fused")


@pytest.mark.parametrize("given", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_what_the_user_set_for_memory_stands(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = mock.Mock()
    monkeypatch.setattr("ctypes.CDLL", lambda _: library)
    for name in [name for name in os.environ if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES"]:
        monkeypatch.delenv(name)
    tune_malloc()
    assert library.mallopt.call_args_list == [mock.call(-3, 32 << 20), mock.call(-1, 128 << 20)]
    library.mallopt.reset_mock()
    monkeypatch.setenv(given, "1")
    tune_malloc()
    library.mallopt.assert_not_called()


# Ceiling


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
def test_the_ceiling_is_the_best_of_the_clock(precision: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 · 2,048 · 512 · 2,048 operations in the shortest of 0.5, 0.25 and 0.5 seconds; the first turn is a product's, too."""
    ticks = iter([0.0, 0.0, 0.5, 0.6, 1.0, 1.25, 1.3, 2.0, 2.5, 99.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    monkeypatch.setattr(machine_module, "CEILING_SECONDS", 1.5)
    monkeypatch.setattr(machine_module, "_fastest_routes", lambda _: KernelChoice("PyTorch", "fused"))
    assert measure_peak_flops(ComputePlan(CPU, precision)) == 2.0 * 2048 * 512 * 2048 / 0.25


# Compiled layers


@pytest.mark.filterwarnings("ignore")  # of what the tracer does to itself
@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow)])
def test_compiled_layers_compute_the_same_under_the_same_names(backend: str, precision: torch.dtype) -> None:
    """These backends need no compiler: one traces the layers, the other their gradients as well."""
    machine = ComputePlan(CPU, precision)
    model = small_model(layers=1)
    machine.apply_to(model)
    compiled = copy.deepcopy(model)
    compile_layers(compiled, backend=backend)
    assert list(compiled.state_dict()) == list(model.state_dict())
    tolerance = 1e-5 if precision == torch.float32 else 1e-2
    assert losses(compiled, machine) == pytest.approx(losses(model, machine), rel=tolerance)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow)])
def test_compiled_layers_drop_by_the_seed(backend: str) -> None:
    machine = ComputePlan(CPU, torch.float32)
    models = [small_model(dropout=0.3, layers=1) for _ in range(2)]
    for model in models:
        machine.apply_to(model)
        compile_layers(model, backend=backend)
    found = losses(models[0], machine)
    assert found == losses(models[1], machine)
    assert found != pytest.approx(losses(small_model(layers=1), machine), rel=1e-3)


# Slices of the loss


@pytest.mark.parametrize("vocabulary", [7, 10_000, 32_000, CPU_CHUNK_LOGITS // CHUNK_SIZE_MULTIPLE + 1, CPU_CHUNK_LOGITS + 1])
@pytest.mark.parametrize("places", [1, 63, 64, 700, 3831, 100_000])
def test_slices_fit_and_little_of_the_last_is_filled_up(places: int, vocabulary: int) -> None:
    size = choose_chunk_size(places, vocabulary, CPU_CHUNK_LOGITS)
    assert size == 1 or size * vocabulary <= max(CPU_CHUNK_LOGITS, CHUNK_SIZE_MULTIPLE * vocabulary)
    slices = -(-places // size)
    assert slices * size - places < slices * CHUNK_SIZE_MULTIPLE
    assert size % CHUNK_SIZE_MULTIPLE == 0 or vocabulary * CHUNK_SIZE_MULTIPLE > CPU_CHUNK_LOGITS


def test_fused_attention_is_what_a_model_starts_with() -> None:
    assert all(module.attention_impl is fused_attention for module in small_model().modules() if isinstance(module, Attention))


def test_a_run_goes_on_by_the_routes_that_it_began_with(
    tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, other = KernelChoice("PyTorch", "lean"), KernelChoice("oneDNN", "fused")
    monkeypatch.setattr(machine_module, "_fastest_routes", lambda machine: began)
    train(tiny(tmp_path / "run", "training.max_steps=2"))
    monkeypatch.setattr(machine_module, "_fastest_routes", lambda machine: other)
    recipe = tiny(tmp_path / "run", "training.max_steps=3")
    assert Trainer(recipe, NullCallback()).plan.select_kernels() == began
    kept = list_checkpoints(tmp_path / "run" / "checkpoints")[-1].compute_plan
    assert kept == {"device": "cpu", "precision": "float32", "product": "PyTorch", "attention": "lean"}
    # A run that is compared with this one is computed like it, but goes on as itself.
    alike = Trainer(tiny(tmp_path / "alike"), NullCallback(), reuse_plan=kept)
    assert alike.plan.select_kernels() == began
    like = {"device": "cpu", "product": "oneDNN", "attention": "lean"}
    assert Trainer(recipe, NullCallback(), reuse_plan=like).plan.select_kernels() == began
    # Of another kind of device, or of a version that knew other ways, nothing is taken over.
    for before in ({**kept, "device": "cuda"}, {**kept, "product": "magic"}, {}, None):
        assert choose_compute_plan(recipe.training, reuse_plan=before).select_kernels() == other


def test_auto_is_the_precision_in_which_products_learn_clearly_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_recipe({"preset": "modern", "training": {"precision": "auto"}}).training
    monkeypatch.setattr(machine_module, "_fastest_routes", lambda machine: KernelChoice("PyTorch", "lean"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    kept = {"device": "cpu", "precision": "bfloat16"}
    for has_it, fastest, expected in (
        (True, "bfloat16", torch.bfloat16),
        (True, "float32", torch.float32),
        (False, "bfloat16", torch.float32),
    ):
        monkeypatch.setattr(machine_module, "multiplies_bfloat16", lambda has_it=has_it: has_it)
        monkeypatch.setattr(machine_module, "_fastest", lambda ways, fastest=fastest: fastest)
        bf16_is_faster.cache_clear()
        assert choose_compute_plan(config).precision == expected
        # A run goes on in the precision that it began with, unless its recipe says another.
        assert choose_compute_plan(config, reuse_plan=kept).precision == torch.bfloat16
        said = config.model_copy(update={"precision": "float32"})
        assert choose_compute_plan(said, reuse_plan=kept).precision == torch.float32
    bf16_is_faster.cache_clear()


def test_what_auto_goes_by_are_products_that_learn_in_either_precision() -> None:
    for precision in PRECISIONS:
        machine = ComputePlan(CPU, precision)
        with mock.patch.object(machine_module, "_learning", wraps=machine_module._make_gradient_trial) as learning:
            machine_module._make_matmul_trial(machine, machine.select_kernels().product)()
        compute, x, weight = learning.call_args.args
        assert compute(x, weight).dtype == precision
