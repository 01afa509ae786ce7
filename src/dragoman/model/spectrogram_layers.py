"""Front end of spectrograms in PyTorch; that of NumPy is in `dragoman.model_frontends`.

B sources    M bands    T frames    F numbers of a frame    D model width
"""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor, nn

from dragoman.config.encoder_input import KERNEL_SIZE
from dragoman.errors import DeviceError
from dragoman.model.linear import Linear


class SpectrogramLayers(nn.Module):
    """Two convolutions over the frames of spectrograms (B, M, T), each with GELU (Radford et al. 2022, section 2.2).

    Each is a linear layer of three frames, and the second one steps over two frames. No position is padding.
    """

    def __init__(self, *, num_bands: int, d_model: int) -> None:
        super().__init__()
        self.numbers_per_vector = 2 * num_bands
        self.convolutions = nn.ModuleList(Linear(KERNEL_SIZE * width, d_model) for width in (num_bands, d_model))

    def embed(self, source: Tensor) -> Tensor:
        """Return the vectors of sources. → (B, T / 2, D)"""
        x_BTF = source.transpose(1, 2)
        for stride, convolution in enumerate(self.convolutions, 1):
            frames_BTFK = nn.functional.pad(x_BTF, (0, 0, 1, 1)).unfold(1, KERNEL_SIZE, stride)
            x_BTF = nn.functional.gelu(convolution(frames_BTFK.transpose(2, 3).flatten(2)))
        return x_BTF

    def find_inputs(self, source: Tensor) -> Tensor:
        """Return that no vector is padding. → (B, T / 2)"""
        return torch.ones(len(source), source.shape[2] // 2, dtype=torch.bool, device=source.device)

    def set_initial_weights(self) -> NoReturn:
        """Raise DeviceError, because only converted models have this front end."""
        raise DeviceError(
            "model.frontend = 'log-mel': no recipe trains a model of spectrograms; convert a trained one, or use "
            "model.array_frontend = 'sound'",
            code="frontend-unsupported",
        )
