"""Layers that Table 1 compares, from (B, N, D) to (B, N, D), with only the operations that the table counts.

Attention is equation 1 with Q = K = V = x in heads of `HEAD_WIDTH`. The table leaves out the projections, which are products
of single positions. Dimensions: B sentences, N positions, D width, H heads, K width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.model.attention import explicit_attention
from dragoman.model.local_attention import LocalMask, local_attention

LayerKind = Literal[
    "self-attention", "restricted self-attention", "recurrent (LSTM)", "convolution", "dilated convolution",
    "separable convolution",
]  # fmt: skip
LAYER_KINDS: tuple[LayerKind, ...] = get_args(LayerKind)
# The paper's d_k. It stays constant while d grows, so that the softmax, n² for each head, costs less than the products.
HEAD_WIDTH = 64

LayerFn = Callable[[Tensor], Tensor]


def build_layer(kind: LayerKind, d: int, reach: int, *, depth: int = 0) -> LayerFn:
    """Return a layer of this kind. `reach` is k of a convolution or r of attention; `depth` counts the layers below."""
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
            output_BHNK = local_attention(x_BHNK, x_BHNK, x_BHNK, LocalMask(radius), 0.0)
        return output_BHNK.transpose(1, 2).flatten(-2)

    return attend


class RecurrentLayer(nn.Module):
    """Unidirectional LSTM with one call for each position, because PyTorch's fused call hides memory and dependencies."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(d, d)

    def forward(self, x_BND: Tensor) -> Tensor:
        """Return the outputs (B, N, D) of all positions."""
        state_BD = torch.zeros_like(x_BND[:, 0])
        states, outputs = (state_BD, state_BD), []
        for x_BD in x_BND.unbind(1):
            states = self.cell(x_BD, states)
            outputs.append(states[0])
        return torch.stack(outputs, dim=1)

    def step_all(self, x_BND: Tensor, states_BND: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Compute one step for all positions at once, from the previous state of the position on the left."""
        shifted_states = [F.pad(state_BND, (0, 0, 1, 0))[:, :-1].flatten(0, 1) for state_BND in states_BND]
        state_XD, cell_XD = self.cell(x_BND.flatten(0, 1), (shifted_states[0], shifted_states[1]))
        return state_XD.view_as(x_BND), cell_XD.view_as(x_BND)


class ConvolutionLayer(nn.Module):
    """Causal convolution over k positions at a distance of `dilation`. A separable one convolves positions, then channels."""

    def __init__(self, d: int, kernel: int, *, dilation: int = 1, separable: bool = False) -> None:
        super().__init__()
        self.left_padding = dilation * (kernel - 1)
        self.position_conv = nn.Conv1d(d, d, kernel, dilation=dilation, groups=d if separable else 1)
        self.channel_conv = nn.Conv1d(d, d, 1) if separable else nn.Identity()

    def forward(self, x_BND: Tensor) -> Tensor:
        """Return the outputs (B, N, D) of all positions."""
        y_BND: Tensor = self.channel_conv(self.position_conv(F.pad(x_BND.mT, (self.left_padding, 0)))).mT
        return y_BND
