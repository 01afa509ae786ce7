"""Encoder and decoder layers (section 3.1) and their parts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.model.attention import Attention, KeyValue
from dragoman.model.dropout import Dropout
from dragoman.model.linear import Linear
from dragoman.model.local_attention import Mask
from dragoman.model.ssru import Ssru, SsruState

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "geglu": partial(F.gelu, approximate="tanh"),
    "swiglu": F.silu,
}
"""Activations of feed-forward networks, or of their gates, by their name in the recipe."""


class FeedForward(nn.Module):
    """FFN(x) = max(0, x·W₁ + b₁)·W₂ + b₂ (equation 2), or with another activation than the ReLU.

    With a gate, it is (activation(x·W_g) ∘ (x·W₁))·W₂ (Shazeer 2020, "GLU Variants Improve Transformer").
    """

    def __init__(
        self, *, d_model: int, d_ff: int, dropout: float, activation: str = "relu", bias: bool = True, is_gated: bool = False
    ) -> None:
        super().__init__()
        self.activation = activation
        self.gate = Linear(d_model, d_ff, bias=bias) if is_gated else None
        self.inner = Linear(d_model, d_ff, bias=bias)
        self.outer = Linear(d_ff, d_model, bias=bias)
        self.dropout = Dropout(dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return FFN(x). → (B, T, D)"""
        activation = ACTIVATIONS[self.activation]
        if self.gate is not None:
            y_BTF = activation(self.gate(x_BTD)) * self.inner(x_BTD)
        else:  # the ReLU is a part of the product
            y_BTF = self.inner(x_BTD, relu=True) if self.activation == "relu" else activation(self.inner(x_BTD))
        result: Tensor = self.outer(self.dropout(y_BTF))
        return result


class PostNorm(nn.Module):
    """Residual connection of the paper: LayerNorm(x + Dropout(Sublayer(x))) (sections 3.1 and 5.4).

    norm: layer normalization, or RMSNorm
    """

    def __init__(self, *, norm: nn.Module, dropout: float) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = Dropout(dropout)

    def sublayer_input(self, x_BTD: Tensor) -> Tensor:
        """Return x, the input of the sublayer."""
        return x_BTD

    def forward(self, x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
        """Return LayerNorm(x + Dropout(y)) for the sublayer's output y. → (B, T, D)"""
        result: Tensor = self.norm(x_BTD + self.dropout(y_BTD))
        return result


class PreNorm(nn.Module):
    """Residual connection of later models: x + Dropout(Sublayer(LayerNorm(x))). See `PostNorm` for the arguments."""

    def __init__(self, *, norm: nn.Module, dropout: float) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = Dropout(dropout)

    def sublayer_input(self, x_BTD: Tensor) -> Tensor:
        """Return LayerNorm(x), the input of the sublayer. → (B, T, D)"""
        result: Tensor = self.norm(x_BTD)
        return result

    def forward(self, x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
        """Return x + Dropout(y) for the sublayer's output y. → (B, T, D)"""
        result: Tensor = x_BTD + self.dropout(y_BTD)
        return result


Residual = PostNorm | PreNorm
SelfState = KeyValue | SsruState
"""Record of the output so far in one decoder layer."""


class EncoderLayer(nn.Module):
    """Self-attention and the feed-forward network, each with a residual connection."""

    def __init__(
        self, *, attention: Attention, feed_forward: FeedForward, attention_residual: Residual, feed_forward_residual: Residual
    ) -> None:
        super().__init__()
        self.attention = attention
        self.feed_forward = feed_forward
        self.attention_residual = attention_residual
        self.feed_forward_residual = feed_forward_residual

    def forward(self, x_BSD: Tensor, mask: Mask | None, rotation_SK: Tensor | None = None) -> Tensor:
        """Return the layer's output. → (B, S, D)

        mask: positions that a query attends to
        rotation_SK: sines and cosines of rotary positions
        """
        query_BHSK, self_kv = self.attention.project_qkv(self.attention_residual.sublayer_input(x_BSD), rotation_SK)
        x_BSD = self.attention_residual(x_BSD, self.attention.attend(query_BHSK, self_kv, mask))

        y_BSD = self.feed_forward(self.feed_forward_residual.sublayer_input(x_BSD))
        result: Tensor = self.feed_forward_residual(x_BSD, y_BSD)
        return result


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention and the feed-forward network, each with a residual connection.

    attention: self-attention, or an SSRU in its place if `ModelConfig.has_ssru`
    """

    def __init__(
        self,
        *,
        attention: Attention | Ssru,
        cross_attention: Attention,
        feed_forward: FeedForward,
        attention_residual: Residual,
        cross_attention_residual: Residual,
        feed_forward_residual: Residual,
    ) -> None:
        super().__init__()
        self.attention = cast(Attention, attention)
        self.cross_attention = cross_attention
        self.feed_forward = feed_forward
        self.attention_residual = attention_residual
        self.cross_attention_residual = cross_attention_residual
        self.feed_forward_residual = feed_forward_residual

    def forward(
        self,
        x_NTD: Tensor,
        past: Any,
        cross_kv: KeyValue,
        mask: Mask | None,
        memory_mask: Mask | None,
        rotation_TK: Tensor | None = None,
    ) -> tuple[Tensor, SelfState]:
        """Return the layer's output (N, T, D), and the record of all positions so far.

        past: `SelfState` of earlier positions, such as keys and values (N, H, past, ·); None before the first step
        cross_kv: keys and values of the source (B, H, S, ·); B may be N divided by the beam size
        mask: positions that a query attends to in its own output
        memory_mask: positions that a query attends to in the source (B, 1, 1, S)
        rotation_TK: sines and cosines of rotary positions
        """
        y_NTD, present = self.attention.advance(self.attention_residual.sublayer_input(x_NTD), past, mask, rotation_TK)
        x_NTD = self.attention_residual(x_NTD, y_NTD)

        y_NTD = self.cross_attention_residual.sublayer_input(x_NTD)
        x_NTD = self.cross_attention_residual(x_NTD, attend_to_source(self.cross_attention, y_NTD, cross_kv, memory_mask))

        y_NTD = self.feed_forward(self.feed_forward_residual.sublayer_input(x_NTD))
        return self.feed_forward_residual(x_NTD, y_NTD), present


def attend_to_source(attention: Attention, x_NTD: Tensor, cross_kv: KeyValue, memory_mask: Mask | None) -> Tensor:
    """Return the attention of N rows to B sources. → (N, T, D)

    The N / B hypotheses of a source become T · N / B queries of one row, so its keys are stored once.
    """
    x_BXD = x_NTD.reshape(cross_kv.key.shape[0], -1, x_NTD.shape[-1])
    result: Tensor = attention(x_BXD, cross_kv, memory_mask)
    return result.view_as(x_NTD)
