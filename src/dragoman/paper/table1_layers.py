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
from dragoman.model.local_attention import local_attention

LayerKind = Literal[
    "self-attention", "restricted self-attention", "recurrent (LSTM)", "convolution", "dilated convolution",
    "separable convolution",
]  # fmt: skip
LAYER_KINDS: tuple[LayerKind, ...] = get_args(LayerKind)
# The paper's d_k. That it stays the same while d grows keeps the softmax, which costs n² a head, below the products.
HEAD_WIDTH = 64

LayerFn = Callable[[Tensor], Tensor]


def build_layer(kind: LayerKind, d: int, reach: int, *, depth: int = 0) -> LayerFn:
    """A layer of this kind. `reach` is k of a convolution and r of restricted attention; `depth` counts the layers below it."""
    match kind:
        case "self-attention":
            return _build_attention(d, None)
        case "restricted self-attention":
            return _build_attention(d, reach)
        case "recurrent (LSTM)":
            return RecurrentLayer(d)
        case "convolution":
            return ConvolutionLayer(d, reach)
        case "dilated convolution":
            return ConvolutionLayer(d, reach, dilation=reach**depth)
        case "separable convolution":
            return ConvolutionLayer(d, reach, separable=True)


def _build_attention(d: int, radius: int | None) -> LayerFn:
    num_heads = max(d // HEAD_WIDTH, 1)

    def attend(x_BND: Tensor) -> Tensor:
        x_BHNK = x_BND.view(*x_BND.shape[:2], num_heads, -1).transpose(1, 2)
        if radius is None:
            output_BHNK = explicit_attention(x_BHNK, x_BHNK, x_BHNK, None, 0.0)
        else:
            output_BHNK = local_attention(x_BHNK, x_BHNK, x_BHNK, radius)
        return output_BHNK.transpose(1, 2).flatten(-2)

    return attend


class RecurrentLayer(nn.Module):
    """An LSTM in one direction, written out place by place: PyTorch's single call would hide what it keeps and how it waits."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(d, d)

    def forward(self, x_BND: Tensor) -> Tensor:
        state_BD = torch.zeros_like(x_BND[:, 0])
        states, outputs = (state_BD, state_BD), []
        for x_BD in x_BND.unbind(1):
            states = self.cell(x_BD, states)
            outputs.append(states[0])
        return torch.stack(outputs, dim=1)

    def step_all(self, x_BND: Tensor, states_BND: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """All places at once, each one step further: from the state that its left neighbour had before."""
        shifted_states = [F.pad(state_BND, (0, 0, 1, 0))[:, :-1].flatten(0, 1) for state_BND in states_BND]
        state_XD, cell_XD = self.cell(x_BND.flatten(0, 1), (shifted_states[0], shifted_states[1]))
        return state_XD.view_as(x_BND), cell_XD.view_as(x_BND)


class ConvolutionLayer(nn.Module):
    """Over a place and k−1 before it, `dilation` places apart; separable as one over places and one over channels."""

    def __init__(self, d: int, kernel: int, *, dilation: int = 1, separable: bool = False) -> None:
        super().__init__()
        self.left_padding = dilation * (kernel - 1)
        self.position_conv = nn.Conv1d(d, d, kernel, dilation=dilation, groups=d if separable else 1)
        self.channel_conv = nn.Conv1d(d, d, 1) if separable else nn.Identity()

    def forward(self, x_BND: Tensor) -> Tensor:
        y_BND: Tensor = self.channel_conv(self.position_conv(F.pad(x_BND.mT, (self.left_padding, 0)))).mT
        return y_BND
