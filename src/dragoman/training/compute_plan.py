"""Compute plan of a run: the device, the precision, and the kernels of matrix products and attention.

The model does not depend on the plan. The fastest kernels are measured once, at the start, in a fraction of a second.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import repeat

import torch
from torch import Tensor

from dragoman.config import TrainingConfig
from dragoman.model.attention import (
    AttentionImpl,
    cpu_attention,
    disable_cudnn_attention,
    fused_attention,
    set_attention_impl,
)
from dragoman.model.linear import MatMul, onednn_matmul, padded_matmul, torch_matmul
from dragoman.model.transformer import Transformer, set_matmul_impl
from dragoman.runtime.cpu_support import has_bf16_matmul
from dragoman.runtime.malloc import tune_malloc

MATMUL_IMPLS: dict[str, MatMul] = {"PyTorch": torch_matmul, "oneDNN": onednn_matmul, "padded": padded_matmul}
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ATTENTION_IMPLS: dict[str, AttentionImpl] = {"fused": fused_attention, "lean": cpu_attention}
# A kernel must be this much faster than PyTorch's own. The sums of kernels differ in the last bit, so noise must not choose one
# kernel now and another one when the run resumes.
MIN_SPEEDUP = 1.25
TIMING_ROUNDS = 5
PEAK_FLOPS_SECONDS = 0.1

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KernelChoice:
    """Kernels of matrix products and attention: names in `MATMUL_IMPLS` and `ATTENTION_IMPLS`."""

    product: str
    attention: str


@dataclass(frozen=True)
class ComputePlan:
    """Device, precision and kernels of a run."""

    device: torch.device
    precision: torch.dtype
    preset_kernels: KernelChoice | None = None
    """Kernels that a run started with, for bit-identical sums after a resume; None to measure them."""

    def autocast(self) -> torch.autocast:
        """Return the autocast context of this precision."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == torch.bfloat16)

    def select_kernels(self) -> KernelChoice:
        """Return the preset kernels, or the fastest ones, measured once in a process."""
        return self.preset_kernels or _select_fastest_kernels(self)

    def apply_to(self, model: Transformer) -> None:
        """Set the model's kernels to the selected ones."""
        kernels = self.select_kernels()
        set_matmul_impl(model, MATMUL_IMPLS[kernels.product])
        set_attention_impl(model, ATTENTION_IMPLS[kernels.attention])
        if self.device.type == "cpu":
            tune_malloc()
        else:
            disable_cudnn_attention()

    def to_dict(self) -> dict[str, str]:
        """Return the plan as JSON, for `choose_compute_plan(reuse_plan=…)`."""
        return {"device": self.device.type, "precision": self.precision_name, **asdict(self.select_kernels())}

    def describe(self) -> str:
        """Return text such as "cpu (2 threads), float32, oneDNN products, lean attention"."""
        threads = torch.get_num_threads()
        name = f"{threads} thread{'s' if threads > 1 else ''}"
        if self.device.type == "cuda":
            name = torch.cuda.get_device_name(self.device)
        kernels = self.select_kernels()
        precision = self.precision_name
        return f"{self.device.type} ({name}), {precision}, {kernels.product} products, {kernels.attention} attention"

    @property
    def precision_name(self) -> str:
        """Name of the precision, such as float32."""
        return str(self.precision).removeprefix("torch.")


def choose_compute_plan(config: TrainingConfig, *, reuse_plan: Mapping[str, str] | None = None) -> ComputePlan:
    """Return a plan: a GPU if there is one, and bfloat16 if the recipe asks for it, or if "auto" measures it as clearly faster.

    reuse_plan: result of `ComputePlan.to_dict` when the run started; ignored on another kind of device
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if reuse_plan is None or reuse_plan.get("device") != device.type:
        reuse_plan = {}
    precision = reuse_plan.get("precision", "") if config.precision == "auto" else config.precision
    if precision not in PRECISIONS:
        precision = "bfloat16" if bf16_is_faster(device) else "float32"
    plan = ComputePlan(device, PRECISIONS[precision])
    matmul_name, attention_name = reuse_plan.get("product", ""), reuse_plan.get("attention", "")
    is_known = matmul_name in MATMUL_IMPLS and attention_name in ATTENTION_IMPLS
    return replace(plan, preset_kernels=KernelChoice(matmul_name, attention_name)) if is_known else plan


@lru_cache(maxsize=2)
def bf16_is_faster(device: torch.device) -> bool:
    """Return whether products are clearly faster in bfloat16. A CPU may have its instructions and not be faster."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if not has_bf16_matmul():
        return False
    plans = {name: ComputePlan(device, precision) for name, precision in PRECISIONS.items()}
    trials = {name: _make_matmul_trial(plan, plan.select_kernels().product) for name, plan in plans.items()}
    return _select_fastest(trials, "precision") == "bfloat16"


