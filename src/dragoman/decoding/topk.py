"""Top-k extensions: log-sum-exp over the vocabulary, and the k best tokens without sorting the vocabulary.

Neither writes an array as large as the logits. At 128 rows and 37,000 tokens, such a write costs more than the computation.
A block of the vocabulary consists of columns at a fixed stride, so one pass over contiguous memory gives the maxima of all
blocks. The k best tokens lie in the k blocks with the largest maxima.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from dragoman.decoding.arrays import SMALL_VOCABULARY, Array, Arrays

BLOCK_SIZES = range(24, 65)
# For at most this number of logits, argmax is as fast as a search by blocks.
FEW_VALUES = 1 << 16


class TopK(Protocol):
    """Implementation of log-sum-exp and top-k; each search has its own instance, which may keep buffers between steps."""

    def logsumexp(self, logits_NV: Array) -> Array:
        """Return log Σ exp over the vocabulary for each row. → (N,) in double precision"""
        ...

    def topk(self, logits_BRV: Array, shift_BR: Array | None, count: int) -> Array:
        """Return the indices of the `count` best logits of each sentence, best first, after adding each row's shift.

        → (B, count) indices into R · V
        """
        ...


class BlockTopK:
    """Top-k by blocks of the vocabulary, in NumPy or PyTorch. A smaller vocabulary is sorted as a whole."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self._logsumexp = arrays.make_logsumexp()

    def logsumexp(self, logits_NV: Array) -> Array:
        """Return log Σ exp over the vocabulary for each row. → (N,) in double precision"""
        return self._logsumexp(logits_NV)

    def topk(self, logits_BRV: Array, shift_BR: Array | None, count: int) -> Array:
        """Return the best logits as the protocol describes."""
        arrays = self.arrays
        num_sentences, rows, vocabulary = logits_BRV.shape
        logits_BX = logits_BRV.reshape(num_sentences, -1)
        if count == 1 and shift_BR is None and math.prod(logits_BX.shape) <= FEW_VALUES:
            return logits_BX.argmax(-1)[:, None]
        block_size = _block_size(vocabulary)
        num_blocks = vocabulary // block_size
        num_blocked = block_size * num_blocks
        if vocabulary < SMALL_VOCABULARY or rows * num_blocks < count:
            shifted_BRV = logits_BRV if shift_BR is None else logits_BRV + shift_BR[:, :, None]
            return arrays.topk(shifted_BRV.reshape(num_sentences, -1), count)
        blocks_BRSK = logits_BRV[:, :, :num_blocked].reshape(num_sentences, rows, block_size, num_blocks)
        block_max_BRK = arrays.xp.amax(blocks_BRSK, 2)
        if shift_BR is not None:
            block_max_BRK = block_max_BRK + shift_BR[:, :, None]
        block_BX = arrays.topk(block_max_BRK.reshape(num_sentences, -1), count)
        if rows > 1:  # from an index into R · K to an index into R · V
            block_BX = block_BX + block_BX // num_blocks * (vocabulary - num_blocks)
        offsets, remainder = _block_offsets(rows, vocabulary, arrays)
        index_BX = (block_BX[:, :, None] + offsets).reshape(num_sentences, -1)
        if num_blocked < vocabulary:
            remainder_BX = arrays.xp.broadcast_to(remainder, (num_sentences, len(remainder)))
            index_BX = arrays.xp.concat([index_BX, remainder_BX], axis=1)
        value_BX = arrays.take(logits_BX, index_BX)
        if shift_BR is not None and rows > 1:
            value_BX = value_BX + arrays.take(shift_BR, index_BX // vocabulary)
        return arrays.take(index_BX, arrays.topk(value_BX, count))


@lru_cache(maxsize=32)
def _block_size(vocabulary: int) -> int:
    """Return a block size that divides the vocabulary if there is one, so that no columns remain."""
    divisors = [size for size in BLOCK_SIZES if vocabulary % size == 0]
    return min(divisors, key=lambda size: abs(size - 36), default=36)


@lru_cache(maxsize=32)
def _block_offsets(rows: int, vocabulary: int, arrays: Arrays) -> tuple[Array, Array]:
    """Return the offsets of a block's tokens from its first, and the indices into R · V that are in no block."""
    block_size = _block_size(vocabulary)
    num_blocks = vocabulary // block_size
    row_start_R1 = arrays.arange(rows)[:, None] * vocabulary
    remainder = row_start_R1 + arrays.arange(vocabulary)[block_size * num_blocks :]
    return arrays.arange(block_size) * num_blocks, remainder.reshape(-1)


@dataclass(frozen=True)
class Candidates:
    """X extensions of each sentence's hypotheses by one token.

    parent_BX: slot in the beam of the hypothesis that each extends
    token_BX, log_prob_BX: the new token and its log-probability
    score_BX: log-probability of the whole output; -inf for a masked one
    priority_BX: value by which the beam selects: the score, unless phrases or a diversity penalty change it
    """

    parent_BX: Array
    token_BX: Array
    log_prob_BX: Array
    score_BX: Array
    priority_BX: Array


def find_best_candidates(
    logits_BRV: Array, log_sum_BR: Array, score_BR: Array, count: int, *, topk_impl: TopK, arrays: Arrays
) -> Candidates:
    """Return the best extensions of hypotheses with the log-probabilities `score_BR`, best first."""
    num_sentences, rows, vocabulary = logits_BRV.shape
    shift_BR = arrays.cast(score_BR - log_sum_BR, arrays.xp.float32)
    index_BX = topk_impl.topk(logits_BRV, shift_BR, min(count, rows * vocabulary))
    parent_BX = index_BX // vocabulary
    logit_BX = arrays.take(logits_BRV.reshape(num_sentences, -1), index_BX)
    log_prob_BX = arrays.cast(logit_BX - arrays.take(log_sum_BR, parent_BX), arrays.xp.float32)
    score_BX = arrays.take(score_BR, parent_BX) + log_prob_BX
    return Candidates(parent_BX, index_BX - parent_BX * vocabulary, log_prob_BX, score_BX, score_BX)
