"""Restricted self-attention (section 4): each position attends to its neighbors within r, in time and memory O(r·n·d).

The positions are cut into blocks of at least r. The queries of a block attend to the keys of three blocks: their own and its
two neighbors. A mask removes keys that are farther away than r. No tensor has n² elements.
X counts blocks, C the positions of one block, W the positions of three.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.model.dropout import dropout

# Minimum number of positions in a block; smaller blocks are mostly overhead.
MIN_BLOCK_SIZE = 16


def local_attention(
    query_BHTK: Tensor,
    key_BHTK: Tensor,
    value_BHTU: Tensor,
    radius: int,
    *,
    token_mask_BT: Tensor | None = None,
    causal: bool = False,
    dropout_p: float = 0.0,
) -> Tensor:
    """Return equation 1 for queries t that see keys t − radius … t + radius, or … t if `causal`. → (B, H, T, U)

    token_mask_BT: true for tokens, false for padding; a padding query attends to itself, as in `windowed_padding_mask`
    """
    length, block_size = query_BHTK.shape[2], max(radius, MIN_BLOCK_SIZE)
    num_blocks = -(-length // block_size)
    query_BHXCK = _split_blocks(query_BHTK / math.sqrt(query_BHTK.shape[-1]), num_blocks, block_size)
    key_BHXWK, value_BHXWU = (_concat_neighbors(tensor, num_blocks, block_size) for tensor in (key_BHTK, value_BHTU))
    scores_BHXCW = torch.matmul(query_BHXCK, key_BHXWK.mT)
    mask_BHXCW = _build_block_mask(
        length, num_blocks, block_size, radius, token_mask_BT, causal=causal, device=query_BHTK.device
    )
    weights_BHXCW = dropout(scores_BHXCW.masked_fill(~mask_BHXCW, float("-inf")).softmax(dim=-1), dropout_p)
    heads_BHXCU = torch.matmul(weights_BHXCW.to(value_BHXWU.dtype), value_BHXWU)
    return heads_BHXCU.flatten(2, 3)[:, :, :length]


def _split_blocks(x_BHTK: Tensor, num_blocks: int, block_size: int) -> Tensor:
    """Return the positions cut into blocks, the last one padded with zeros. → (B, H, X, C, K)"""
    padded_BHTK = F.pad(x_BHTK, (0, 0, 0, num_blocks * block_size - x_BHTK.shape[2]))
    return padded_BHTK.view(*x_BHTK.shape[:2], num_blocks, block_size, x_BHTK.shape[3])


def _concat_neighbors(x_BHTK: Tensor, num_blocks: int, block_size: int) -> Tensor:
    """Return each block with its left and right neighbor. → (B, H, X, W, K) for W = 3 · C"""
    x_BHXCK = F.pad(_split_blocks(x_BHTK, num_blocks, block_size), (0, 0, 0, 0, 1, 1))
    return torch.cat([x_BHXCK[:, :, :-2], x_BHXCK[:, :, 1:-1], x_BHXCK[:, :, 2:]], dim=3)


def _build_block_mask(
    length: int,
    num_blocks: int,
    block_size: int,
    radius: int,
    token_mask_BT: Tensor | None,
    *,
    causal: bool,
    device: torch.device,
) -> Tensor:
    """Return which keys of the three blocks a query attends to: tokens within the radius, and itself. → (B or 1, 1, X, C, W)"""
    key_W = torch.arange(3 * block_size, device=device) - block_size
    query_C1 = torch.arange(block_size, device=device)[:, None]
    in_window_CW = (key_W - query_C1).abs() <= radius
    if causal:
        in_window_CW = in_window_CW & (key_W <= query_C1)
    is_token_BT = torch.ones(1, length, dtype=torch.bool, device=device) if token_mask_BT is None else token_mask_BT
    is_token_BHXWK = _concat_neighbors(is_token_BT[:, None, :, None], num_blocks, block_size)
    return in_window_CW & is_token_BHXWK.mT | (key_W == query_C1)
