"""What may be said next, compiled: the sums over the vocabulary, and the best few tokens without sorting it.

N rows    B sentences of R hypotheses    V vocabulary    X best ones
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dragoman.engine.vectors import (
    LANES,
    any_above,
    compiled,
    entered,
    exponential,
    greater,
    greatest,
    load,
    load_first,
    same,
    total,
)

LOWEST = -np.inf


class CompiledRanking:
    """As `dragoman.decoding.candidates.PlainRanking`, of float32 on a processor."""

    def log_sums(self, logits_NV: Tensor) -> Tensor:
        """log Σ exp over the vocabulary, row by row. → (N,) in double precision"""
        sums_N = np.empty(logits_NV.shape[0])
        log_sums(logits_NV.contiguous().numpy(), sums_N)
        return torch.from_numpy(sums_N)

    def top(self, logits_BRV: Tensor, shift_BR: Tensor | None, count: int) -> Tensor:
        """The `count` best of each sentence's logits, each raised by its row's shift, best first.

        → (B, count) places in (R · V)
        """
        sentences, rows, _ = logits_BRV.shape
        place_BX = np.empty((sentences, count), np.int64)
        shift = np.zeros((sentences, rows), np.float32) if shift_BR is None else shift_BR.contiguous().numpy()
        best(logits_BRV.contiguous().numpy(), shift, place_BX, np.empty(count, np.float32))
        return torch.from_numpy(place_BX)


@entered
def log_sums(logits, sums):
    """Into sums (N,)."""
    width = logits.shape[1]
    whole = width // LANES * LANES
    for row in range(len(logits)):
        start = row * width
        rest = load_first(width - whole, logits, start + whole, same(LOWEST))
        highest = rest
        for at in range(0, whole, LANES):
            highest = greater(load(logits, start + at), highest)
        top = greatest(highest)
        highest = same(top)
        sum_ = exponential(rest - highest)
        for at in range(0, whole, LANES):
            sum_ = sum_ + exponential(load(logits, start + at) - highest)
        sums[row] = np.float64(top) + np.log(np.float64(total(sum_)))


@compiled
def insert(value, place, filled, values, places):
    """Among the best so far, which are in order; of equals the first stays ahead. Where all are filled, the last goes."""
    at = min(filled, len(values) - 1)
    while at > 0 and values[at - 1] < value:
        values[at], places[at] = values[at - 1], places[at - 1]
        at -= 1
    values[at], places[at] = value, place


@entered
def best(logits, shift, places, values):
    """Into places (B, X). values: (X,) to work in"""
    sentences, rows, width = logits.shape
    flat, count = logits.reshape(-1), len(values)
    for sentence in range(sentences):
        filled = 0
        for row in range(rows):
            raised = shift[sentence, row]
            start = (sentence * rows + row) * width
            for at in range(0, width, LANES):
                after = min(at + LANES, width)
                is_whole = filled == count and after == at + LANES
                if is_whole and not any_above(load(logits, start + at) + same(raised), same(values[-1])):
                    continue
                for place in range(at, after):
                    value = flat[start + place] + raised
                    if filled < count or value > values[-1]:
                        insert(value, row * width + place, filled, values, places[sentence])
                        filled = min(filled + 1, count)
