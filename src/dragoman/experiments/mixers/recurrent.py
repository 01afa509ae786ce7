"""LSTM layers in the place of self-attention (Hochreiter and Schmidhuber 1997), with the stacks of GNMT and Deep-Att.

X width of the input    H width of one direction    G = 4 · H inputs of the gates, in PyTorch's order i, f, g, o
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from dragoman.experiments.mixers.state import LayerState, MixerInput, MixerOutput
from dragoman.model.dropout import Dropout
from dragoman.model.linear import Linear

# cuDNN copies the weights into one block at each call, because optimizers and shards need them apart.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk", category=UserWarning)


class Lstm(nn.Module):
    """LSTM over positions, in one direction; equal to `torch.nn.LSTM` with one layer."""

    def __init__(self, in_features: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.input = Linear(in_features, 4 * width)
        self.recurrent = Linear(width, 4 * width, bias=False)

    def forward(self, x_NTX: Tensor, state: LayerState | None = None) -> tuple[Tensor, LayerState]:
        """Return h of each position (N, T, H), and h and c (N, H) after the last one.

        Gates are computed in the type of the weights, because PyTorch's LSTM takes one type.
        """
        with torch.autocast(x_NTX.device.type, enabled=False):
            input_GX, recurrent_GH = self.input.compute_weight(), self.recurrent.compute_weight()
            x_NTX = x_NTX.to(input_GX.dtype)
            h_NH, c_NH = state or (x_NTX.new_zeros(len(x_NTX), self.width),) * 2
            weights = [input_GX, recurrent_GH, self.input.bias, torch.zeros_like(self.input.bias)]
            h_NTH, h_1NH, c_1NH = torch.lstm(x_NTX, (h_NH[None], c_NH[None]), weights, True, 1, 0.0, self.training, False, True)
            return h_NTH, (h_1NH[0], c_1NH[0])

    def compute_half_gates(self, x_NTX: Tensor) -> Tensor:
        """Return the first half of the gates' inputs, without the recurrent part. → (N, T, 2 · H)"""
        half = 2 * self.width
        return self.input.matmul(x_NTX, self.input.compute_weight()[:half], self.input.bias[:half])


class OneWayLayer(nn.Module):
    """LSTM from left to right.

    fast_forward: the LSTM also reads half of the gates' inputs of the layer below, and returns its own (Zhou et al. 2016,
        "Deep Recurrent Models with Fast-Forward Connections for Neural Machine Translation", equations 7 and 8)
    """

    def __init__(self, *, in_features: int, d_model: int, dropout: float, fast_forward: bool, is_first: bool) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.fast_forward = fast_forward
        self.lstm = Lstm(in_features + (2 * d_model if fast_forward and not is_first else 0), d_model)

    def forward(self, inputs: MixerInput) -> MixerOutput:
        """Return h of each position. → (N, T, D)"""
        x_NTX = _concatenate(self.dropout(inputs.x_NTX), inputs.fast_forward)
        h_NTD, state = self.lstm(x_NTX, inputs.state)
        return MixerOutput(h_NTD, state, self.lstm.compute_half_gates(x_NTX) if self.fast_forward else None)


class TwoWayLayer(nn.Module):
    """Two LSTMs of half the width in opposite directions, whose outputs lie side by side; for an encoder.

    interleaved: each LSTM reads its own half of the layer below, and directions alternate from layer to layer
        (Zhou et al. 2016, section 3.1); else both read all
    layer: number of the layer, counted from 0
    """

    def __init__(
        self, *, d_model: int, dropout: float, fast_forward: bool = False, interleaved: bool = False, layer: int = 0
    ) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.fast_forward = fast_forward
        self.splits_input = interleaved and layer > 0
        self.is_swapped = interleaved and layer % 2 == 1
        in_features = d_model // 2 if self.splits_input else d_model
        in_features += d_model if fast_forward and layer > 0 else 0
        self.first = Lstm(in_features, d_model // 2)
        self.second = Lstm(in_features, d_model // 2)

    def forward(self, inputs: MixerInput) -> MixerOutput:
        """Return h of both directions. → (N, T, D)"""
        x_NTX, token_mask_NT = self.dropout(inputs.x_NTX), inputs.token_mask_NT
        columns = x_NTX.chunk(2, dim=-1) if self.splits_input else (x_NTX, x_NTX)
        gates = (None, None) if inputs.fast_forward is None else inputs.fast_forward.chunk(2, dim=-1)
        outputs, half_gates = [], []
        for number, lstm in enumerate((self.first, self.second)):
            column_NTX = _concatenate(columns[number], gates[number])
            if self.fast_forward:
                half_gates.append(lstm.compute_half_gates(column_NTX))
            if (number == 1) is not self.is_swapped:
                outputs.append(reverse_tokens(lstm(reverse_tokens(column_NTX, token_mask_NT))[0], token_mask_NT))
            else:
                outputs.append(lstm(column_NTX)[0])
        return MixerOutput(torch.cat(outputs, dim=-1), (), torch.cat(half_gates, dim=-1) if half_gates else None)


def reverse_tokens(x_BTX: Tensor, token_mask_BT: Tensor | None) -> Tensor:
    """Return the tokens of each sentence in reverse order. Padding stays on the right. → (B, T, X)"""
    if token_mask_BT is None:
        return x_BTX.flip(1)
    position_T = torch.arange(x_BTX.shape[1], device=x_BTX.device)
    reversed_BT = token_mask_BT.sum(dim=1, keepdim=True) - 1 - position_T
    index_BT = torch.where(token_mask_BT, reversed_BT, position_T)
    return x_BTX.gather(1, index_BT[:, :, None].expand_as(x_BTX))


def _concatenate(x_NTX: Tensor, fast_forward_NTY: Tensor | None) -> Tensor:
    return x_NTX if fast_forward_NTY is None else torch.cat([fast_forward_NTY.to(x_NTX.dtype), x_NTX], dim=-1)
