"""Other scores of attention than the paper's q·k / √d_k, which section 3.2.1 compares with them.

Each score is a module (query_BHTK, key_BHSK) → scores_BHTS before the mask and the softmax. The paper's own score has fast
kernels and is no such module (`dragoman.model.attention`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class DotScore(nn.Module):
    """Dot product without the factor 1/√d_k: q·k (Luong et al. 2015, "dot")."""

    def forward(self, query_BHTK: Tensor, key_BHSK: Tensor) -> Tensor:
        """Return q·k for each pair. → (B, H, T, S)"""
        return torch.matmul(query_BHTK, key_BHSK.mT)

    def reset_parameters(self) -> None:
        """Do nothing; the score has no parameters."""


class MultiplicativeScore(nn.Module):
    """Multiplicative score qᵀ·W·k with one matrix W for each head (Luong et al. 2015, "general")."""

    def __init__(self, *, num_heads: int, d_k: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_heads, d_k, d_k))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
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
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw each vector by Glorot's uniform distribution of a matrix with one row."""
        for weight_K in self.weight:
            nn.init.xavier_uniform_(weight_K[None])

    def forward(self, query_BHTK: Tensor, key_BHSK: Tensor) -> Tensor:
        """Return v·tanh(q + k) for each pair. → (B, H, T, S)"""
        hidden_BHTSK = torch.tanh(query_BHTK[:, :, :, None] + key_BHSK[:, :, None])
        return torch.matmul(hidden_BHTSK, self.weight[:, None, :, None]).squeeze(-1)


AttentionScore = DotScore | MultiplicativeScore | AdditiveScore
