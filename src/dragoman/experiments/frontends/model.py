"""Front end of arrays: two convolutions, which shorten the time of a sound or the width of a picture by 4 (Dong et al. 2018,
Speech-Transformer). The encoder and the decoder are those of text.

T counts frames, F the numbers of a frame, L = ⌈T / 4⌉ the vectors of a source.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from dragoman.experiments.frontends.array_text import FIRST_ID, NUM_LEVELS
from dragoman.model.linear import Linear

NUM_CHANNELS = 32
"""Channels of both convolutions."""
NUM_MASKS = 2
"""Masks of each direction that SpecAugment draws (Park et al. 2019)."""


class ConvolutionFrontend(nn.Module):
    """Array in, vectors out: two convolutions with stride 2 over frames and numbers, and a linear layer.

    width: numbers of a frame, F
    limit: largest magnitude of a number
    input_std: standard deviation of the numbers, for which the first vectors have a variance of 1; None keeps the weights
        that `initialization` draws
    max_masked_frames: largest share of the frames that one mask of SpecAugment covers in training
    max_masked_bands: most neighboring numbers of all frames that one mask covers in training
    """

    def __init__(
        self,
        *,
        d_model: int,
        width: int,
        limit: float,
        input_std: float | None,
        max_masked_frames: float,
        max_masked_bands: int,
    ) -> None:
        super().__init__()
        self.width = width
        self.limit = limit
        self.input_std = input_std
        self.max_masked_frames = max_masked_frames
        self.max_masked_bands = max_masked_bands
        self.first = nn.Conv2d(1, NUM_CHANNELS, 3, stride=2, padding=1)
        self.second = nn.Conv2d(NUM_CHANNELS, NUM_CHANNELS, 3, stride=2, padding=1)
        self.linear = Linear(NUM_CHANNELS * halve(halve(width)), d_model)

    def set_initial_weights(self) -> None:
        """Draw weights that give vectors with a variance of 1, as those of tokens have, so that positions do not hide them.

        A GELU halves the mean square of its inputs.
        """
        if self.input_std is None:
            return
        for layer, mean_square in ((self.first, self.input_std**2), (self.second, 0.5), (self.linear, 0.5)):
            nn.init.normal_(layer.weight, std=(layer.weight[0].numel() * mean_square) ** -0.5)
            nn.init.zeros_(cast(Tensor, layer.bias))

    @property
    def numbers_per_vector(self) -> int:
        """Return the numbers of four frames."""
        return 4 * self.width

    def find_inputs(self, source_BS: Tensor) -> Tensor:
        """Return which vectors are no padding. → (B, L)"""
        num_frames = max(1, -(-source_BS.shape[1] // self.width))
        lengths_B = halve(halve((source_BS >= FIRST_ID).sum(dim=1) // self.width))
        return mask_lengths(lengths_B, halve(halve(num_frames)))

    def embed(self, source_BS: Tensor) -> Tensor:
        """Return the vectors of sources. → (B, L, D)"""
        frames_BTF, lengths_B = self.read_arrays(source_BS)
        if self.training:
            frames_BTF = self.mask_parts(frames_BTF, lengths_B)
        x_BCTF = frames_BTF[:, None]
        for convolution in (self.first, self.second):
            lengths_B = halve(lengths_B)
            x_BCTF = nn.functional.gelu(convolution(x_BCTF))
            # Zeros after the end, as a source alone has them.
            x_BCTF = x_BCTF * mask_lengths(lengths_B, x_BCTF.shape[2])[:, None, :, None]
        return cast(Tensor, self.linear(x_BCTF.transpose(1, 2).flatten(2)))

    def read_arrays(self, source_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers of sources, zero after the end (B, T, F), and their numbers of frames (B,).

        Numbers behind the last whole frame are left out.
        """
        num_frames = max(1, -(-source_BS.shape[1] // self.width))
        source_BS = nn.functional.pad(source_BS, (0, num_frames * self.width - source_BS.shape[1]))
        lengths_B = (source_BS >= FIRST_ID).sum(dim=1) // self.width
        numbers_BTF = (source_BS.view(len(source_BS), num_frames, self.width) - FIRST_ID).to(self.linear.weight.dtype)
        frames_BTF = (numbers_BTF * (2 / (NUM_LEVELS - 1)) - 1).clamp(-1, 1) * self.limit
        return frames_BTF * mask_lengths(lengths_B, num_frames)[:, :, None], lengths_B

    def mask_parts(self, frames_BTF: Tensor, lengths_B: Tensor) -> Tensor:
        """Return the arrays with random parts of them set to the mean, 0: SpecAugment (Park et al. 2019)."""
        for _ in range(NUM_MASKS):
            frames_BTF = frames_BTF * draw_mask(lengths_B * self.max_masked_frames, lengths_B, frames_BTF.shape[1])[:, :, None]
            widths_B = torch.full_like(lengths_B, self.width)
            masked_B = torch.full_like(lengths_B, self.max_masked_bands)
            frames_BTF = frames_BTF * draw_mask(masked_B, widths_B, self.width)[:, None, :]
        return frames_BTF


def halve(length: Any) -> Any:
    """Return the length after a convolution with stride 2: half, rounded up."""
    return (length + 1) // 2


def mask_lengths(lengths_B: Tensor, length: int) -> Tensor:
    """Return which of `length` positions belong to each row. → (B, length)"""
    return torch.arange(length, device=lengths_B.device) < lengths_B[:, None]


def draw_mask(max_sizes_B: Tensor, lengths_B: Tensor, length: int) -> Tensor:
    """Return a mask that is false in one random part of each row, with up to its maximal size. → (B, length)"""
    sizes_B = torch.rand(len(lengths_B), device=lengths_B.device) * (max_sizes_B + 1)
    starts_B = torch.rand(len(lengths_B), device=lengths_B.device) * (lengths_B - sizes_B).clamp(min=0)
    positions = torch.arange(length, device=lengths_B.device)
    starts_B1, sizes_B1 = starts_B.floor()[:, None], sizes_B.floor()[:, None]
    return (positions < starts_B1) | (positions >= starts_B1 + sizes_B1)
