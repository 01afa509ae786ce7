"""Prediction heads of a trained decoder, which propose several tokens at once (Stern et al. 2018, section 6).

The decoder predicts one token y after its output h. Head i proposes the token at distance i behind y from h and y. The output
embedding is shared. A search verifies the proposals, so heads change its speed and not its output.

    X rows    I heads    D width of the model    J inner width of a head    W tokens that heads propose    V vocabulary
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PredictionHead(nn.Module):
    """Residual feed-forward network h + W₂·max(0, W₁·[h; y] + b₁) + b₂; W₂ and b₂ start at zero."""

    def __init__(self, *, d_model: int, d_inner: int) -> None:
        super().__init__()
        self.inner = nn.Linear(2 * d_model, d_inner)
        self.outer = nn.Linear(d_inner, d_model)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, h_XD: Tensor, y_XD: Tensor) -> Tensor:
        """Return the input of the output embedding. → (X, D)"""
        inner_XJ = F.relu(self.inner(torch.cat([h_XD, y_XD], dim=-1)))
        return h_XD + cast(Tensor, self.outer(inner_XJ))


class PredictionHeads(nn.Module):
    """All heads of a decoder.

    token_ids_W: tokens that heads propose
    """

    token_ids_W: Tensor

    def __init__(self, *, num_heads: int, d_model: int, d_inner: int, token_ids_W: Tensor) -> None:
        super().__init__()
        self.heads = nn.ModuleList(PredictionHead(d_model=d_model, d_inner=d_inner) for _ in range(num_heads))
        self.d_model, self.d_inner = d_model, d_inner
        self.register_buffer("token_ids_W", token_ids_W)

    @property
    def num_proposals(self) -> int:
        """Return the number of heads, I. Each proposes one token."""
        return len(self.heads)

    def forward(self, h_XD: Tensor, y_XD: Tensor) -> Tensor:
        """Return the inputs of the output embedding for each head. → (X, I, D)

        h_XD: outputs of the decoder
        y_XD: scaled embeddings of the tokens that it predicts there
        """
        return torch.stack([head(h_XD, y_XD) for head in self.heads], dim=1)
