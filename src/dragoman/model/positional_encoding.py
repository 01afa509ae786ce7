"""Positional encodings: sinusoids, learned positions, and none."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dragoman.positions import SINUSOIDS


class SinusoidalPositionalEmbedding(nn.Module):
    """Table of sinusoids that grows with the longest sentence, so that there is no length limit.

    layout: a name of `SINUSOIDS`
    offset: number of the first position
    """

    table: Tensor

    def __init__(self, *, d_model: int, layout: str, offset: int = 0, num_positions: int = 512) -> None:
        super().__init__()
        self.d_model = d_model
        self.offset = offset
        self.compute_sinusoids = SINUSOIDS[layout]
        self.register_buffer("table", self.build_table(num_positions), persistent=False)

    def build_table(self, num_positions: int) -> Tensor:
        """Return the encodings of the first positions. → (num_positions, D)"""
        return torch.from_numpy(self.compute_sinusoids(self.offset + num_positions, self.d_model)[self.offset :])

    def forward(self, start: int, length: int) -> Tensor:
        """Return the encodings of positions start … start + length − 1. → (length, D)"""
        table = self.table
        if start + length > table.shape[0]:
            table = self.build_table(2 * (start + length)).to(table)
            self.table = table  # another thread may replace it at any time, so the next line reads the local variable
        return table[start : start + length]


class LearnedPositionalEmbedding(nn.Module):
    """Learned positions (row E of Table 3): one vector a position, N(0, 1/√d), times √d (tensor2tensor 1.0.3)."""

    def __init__(self, *, d_model: int, max_positions: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_positions, d_model))
        self.scale = math.sqrt(d_model)
        nn.init.normal_(self.weight, std=d_model**-0.5)

    def forward(self, start: int, length: int) -> Tensor:
        """Return the vectors of positions start … start + length − 1. → (length, D)

        Raises IndexError for a position beyond the table.
        """
        if start + length > self.weight.shape[0]:
            raise IndexError(
                f"position {start + length}: the model has {self.weight.shape[0]} learned positions; shorten the sentence"
            )
        return self.weight[start : start + length] * self.scale


class NoPositionalEmbedding(nn.Module):
    """Zero in the place of positions, for layers that see the order by themselves."""

    def forward(self, start: int, length: int) -> Tensor:
        """Return zero, which broadcasts to all positions. → ()"""
        return torch.zeros(())
