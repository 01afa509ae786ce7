"""Encoder and decoder layers (section 3.1) and their parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.model.attention import Attention, KeyValue
from dragoman.model.dropout import Dropout
from dragoman.model.experts import Experts
from dragoman.model.linear import Linear
from dragoman.model.local_attention import Mask
from dragoman.model.normalization import build_norm, normalize

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "silu": F.silu, "gelu": F.gelu}
"""Activations of feed-forward networks by their name in the recipe."""


class FeedForward(nn.Module):
    """FFN(x) = max(0, x·W₁ + b₁)·W₂ + b₂ (equation 2), or with another activation than the ReLU."""

    def __init__(self, *, d_model: int, d_ff: int, dropout: float, activation: str = "relu") -> None:
        super().__init__()
        self.activation = activation
        self.inner = Linear(d_model, d_ff)
        self.outer = Linear(d_ff, d_model)
        self.dropout = Dropout(dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return FFN(x). → (B, T, D)"""
        is_relu = self.activation == "relu"  # the ReLU is a part of the product
        y_BTF = self.inner(x_BTD, relu=True) if is_relu else ACTIVATIONS[self.activation](self.inner(x_BTD))
        result: Tensor = self.outer(self.dropout(y_BTF))
        return result


class PostNorm(nn.Module):
    """Residual connection of the paper: LayerNorm(x + Dropout(Sublayer(x))) (sections 3.1 and 5.4).

    normalization: kind of the norm, as in the recipe
    residual: whether x is added
    scale: factor of the sum; 1 in the paper
    """

    def __init__(
        self,
        *,
        d_model: int,
        epsilon: float,
        dropout: float,
        normalization: str = "layer",
        residual: bool = True,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        # Code that reads its weights takes the paper's layers only (`ModelConfig.find_unusual_layers`).
        self.norm = cast(nn.LayerNorm, build_norm(normalization, d_model, epsilon))
        self.dropout = Dropout(dropout)
        self.residual = residual
        self.scale = scale

    def sublayer_input(self, x_BTD: Tensor, token_mask_BT: Tensor | None = None) -> Tensor:
        """Return x, the input of the sublayer."""
        return x_BTD

    def forward(self, x_BTD: Tensor, y_BTD: Tensor, token_mask_BT: Tensor | None = None) -> Tensor:
        """Return LayerNorm(x + Dropout(y)) for the sublayer's output y. → (B, T, D)"""
        return normalize(self.norm, add_residual(self, x_BTD, y_BTD), token_mask_BT)


class PreNorm(nn.Module):
    """Residual connection of later models: x + Dropout(Sublayer(LayerNorm(x))). See `PostNorm` for the arguments."""

    def __init__(
        self,
        *,
        d_model: int,
        epsilon: float,
        dropout: float,
        normalization: str = "layer",
        residual: bool = True,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        # Code that reads its weights takes the paper's layers only (`ModelConfig.find_unusual_layers`).
        self.norm = cast(nn.LayerNorm, build_norm(normalization, d_model, epsilon))
        self.dropout = Dropout(dropout)
        self.residual = residual
        self.scale = scale

    def sublayer_input(self, x_BTD: Tensor, token_mask_BT: Tensor | None = None) -> Tensor:
        """Return LayerNorm(x), the input of the sublayer. → (B, T, D)"""
        return normalize(self.norm, x_BTD, token_mask_BT)

    def forward(self, x_BTD: Tensor, y_BTD: Tensor, token_mask_BT: Tensor | None = None) -> Tensor:
        """Return x + Dropout(y) for the sublayer's output y. → (B, T, D)"""
        return add_residual(self, x_BTD, y_BTD)


def add_residual(connection: PostNorm | PreNorm, x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
    """Return (x + Dropout(y)) · scale, or Dropout(y) · scale without a residual connection. → (B, T, D)"""
    y_BTD = connection.dropout(y_BTD)
    sum_BTD = x_BTD + y_BTD if connection.residual else y_BTD
    return sum_BTD if connection.scale == 1.0 else sum_BTD * connection.scale


def apply_feed_forward(
    feed_forward: FeedForward | Experts | None,
    residual: PostNorm | PreNorm | None,
    x_BTD: Tensor,
    token_mask_BT: Tensor | None,
) -> Tensor:
    """Return the output of the feed-forward sublayer, or x without a feed-forward network. → (B, T, D)

    token_mask_BT: read by mixtures of experts and by batch normalization only
    """
    if feed_forward is None or residual is None:
        return x_BTD
    y_BTD = residual.sublayer_input(x_BTD, token_mask_BT)
    y_BTD = feed_forward(y_BTD, token_mask_BT) if isinstance(feed_forward, Experts) else feed_forward(y_BTD)
    result: Tensor = residual(x_BTD, y_BTD, token_mask_BT)
    return result


class EncoderLayer(nn.Module):
    """Self-attention and the feed-forward network, each with a residual connection. `feed_forward` may be None."""

    def __init__(
        self,
        *,
        attention: Attention,
        feed_forward: FeedForward | Experts | None,
        build_residual: Callable[[], PostNorm | PreNorm],
    ) -> None:
        super().__init__()
        self.attention = attention
        self.feed_forward = cast(FeedForward, feed_forward)
        self.attention_residual = build_residual()
        self.feed_forward_residual = cast(PostNorm, None if feed_forward is None else build_residual())

    def forward(self, x_BSD: Tensor, mask: Mask | None, token_mask_BS: Tensor | None = None) -> Tensor:
        """Return the layer's output. → (B, S, D)

        mask: positions that a query attends to
        token_mask_BS: true for tokens, false for padding, in training; None if it is of no use
        """
        y_BSD = self.attention_residual.sublayer_input(x_BSD, token_mask_BS)
        query_BHSK, self_kv = self.attention.project_qkv(y_BSD)
        x_BSD = self.attention_residual(x_BSD, self.attention.attend(query_BHSK, self_kv, mask), token_mask_BS)

        return apply_feed_forward(self.feed_forward, self.feed_forward_residual, x_BSD, token_mask_BS)


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention and the feed-forward network, each with a residual connection.

    `feed_forward` may be None.
    """

    def __init__(
        self,
        *,
        attention: Attention,
        cross_attention: Attention,
        feed_forward: FeedForward | Experts | None,
        build_residual: Callable[[], PostNorm | PreNorm],
    ) -> None:
        super().__init__()
        self.attention = attention
        self.cross_attention = cross_attention
        self.feed_forward = cast(FeedForward, feed_forward)
        self.attention_residual = build_residual()
        self.cross_attention_residual = build_residual()
        self.feed_forward_residual = cast(PostNorm, None if feed_forward is None else build_residual())

    def forward(
        self,
        x_NTD: Tensor,
        past_kv: KeyValue | None,
        cross_kv: KeyValue,
        mask: Mask | None,
        memory_mask: Tensor | None,
        token_mask_NT: Tensor | None = None,
    ) -> tuple[Tensor, KeyValue]:
        """Return the layer's output (N, T, D) and the keys and values of all positions so far.

        past_kv: keys and values of earlier positions (N, H, past, ·), None before the first step
        cross_kv: keys and values of the source (B, H, S, ·); B may be N divided by the beam size
        mask: positions that a query attends to in its own output
        memory_mask: positions that a query attends to in the source (B, 1, 1, S)
        token_mask_NT: true for tokens, false for padding, in training; None if it is of no use
        """
        y_NTD = self.attention_residual.sublayer_input(x_NTD, token_mask_NT)
        query_NHTK, step_kv = self.attention.project_qkv(y_NTD)
        self_kv = step_kv if past_kv is None else past_kv.append(step_kv)
        x_NTD = self.attention_residual(x_NTD, self.attention.attend(query_NHTK, self_kv, mask), token_mask_NT)

        y_NTD = self.cross_attention_residual.sublayer_input(x_NTD, token_mask_NT)
        y_NTD = attend_to_source(self.cross_attention, y_NTD, cross_kv, memory_mask)
        x_NTD = self.cross_attention_residual(x_NTD, y_NTD, token_mask_NT)

        return apply_feed_forward(self.feed_forward, self.feed_forward_residual, x_NTD, token_mask_NT), self_kv


def attend_to_source(attention: Attention, x_NTD: Tensor, cross_kv: KeyValue, memory_mask: Tensor | None) -> Tensor:
    """Return the attention of N rows to B sources. → (N, T, D)

    The N / B hypotheses of a source become T · N / B queries of one row, so its keys are stored once.
    """
    x_BXD = x_NTD.reshape(cross_kv.key.shape[0], -1, x_NTD.shape[-1])
    result: Tensor = attention(x_BXD, cross_kv, memory_mask)
    return result.view_as(x_NTD)
