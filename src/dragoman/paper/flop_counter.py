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

from dragoman.paper.table1_layers import LayerFn, LayerKind, RecurrentLayer, build_layer

_MATMUL_NODES = ("AddmmBackward", "BmmBackward", "ConvolutionBackward", "MmBackward")


@dataclass(frozen=True)
class OperationCount:
    """Of one layer, forwards and backwards."""

    peak_bytes: int
    """The most that tensors held at one time, its input and weights not counted."""
    operations: int
    """Multiplications and additions of its products."""


class _CountingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what the results of all operations hold, for as long as they hold it, and what products cost.

    No allocator is asked, so that the bytes are the same everywhere.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live_bytes = self.peak_bytes = self.operations = 0
        self._tracked_ids: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations += _count_call(func._overloadpacket, args, kwargs or {}, result)
        input_ids = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._tracked_ids and storage._cdata not in input_ids:
                    self._track_storage(storage)
        return result

    def _track_storage(self, storage: torch.UntypedStorage) -> None:
        storage_id, size = storage._cdata, storage.nbytes()
        self._tracked_ids.add(storage_id)
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._release_storage, storage_id, size)

    def _release_storage(self, storage_id: int, size: int) -> None:
        self._tracked_ids.discard(storage_id)
        self.live_bytes -= size


def _count_call(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Of one call. PyTorch's own formulas but for convolutions, where they take no notice of groups on the way back."""
    if func is torch.ops.aten.convolution:
        return 2 * int(result.numel() * args[1][0].numel())
    if func is torch.ops.aten.convolution_backward:
        gradient, weight, output_mask = args[0], args[2], args[10]
        return 2 * int(gradient.numel() * weight[0].numel()) * (int(output_mask[0]) + int(output_mask[1]))
    formula = flop_registry.get(func)
    return int(formula(*args, **kwargs, out_val=result)) if formula is not None else 0


def count_operations(layer: LayerFn, x_BND: Tensor) -> OperationCount:
    """Run a layer forwards and backwards once, and count."""
    with _CountingMode() as mode:
        run_forward_backward(layer, x_BND)
    return OperationCount(mode.peak_bytes, mode.operations)


def run_forward_backward(layer: LayerFn, x_BND: Tensor) -> None:
    """Once forwards and backwards. `x_BND` wants a gradient."""
    y_BND = layer(x_BND)
    y_BND.backward(torch.ones_like(y_BND))  # type: ignore[no-untyped-call]
    for tensor in (x_BND, *(layer.parameters() if isinstance(layer, torch.nn.Module) else ())):
        tensor.grad = None


def count_sequential_matmuls(layer: LayerFn, n: int, d: int) -> int:
    """The longest chain of matrix products that each wait for the one before, in the graph that autograd recorded."""
    root: Any = layer(torch.randn(1, n, d, requires_grad=True)).grad_fn
    chain_lengths: dict[Any, int] = {}
    stack: list[Any] = [root]
    while stack:
        node = stack[-1]
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        if unvisited := [parent for parent in parents if parent not in chain_lengths]:
            stack += unvisited
            continue
        stack.pop()
        chain_lengths[node] = max((chain_lengths[parent] for parent in parents), default=0) + node.name().startswith(
            _MATMUL_NODES
        )
    return chain_lengths[root]


def find_path_length(kind: LayerKind, n: int, d: int, reach: int) -> int:
    """After how many layers (of a recurrence: steps) the last output depends on all inputs: each has a gradient.

    Where places look both ways, so must the first output. Found by doubling and halving, since reach never shrinks.
    """
    low, high = 0, 1
    while not _depends_on_all_inputs(kind, n, d, reach, high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _depends_on_all_inputs(kind, n, d, reach, middle) else (middle, high)
    return high


def _depends_on_all_inputs(kind: LayerKind, n: int, d: int, reach: int, layers: int) -> bool:
    # In float64, in which a product of hundreds of weights is not zero yet.
    x_BND = torch.randn(1, n, d, dtype=torch.float64, requires_grad=True)
    y_BND = _build_stack(kind, d, reach, layers)(x_BND)
    output_positions = [0, n - 1] if kind.endswith("self-attention") else [n - 1]
    grads = [torch.autograd.grad(y_BND[0, position].sum(), x_BND, retain_graph=True)[0] for position in output_positions]
    return all(bool((grad_BND != 0).any(dim=-1).all()) for grad_BND in grads)


def _build_stack(kind: LayerKind, d: int, reach: int, layers: int) -> Callable[[Tensor], Tensor]:
    """So many layers on top of one another; of a recurrence, so many steps that all places take at once."""

    def forward(x_BND: Tensor) -> Tensor:
        if kind == "recurrent (LSTM)":
            cell = RecurrentLayer(d).double()
            states = (torch.zeros_like(x_BND), torch.zeros_like(x_BND))
            for _ in range(layers):
                states = cell.step_all(x_BND, states)
            return states[0]
        for depth in range(layers):
            layer = build_layer(kind, d, reach, depth=depth)
            x_BND = (layer.double() if isinstance(layer, torch.nn.Module) else layer)(x_BND)
        return x_BND

    return forward
