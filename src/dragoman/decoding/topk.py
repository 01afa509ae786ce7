"""Top-k extensions: log-sum-exp over the vocabulary, and the k best tokens without sorting the vocabulary.

Neither writes a tensor as large as the logits. At 128 rows and 37,000 tokens, such a write costs more than the computation.
A block of the vocabulary consists of columns at a fixed stride, so one pass over contiguous memory gives the maxima of all
blocks. The k best tokens lie in the k blocks with the largest maxima.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

# A smaller vocabulary is sorted as a whole, because blocks would cost more calls than they save.
SMALL_VOCABULARY = 1024
BLOCK_SIZES = range(24, 65)
# Number of values that fit into a processor's cache; it limits the rows that are normalized at a time.
CACHED_VALUES = 1 << 20
# For at most this number of logits, argmax is as fast as a search by blocks.
FEW_VALUES = 1 << 16


class TopK(Protocol):
    """Implementation of log-sum-exp and top-k; each search has its own instance, which may keep buffers between steps."""

    def logsumexp(self, logits_NV: Tensor) -> Tensor:
        """Return log Σ exp over the vocabulary for each row. → (N,) in double precision"""
        ...

    def topk(self, logits_BRV: Tensor, shift_BR: Tensor | None, count: int) -> Tensor:
        """Return the indices of the `count` best logits of each sentence, best first, after adding each row's shift.

        → (B, count) indices into R · V
        """
        ...


class TorchTopK:
    """Top-k in PyTorch."""

    def __init__(self) -> None:
        self.logsumexp = BlockLogSumExp()

    def topk(self, logits_BRV: Tensor, shift_BR: Tensor | None, count: int) -> Tensor:
        """Return the best logits as the protocol describes."""
        if count == 1 and shift_BR is None and logits_BRV.numel() <= FEW_VALUES:
            return logits_BRV.flatten(1).argmax(-1, keepdim=True)
        return topk(logits_BRV, shift_BR, count)


class BlockLogSumExp:
    """Log-sum-exp over the vocabulary for each row; keeps its workspace between steps."""

    def __init__(self) -> None:
        self.workspace_CV: Tensor | None = None

    def __call__(self, logits_NV: Tensor) -> Tensor:
        """Return log Σ exp from the softmax, PyTorch's fastest pass: its value at the largest logit m is 1 / Σ exp(x − m).

        → (N,) in double precision, so that the rounding of a logit does not shift every token log-probability
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
    """Return a block size that divides the vocabulary if there is one, so that no columns remain."""
    divisors = [size for size in BLOCK_SIZES if vocabulary % size == 0]
    return min(divisors, key=lambda size: abs(size - 36), default=36)


def topk(logits_BRV: Tensor, shift_BR: Tensor | None, count: int) -> Tensor:
    """Return the indices of the `count` best logits of each sentence, best first, after adding each row's shift.

    → (B, count) indices into R · V
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
    if rows > 1:  # from an index into R · K to an index into R · V
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
    """Return the offsets of a block's tokens from its first, and the indices into R · V that are in no block."""
    block_size = _block_size(vocabulary)
    num_blocks = vocabulary // block_size
    row_start_R1 = torch.arange(rows, device=device)[:, None] * vocabulary
    remainder = row_start_R1 + torch.arange(block_size * num_blocks, vocabulary, device=device)
    return torch.arange(0, block_size * num_blocks, num_blocks, device=device), remainder.flatten()


@dataclass(frozen=True)
class Candidates:
    """X extensions of each sentence's hypotheses by one token.

    parent_BX: slot in the beam of the hypothesis that each extends
    token_BX, log_prob_BX: the new token and its log-probability
    score_BX: log-probability of the whole output; -inf for a masked one
    priority_BX: value by which the beam selects: the score, unless phrases or a diversity penalty change it
    """

    parent_BX: Tensor
    token_BX: Tensor
    log_prob_BX: Tensor
    score_BX: Tensor
    priority_BX: Tensor


def find_best_candidates(
    logits_BRV: Tensor, log_sum_BR: Tensor, score_BR: Tensor, count: int, topk_impl: TopK | None = None
) -> Candidates:
    """Return the best extensions of hypotheses with the log-probabilities `score_BR`, best first."""
    rows, vocabulary = logits_BRV.shape[1:]
    index_BX = (topk_impl.topk if topk_impl else topk)(
        logits_BRV, (score_BR - log_sum_BR).float(), min(count, rows * vocabulary)
    )
    parent_BX = torch.div(index_BX, vocabulary, rounding_mode="floor")
    log_prob_BX = (logits_BRV.flatten(1).gather(1, index_BX) - log_sum_BR.gather(1, parent_BX)).float()
    score_BX = score_BR.gather(1, parent_BX) + log_prob_BX
    return Candidates(parent_BX, index_BX - parent_BX * vocabulary, log_prob_BX, score_BX, score_BX)
