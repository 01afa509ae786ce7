"""Multi-head scaled dot-product attention (section 3.2), and its two ways of being computed.

`fused_attention` is PyTorch's own kernel. `explicit_attention` writes equation 1 out and also returns the weights: it is the
oracle of the tests, the source of pictures, and the faster of the two on a processor in bfloat16. Which one runs is a value
that `use_attention` sets from outside; no layer knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.model.dropout import dropout

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]


class KeyValue(NamedTuple):
    """Keys (B, H, S, K) and values (B, H, S, U) of one attention."""

    key: Tensor
    value: Tensor

    def then(self, later: KeyValue) -> KeyValue:
        """Both, one after the other in time."""
        return KeyValue(torch.cat([self.key, later.key], dim=2), torch.cat([self.value, later.value], dim=2))

    def rows(self, index: Tensor) -> KeyValue:
        return KeyValue(self.key.index_select(0, index), self.value.index_select(0, index))


def explicit_weights(query_BHTK: Tensor, key_BHSK: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(Q·Kᵀ/√d_k), the weights of equation 1. → (B, H, T, S)."""
    scores_BHTS = torch.matmul(query_BHTK / math.sqrt(query_BHTK.shape[-1]), key_BHSK.transpose(-2, -1))
    if mask is not None:
        scores_BHTS = scores_BHTS.masked_fill(~mask, float("-inf"))
    return scores_BHTS.softmax(dim=-1)


def explicit_attention(
    query_BHTK: Tensor, key_BHSK: Tensor, value_BHSU: Tensor, mask: Tensor | None, dropout_p: float
) -> Tensor:
    """Equation 1, written out. → (B, H, T, U)."""
    weights_BHTS = dropout(explicit_weights(query_BHTK, key_BHSK, mask), dropout_p)
    return torch.matmul(weights_BHTS.to(value_BHSU.dtype), value_BHSU)


def fused_attention(query_BHTK: Tensor, key_BHSK: Tensor, value_BHSU: Tensor, mask: Tensor | None, dropout_p: float) -> Tensor:
    """Equation 1 through PyTorch's kernel. → (B, H, T, U)."""
    return F.scaled_dot_product_attention(query_BHTK, key_BHSK, value_BHSU, attn_mask=mask, dropout_p=dropout_p)


class Attention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head₁ … head_h)·W^O (section 3.2.2); d_k and d_v are free of d_model."""

    def __init__(self, *, d_model: int, num_heads: int, d_k: int, d_v: int, bias: bool, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.query = nn.Linear(d_model, num_heads * d_k, bias=bias)
        self.key = nn.Linear(d_model, num_heads * d_k, bias=bias)
        self.value = nn.Linear(d_model, num_heads * d_v, bias=bias)
        self.output = nn.Linear(num_heads * d_v, d_model, bias=bias)
        self.attend: Attend = fused_attention

    def _heads(self, x_BTX: Tensor) -> Tensor:
        return x_BTX.view(*x_BTX.shape[:2], self.num_heads, -1).transpose(1, 2)

    def remember(self, memory_BSD: Tensor) -> KeyValue:
        """The keys and values that later queries will look at."""
        return KeyValue(self._heads(self.key(memory_BSD)), self._heads(self.value(memory_BSD)))

    def forward(self, x_BTD: Tensor, memory: KeyValue, mask: Tensor | None) -> Tensor:
        query_BHTK = self._heads(self.query(x_BTD))
        heads_BHTU = self.attend(query_BHTK, memory.key, memory.value, mask, self.dropout if self.training else 0.0)
        result: Tensor = self.output(heads_BHTU.transpose(1, 2).flatten(-2))
        return result


def use_attention(model: nn.Module, attend: Attend) -> None:
    """Let every attention of the model compute equation 1 this way."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.attend = attend


@contextmanager
def watch_attention(modules: list[Attention]) -> Iterator[list[Tensor]]:
    """Collect the weights of these attentions, in the order in which they run; the outputs stay what they were."""
    seen: list[Tensor] = []
    before = [module.attend for module in modules]

    def watching(attend: Attend) -> Attend:
        def attend_and_keep(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float) -> Tensor:
            seen.append(explicit_weights(query, key, mask))
            return attend(query, key, value, mask, dropout_p)

        return attend_and_keep

    for module in modules:
        module.attend = watching(module.attend)
    try:
        yield seen
    finally:
        for module, attend in zip(modules, before, strict=True):
            module.attend = attend
