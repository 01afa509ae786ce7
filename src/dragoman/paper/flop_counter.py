"""What one run of a layer takes, counted rather than timed: bytes, operations, products that wait for each other, reach."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from dragoman.paper.table1_layers import Kind, Mix, Recurrence, mixer

_PRODUCTS = ("AddmmBackward", "BmmBackward", "ConvolutionBackward", "MmBackward")


@dataclass(frozen=True)
class Count:
    """Of one layer, forwards and backwards."""

    peak_bytes: int
    """The most that tensors held at one time, its input and weights not counted."""
    operations: int
    """Multiplications and additions of its products."""


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what the results of all operations hold, for as long as they hold it, and what products cost.

    No allocator is asked, so that the bytes are the same everywhere.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = self.operations = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations += _operations(func._overloadpacket, args, kwargs or {}, result)
        given = {one.untyped_storage()._cdata for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._known and storage._cdata not in given:
                    self._follow(storage)
        return result

    def _follow(self, storage: torch.UntypedStorage) -> None:
        name, size = storage._cdata, storage.nbytes()
        self._known.add(name)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._gone, name, size)

    def _gone(self, name: int, size: int) -> None:
        self._known.discard(name)
        self.live -= size


def _operations(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Of one call. PyTorch's own formulas but for convolutions, where they take no notice of groups on the way back."""
    if func is torch.ops.aten.convolution:
        return 2 * int(result.numel() * args[1][0].numel())
    if func is torch.ops.aten.convolution_backward:
        gradient, weight, wanted = args[0], args[2], args[10]
        return 2 * int(gradient.numel() * weight[0].numel()) * (int(wanted[0]) + int(wanted[1]))
    cost = flop_registry.get(func)
    return int(cost(*args, **kwargs, out_val=result)) if cost is not None else 0


def count(layer: Mix, x_BND: Tensor) -> Count:
    """Run a layer forwards and backwards once, and count."""
    with _Counting() as counting:
        learn(layer, x_BND)
    return Count(counting.peak, counting.operations)


def learn(layer: Mix, x_BND: Tensor) -> None:
    """Once forwards and backwards. `x_BND` wants a gradient."""
    y_BND = layer(x_BND)
    y_BND.backward(torch.ones_like(y_BND))  # type: ignore[no-untyped-call]
    for leaf in (x_BND, *(layer.parameters() if isinstance(layer, torch.nn.Module) else ())):
        leaf.grad = None


def sequential_products(layer: Mix, n: int, d: int) -> int:
    """The longest chain of matrix products that each wait for the one before, in the graph that autograd recorded."""
    root: Any = layer(torch.randn(1, n, d, requires_grad=True)).grad_fn
    longest: dict[Any, int] = {}
    waiting: list[Any] = [root]
    while waiting:
        node = waiting[-1]
        before = [one for one, _ in node.next_functions if one is not None]
        if unknown := [one for one in before if one not in longest]:
            waiting += unknown
            continue
        waiting.pop()
        longest[node] = max((longest[one] for one in before), default=0) + node.name().startswith(_PRODUCTS)
    return longest[root]


def path_length(kind: Kind, n: int, d: int, reach: int) -> int:
    """After how many layers (of a recurrence: steps) the last output depends on all inputs: each has a gradient.

    Where places look both ways, so must the first output. Found by doubling and halving, since reach never shrinks.
    """
    low, high = 0, 1
    while not _reaches(kind, n, d, reach, high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _reaches(kind, n, d, reach, middle) else (middle, high)
    return high


def _reaches(kind: Kind, n: int, d: int, reach: int, layers: int) -> bool:
    # In float64, in which a product of hundreds of weights is not zero yet.
    x_BND = torch.randn(1, n, d, dtype=torch.float64, requires_grad=True)
    y_BND = _stack(kind, d, reach, layers)(x_BND)
    asked = [0, n - 1] if kind.endswith("self-attention") else [n - 1]
    grads = [torch.autograd.grad(y_BND[0, place].sum(), x_BND, retain_graph=True)[0] for place in asked]
    return all(bool((grad_BND != 0).any(dim=-1).all()) for grad_BND in grads)


def _stack(kind: Kind, d: int, reach: int, layers: int) -> Callable[[Tensor], Tensor]:
    """So many layers on top of one another; of a recurrence, so many steps that all places take at once."""

    def run(x_BND: Tensor) -> Tensor:
        if kind == "recurrent (LSTM)":
            cell = Recurrence(d).double()
            states = (torch.zeros_like(x_BND), torch.zeros_like(x_BND))
            for _ in range(layers):
                states = cell.tick(x_BND, states)
            return states[0]
        for depth in range(layers):
            layer = mixer(kind, d, reach, depth=depth)
            x_BND = (layer.double() if isinstance(layer, torch.nn.Module) else layer)(x_BND)
        return x_BND

    return run
