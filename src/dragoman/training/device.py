"""What this machine is best asked to do: the device, the precision, and the routes that products and attention take.

The model never knows. What is the fastest is measured once, at the start, in a fraction of a second.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import repeat

import torch
from torch import Tensor

from dragoman.config import TrainingConfig
from dragoman.model.attention import Attend, fused_attention, lean_attention, use_attention
from dragoman.model.linear import Product, multiplies_bfloat16, onednn_product, padded_product, plain_product
from dragoman.model.transformer import Transformer, use_product
from dragoman.runtime.malloc import keep_freed_memory

PRODUCTS: dict[str, Product] = {"PyTorch": plain_product, "oneDNN": onednn_product, "padded": padded_product}
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ATTENTIONS: dict[str, Attend] = {"fused": fused_attention, "lean": lean_attention}
# So much faster a way has to be than PyTorch's own: their sums differ in the last bit, so noise must not choose one now and the
# other when the run goes on.
CLEARLY = 1.25
# That each way has, by turns.
TURNS = 5
CEILING_SECONDS = 0.25


@dataclass(frozen=True)
class Routes:
    """How products with weights and attention are computed: names out of `PRODUCTS` and `ATTENTIONS`."""

    product: str
    attention: str


@dataclass(frozen=True)
class Machine:
    """Where and in which precision the products of a run are computed."""

    device: torch.device
    precision: torch.dtype
    given: Routes | None = None
    """Those that a run began with, so that it goes on with the very same sums; measured where there are none."""

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == torch.bfloat16)

    def routes(self) -> Routes:
        """Those that were given, or the fastest here, measured once in a process."""
        return self.given or _fastest_routes(self)

    def settle(self, model: Transformer) -> None:
        """Let the model compute its products and its attention in the ways that are the fastest here."""
        routes = self.routes()
        use_product(model, PRODUCTS[routes.product])
        use_attention(model, ATTENTIONS[routes.attention])
        if self.device.type == "cpu":
            keep_freed_memory()

    def memory(self) -> dict[str, str]:
        """What a run is to go on with, as JSON can hold it."""
        return {"device": self.device.type, "precision": self._precision_name(), **asdict(self.routes())}

    def describe(self) -> str:
        """Device, precision and routes, such as "cpu (2 threads), float32, oneDNN products, lean attention"."""
        threads = torch.get_num_threads()
        name = f"{threads} thread{'s' if threads > 1 else ''}"
        if self.device.type == "cuda":
            name = torch.cuda.get_device_name(self.device)
        routes = self.routes()
        precision = self._precision_name()
        return f"{self.device.type} ({name}), {precision}, {routes.product} products, {routes.attention} attention"

    def _precision_name(self) -> str:
        return str(self.precision).removeprefix("torch.")


def choose_machine(config: TrainingConfig, *, before: Mapping[str, str] | None = None) -> Machine:
    """A GPU where there is one; bfloat16 where the recipe says so, or leaves it open and it is clearly the faster here.

    before: what `Machine.memory` told when the run began, which holds on the same kind of device
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if before is None or before.get("device") != device.type:
        before = {}
    precision = before.get("precision", "") if config.precision == "auto" else config.precision
    if precision not in PRECISIONS:
        precision = "bfloat16" if bfloat16_pays(device) else "float32"
    machine = Machine(device, PRECISIONS[precision])
    product, attention = before.get("product", ""), before.get("attention", "")
    known = product in PRODUCTS and attention in ATTENTIONS
    return replace(machine, given=Routes(product, attention)) if known else machine


@lru_cache(maxsize=2)
def bfloat16_pays(device: torch.device) -> bool:
    """Whether products learn clearly faster in it. A processor may have its instructions and gain nothing by them."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if not multiplies_bfloat16():
        return False
    machines = {name: Machine(device, precision) for name, precision in PRECISIONS.items()}
    ways = {name: _learning_product(machine, machine.routes().product) for name, machine in machines.items()}
    return _fastest(ways) == "bfloat16"


@lru_cache(maxsize=8)
def _fastest_routes(machine: Machine) -> Routes:
    """On a GPU PyTorch's own; on a processor what wins by far."""
    if machine.device.type != "cpu":
        return Routes("PyTorch", "fused")
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 96, 15, 4, 32, generator=generator)
    keep = torch.ones(96, 1, 1, 15, dtype=torch.bool)
    heads = [one.to(machine.precision).transpose(1, 2) for one in (query, key, value)]
    names = ("PyTorch", "padded") if machine.precision == torch.bfloat16 else ("PyTorch", "oneDNN")

    def learning_attention(attend: Attend) -> Callable[[], object]:
        return _learning(lambda query, key, value: attend(query, key, value, keep, 0.0), *heads)

    return Routes(
        product=_fastest({name: _learning_product(machine, name) for name in names}),
        attention=_fastest({name: learning_attention(attend) for name, attend in ATTENTIONS.items()}),
    )


