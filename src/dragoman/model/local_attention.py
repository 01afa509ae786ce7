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
BLOCK = 16
# Places, and windows, from which on blocks are the faster: until then a mask over all pairs is.
LONG, WIDE = 160, 4


@dataclass(frozen=True)
class Window:
    """What a mask of `window_mask` says, without its n² pairs, of sentences whose places are all there.

    radius: places that a query sees on each side; on the left alone if `causal`
    keep_BT: true for real tokens; none where all are
    """

    radius: int
    keep_BT: Tensor | None = None
    causal: bool = False

    def mask(self, length: int, *, device: torch.device) -> Tensor:
        """The pairs after all. → (T, T) or (B, 1, T, T)."""
        if self.keep_BT is not None:
            mask = windowed_padding_mask(self.keep_BT, self.radius)
        else:
            mask = window_mask(length, length, self.radius, device=device)
        return mask & causal_mask(length, length, device=device) if self.causal else mask

    def cheapest(self, length: int, *, device: torch.device) -> Window | Tensor:
        """This window where sentences are long, and its mask where they are short."""
        return self if length >= max(LONG, WIDE * self.radius) else self.mask(length, device=device)


Mask = Tensor | Window


def restricted_attention(
    query_BHTK: Tensor,
    key_BHTK: Tensor,
    value_BHTU: Tensor,
    radius: int,
    *,
    keep_BT: Tensor | None = None,
    causal: bool = False,
    dropout_p: float = 0.0,
) -> Tensor:
    """Equation 1 where query t sees keys t − radius … t + radius, or up to its own if `causal`. → (B, H, T, U).

    keep_BT: true for real tokens; a padding query, which nothing reads, looks at itself (as in `windowed_padding_mask`)
    """
    length, size = query_BHTK.shape[2], max(radius, BLOCK)
    blocks = -(-length // size)
    query_BHXCK = _blocks(query_BHTK / math.sqrt(query_BHTK.shape[-1]), blocks, size)
    key_BHXWK, value_BHXWU = (_with_neighbours(one, blocks, size) for one in (key_BHTK, value_BHTU))
    scores_BHXCW = torch.matmul(query_BHXCK, key_BHXWK.mT)
    seen_BHXCW = _seen(length, blocks, size, radius, keep_BT, causal=causal, device=query_BHTK.device)
    weights_BHXCW = dropout(scores_BHXCW.masked_fill(~seen_BHXCW, float("-inf")).softmax(dim=-1), dropout_p)
    heads_BHXCU = torch.matmul(weights_BHXCW.to(value_BHXWU.dtype), value_BHXWU)
    return heads_BHXCU.flatten(2, 3)[:, :, :length]


def _blocks(x_BHTK: Tensor, blocks: int, size: int) -> Tensor:
    """Cut into blocks, the last one filled up with zeros. → (B, H, X, C, K)."""
    whole_BHTK = F.pad(x_BHTK, (0, 0, 0, blocks * size - x_BHTK.shape[2]))
    return whole_BHTK.view(*x_BHTK.shape[:2], blocks, size, x_BHTK.shape[3])


def _with_neighbours(x_BHTK: Tensor, blocks: int, size: int) -> Tensor:
    """Each block between the one before and the one after it. → (B, H, X, W, K), W being three blocks."""
    x_BHXCK = F.pad(_blocks(x_BHTK, blocks, size), (0, 0, 0, 0, 1, 1))
    return torch.cat([x_BHXCK[:, :, :-2], x_BHXCK[:, :, 1:-1], x_BHXCK[:, :, 2:]], dim=3)


def _seen(
    length: int, blocks: int, size: int, radius: int, keep_BT: Tensor | None, *, causal: bool, device: torch.device
) -> Tensor:
    """Which of the three blocks' keys a query sees: near enough, real, or its own. → (B or 1, 1, X, C, W)."""
    key_W = torch.arange(3 * size, device=device) - size
    query_C1 = torch.arange(size, device=device)[:, None]
    near_CW = (key_W - query_C1).abs() <= radius
    if causal:
        near_CW = near_CW & (key_W <= query_C1)
    real_BT = torch.ones(1, length, dtype=torch.bool, device=device) if keep_BT is None else keep_BT
    real_BHXWK = _with_neighbours(real_BT[:, None, :, None], blocks, size)
    return near_CW & real_BHXWK.mT | (key_W == query_C1)
