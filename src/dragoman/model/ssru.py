"""Simpler simple recurrent unit (SSRU) of Kim et al. 2019, "From Research to Production and Back", section 3.1.

It takes the place of self-attention in a decoder layer, as in Marian's students. Its state is one vector for each row.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from dragoman.model.linear import Linear


class SsruState(NamedTuple):
    """Cell of each row after the last token (N, D), the counterpart of `KeyValue`."""

    cell_ND: Tensor

    @property
    def num_rows(self) -> int:
        """Number of rows, N."""
        return self.cell_ND.shape[0]

    @property
    def num_positions(self) -> int:
        """Number of stored positions, which is none."""
        return 0

    def tail(self, length: int) -> SsruState:
        """Return this state, which has no positions to drop."""
        return self

    def select(self, rows_N: Tensor) -> SsruState:
        """Return the cells of these rows."""
        return SsruState(self.cell_ND.index_select(0, rows_N))


class Ssru(nn.Module):
    """ReLU(c_t) with c_t = f_t ∘ c_{t−1} + (1 − f_t) ∘ W·x_t and f_t = σ(W_f·x_t + b_f), where c_0 = 0."""

    def __init__(self, *, d_model: int) -> None:
        super().__init__()
        self.candidate = Linear(d_model, d_model, bias=False)
        self.forget = Linear(d_model, d_model)

    def advance(
        self, x_NTD: Tensor, past: SsruState | None, mask: Tensor | None, rotation_TK: Tensor | None = None
    ) -> tuple[Tensor, SsruState]:
        """Return the outputs of T more positions (N, T, D), and the state after them. mask, rotation_TK: are not used"""
        candidate_NTD, forget_NTD = self.candidate(x_NTD), self.forget(x_NTD).sigmoid()
        added_NTD = (1.0 - forget_NTD) * candidate_NTD
        cell_ND = torch.zeros_like(added_NTD[:, 0]) if past is None else past.cell_ND
        cells = []
        for position in range(x_NTD.shape[1]):
            cell_ND = forget_NTD[:, position] * cell_ND + added_NTD[:, position]
            cells.append(cell_ND)
        return torch.stack(cells, dim=1).relu(), SsruState(cell_ND)
