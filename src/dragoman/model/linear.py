"""Linear layers and the three implementations of their matrix product.

`torch_matmul` is PyTorch's default, which calls MKL in float32. `onednn_matmul` calls oneDNN instead, because MKL does not use
the widest SIMD registers of some processors. `padded_matmul` is for bfloat16: oneDNN generates a program for each number of
rows, so padding keeps these numbers few. `set_matmul_impl` selects one from outside; the layers do not depend on the choice.

    M rows, R rows with padding    I inputs    O outputs
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# The gradient of a matrix with at least this many weights is faster if one operand is transposed first.
MIN_TRANSPOSED_WEIGHTS = 1 << 18


class MatMul(Protocol):
    """Implementation of x·Wᵀ + b for x (…, I), weight (O, I) and bias (O); with `relu`, of max(0, x·Wᵀ + b)."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> Tensor: ...


def torch_matmul(x: Tensor, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> Tensor:
    """Return x·Wᵀ + b from PyTorch's default implementation. → (…, O)"""
    result = F.linear(x, weight, bias)
    return F.relu(result, inplace=True) if relu else result


class Linear(nn.Linear):
    """Linear layer x·Wᵀ + b whose matrix product has a replaceable implementation.

    variance_gain: factor of the variance of the weights that `initialization = "convs2s"` draws
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.variance_gain = 1.0
        self.matmul: MatMul = torch_matmul

    def compute_weight(self) -> Tensor:
        """Return W, which a low-rank adapter changes. → (O, I)"""
        return self.weight

    def forward(self, x: Tensor, *, relu: bool = False) -> Tensor:
        """Return x·Wᵀ + b, or max(0, x·Wᵀ + b). → (…, O)"""
        return self.matmul(x, self.compute_weight(), self.bias, relu=relu)


def fused_linear(linears: Sequence[Linear], x: Tensor) -> Sequence[Tensor]:
    """Return the output of each layer for x. With gradients, one product reads x and sums its gradient once."""
    if not torch.is_grad_enabled():
        return [linear(x) for linear in linears]
    weight = torch.cat([linear.compute_weight() for linear in linears])
    bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])
    return torch.split(linears[0].matmul(x, weight, bias), [linear.out_features for linear in linears], dim=-1)


def onednn_matmul(x: Tensor, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> Tensor:
    """Return x·Wᵀ + b from oneDNN in float32, equal up to rounding; other types use PyTorch's default. → (…, O)

    oneDNN has no product without rows, such as that of an expert without tokens, so PyTorch computes it.
    """
    if x.dtype != torch.float32 or weight.dtype != torch.float32 or torch.is_autocast_enabled(x.device.type) or not x.numel():
        return torch_matmul(x, weight, bias, relu=relu)
    return cast(Tensor, _OneDNNMatMul.apply(x, weight, bias, relu))  # type: ignore[no-untyped-call]


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None, post_op: str = "none") -> Tensor:
    if not x.is_contiguous() and x.numel() > weight.numel() and bias is None and post_op == "none":
        return _onednn_linear(weight, x, None).t()  # the first operand is copied, so the smaller one takes its role
    return cast(Tensor, torch.ops.mkldnn._linear_pointwise(contiguous_rows(x), weight, bias, post_op, [], ""))


def _make_dense(x_XO: Tensor) -> Tensor:
    """Return x without gaps or repeated numbers between its rows or columns.

    A slice or an expanded gradient has them. oneDNN multiplies such a matrix without SIMD instructions, some 300 times slower.
    """
    return x_XO if x_XO.is_contiguous() or x_XO.t().is_contiguous() else x_XO.contiguous()


def contiguous_rows(x: Tensor) -> Tensor:
    """Return x with contiguous rows. PyTorch itself transposes a matrix one number at a time in one thread."""
    is_transposed = x.dim() == 2 and x.t().is_contiguous() and x.dtype == torch.float32 and x.device.type == "cpu"
    if x.is_contiguous() or not is_transposed or torch.compiler.is_compiling():
        return x.contiguous()
    # A channel shuffle of one pixel uses SIMD instructions and takes half the time.
    pixel_1NHW = x.t().view(1, 1, 1, x.numel()).permute(0, 3, 1, 2)
    return torch.native_channel_shuffle(pixel_1NHW, x.shape[1]).permute(0, 2, 3, 1).view(x.shape)


class _OneDNNMatMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
        result = _onednn_linear(x, _make_dense(weight), bias, "relu" if relu else "none")
        ctx.save_for_backward(x, weight, result if relu else None)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight, result = ctx.saved_tensors
        grad_result = grads[0] if result is None else torch.ops.aten.threshold_backward(grads[0], result, 0)
        x_XI = _make_dense(x.reshape(-1, x.shape[-1]))
        grad_result_XO = _make_dense(grad_result.reshape(-1, grad_result.shape[-1]))
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_x = _onednn_linear(grad_result_XO, _make_dense(weight).t(), None).view_as(x) if needs_x else None
        grad_weight = contiguous_rows(_onednn_linear(grad_result_XO.t(), x_XI.t(), None)) if needs_weight else None
        return grad_x, grad_weight, grad_result_XO.sum(0) if needs_bias else None, None


def round_up_rows(num_rows: int) -> int:
    """Return the next larger padded number of rows; there are eight such numbers between a number and its double."""
    step = 1 << max(0, (num_rows - 1).bit_length() - 4)
    return -(-num_rows // step) * step


def padded_matmul(x: Tensor, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> Tensor:
    """Return x·Wᵀ + b over a padded number of rows, under bfloat16 autocast on a CPU; otherwise PyTorch's default. → (…, O)

    With AMX, oneDNN needs milliseconds for a new number of rows, as long as the product itself. Most batches differ in it.
    A product without rows, such as that of an expert without tokens, has nothing to pad.
    """
    if not x.numel():
        return torch_matmul(x, weight, bias, relu=relu)
    is_bf16 = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    if is_bf16 and x.device.type == "cpu" and weight.dtype == torch.float32 and not torch.compiler.is_compiling():
        return cast(Tensor, _PaddedMatMul.apply(x, weight, bias, relu))  # type: ignore[no-untyped-call]
    if x.dtype == torch.bfloat16 == weight.dtype and bias is None and not relu and not x.is_contiguous():
        return _transposed_matmul(x.t(), weight.t())
    return torch_matmul(x, weight, bias, relu=relu)


def _transposed_matmul(left_RO: Tensor, right_RI: Tensor) -> Tensor:
    """Return leftᵀ·right, the form of a weight's gradient. → (O, I)

    oneDNN copies the first operand into contiguous rows, so the narrower one takes its role.
    """
    if left_RO.shape[1] * right_RI.shape[1] < MIN_TRANSPOSED_WEIGHTS:
        return left_RO.t() @ right_RI
    if left_RO.shape[1] <= right_RI.shape[1]:
        return left_RO.t().contiguous() @ right_RI
    return (right_RI.t().contiguous() @ left_RO).t()


def _pad_rows(x_MI: Tensor, num_rows: int) -> Tensor:
    """Return x in bfloat16 with zero rows at the end. → (R, I)"""
    if len(x_MI) == num_rows:
        return x_MI.to(torch.bfloat16).contiguous()
    padded_RI = torch.empty(num_rows, x_MI.shape[1], dtype=torch.bfloat16)
    padded_RI[: len(x_MI)] = x_MI
    padded_RI[len(x_MI) :] = 0
    return padded_RI


class _PaddedMatMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
        x_MI = x.reshape(-1, x.shape[-1])
        x_RI = _pad_rows(x_MI, round_up_rows(len(x_MI)))
        weight_OI = weight.to(torch.bfloat16)
        y_RO = F.linear(x_RI, weight_OI, None if bias is None else bias.to(torch.bfloat16))
        if relu:
            y_RO.relu_()
        ctx.save_for_backward(x_RI, weight_OI, y_RO if relu else None)
        ctx.shape, ctx.dtype = x.shape, x.dtype
        return y_RO[: len(x_MI)].view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x_RI, weight_OI, y_RO = ctx.saved_tensors
        grad_y_MO = grads[0].reshape(-1, grads[0].shape[-1])
        if y_RO is not None:
            grad_y_MO = torch.ops.aten.threshold_backward(grad_y_MO, y_RO[: len(grad_y_MO)], 0)
        grad_y_RO = _pad_rows(grad_y_MO, len(x_RI))
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_x = (grad_y_RO @ weight_OI)[: len(grad_y_MO)].view(ctx.shape).to(ctx.dtype) if needs_x else None
        grad_weight = contiguous_rows(_transposed_matmul(grad_y_RO, x_RI).float()) if needs_weight else None
        return grad_x, grad_weight, grad_y_RO.sum(0).float() if needs_bias else None, None
