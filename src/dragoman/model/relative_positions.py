"""Relative positions of T5 (Raffel et al. 2020, section 2.1): a learned number for each head and each bucket of distances.

The layers of a stack share the numbers, which are added to the scores of self-attention. They take the place of positions in
the embedding.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from dragoman.config import ModelConfig
from dragoman.positions import relative_position_buckets


class RelativePositionBias(nn.Module):
    """Numbers that the scores of self-attention add by the distance from the query to the key.

    bidirectional: whether keys behind the query have buckets of their own, as in the encoder
    """

    bucket_of_distance: Tensor

    def __init__(self, *, num_heads: int, num_buckets: int, max_distance: int, bidirectional: bool) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.num_buckets, self.bidirectional = num_buckets, bidirectional
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads))
        self.register_buffer("bucket_of_distance", self.build_table(), persistent=False)

    @classmethod
    def from_config(cls, config: ModelConfig, *, bidirectional: bool) -> RelativePositionBias | None:
        """Return the numbers of one stack; None for a model with other positions."""
        if config.position_encoding != "relative":
            return None
        return cls(
            num_heads=config.num_heads,
            num_buckets=config.relative_attention_num_buckets,
            max_distance=config.relative_attention_max_distance,
            bidirectional=bidirectional,
        )

    def build_table(self) -> Tensor:
        """Return the bucket of each distance from −max_distance to max_distance."""
        buckets = relative_position_buckets(
            np.arange(-self.max_distance, self.max_distance + 1),
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
        )
        return torch.from_numpy(buckets)

    @torch.no_grad()
    def set_initial_weights(self) -> None:
        """Draw N(0, 0.02)."""
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, distance: Tensor) -> Tensor:
        """Return the numbers of some distances, position of the key less that of the query. (…) → (H, …)"""
        buckets = self.bucket_of_distance[distance.clamp(-self.max_distance, self.max_distance) + self.max_distance]
        bias: Tensor = self.weight[buckets].movedim(-1, 0)
        return bias

    def add_to_mask(self, mask: Tensor, num_queries: int, num_keys: int) -> Tensor:
        """Return what scores of the last T of S positions add: the numbers, and −∞ where the mask is false. → (·, H, T, S)"""
        key_S = torch.arange(num_keys, device=mask.device)
        bias_HTS: Tensor = self(key_S - key_S[num_keys - num_queries :, None])
        return bias_HTS[None].masked_fill(~mask, float("-inf"))
