"""The layers that Table 1 compares, each from (B, n, d) to (B, n, d), and nothing in them but what the table counts.

Attention is equation 1 with Q = K = V = x in heads of `HEAD_WIDTH`: the projections around it are products of each place by
itself, which the table leaves out. B sentences, N places, D width, K a head's width, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.model.attention import explicit_attention
from dragoman.model.local_attention import restricted_attention

Kind = Literal[
    "self-attention", "restricted self-attention", "recurrent (LSTM)", "convolution", "dilated convolution",
    "separable convolution",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
# The paper's d_k. That it stays the same while d grows keeps the softmax, which costs n² a head, below the products.
HEAD_WIDTH = 64

Mix = Callable[[Tensor], Tensor]


def mixer(kind: Kind, d: int, reach: int, *, depth: int = 0) -> Mix:
    """A layer of this kind. `reach` is k of a convolution and r of restricted attention; `depth` counts the layers below it."""
    match kind:
        case "self-attention":
            return _attention(d, None)
        case "restricted self-attention":
            return _attention(d, reach)
        case "recurrent (LSTM)":
            return Recurrence(d)
        case "convolution":
            return Convolution(d, reach)
        case "dilated convolution":
            return Convolution(d, reach, dilation=reach**depth)
        case "separable convolution":
            return Convolution(d, reach, separable=True)


def _attention(d: int, radius: int | None) -> Mix:
    heads = max(d // HEAD_WIDTH, 1)

    def attend(x_BND: Tensor) -> Tensor:
        x_BHNK = x_BND.view(*x_BND.shape[:2], heads, -1).transpose(1, 2)
        if radius is None:
            found_BHNK = explicit_attention(x_BHNK, x_BHNK, x_BHNK, None, 0.0)
        else:
            found_BHNK = restricted_attention(x_BHNK, x_BHNK, x_BHNK, radius)
        return found_BHNK.transpose(1, 2).flatten(-2)

    return attend


class Recurrence(nn.Module):
    """An LSTM in one direction, written out place by place: PyTorch's single call would hide what it keeps and how it waits."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(d, d)

    def forward(self, x_BND: Tensor) -> Tensor:
        state_BD = torch.zeros_like(x_BND[:, 0])
        states, found = (state_BD, state_BD), []
        for x_BD in x_BND.unbind(1):
            states = self.cell(x_BD, states)
            found.append(states[0])
        return torch.stack(found, dim=1)

    def tick(self, x_BND: Tensor, states_BND: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """All places at once, each one step further: from the state that its left neighbour had before."""
        before = [F.pad(one_BND, (0, 0, 1, 0))[:, :-1].flatten(0, 1) for one_BND in states_BND]
        state_XD, cell_XD = self.cell(x_BND.flatten(0, 1), (before[0], before[1]))
        return state_XD.view_as(x_BND), cell_XD.view_as(x_BND)


class Convolution(nn.Module):
    """Over a place and k−1 before it, `dilation` places apart; separable as one over places and one over channels."""

    def __init__(self, d: int, kernel: int, *, dilation: int = 1, separable: bool = False) -> None:
        super().__init__()
        self.before = dilation * (kernel - 1)
        self.over_places = nn.Conv1d(d, d, kernel, dilation=dilation, groups=d if separable else 1)
        self.over_channels = nn.Conv1d(d, d, 1) if separable else nn.Identity()

    def forward(self, x_BND: Tensor) -> Tensor:
        found: Tensor = self.over_channels(self.over_places(F.pad(x_BND.mT, (self.before, 0)))).mT
        return found
