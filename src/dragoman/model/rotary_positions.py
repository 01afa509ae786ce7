"""Rotary positions (Su et al. 2021, "RoFormer"): queries and keys of self-attention turn by angles that grow with the position.

The score of a query and a key then depends on their distance alone. The embedding has no positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.config import ModelConfig
from dragoman.model.positional_encoding import SinusoidalPositionalEmbedding


def build_rotary_positions(config: ModelConfig) -> SinusoidalPositionalEmbedding | None:
    """Return the sines and cosines of the angles of each position, [sin …, cos …]; None for a model with other positions.

    The angles are those of sinusoids as wide as a head: p / 10000^(2i / d_k) for the pair i.
    """
    if config.position_encoding != "rotary":
        return None
    return SinusoidalPositionalEmbedding(d_model=config.key_width, layout="halves")


def rotate(x_BHTK: Tensor, rotation_TK: Tensor) -> Tensor:
    """Return queries or keys with each pair turned by the angle of its position. → (B, H, T, K)

    A pair is the elements i and i + d_k/2 of a head, as in GPT-NeoX and Llama (`rotate_half` of Hugging Face).
    rotation_TK: sines and cosines of `build_rotary_positions`
    """
    sin_TX, cos_TX = rotation_TK.to(x_BHTK.dtype).chunk(2, dim=-1)
    first_BHTX, second_BHTX = x_BHTK.chunk(2, dim=-1)
    return torch.cat([first_BHTX * cos_TX - second_BHTX * sin_TX, second_BHTX * cos_TX + first_BHTX * sin_TX], dim=-1)
