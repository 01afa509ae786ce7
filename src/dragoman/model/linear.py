"""Products with weight matrices, and the three ways of computing them.

`plain_product` is PyTorch's choice. `onednn_product` goes to oneDNN in float32 as well, where PyTorch asks MKL,
which leaves the wide vectors of some processors idle. `padded_product` is for bfloat16, where oneDNN makes itself a program for
each number of rows that it meets: it meets few. Which one runs is a value that is set from outside; no layer knows.

    M rows, R with those that fill them up    I inputs    O outputs
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Weights from which on their gradient is made faster by turning one side round first.
MANY_WEIGHTS = 1 << 18


class Product(Protocol):
    """x·Wᵀ + b of x (…, I), the weight (O, I) and the bias (O); `rectified`: max(0, that)."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, *, rectified: bool = False) -> Tensor: ...


def plain_product(x: Tensor, weight: Tensor, bias: Tensor | None, *, rectified: bool = False) -> Tensor:
    """PyTorch's own."""
    result = F.linear(x, weight, bias)
    return F.relu(result, inplace=True) if rectified else result


class Linear(nn.Linear):
    """x·Wᵀ + b, through whichever product it was told to use."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.product: Product = plain_product

    def forward(self, x: Tensor, *, rectified: bool = False) -> Tensor:
        return self.product(x, self.weight, self.bias, rectified=rectified)


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
        return plain_product(x, weight, bias, rectified=rectified)
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


def whole_rows(count: int) -> int:
    """The next of the usual numbers of rows, of which eight stand between a number and its double."""
    step = 1 << max(0, (count - 1).bit_length() - 4)
    return -(-count // step) * step


def padded_product(x: Tensor, weight: Tensor, bias: Tensor | None, *, rectified: bool = False) -> Tensor:
    """x·Wᵀ + b under bfloat16's autocast on a processor, over whole numbers of rows; all else has PyTorch's way.

    With AMX a new number of rows takes oneDNN some milliseconds, as long as the product; hardly two batches have the same.
    """
    halves = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    if halves and x.device.type == "cpu" and weight.dtype == torch.float32 and not torch.compiler.is_compiling():
        return cast(Tensor, _PaddedProduct.apply(x, weight, bias, rectified))  # type: ignore[no-untyped-call]
    if x.dtype == torch.bfloat16 == weight.dtype and bias is None and not rectified and not x.is_contiguous():
        return _across(x.t(), weight.t())
    return plain_product(x, weight, bias, rectified=rectified)


def _across(one_RO: Tensor, other_RI: Tensor) -> Tensor:
    """Oneᵀ·other, as the gradient of a weight is. oneDNN wants the rows of the first in order, so let it be the narrower."""
    if one_RO.shape[1] * other_RI.shape[1] < MANY_WEIGHTS:
        return one_RO.t() @ other_RI
    if one_RO.shape[1] <= other_RI.shape[1]:
        return one_RO.t().contiguous() @ other_RI
    return (other_RI.t().contiguous() @ one_RO).t()


def _padded(x_MI: Tensor, rows: int) -> Tensor:
    """In bfloat16, with rows of zeros at the end."""
    if len(x_MI) == rows:
        return x_MI.to(torch.bfloat16).contiguous()
    padded_RI = torch.empty(rows, x_MI.shape[1], dtype=torch.bfloat16)
    padded_RI[: len(x_MI)] = x_MI
    padded_RI[len(x_MI) :] = 0
    return padded_RI


class _PaddedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, rectified: bool) -> Tensor:
        x_MI = x.reshape(-1, x.shape[-1])
        x_RI = _padded(x_MI, whole_rows(len(x_MI)))
        half_OI = weight.to(torch.bfloat16)
        y_RO = F.linear(x_RI, half_OI, None if bias is None else bias.to(torch.bfloat16))
        if rectified:
            y_RO.relu_()
        ctx.save_for_backward(x_RI, half_OI, y_RO if rectified else None)
        ctx.shape, ctx.dtype = x.shape, x.dtype
        return y_RO[: len(x_MI)].view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x_RI, half_OI, y_RO = ctx.saved_tensors
        to_y_MO = grads[0].reshape(-1, grads[0].shape[-1])
        if y_RO is not None:
            to_y_MO = torch.ops.aten.threshold_backward(to_y_MO, y_RO[: len(to_y_MO)], 0)
        to_y_RO = _padded(to_y_MO, len(x_RI))
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        to_x = (to_y_RO @ half_OI)[: len(to_y_MO)].view(ctx.shape).to(ctx.dtype) if needs_x else None
        to_weight = in_order(_across(to_y_RO, x_RI).float()) if needs_weight else None
        return to_x, to_weight, to_y_RO.sum(0).float() if needs_bias else None, None