@lru_cache(maxsize=8)
def _select_fastest_kernels(plan: ComputePlan) -> KernelChoice:
    """Return the clearly fastest kernels on a CPU. A GPU and emulated bfloat16 get PyTorch's own, unmeasured."""
    is_emulated = plan.precision == torch.bfloat16 and not has_bf16_matmul()
    if plan.device.type != "cpu" or is_emulated:
        return KernelChoice("PyTorch", "fused")
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 96, 15, 4, 32, generator=generator)
    mask = torch.ones(96, 1, 1, 15, dtype=torch.bool)
    heads = [tensor.to(plan.precision).transpose(1, 2) for tensor in (query, key, value)]
    matmul_names = ("PyTorch", "padded") if plan.precision == torch.bfloat16 else ("PyTorch", "oneDNN")

    def make_attention_trial(attend: AttentionImpl) -> Callable[[], object]:
        return _make_gradient_trial(lambda query, key, value: attend(query, key, value, mask, 0.0), *heads)

    return KernelChoice(
        product=_select_fastest(
            {name: _make_matmul_trial(plan, name) for name in matmul_names}, f"products in {plan.precision_name}"
        ),
        attention=_select_fastest(
            {name: make_attention_trial(attend) for name, attend in ATTENTION_IMPLS.items()},
            f"attention in {plan.precision_name}",
        ),
    )


def _make_matmul_trial(plan: ComputePlan, name: str) -> Callable[[], object]:
    """Return a trial of a matrix product with the shape of a feed-forward layer."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(512, 512, generator=generator), torch.randn(512, 512, generator=generator)
    # In bfloat16 each call has another number of rows, as batches do.
    row_counts = iter(range(len(x), 0, -1)) if plan.precision == torch.bfloat16 else repeat(len(x))

    def compute(inputs: Tensor, weight: Tensor) -> Tensor:
        with plan.autocast():
            return MATMUL_IMPLS[name](inputs, weight, None)

    return lambda: _make_gradient_trial(compute, x[: next(row_counts)], weight)()


def _make_gradient_trial(compute: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], object]:
    """Return a function that runs forward and backward once, as a step does."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]

    def run_once() -> object:
        result = compute(*leaves)
        return torch.autograd.grad(result, leaves, torch.ones_like(result))

    return run_once


def _select_fastest(trials: Mapping[str, Callable[[], object]], title: str) -> str:
    """Return the name of the fastest trial, or the first one unless another is clearly faster. The log has all times.

    The measure is the CPU time of the best of several rounds in one thread. So other programs change little, and a CPU that is
    slow at first does not count against the first trial. Kernels that this PyTorch lacks are left out.
    """
    threads, start = torch.get_num_threads(), time.monotonic()
    torch.set_num_threads(1)
    try:
        candidates = {name: run_once for name, run_once in trials.items() if _can_run(run_once)}
        rounds = [
            {name: _measure_seconds(run_once, time.thread_time) for name, run_once in candidates.items()}
            for _ in range(TIMING_ROUNDS)
        ]
    finally:
        torch.set_num_threads(threads)
    seconds = {name: min(times[name] for times in rounds) for name in candidates}
    default, fastest = next(iter(trials)), min(seconds, key=seconds.__getitem__)
    if seconds[fastest] * MIN_SPEEDUP > seconds[default]:
        fastest = default
    times = ", ".join(f"{name} {1e3 * trial_seconds:.1f} ms" for name, trial_seconds in seconds.items())
    _log.debug("%s: %s; %s is taken; measured in %.2f s", title, times, fastest, time.monotonic() - start)
    return fastest


def _measure_seconds(run_once: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    run_once()
    return clock() - start


def _can_run(run_once: Callable[[], object]) -> bool:
    try:
        run_once()
    except (RuntimeError, AttributeError):
        return False
    return True


def measure_peak_flops(plan: ComputePlan) -> float:
    """Return the FLOP/s of one matrix product with the plan's kernels: the peak for the MFU.

    The shapes are 2,048 × 512 by 512 × 2,048, or 65,536 × 1,024 by 1,024 × 4,096 on a GPU. The best of a few calls counts.
    """
    is_cuda = plan.device.type == "cuda"
    rows, inner, outer = (2**16, 1024, 4096) if is_cuda else (2048, 512, 2048)
    x = torch.randn(rows, inner, device=plan.device, dtype=plan.precision)
    weight = torch.randn(outer, inner, device=plan.device, dtype=plan.precision)
    matmul = MATMUL_IMPLS[plan.select_kernels().product]

    def multiply() -> None:
        matmul(x, weight, None)
        if is_cuda:
            torch.cuda.synchronize(plan.device)

    with torch.no_grad():
        if is_cuda:
            multiply()  # the first call loads the library
        end = time.perf_counter() + PEAK_FLOPS_SECONDS
        seconds = [_measure_seconds(multiply, time.perf_counter)]
        while time.perf_counter() < end:
            seconds.append(_measure_seconds(multiply, time.perf_counter))
        return 2.0 * rows * inner * outer / min(seconds)


def compile_layers(model: Transformer, *, backend: str = "inductor", exclude: torch.nn.Module | None = None) -> None:
    """Compile each layer in place with torch.compile, for batches of any shape. Parameter names stay the same.

    exclude: layer that is not compiled, because its attention weights are recorded
    """
    for module in (*model.encoder.layers, *model.decoder.layers):
        if module is not exclude:
            module.compile(backend=backend, dynamic=True)


def limit_kernel_cache() -> None:
    """Limit the caches of kernels, which hold one kernel for each shape of a batch.

    PyTorch and oneDNN each keep 1,024 kernels, in gigabytes of memory. The kernels of one step are enough.
    Both read their variable at the first kernel. A value that the user has set takes precedence.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    os.environ.setdefault("LRU_CACHE_CAPACITY", "1")
