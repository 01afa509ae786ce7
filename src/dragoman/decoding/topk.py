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


class TopK(Protocol):
    """How the likeliest are found; one search's own, from step to step."""

    def logsumexp(self, logits_NV: Tensor) -> Tensor:
        """log Σ exp over the vocabulary, row by row. → (N,) in double precision"""
        ...

    def topk(self, logits_BRV: Tensor, shift_BR: Tensor | None, count: int) -> Tensor:
        """The `count` best of each sentence's logits, each raised by its row's shift, best first.

        → (B, count) places in (R · V)
        """
        ...


class TorchTopK:
    """PyTorch's."""

    def __init__(self) -> None:
        self.logsumexp = BlockLogSumExp()

    def topk(self, logits_BRV: Tensor, shift_BR: Tensor | None, count: int) -> Tensor:
        if count == 1 and shift_BR is None and logits_BRV.numel() <= FEW_VALUES:
            return logits_BRV.flatten(1).argmax(-1, keepdim=True)
        return topk(logits_BRV, shift_BR, count)


class BlockLogSumExp:
    """log Σ exp over the vocabulary, row by row; keeps its workspace from step to step."""

    def __init__(self) -> None:
        self.workspace_CV: Tensor | None = None

    def __call__(self, logits_NV: Tensor) -> Tensor:
        """By the softmax, torch's fastest pass: at the greatest logit m it is 1 / Σ exp(x − m), so nothing is lost.

        → (N,) in double precision, lest each token of an output be off by the rounding of its logit
        """
        rows, vocabulary = logits_NV.shape
        if vocabulary < SMALL_VOCABULARY:
            return logits_NV.double().logsumexp(-1)
        if logits_NV.device.type != "cpu":
            return logits_NV.amax(-1) - logits_NV.softmax(-1).amax(-1).double().log()
        chunk_size = max(1, CACHED_VALUES // vocabulary)
        if (
            self.workspace_CV is None
            or len(self.workspace_CV) < min(chunk_size, rows)
            or self.workspace_CV.shape[1] != vocabulary
        ):
            self.workspace_CV = torch.empty(min(chunk_size, rows), vocabulary)
        sums = []
        for start in range(0, rows, chunk_size):
            chunk_CV = logits_NV[start : start + chunk_size]
            probs_CV = torch.softmax(chunk_CV, -1, out=self.workspace_CV[: len(chunk_CV)])
            sums.append(chunk_CV.amax(-1) - probs_CV.amax(-1).double().log())
        return sums[0] if len(sums) == 1 else torch.cat(sums)


@lru_cache(maxsize=32)
def _block_size(vocabulary: int) -> int:
    """A divisor of the vocabulary where there is one, so that no columns are left over."""
    divisors = [size for size in BLOCK_SIZES if vocabulary % size == 0]
    return min(divisors, key=lambda size: abs(size - 36), default=36)


def topk(logits_BRV: Tensor, shift_BR: Tensor | None, count: int) -> Tensor:
    """The `count` best of each sentence's logits, each raised by its row's shift, best first.

    → (B, count) places in (R · V)
    """
    rows, vocabulary = logits_BRV.shape[1:]
    block_size = _block_size(vocabulary)
    num_blocks = vocabulary // block_size
    num_blocked = block_size * num_blocks
    if vocabulary < SMALL_VOCABULARY or rows * num_blocks < count:
        shifted_BRV = logits_BRV if shift_BR is None else logits_BRV + shift_BR[:, :, None]
        return _sorted_topk(shifted_BRV.flatten(1), count)
    block_max_BRK = logits_BRV[:, :, :num_blocked].view(-1, rows, block_size, num_blocks).amax(2)
    if shift_BR is not None:
        block_max_BRK = block_max_BRK + shift_BR[:, :, None]
    block_BX = _sorted_topk(block_max_BRK.flatten(1), count)
    if rows > 1:  # from a place among R · K to one among R · V
        block_BX = block_BX + torch.div(block_BX, num_blocks, rounding_mode="floor") * (vocabulary - num_blocks)
    offsets, remainder = _block_offsets(rows, vocabulary, block_BX.device)
    index_BX = (block_BX[:, :, None] + offsets).flatten(1)
    if num_blocked < vocabulary:
        index_BX = torch.cat([index_BX, remainder.expand(len(index_BX), -1)], dim=1)
    value_BX = logits_BRV.flatten(1).gather(1, index_BX)
    if shift_BR is not None and rows > 1:
        value_BX = value_BX + shift_BR.gather(1, torch.div(index_BX, vocabulary, rounding_mode="floor"))
    return index_BX.gather(1, _sorted_topk(value_BX, count))


def _sorted_topk(value_BX: Tensor, count: int) -> Tensor:
    if count == value_BX.shape[1]:
        return value_BX.argsort(dim=1, descending=True)
    return value_BX.argmax(1, keepdim=True) if count == 1 else value_BX.topk(count, dim=1).indices


@lru_cache(maxsize=32)
def _block_offsets(rows: int, vocabulary: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """How far a block's tokens lie from its first; and the places in (R · V) that are in no block."""
    block_size = _block_size(vocabulary)
    num_blocks = vocabulary // block_size
    row_start_R1 = torch.arange(rows, device=device)[:, None] * vocabulary
    remainder = row_start_R1 + torch.arange(block_size * num_blocks, vocabulary, device=device)
    return torch.arange(0, block_size * num_blocks, num_blocks, device=device), remainder.flatten()


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
    priority_BX: Tensor


def find_best_candidates(
    logits_BRV: Tensor, log_sum_BR: Tensor, score_BR: Tensor, count: int, topk_impl: TopK | None = None
) -> Candidates:
    """The best extensions of hypotheses with these log-probabilities."""
    rows, vocabulary = logits_BRV.shape[1:]
    index_BX = (topk_impl.topk if topk_impl else topk)(
        logits_BRV, (score_BR - log_sum_BR).float(), min(count, rows * vocabulary)
    )
    parent_BX = torch.div(index_BX, vocabulary, rounding_mode="floor")
    log_prob_BX = (logits_BRV.flatten(1).gather(1, index_BX) - log_sum_BR.gather(1, parent_BX)).float()
    score_BX = score_BR.gather(1, parent_BX) + log_prob_BX
    return Candidates(parent_BX, index_BX - parent_BX * vocabulary, log_prob_BX, score_BX, score_BX)
