"""What may be said next: the sum over the vocabulary once, and the best few tokens without sorting it.

Neither writes a tensor as large as the logits: at 128 rows and 37,000 tokens that would cost more than what is computed.
Blocks of the vocabulary are columns a fixed distance apart, so that the maxima of all blocks are one pass over contiguous
memory; the best k tokens lie in the k blocks with the greatest maxima.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

# Below this the whole vocabulary is sorted: blocks would cost more calls than they save.
SMALL_VOCABULARY = 1024
BLOCK_SIZES = range(24, 65)
# So many values stay in a processor's cache; so many rows at a time are normalised.
CACHED_VALUES = 1 << 20
# Of so few logits the greatest is found at once as fast as block by block.
FEW_VALUES = 1 << 16


class Ranking(Protocol):
    """How the likeliest are found; one search's own, from step to step."""

    def log_sums(self, logits_NV: Tensor) -> Tensor:
        """log Σ exp over the vocabulary, row by row. → (N,) in double precision"""
        ...

    def top(self, logits_BRV: Tensor, shift_BR: Tensor | None, count: int) -> Tensor:
        """The `count` best of each sentence's logits, each raised by its row's shift, best first.

        → (B, count) places in (R · V)
        """
        ...


class PlainRanking:
    """PyTorch's."""

    def __init__(self) -> None:
        self.log_sums = LogSums()

    def top(self, logits_BRV: Tensor, shift_BR: Tensor | None, count: int) -> Tensor:
        if count == 1 and shift_BR is None and logits_BRV.numel() <= FEW_VALUES:
            return logits_BRV.flatten(1).argmax(-1, keepdim=True)
        return top(logits_BRV, shift_BR, count)


class LogSums:
    """log Σ exp over the vocabulary, row by row; keeps its workspace from step to step."""

    def __init__(self) -> None:
        self.space_CV: Tensor | None = None

    def __call__(self, logits_NV: Tensor) -> Tensor:
        """By the softmax, torch's fastest pass: at the greatest logit m it is 1 / Σ exp(x − m), so nothing is lost.

        → (N,) in double precision, lest each token of an output be off by the rounding of its logit
        """
        rows, vocabulary = logits_NV.shape
        if vocabulary < SMALL_VOCABULARY:
            return logits_NV.double().logsumexp(-1)
        if logits_NV.device.type != "cpu":
            return logits_NV.amax(-1) - logits_NV.softmax(-1).amax(-1).double().log()
        part = max(1, CACHED_VALUES // vocabulary)
        if self.space_CV is None or len(self.space_CV) < min(part, rows) or self.space_CV.shape[1] != vocabulary:
            self.space_CV = torch.empty(min(part, rows), vocabulary)
        sums = []
        for first in range(0, rows, part):
            some_CV = logits_NV[first : first + part]
            probs_CV = torch.softmax(some_CV, -1, out=self.space_CV[: len(some_CV)])
            sums.append(some_CV.amax(-1) - probs_CV.amax(-1).double().log())
        return sums[0] if len(sums) == 1 else torch.cat(sums)


@lru_cache(maxsize=32)
def _block_size(vocabulary: int) -> int:
    """A divisor of the vocabulary where there is one, so that no columns are left over."""
    divisors = [size for size in BLOCK_SIZES if vocabulary % size == 0]
    return min(divisors, key=lambda size: abs(size - 36), default=36)


def top(logits_BRV: Tensor, shift_BR: Tensor | None, count: int) -> Tensor:
    """The `count` best of each sentence's logits, each raised by its row's shift, best first.

    → (B, count) places in (R · V)
    """
    rows, vocabulary = logits_BRV.shape[1:]
    size = _block_size(vocabulary)
    blocks = vocabulary // size
    whole = size * blocks
    if vocabulary < SMALL_VOCABULARY or rows * blocks < count:
        shifted_BRV = logits_BRV if shift_BR is None else logits_BRV + shift_BR[:, :, None]
        return _best(shifted_BRV.flatten(1), count)
    greatest_BRK = logits_BRV[:, :, :whole].view(-1, rows, size, blocks).amax(2)
    if shift_BR is not None:
        greatest_BRK = greatest_BRK + shift_BR[:, :, None]
    block_BX = _best(greatest_BRK.flatten(1), count)
    if rows > 1:  # from a place among R · K to one among R · V
        block_BX = block_BX + torch.div(block_BX, blocks, rounding_mode="floor") * (vocabulary - blocks)
    steps, left = _places(rows, vocabulary, block_BX.device)
    place_BX = (block_BX[:, :, None] + steps).flatten(1)
    if whole < vocabulary:
        place_BX = torch.cat([place_BX, left.expand(len(place_BX), -1)], dim=1)
    value_BX = logits_BRV.flatten(1).gather(1, place_BX)
    if shift_BR is not None and rows > 1:
        value_BX = value_BX + shift_BR.gather(1, torch.div(place_BX, vocabulary, rounding_mode="floor"))
    return place_BX.gather(1, _best(value_BX, count))


def _best(value_BX: Tensor, count: int) -> Tensor:
    if count == value_BX.shape[1]:
        return value_BX.argsort(dim=1, descending=True)
    return value_BX.argmax(1, keepdim=True) if count == 1 else value_BX.topk(count, dim=1).indices


@lru_cache(maxsize=32)
def _places(rows: int, vocabulary: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """How far a block's tokens lie from its first; and the places in (R · V) that are in no block."""
    size = _block_size(vocabulary)
    blocks = vocabulary // size
    left_R1 = torch.arange(rows, device=device)[:, None] * vocabulary
    left = left_R1 + torch.arange(size * blocks, vocabulary, device=device)
    return torch.arange(0, size * blocks, blocks, device=device), left.flatten()


@dataclass(frozen=True)
class Candidates:
    """X hypotheses of each sentence that are one token longer.

    parent_BX: the place in the beam that each grew from
    token_BX, log_prob_BX: what was said last, and its log-probability
    score_BX: log-probability of the whole; -inf for what may not be
    rank_BX: what the beam chooses by: the score, unless groups keep apart
    """

    parent_BX: Tensor
    token_BX: Tensor
    log_prob_BX: Tensor
    score_BX: Tensor
    rank_BX: Tensor


def best_candidates(
    logits_BRV: Tensor, log_sum_BR: Tensor, score_BR: Tensor, count: int, ranking: Ranking | None = None
) -> Candidates:
    """The best extensions of hypotheses with these log-probabilities."""
    rows, vocabulary = logits_BRV.shape[1:]
    place_BX = (ranking.top if ranking else top)(logits_BRV, (score_BR - log_sum_BR).float(), min(count, rows * vocabulary))
    parent_BX = torch.div(place_BX, vocabulary, rounding_mode="floor")
    log_prob_BX = (logits_BRV.flatten(1).gather(1, place_BX) - log_sum_BR.gather(1, parent_BX)).float()
    score_BX = score_BR.gather(1, parent_BX) + log_prob_BX
    return Candidates(parent_BX, place_BX - parent_BX * vocabulary, log_prob_BX, score_BX, score_BX)
