"""The two kinds of layer (section 3.1), and what they are made of."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from dragoman.model.attention import Attention, KeyValue
from dragoman.model.dropout import Dropout
from dragoman.model.linear import Linear
from dragoman.model.local_attention import Mask

Sublayer = Callable[[Tensor], Tensor]


class FeedForward(nn.Module):
    """FFN(x) = max(0, x·W₁ + b₁)·W₂ + b₂ (equation 2)."""

    def __init__(self, *, d_model: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.inner = Linear(d_model, d_ff)
        self.outer = Linear(d_ff, d_model)
        self.dropout = Dropout(dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        result: Tensor = self.outer(self.dropout(self.inner(x_BTD, relu=True)))
        return result


class PostNorm(nn.Module):
    """LayerNorm(x + Dropout(Sublayer(x))), as printed (sections 3.1 and 5.4)."""

    def __init__(self, *, d_model: int, epsilon: float, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model, eps=epsilon)
        self.dropout = Dropout(dropout)

    def forward(self, x_BTD: Tensor, sublayer: Sublayer) -> Tensor:
        result: Tensor = self.norm(x_BTD + self.dropout(sublayer(x_BTD)))
        return result


class PreNorm(nn.Module):
    """x + Dropout(Sublayer(LayerNorm(x))), the default of later code."""

    def __init__(self, *, d_model: int, epsilon: float, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model, eps=epsilon)
        self.dropout = Dropout(dropout)

    def forward(self, x_BTD: Tensor, sublayer: Sublayer) -> Tensor:
        result: Tensor = x_BTD + self.dropout(sublayer(self.norm(x_BTD)))
        return result


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network, each within its residual."""

    def __init__(
        self, *, attention: Attention, feed_forward: FeedForward, build_residual: Callable[[], PostNorm | PreNorm]
    ) -> None:
        super().__init__()
        self.attention = attention
        self.feed_forward = feed_forward
        self.attention_residual = build_residual()
        self.feed_forward_residual = build_residual()

    def forward(self, x_BSD: Tensor, mask: Mask | None) -> Tensor:
        def self_attention(y_BSD: Tensor) -> Tensor:
            return self.attention.attend(*self.attention.project_qkv(y_BSD), mask)

        x_BSD = self.attention_residual(x_BSD, self_attention)
        result: Tensor = self.feed_forward_residual(x_BSD, self.feed_forward)
        return result


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the source, then the feed-forward network."""

    def __init__(
        self,
        *,
        attention: Attention,
        cross_attention: Attention,
        feed_forward: FeedForward,
        build_residual: Callable[[], PostNorm | PreNorm],
    ) -> None:
        super().__init__()
        self.attention = attention
        self.cross_attention = cross_attention
        self.feed_forward = feed_forward
        self.attention_residual = build_residual()
        self.cross_attention_residual = build_residual()
        self.feed_forward_residual = build_residual()

    def forward(
        self, x_NTD: Tensor, past_kv: KeyValue | None, cross_kv: KeyValue, mask: Mask | None, memory_mask: Tensor | None
    ) -> tuple[Tensor, KeyValue]:
        """One layer's output, and its keys and values so far. `memory` may hold one row for each k rows of x (a beam)."""
        self_kv: list[KeyValue] = []

        def causal_self_attention(y_NTD: Tensor) -> Tensor:
            query_NHTK, step_kv = self.attention.project_qkv(y_NTD)
            self_kv.append(step_kv if past_kv is None else past_kv.append(step_kv))
            return self.attention.attend(query_NHTK, self_kv[0], mask)

        def cross_attention(y_NTD: Tensor) -> Tensor:
            # The rows of a beam ask the same source, so they stand side by side as queries and its keys are stored once.
            y_BXD = y_NTD.reshape(cross_kv.key.shape[0], -1, y_NTD.shape[-1])
            result: Tensor = self.cross_attention(y_BXD, cross_kv, memory_mask).view_as(y_NTD)
            return result

        x_NTD = self.attention_residual(x_NTD, causal_self_attention)
        x_NTD = self.cross_attention_residual(x_NTD, cross_attention)
        return self.feed_forward_residual(x_NTD, self.feed_forward), self_kv[0]
