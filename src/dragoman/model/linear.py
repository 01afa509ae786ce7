"""Products with weight matrices, and the two ways of computing them.

`torch.nn.functional.linear` is PyTorch's choice. `onednn_product` goes to oneDNN in float32 as well, where PyTorch asks MKL,
which leaves the wide vectors of some processors idle. Which one runs is a value that is set from outside; no layer knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class Linear(nn.Linear):
    """x·Wᵀ + b, through whichever product it was told to use."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.product: Product = F.linear

    def forward(self, x: Tensor, *, rectified: bool = False) -> Tensor:
        """`rectified`: max(0, x·Wᵀ + b), without another pass where the product can."""
        if rectified and self.product is onednn_product:
            return onednn_product(x, self.weight, self.bias, rectified=True)
        result = self.product(x, self.weight, self.bias)
        return F.relu(result, inplace=True) if rectified else result


def multiplies_bfloat16() -> bool:
    """Whether the processor has instructions for products of bfloat16."""
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def side_by_side(linears: Sequence[Linear], x: Tensor) -> Sequence[Tensor]:
    """What each of them makes of x: while learning from one product, so that x is read, and its gradient summed, once."""
    if not torch.is_grad_enabled():
        return [linear(x) for linear in linears]
    weight = torch.cat([linear.weight for linear in linears])
    bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])
    return torch.split(linears[0].product(x, weight, bias), [linear.out_features for linear in linears], dim=-1)


def onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None, *, rectified: bool = False) -> Tensor:
    """x·Wᵀ + b in float32 through oneDNN, exact to float32's own rounding; every other type has PyTorch's way."""
    if x.dtype != torch.float32 or weight.dtype != torch.float32 or torch.is_autocast_enabled(x.device.type):
        result = F.linear(x, weight, bias)
        return F.relu(result, inplace=True) if rectified else result
    return cast(Tensor, _OneDNNProduct.apply(x, weight, bias, rectified))  # type: ignore[no-untyped-call]


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None, then: str = "none") -> Tensor:
    if not x.is_contiguous() and x.numel() > weight.numel() and bias is None and then == "none":
        return _multiply(weight, x, None).t()  # the first has to be put in order, so let it be the smaller
    return cast(Tensor, torch.ops.mkldnn._linear_pointwise(in_order(x), weight, bias, then, [], ""))


def in_order(x: Tensor) -> Tensor:
    """The same numbers with rows one after the other. PyTorch turns a matrix round a number at a time, in one thread."""
    turned = x.dim() == 2 and x.t().is_contiguous() and x.dtype == torch.float32 and x.device.type == "cpu"
    if x.is_contiguous() or not turned or torch.compiler.is_compiling():
        return x.contiguous()
    # As one pixel, whose channels are shuffled by vector instructions: in half the time.
    pixel_1NHW = x.t().view(1, 1, 1, x.numel()).permute(0, 3, 1, 2)
    return torch.native_channel_shuffle(pixel_1NHW, x.shape[1]).permute(0, 2, 3, 1).view(x.shape)


class _OneDNNProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, rectified: bool) -> Tensor:
        result = _multiply(x, weight, bias, "relu" if rectified else "none")
        ctx.save_for_backward(x, weight, result if rectified else None)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight, result = ctx.saved_tensors
        to_result = grads[0] if result is None else torch.ops.aten.threshold_backward(grads[0], result, 0)
        x_XI, to_result_XO = x.reshape(-1, x.shape[-1]), to_result.reshape(-1, to_result.shape[-1])
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        to_x = _multiply(to_result_XO, weight.t(), None).view_as(x) if needs_x else None
        to_weight = in_order(_multiply(to_result_XO.t(), x_XI.t(), None)) if needs_weight else None
        return to_x, to_weight, to_result_XO.sum(0) if needs_bias else None, None
