"""Restricted self-attention (section 4): each position attends to its neighbors within r, in time and memory O(r·n·d).

The positions are cut into blocks of at least r. The queries of a block attend to the keys of their own block and of the two
beside it, or of the one before it in a decoder. A mask removes keys that are farther away than r. No tensor has n² elements.
X counts blocks, C the positions of one block, W those of the blocks that its queries attend to.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.model.dropout import dropout
from dragoman.model.masks import causal_mask, padding_mask, window_mask, windowed_padding_mask

# Minimum number of positions in a block; smaller blocks are mostly overhead.
MIN_BLOCK_SIZE = 16
# Blocks are faster than a mask over all pairs from this many positions, and from this many radii, on.
MIN_LENGTH, MIN_RADII = 160, 4


class LocalMask(NamedTuple):
    """Mask of self-attention over all positions of long sequences, without its n² pairs.

    radius: positions that a query attends to on each side, or on the left side alone if `is_causal`
    is_causal: whether no query attends to later positions, as in a decoder
    is_token_BT: false for padding, to which only padding itself attends; None without padding
    """

    radius: int
    is_causal: bool = False
    is_token_BT: Tensor | None = None

    def to_tensor(self, length: int, device: torch.device) -> Tensor:
        """Return the mask over all pairs. → (T, T) or (B, 1, T, T)"""
        if self.is_token_BT is not None:
            return windowed_padding_mask(self.is_token_BT, self.radius)
        mask_TT = window_mask(length, length, self.radius, device=device)
        return mask_TT & causal_mask(length, length, device=device) if self.is_causal else mask_TT


Mask = Tensor | LocalMask


def is_long(length: int, radius: int) -> bool:
    """Return whether blocks are faster than a mask over all pairs of these positions."""
    return length >= max(MIN_LENGTH, MIN_RADII * radius)


def build_mask(is_token_BT: Tensor, radius: int | None) -> Mask:
    """Return which positions each position attends to: all that are no padding, or those of them within the radius."""
    if radius is None:
        return padding_mask(is_token_BT)
    mask = LocalMask(radius, is_token_BT=is_token_BT)
    return mask if is_long(is_token_BT.shape[1], radius) else windowed_padding_mask(is_token_BT, radius)


def local_attention(query_BHTK: Tensor, key_BHTK: Tensor, value_BHTU: Tensor, mask: LocalMask, dropout_p: float) -> Tensor:
    """Return equation 1 for queries that attend to the keys of this mask, with dropout on the weights. → (B, H, T, U)"""
    length, block_size = query_BHTK.shape[2], max(mask.radius, MIN_BLOCK_SIZE)
    num_beside = 1 if mask.is_causal else 2
    query_BHXCK = _split_blocks(query_BHTK / math.sqrt(query_BHTK.shape[-1]), block_size)
    key_BHXWK, value_BHXWU = (_concat_neighbors(x_BHTK, block_size, num_beside) for x_BHTK in (key_BHTK, value_BHTU))
    scores_BHXCW = torch.matmul(query_BHXCK, key_BHXWK.mT)

    key_W = torch.arange(key_BHXWK.shape[3], device=query_BHTK.device) - block_size
    distance_CW = key_W - torch.arange(block_size, device=query_BHTK.device)[:, None]
    in_window_CW = (distance_CW >= -mask.radius) & (distance_CW <= (0 if mask.is_causal else mask.radius))
    is_token_BT = query_BHTK.new_ones(1, length, dtype=torch.bool) if mask.is_token_BT is None else mask.is_token_BT
    is_token_BHXWK = _concat_neighbors(is_token_BT[:, None, :, None], block_size, num_beside)
    mask_BHXCW = in_window_CW & is_token_BHXWK.mT | (distance_CW == 0)

    weights_BHXCW = dropout(scores_BHXCW.masked_fill(~mask_BHXCW, float("-inf")).softmax(dim=-1), dropout_p)
    heads_BHXCU = torch.matmul(weights_BHXCW.to(value_BHXWU.dtype), value_BHXWU)
    return heads_BHXCU.flatten(2, 3)[:, :, :length]


def _split_blocks(x_BHTK: Tensor, block_size: int) -> Tensor:
    """Return the positions cut into blocks, the last one padded with zeros. → (B, H, X, C, K)"""
    padded_BHTK = F.pad(x_BHTK, (0, 0, 0, -x_BHTK.shape[2] % block_size))
    return padded_BHTK.view(*x_BHTK.shape[:2], -1, block_size, x_BHTK.shape[3])


def _concat_neighbors(x_BHTK: Tensor, block_size: int, num_beside: int) -> Tensor:
    """Return each block with the one before it and, if num_beside = 2, with the one behind it. → (B, H, X, W, K)"""
    blocks_BHXCK = _split_blocks(x_BHTK, block_size)
    padded_BHXCK = F.pad(blocks_BHXCK, (0, 0, 0, 0, 1, num_beside - 1))
    num_blocks = blocks_BHXCK.shape[2]
    return torch.cat([padded_BHXCK[:, :, shift : shift + num_blocks] for shift in range(num_beside + 1)], dim=3)
