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

# Minimum number of positions in a block; smaller blocks are mostly overhead.
MIN_BLOCK_SIZE = 16


def local_attention(query_BHTK: Tensor, key_BHTK: Tensor, value_BHTU: Tensor, radius: int) -> Tensor:
    """Return equation 1 for queries t that see keys t − radius … t + radius. → (B, H, T, U)"""
    length, block_size = query_BHTK.shape[2], max(radius, MIN_BLOCK_SIZE)
    num_blocks = -(-length // block_size)
    query_BHXCK = _split_blocks(query_BHTK / math.sqrt(query_BHTK.shape[-1]), num_blocks, block_size)
    key_BHXWK, value_BHXWU = (_concat_neighbors(tensor, num_blocks, block_size) for tensor in (key_BHTK, value_BHTU))
    scores_BHXCW = torch.matmul(query_BHXCK, key_BHXWK.mT)
    mask_XCW = _build_block_mask(length, num_blocks, block_size, radius, query_BHTK.device)
    weights_BHXCW = scores_BHXCW.masked_fill(~mask_XCW, float("-inf")).softmax(dim=-1)
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


def _build_block_mask(length: int, num_blocks: int, block_size: int, radius: int, device: torch.device) -> Tensor:
    """Return which keys of the three blocks a query attends to: positions within the radius, and itself. → (X, C, W)"""
    key_W = torch.arange(3 * block_size, device=device) - block_size
    query_C1 = torch.arange(block_size, device=device)[:, None]
    key_XW = key_W + block_size * torch.arange(num_blocks, device=device)[:, None]
    exists_X1W = ((key_XW >= 0) & (key_XW < length))[:, None]
    return ((key_W - query_C1).abs() <= radius) & exists_X1W | (key_W == query_C1)
