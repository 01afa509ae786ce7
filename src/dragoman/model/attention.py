"""Multi-head scaled dot-product attention (section 3.2) and its three implementations.

`explicit_attention` is equation 1, one operation a term; tests compare the others with it. `fused_attention` is PyTorch's own
kernel. `cpu_attention` has a hand-written gradient and is the fastest on a CPU. `set_attention_impl` selects one from outside;
the layers do not depend on the choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.model.dropout import apply_keep_mask, compute_threshold, draw_keep_mask, dropout
from dragoman.model.linear import Linear, fused_linear
from dragoman.model.local_attention import LocalMask, Mask, local_attention
from dragoman.model.rotary_positions import rotate

# Values in a SIMD register. PyTorch computes a softmax over fewer keys without SIMD, which takes ten times as long.
SIMD_LANES = 16
# PyTorch's kernel is faster from this number of keys on.
FUSED_MIN_KEYS = 256

ALL_HEADS = slice(None)

AttentionImpl = Callable[[Tensor, Tensor, Tensor, Mask | None, float], Tensor]
"""(query_BHTK, key_BHSK, value_BHSU, mask, dropout probability) → heads_BHTU. The mask is true for a key that the query attends
to, or it has the numbers that are added to the scores, or it is a window."""
AttentionObserver = Callable[[Tensor, "KeyValue", Mask | None], None]
"""Function (query_BHTK, keys and values, mask) that an attention calls before it runs."""


class KeyValue(NamedTuple):
    """Keys (B, H, S, K) and values (B, H, S, U) of one attention."""

    key: Tensor
    value: Tensor

    @property
    def num_rows(self) -> int:
        """Number of rows, B."""
        return self.key.shape[0]

    @property
    def num_positions(self) -> int:
        """Number of positions, S."""
        return self.key.shape[2]

    def append(self, new: KeyValue) -> KeyValue:
        """Return these and the new positions after them."""
        return KeyValue(torch.cat([self.key, new.key], dim=2), torch.cat([self.value, new.value], dim=2))

    def tail(self, length: int) -> KeyValue:
        """Return the last `length` positions, or all if there are fewer."""
        start = max(self.key.shape[2] - length, 0)
        return KeyValue(self.key[:, :, start:], self.value[:, :, start:])

    def select(self, rows_N: Tensor) -> KeyValue:
        """Return the keys and values of these rows."""
        return KeyValue(self.key.index_select(0, rows_N), self.value.index_select(0, rows_N))


def attention_weights(query_BHTK: Tensor, key_BHSK: Tensor, mask: Mask | None) -> Tensor:
    """Return softmax(Q·Kᵀ/√d_k), the weights of equation 1. → (B, H, T, S)"""
    return mask_scores(scaled_dot_scores(query_BHTK, key_BHSK), mask).softmax(dim=-1)


def scaled_dot_scores(query_BHTK: Tensor, key_BHSK: Tensor) -> Tensor:
    """Return Q·Kᵀ/√d_k, the scores of equation 1. → (B, H, T, S)"""
    return torch.matmul(query_BHTK / math.sqrt(query_BHTK.shape[-1]), key_BHSK.transpose(-2, -1))


def mask_scores(scores_BHTS: Tensor, mask: Mask | None) -> Tensor:
    """Return the scores with −∞ where the mask allows no attention, or plus a mask of numbers. → (B, H, T, S)"""
    if mask is None:
        return scores_BHTS
    if isinstance(mask, LocalMask):
        mask = mask.to_tensor(scores_BHTS.shape[2], scores_BHTS.device)
    return scores_BHTS + mask if mask.is_floating_point() else scores_BHTS.masked_fill(~mask, float("-inf"))


def explicit_attention(query_BHTK: Tensor, key_BHSK: Tensor, value_BHSU: Tensor, mask: Mask | None, dropout_p: float) -> Tensor:
    """Return Attention(Q, K, V) = softmax(Q·Kᵀ/√d_k)·V (equation 1), with dropout on the weights. → (B, H, T, U)"""
    weights_BHTS = dropout(attention_weights(query_BHTK, key_BHSK, mask), dropout_p)
    return torch.matmul(weights_BHTS.to(value_BHSU.dtype), value_BHSU)


def fused_attention(query_BHTK: Tensor, key_BHSK: Tensor, value_BHSU: Tensor, mask: Mask | None, dropout_p: float) -> Tensor:
    """Return equation 1 from PyTorch's kernel, or from blocks for a window. → (B, H, T, U)

    The kernel has no dropout on a CPU. `cpu_attention` draws it there, so that both implementations have the same draws.
    """
    if isinstance(mask, LocalMask):
        return local_attention(query_BHTK, key_BHSK, value_BHSU, mask, dropout_p)
    has_bias = mask is not None and mask.is_floating_point()
    if mask is not None and has_bias:
        mask = mask.to(query_BHTK.dtype)
    is_short = key_BHSK.shape[2] < FUSED_MIN_KEYS and not torch.compiler.is_compiling() and not has_bias
    if dropout_p and is_short and query_BHTK.device.type == "cpu":
        return cpu_attention(query_BHTK, key_BHSK, value_BHSU, mask, dropout_p)
    return F.scaled_dot_product_attention(query_BHTK, key_BHSK, value_BHSU, attn_mask=mask, dropout_p=dropout_p)


def cpu_attention(query_BHTK: Tensor, key_BHSK: Tensor, value_BHSU: Tensor, mask: Mask | None, dropout_p: float) -> Tensor:
    """Return equation 1 in few passes over the scores, on a CPU. → (B, H, T, U)

    Long sentences use PyTorch's kernel, which is faster there and never stores all scores.
    """
    if key_BHSK.shape[2] >= FUSED_MIN_KEYS or isinstance(mask, LocalMask):
        return fused_attention(query_BHTK, key_BHSK, value_BHSU, mask, dropout_p)
    has_bias = mask is not None and mask.is_floating_point()
    if has_bias or torch.compiler.is_compiling():  # the compiler fuses the passes itself
        return explicit_attention(query_BHTK, key_BHSK, value_BHSU, mask, dropout_p)
    result = _CpuAttention.apply(query_BHTK, key_BHSK, value_BHSU, mask, dropout_p)  # type: ignore[no-untyped-call]
    return cast(Tensor, result)


def _pad_length(x_BHSU: Tensor, padding: int) -> Tensor:
    """Return x with `padding` zero positions at the end. → (X, S + padding, U) for X = B · H"""
    if not padding:
        return x_BHSU.flatten(0, 1)
    batch, heads, length, width = x_BHSU.shape
    padded_BHSU = x_BHSU.new_empty(batch, heads, length + padding, width)
    padded_BHSU[:, :, :length] = x_BHSU
    padded_BHSU[:, :, length:] = 0
    return padded_BHSU.flatten(0, 1)


class _CpuAttention(torch.autograd.Function):
    """Attention with a softmax in float32 over at least `SIMD_LANES` keys. X counts the heads of all sentences, B · H."""

    @staticmethod
    def forward(
        ctx: Any, query_BHTK: Tensor, key_BHSK: Tensor, value_BHSU: Tensor, mask: Tensor | None, dropout_p: float
    ) -> Tensor:
        shape_BH, length = query_BHTK.shape[:2], key_BHSK.shape[2]
        padding = max(SIMD_LANES - length, 0)
        query_XTK = query_BHTK.flatten(0, 1)
        key_XSK, value_XSU = (_pad_length(tensor, padding) for tensor in (key_BHSK, value_BHSU))
        scores_BHTS = torch.bmm(query_XTK, key_XSK.mT).view(*shape_BH, -1, key_XSK.shape[1])
        scores_BHTS = scores_BHTS.to(torch.promote_types(scores_BHTS.dtype, torch.float32))
        scores_BHTS.mul_(query_BHTK.shape[-1] ** -0.5)
        if padding and mask is None:
            mask = torch.ones(length, dtype=torch.bool, device=query_BHTK.device)
        if mask is not None:
            bias = torch.zeros_like(mask, dtype=scores_BHTS.dtype).masked_fill_(~mask, float("-inf"))
            scores_BHTS.add_(F.pad(bias, (0, padding), value=float("-inf")))
        weights_XTS = scores_BHTS.softmax(dim=-1).to(value_XSU.dtype).flatten(0, 1)
        ctx.keep_mask, ctx.threshold = None, compute_threshold(dropout_p)
        dropped_XTS = weights_XTS
        if dropout_p > 0.0:
            ctx.keep_mask = draw_keep_mask(weights_XTS.shape, ctx.threshold)
            dropped_XTS = apply_keep_mask(weights_XTS, ctx.keep_mask, ctx.threshold)
        ctx.save_for_backward(query_XTK, key_XSK, value_XSU, weights_XTS)
        ctx.length = length
        return torch.bmm(dropped_XTS, value_XSU).view(*shape_BH, -1, value_XSU.shape[-1])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        query_XTK, key_XSK, value_XSU, weights_XTS = ctx.saved_tensors
        grad_heads_XTU = grads[0].flatten(0, 1)
        dropped_XTS = weights_XTS if ctx.keep_mask is None else apply_keep_mask(weights_XTS, ctx.keep_mask, ctx.threshold)
        grad_value_XSU = torch.bmm(dropped_XTS.mT, grad_heads_XTU)
        grad_weights_XTS = torch.bmm(grad_heads_XTU, value_XSU.mT)
        if ctx.keep_mask is not None:
            grad_weights_XTS = apply_keep_mask(grad_weights_XTS, ctx.keep_mask, ctx.threshold)
        softmax_dtype = torch.promote_types(weights_XTS.dtype, torch.float32)
        grad_scores_XTS = torch._softmax_backward_data(
            grad_weights_XTS.to(softmax_dtype), weights_XTS.to(softmax_dtype), -1, softmax_dtype
        )
        grad_scores_XTS = grad_scores_XTS.mul_(query_XTK.shape[-1] ** -0.5).to(weights_XTS.dtype)
        grad_query_XTK, grad_key_XSK = torch.bmm(grad_scores_XTS, key_XSK), torch.bmm(grad_scores_XTS.mT, query_XTK)
        input_grads = [grad_query_XTK, grad_key_XSK[:, : ctx.length], grad_value_XSU[:, : ctx.length]]
        return *(input_grad.view(*grads[0].shape[:2], *input_grad.shape[1:]) for input_grad in input_grads), None, None


class Attention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head₁, …, head_h)·W^O (section 3.2.2); d_k and d_v are independent of d_model.

    num_key_value_heads: heads of keys and values, each shared by a group of query heads (Ainslie et al. 2023), by default all
    """

    def __init__(
        self,
        *,
        d_model: int,
        num_heads: int,
        d_k: int,
        d_v: int,
        bias: bool,
        dropout: float,
        num_key_value_heads: int | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.num_key_value_heads = num_key_value_heads or num_heads
        self.dropout = dropout
        self.query = Linear(d_model, num_heads * d_k, bias=bias)
        self.key = Linear(d_model, self.num_key_value_heads * d_k, bias=bias)
        self.value = Linear(d_model, self.num_key_value_heads * d_v, bias=bias)
        self.output = Linear(num_heads * d_v, d_model, bias=bias)
        self.attention_impl: AttentionImpl = fused_attention
        self.observer: AttentionObserver | None = None

    def _split_heads(self, x_BTX: Tensor) -> Tensor:
        """Return x with one dimension for the heads. → (B, H, T, X / H)"""
        return x_BTX.view(*x_BTX.shape[:2], self.num_heads, -1).transpose(1, 2)

    def _split_key_value(self, key_BSX: Tensor, value_BSX: Tensor) -> KeyValue:
        """Return the keys (B, H, S, K) and values (B, H, S, U) of all heads; those of a group are equal."""
        if self.num_key_value_heads < self.num_heads:
            key_BSX, value_BSX = (self._repeat_heads(x_BSX) for x_BSX in (key_BSX, value_BSX))
        return KeyValue(self._split_heads(key_BSX), self._split_heads(value_BSX))

    def _repeat_heads(self, x_BSX: Tensor) -> Tensor:
        """Return the keys or values of each head once for each query head of its group, one behind the other."""
        x_BSGX = x_BSX.view(*x_BSX.shape[:2], self.num_key_value_heads, -1)
        return x_BSGX.repeat_interleave(self.num_heads // self.num_key_value_heads, dim=2).flatten(2)

    def project_kv(self, memory_BSD: Tensor) -> KeyValue:
        """Return the keys (B, H, S, K) and values (B, H, S, U) of a memory."""
        return self._split_key_value(*fused_linear([self.key, self.value], memory_BSD))

    def project_qkv(self, x_BTD: Tensor, rotation_TK: Tensor | None = None) -> tuple[Tensor, KeyValue]:
        """Return the queries (B, H, T, K) of these positions, and their keys and values.

        rotation_TK: sines and cosines that turn queries and keys, for rotary positions
        """
        query_BTX, key_BTX, value_BTX = fused_linear([self.query, self.key, self.value], x_BTD)
        query_BHTK, key_value = self._split_heads(query_BTX), self._split_key_value(key_BTX, value_BTX)
        if rotation_TK is None:
            return query_BHTK, key_value
        return rotate(query_BHTK, rotation_TK), KeyValue(rotate(key_value.key, rotation_TK), key_value.value)

    def advance(
        self, x_NTD: Tensor, past: KeyValue | None, mask: Mask | None, rotation_TK: Tensor | None = None
    ) -> tuple[Tensor, KeyValue]:
        """Return the self-attention of T more positions (N, T, D), and the keys and values of all positions so far.

        past: keys and values of earlier positions (N, H, past, ·), None before the first step
        mask: positions that a query attends to
        rotation_TK: see `project_qkv`
        """
        query_NHTK, new = self.project_qkv(x_NTD, rotation_TK)
        key_value = new if past is None else past.append(new)
        return self.attend(query_NHTK, key_value, mask), key_value

    def forward(self, x_BTD: Tensor, key_value: KeyValue, mask: Mask | None) -> Tensor:
        """Return the attention of the queries of x to these keys and values. → (B, T, D)"""
        return self.attend(self._split_heads(self.query(x_BTD)), key_value, mask)

    def attend(self, query_BHTK: Tensor, key_value: KeyValue, mask: Mask | None) -> Tensor:
        """Return Concat(head₁, …, head_h)·W^O for these queries. → (B, T, D)"""
        if self.observer is not None:
            self.observer(query_BHTK, key_value, mask)
        heads_BHTU = self.compute_heads(query_BHTK, key_value, mask, self.dropout if self.training else 0.0)
        result: Tensor = self.output(heads_BHTU.transpose(1, 2).flatten(-2))
        return result

    def compute_heads(self, query_BHTK: Tensor, key_value: KeyValue, mask: Mask | None, dropout_p: float) -> Tensor:
        """Return head₁, …, head_h of these queries. → (B, H, T, U)"""
        return self.attention_impl(query_BHTK, key_value.key, key_value.value, mask, dropout_p)

    def compute_scores(self, query_BHTK: Tensor, key_BHSK: Tensor, heads: slice = ALL_HEADS) -> Tensor:
        """Return the score of each query and key before the mask, for some heads alone. → (B, H, T, S)"""
        return scaled_dot_scores(query_BHTK[:, heads], key_BHSK[:, heads])

    def compute_weights(self, query_BHTK: Tensor, key_BHSK: Tensor, mask: Mask | None) -> Tensor:
        """Return the attention weights before dropout. → (B, H, T, S)"""
        return mask_scores(self.compute_scores(query_BHTK, key_BHSK), mask).softmax(dim=-1)


def set_attention_impl(model: nn.Module, attention_impl: AttentionImpl) -> None:
    """Set the implementation of equation 1 in every attention of the model."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.attention_impl = attention_impl


def disable_cudnn_attention() -> None:
    """Leave the attention of cuDNN out in this process: it builds a plan for each new shape of a batch.

    PyTorch 2.11 prefers it on Hopper GPUs. A plan takes up to half a second there, and batches of sentences differ in shape: a
    training step of 50,000 tokens took 1.5 s on an H200. The other kernels of PyTorch need no plan.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


@contextmanager
def observe_attention(observers: Mapping[Attention, AttentionObserver]) -> Iterator[None]:
    """Call these observers whenever their attention runs; outputs do not change."""
    previous_observers = {module: module.observer for module in observers}
    for module, observer in observers.items():
        module.observer = observer
    try:
        yield
    finally:
        for module, previous_observer in previous_observers.items():
            module.observer = previous_observer


@contextmanager
def record_attention(modules: list[Attention]) -> Iterator[list[Tensor]]:
    """Record the attention weights (B, H, T, S) of these modules in the order in which they run; outputs do not change."""
    weights: list[Tensor] = []

    def make_observer(module: Attention) -> AttentionObserver:
        return lambda query, key_value, mask: weights.append(module.compute_weights(query, key_value.key, mask))

    with observe_attention({module: make_observer(module) for module in modules}):
        yield weights
