"""Restricted self-attention (section 4): each place sees its neighbours alone, in time and memory O(r·n·d).

The places stand in blocks of at least r. Those of a block look at it and at the blocks beside it, three blocks of keys whatever
the length, and a mask takes off what is farther away than r. Nothing of the size n² is ever made.
X counts blocks, C the places of one, W those of the three that it looks at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.model.dropout import dropout
from dragoman.model.masks import causal_mask, window_mask, windowed_padding_mask

# Places of a block at least: smaller ones are all overhead.
MIN_BLOCK_SIZE = 16
# Places, and windows, from which on blocks are the faster: until then a mask over all pairs is.
MIN_LENGTH, MIN_WINDOWS = 160, 4


@dataclass(frozen=True)
class LocalMask:
    """What a mask of `window_mask` says, without its n² pairs, of sentences whose places are all there.

    radius: places that a query sees on each side; on the left alone if `causal`
    keep_BT: true for real tokens; none where all are
    """

    radius: int
    token_mask_BT: Tensor | None = None
    causal: bool = False

    def to_tensor(self, length: int, *, device: torch.device) -> Tensor:
        """The pairs after all. → (T, T) or (B, 1, T, T)."""
        if self.token_mask_BT is not None:
            mask = windowed_padding_mask(self.token_mask_BT, self.radius)
        else:
            mask = window_mask(length, length, self.radius, device=device)
        return mask & causal_mask(length, length, device=device) if self.causal else mask

    def choose(self, length: int, *, device: torch.device) -> LocalMask | Tensor:
        """This window where sentences are long, and its mask where they are short."""
        return self if length >= max(MIN_LENGTH, MIN_WINDOWS * self.radius) else self.to_tensor(length, device=device)


Mask = Tensor | LocalMask


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
    """Equation 1 where query t sees keys t − radius … t + radius, or up to its own if `causal`. → (B, H, T, U).

    keep_BT: true for real tokens; a padding query, which nothing reads, looks at itself (as in `windowed_padding_mask`)
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
    """Cut into blocks, the last one filled up with zeros. → (B, H, X, C, K)."""
    padded_BHTK = F.pad(x_BHTK, (0, 0, 0, num_blocks * block_size - x_BHTK.shape[2]))
    return padded_BHTK.view(*x_BHTK.shape[:2], num_blocks, block_size, x_BHTK.shape[3])


def _concat_neighbors(x_BHTK: Tensor, num_blocks: int, block_size: int) -> Tensor:
    """Each block between the one before and the one after it. → (B, H, X, W, K), W being three blocks."""
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
    """Which of the three blocks' keys a query sees: near enough, real, or its own. → (B or 1, 1, X, C, W)."""
    key_W = torch.arange(3 * block_size, device=device) - block_size
    query_C1 = torch.arange(block_size, device=device)[:, None]
    in_window_CW = (key_W - query_C1).abs() <= radius
    if causal:
        in_window_CW = in_window_CW & (key_W <= query_C1)
    is_token_BT = torch.ones(1, length, dtype=torch.bool, device=device) if token_mask_BT is None else token_mask_BT
    is_token_BHXWK = _concat_neighbors(is_token_BT[:, None, :, None], num_blocks, block_size)
    return in_window_CW & is_token_BHXWK.mT | (key_W == query_C1)
