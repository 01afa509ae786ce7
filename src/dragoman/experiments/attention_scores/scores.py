"""Other scores of attention than the paper's q·k / √d_k, which section 3.2.1 compares with them.

Each score is a module (query_BHTK, key_BHSK) → scores_BHTS before the mask and the softmax.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dragoman.model.attention import ALL_HEADS, Attention, KeyValue
from dragoman.model.dropout import dropout
from dragoman.model.local_attention import Mask


class DotScore(nn.Module):
    """Dot product without the factor 1/√d_k: q·k (Luong et al. 2015, "dot")."""

    def forward(self, query_BHTK: Tensor, key_BHSK: Tensor) -> Tensor:
        """Return q·k for each pair. → (B, H, T, S)"""
        return torch.matmul(query_BHTK, key_BHSK.mT)


class MultiplicativeScore(nn.Module):
    """Multiplicative score qᵀ·W·k with one matrix W for each head (Luong et al. 2015, "general")."""

    def __init__(self, *, num_heads: int, d_k: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_heads, d_k, d_k))
        self.set_initial_weights()

    @torch.no_grad()
    def set_initial_weights(self) -> None:
        """Draw each matrix by Glorot's uniform distribution."""
        for weight_KK in self.weight:
            nn.init.xavier_uniform_(weight_KK)

    def forward(self, query_BHTK: Tensor, key_BHSK: Tensor) -> Tensor:
        """Return qᵀ·W·k for each pair. → (B, H, T, S)"""
        return torch.matmul(torch.matmul(query_BHTK, self.weight), key_BHSK.mT)


class AdditiveScore(nn.Module):
    """Additive score v·tanh(q + k) with one vector v for each head (Bahdanau et al. 2015).

    The projections of queries and keys are the matrices W and U of that paper. Memory holds B · H · T · S · K values.
    """

    def __init__(self, *, num_heads: int, d_k: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_heads, d_k))
        self.set_initial_weights()

    @torch.no_grad()
    def set_initial_weights(self) -> None:
        """Draw each vector by Glorot's uniform distribution of a matrix with one row."""
        for weight_K in self.weight:
            nn.init.xavier_uniform_(weight_K[None])

    def forward(self, query_BHTK: Tensor, key_BHSK: Tensor) -> Tensor:
        """Return v·tanh(q + k) for each pair. → (B, H, T, S)"""
        hidden_BHTSK = torch.tanh(query_BHTK[:, :, :, None] + key_BHSK[:, :, None])
        return torch.matmul(hidden_BHTSK, self.weight[:, None, :, None]).squeeze(-1)


AttentionScore = DotScore | MultiplicativeScore | AdditiveScore


class ScoredAttention(Attention):
    """Attention with another score than the paper's, computed term by term.

    score: score of a query and a key
    shape: arguments of `Attention`
    """

    def __init__(self, *, score: AttentionScore, **shape: Any) -> None:
        super().__init__(**shape)
        self.score = score

    def compute_heads(self, query_BHTK: Tensor, key_value: KeyValue, mask: Mask | None, dropout_p: float) -> Tensor:
        """Return head₁, …, head_h of these queries. → (B, H, T, U)"""
        weights_BHTS = dropout(self.compute_weights(query_BHTK, key_value.key, mask), dropout_p)
        return torch.matmul(weights_BHTS.to(key_value.value.dtype), key_value.value)

    def compute_scores(self, query_BHTK: Tensor, key_BHSK: Tensor, heads: slice = ALL_HEADS) -> Tensor:
        """Return the score of each query and key before the mask; those of other heads are computed, too. → (B, H, T, S)"""
        scores_BHTS: Tensor = self.score(query_BHTK, key_BHSK)
        return scores_BHTS[:, heads]
