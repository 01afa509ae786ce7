"""Counts of one layer: memory, operations, sequential matrix products and path length."""

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
    """Memory and operations of the forward and backward pass of one layer."""

    peak_bytes: int
    """Peak memory of the tensors, without the input and the weights."""
    operations: int
    """Multiplications and additions of the matrix products."""


class _CountingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that adds up the memory of live results and the operations of the products.

    It does not ask an allocator, so that the bytes are equal on all machines.
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
    """Return the operations of one call, by PyTorch's formulas, whose backward pass of convolutions ignores groups."""
    if func is torch.ops.aten.convolution:
        return 2 * int(result.numel() * args[1][0].numel())
    if func is torch.ops.aten.convolution_backward:
        gradient, weight, output_mask = args[0], args[2], args[10]
        return 2 * int(gradient.numel() * weight[0].numel()) * (int(output_mask[0]) + int(output_mask[1]))
    formula = flop_registry.get(func)
    return int(formula(*args, **kwargs, out_val=result)) if formula is not None else 0


def count_operations(layer: LayerFn, x_BND: Tensor) -> OperationCount:
    """Run the forward and backward pass of a layer once, and return its counts."""
    with _CountingMode() as mode:
        run_forward_backward(layer, x_BND)
    return OperationCount(mode.peak_bytes, mode.operations)


def run_forward_backward(layer: LayerFn, x_BND: Tensor) -> None:
    """Run the forward and backward pass of a layer once. `x_BND` requires a gradient."""
    y_BND = layer(x_BND)
    y_BND.backward(torch.ones_like(y_BND))  # type: ignore[no-untyped-call]
    for tensor in (x_BND, *(layer.parameters() if isinstance(layer, torch.nn.Module) else ())):
        tensor.grad = None


def count_sequential_matmuls(layer: LayerFn, n: int, d: int) -> int:
    """Return the length of the longest chain of dependent matrix products in the graph of autograd."""
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
    """Return the number of layers (steps of a recurrence) after which the last output depends on all inputs.

    An input counts if it has a gradient. For self-attention, the first output must depend on all inputs as well. The search
    doubles and halves, because the reach grows with each layer.
    """
    low, high = 0, 1
    while not _depends_on_all_inputs(kind, n, d, reach, high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _depends_on_all_inputs(kind, n, d, reach, middle) else (middle, high)
    return high


def _depends_on_all_inputs(kind: LayerKind, n: int, d: int, reach: int, layers: int) -> bool:
    # In float64, a product of hundreds of weights is not yet zero.
    x_BND = torch.randn(1, n, d, dtype=torch.float64, requires_grad=True)
    y_BND = _build_stack(kind, d, reach, layers)(x_BND)
    output_positions = [0, n - 1] if kind.endswith("self-attention") else [n - 1]
    grads = [torch.autograd.grad(y_BND[0, position].sum(), x_BND, retain_graph=True)[0] for position in output_positions]
    return all(bool((grad_BND != 0).any(dim=-1).all()) for grad_BND in grads)


def _build_stack(kind: LayerKind, d: int, reach: int, layers: int) -> Callable[[Tensor], Tensor]:
    """Return a stack of layers. For a recurrence, return as many steps, each for all positions at once."""

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
