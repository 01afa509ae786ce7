"""Convolutions in the place of self-attention: gated ones (Gehring et al. 2017) and dilated ones (Kalchbrenner et al. 2016).

A convolution is one matrix product, because the inputs of a kernel lie side by side.

    X width of the input    O width of the output    W = X · kernel size
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.experiments.mixers.state import MixerInput, MixerOutput
from dragoman.experiments.normalization.layers import build_norm
from dragoman.model.dropout import Dropout
from dragoman.model.linear import Linear


class Convolution(nn.Module):
    """Convolution over positions. The output keeps the length.

    causal: the kernel ends at its position, as in a decoder; else its middle is there
    dilation: distance of the positions that a kernel reads
    """

    def __init__(self, in_features: int, out_features: int, *, kernel_size: int, causal: bool, dilation: int = 1) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.reach = (kernel_size - 1) * dilation
        self.causal = causal
        self.linear = Linear(kernel_size * in_features, out_features)

    def forward(self, x_NTX: Tensor, past_NPX: Tensor | None, token_mask_NT: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the outputs of T positions (N, T, O), and the inputs that later positions need.

        past_NPX: the last `reach` inputs before these positions; None if there are none
        token_mask_NT: true for tokens, false for padding, which counts as zero
        """
        length = x_NTX.shape[1]
        if token_mask_NT is not None:
            x_NTX = x_NTX * token_mask_NT[:, :, None]
        if past_NPX is not None:
            padded_NPX = torch.cat([past_NPX, x_NTX], dim=1)
        else:
            left = self.reach if self.causal else self.reach // 2
            padded_NPX = F.pad(x_NTX, (0, 0, left, self.reach - left))
        offsets = range(0, self.reach + 1, self.dilation)
        window_NTW = torch.cat([padded_NPX[:, offset : offset + length] for offset in offsets], dim=-1)
        result_NTO: Tensor = self.linear(window_NTW)
        return result_NTO, padded_NPX[:, padded_NPX.shape[1] - self.reach :]


class GatedConvolution(nn.Module):
    """Convolution with gated linear units, A ⊗ σ(B) (Gehring et al. 2017, "Convolutional Sequence to Sequence Learning")."""

    def __init__(self, *, in_features: int, d_model: int, kernel_size: int, causal: bool, dropout: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.convolution = Convolution(in_features, 2 * d_model, kernel_size=kernel_size, causal=causal)
        # A gated unit keeps a quarter of the variance, and dropout of its input changes it (section 3.5).
        self.convolution.linear.variance_gain = 4.0 * (1.0 - dropout)

    def forward(self, inputs: MixerInput) -> MixerOutput:
        """Return the gated convolution of x. → (N, T, D)"""
        past_NPX = None if inputs.state is None else inputs.state[0]
        y_NTO, past_NPX = self.convolution(self.dropout(inputs.x_NTX), past_NPX, inputs.token_mask_NT)
        return MixerOutput(F.glu(y_NTO, dim=-1), (past_NPX,))


class DilatedConvolution(nn.Module):
    """Residual block of ByteNet with ReLUs (Kalchbrenner et al. 2016, "Neural Machine Translation in Linear Time", figure 3).

    ReLU, 1×1 to half the width, norm, ReLU, dilated convolution, norm, ReLU, 1×1 to the full width. The residual connection and
    the block's first norm are outside of this module.

    normalization, epsilon: as in the recipe
    """

    def __init__(
        self,
        *,
        in_features: int,
        d_model: int,
        kernel_size: int,
        dilation: int,
        causal: bool,
        dropout: float,
        normalization: str,
        epsilon: float,
    ) -> None:
        super().__init__()
        width = d_model // 2
        self.dropout = Dropout(dropout)
        self.inner = Linear(in_features, width)
        self.inner_norm = build_norm(normalization, width, epsilon)
        self.convolution = Convolution(width, width, kernel_size=kernel_size, dilation=dilation, causal=causal)
        self.outer_norm = build_norm(normalization, width, epsilon)
        self.outer = Linear(width, d_model)

    def forward(self, inputs: MixerInput) -> MixerOutput:
        """Return the output of the block. → (N, T, D)"""
        y_NTW = self.inner(self.dropout(F.relu(inputs.x_NTX)))
        y_NTW = F.relu(self.inner_norm(y_NTW))
        past_NPW = None if inputs.state is None else inputs.state[0]
        y_NTW, past_NPW = self.convolution(y_NTW, past_NPW, inputs.token_mask_NT)
        y_NTW = F.relu(self.outer_norm(y_NTW))
        return MixerOutput(self.outer(y_NTW), (past_NPW,))
