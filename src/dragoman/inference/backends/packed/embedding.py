"""Embedding of tokens for inference.

V vocabulary    D model width    T positions    C sentences
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.model.transformer import Embedding


@dataclass(frozen=True)
class InferenceEmbedding:
    """Scaled token vectors plus positions. The vectors are the model's own memory.

    weight_VD: token vectors
    scale_V: factor of each token's vector; 0 for padding
    positions: returns the vectors (length, D) of the positions from `start` on
    extra_D: vector that every position adds, or None
    """

    weight_VD: Tensor
    scale_V: Tensor
    positions: Callable[[int, int], Tensor]
    extra_D: Tensor | None
    padding_id: int

    @classmethod
    def from_embedding(cls, embedding: Embedding) -> InferenceEmbedding:
        """Return the embedding of a trained model."""
        scale_V = torch.full((len(embedding.weight),), embedding.scale, dtype=torch.float32)
        scale_V[embedding.padding_id] = 0.0
        extra_D = None if embedding.target_space_embedding is None else embedding.target_space_embedding.detach().clone()
        return cls(embedding.weight.detach(), scale_V, embedding.positions, extra_D, embedding.padding_id)

    def compute_positions(self, start: int, length: int) -> Tensor:
        """Return the vectors (length, D) of the positions from `start` on, with the extra vector."""
        positions_TD = self.positions(start, length).detach()
        return positions_TD.contiguous() if self.extra_D is None else positions_TD + self.extra_D

    def __call__(self, ids_TC: Tensor, start: int) -> Tensor:
        """Return the vectors (T·C, D) of tokens at the positions from `start` on."""
        positions_T1D = self.compute_positions(start, ids_TC.shape[0])[:, None]
        ids_M = ids_TC.flatten()
        x_TCD = self.weight_VD.index_select(0, ids_M).view(*ids_TC.shape, -1)
        scale_TC1 = self.scale_V.index_select(0, ids_M).view(*ids_TC.shape, 1)
        return torch.addcmul(positions_T1D, x_TCD, scale_TC1).flatten(0, 1)