def _learning_product(machine: Machine, name: str) -> Callable[[], object]:
    """Of a feed-forward layer's shape."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(512, 512, generator=generator), torch.randn(512, 512, generator=generator)
    # In bfloat16 each turn has a number of rows that no turn had before, as batches have.
    rows = iter(range(len(x), 0, -1)) if machine.precision == torch.bfloat16 else repeat(len(x))

    def compute(some: Tensor, weight: Tensor) -> Tensor:
        with machine.autocast():
            return PRODUCTS[name](some, weight, None)

    return lambda: _learning(compute, x[: next(rows)], weight)()


def _learning(compute: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], object]:
    """Forwards and backwards once, as a step does."""
    leaves = [one.detach().requires_grad_() for one in inputs]

    def once() -> object:
        result = compute(*leaves)
        return torch.autograd.grad(result, leaves, torch.ones_like(result))

    return once


def _fastest(ways: Mapping[str, Callable[[], object]]) -> str:
    """By the processor time of the best of several turns each in one thread; the first way unless another clearly wins.

    So whoever else is at work here changes little, and a processor that only now reaches its speed is not held against the
    first. A way that this PyTorch was built without is none.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        taken = {name: [_seconds_of(once)] for name, once in ways.items() if _runs(once)}
        for _ in range(TURNS - 1):
            for name, seconds in taken.items():
                seconds.append(_seconds_of(ways[name]))
    finally:
        torch.set_num_threads(threads)
    best = {name: min(seconds) for name, seconds in taken.items()}
    first, fastest = next(iter(ways)), min(best, key=best.__getitem__)
    return fastest if CLEARLY * best[fastest] < best[first] else first


def _runs(once: Callable[[], object]) -> bool:
    try:
        once()
    except (RuntimeError, AttributeError):
        return False
    return True


def _seconds_of(once: Callable[[], object]) -> float:
    """Of processor time."""
    begun = time.thread_time()
    once()
    return time.thread_time() - begun


def measure_ceiling(machine: Machine) -> float:
    """FLOP/s of one product with weights, the way that this machine computes them: what no step can exceed.

    2,048 × 512 by 512 × 2,048, on a GPU 65,536 × 1,024 by 1,024 × 4,096; the best of a few, warm.
    """
    cuda = machine.device.type == "cuda"
    rows, inner, outer = (2**16, 1024, 4096) if cuda else (2048, 512, 2048)
    x = torch.randn(rows, inner, device=machine.device, dtype=machine.precision)
    weight = torch.randn(outer, inner, device=machine.device, dtype=machine.precision)
    product = PRODUCTS[machine.routes().product]

    best, until = math.inf, time.perf_counter() + CEILING_SECONDS
    with torch.no_grad():
        while best == math.inf or time.perf_counter() < until:
            begun = time.perf_counter()
            product(x, weight, None)
            if cuda:
                torch.cuda.synchronize(machine.device)
            best = min(best, time.perf_counter() - begun)
    return 2.0 * rows * inner * outer / best


def compile_layers(model: Transformer, *, backend: str = "inductor", besides: torch.nn.Module | None = None) -> None:
    """Have torch.compile make kernels of each layer, in place and for any batch's shape. Names of parameters stay.

    besides: a layer that is left as it is, since its attention is looked at
    """
    for module in (*model.encoder.layers, *model.decoder.layers):
        if module is not besides:
            module.compile(backend=backend, dynamic=True)


def bound_kernel_cache() -> None:
    """Have oneDNN keep few of the kernels that it makes for each shape of a batch: its usual thousand hold 600 MB.

    It looks at this when it makes its first, and at what the user set before anything else.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")
