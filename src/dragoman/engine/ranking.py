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
    long,
    number,
    put,
    put_double,
    put_long,
    same,
    total,
)

LOWEST = -np.inf


class CompiledRanking:
    """As `dragoman.decoding.candidates.PlainRanking`, in float32 and on a processor."""

    def log_sums(self, logits_NV: Tensor) -> Tensor:
        """log Σ exp over the vocabulary, row by row. → (N,) in double precision"""
        logits_NV = logits_NV.float().contiguous()
        sums_N = torch.empty(logits_NV.shape[0], dtype=torch.float64, device="cpu")
        log_sums(logits_NV.data_ptr(), *logits_NV.shape, sums_N.data_ptr())
        return sums_N

    def top(self, logits_BRV: Tensor, shift_BR: Tensor | None, count: int) -> Tensor:
        """The `count` best of each sentence's logits, each raised by its row's shift, best first.

        → (B, count) places in (R · V)
        """
        logits_BRV, sentences = logits_BRV.float().contiguous(), logits_BRV.shape[0]
        place_BX = torch.empty(sentences, count, dtype=torch.long, device="cpu")
        value_X = torch.empty(count, dtype=torch.float32, device="cpu")
        shift_BR = torch.zeros_like(logits_BRV[:, :, 0]) if shift_BR is None else shift_BR.float()
        shift_BR = shift_BR.contiguous()
        best(logits_BRV.data_ptr(), *logits_BRV.shape, shift_BR.data_ptr(), place_BX.data_ptr(), value_X.data_ptr(), count)
        return place_BX


@entered
def log_sums(logits, rows, width, sums):
    """Of logits (N, V) into sums (N,)."""
    filled = width // LANES * LANES
    for row in range(rows):
        start = row * width
        rest = load_first(width - filled, logits, start + filled, same(LOWEST))
        highest = rest
        for at in range(0, filled, LANES):
            highest = greater(load(logits, start + at), highest)
        top = greatest(highest)
        highest = same(top)
        sum_ = exponential(rest - highest)
        for at in range(0, filled, LANES):
            sum_ = sum_ + exponential(load(logits, start + at) - highest)
        put_double(sums, row, np.float64(top) + np.log(np.float64(total(sum_))))


@compiled
def insert(value, place, filled, count, values, places, first):
    """Among the best so far, which are in order; of equals the first stays ahead. Where all are filled, the last goes."""
    at = min(filled, count - 1)
    while at > 0 and number(values, at - 1) < value:
        put(values, at, number(values, at - 1))
        put_long(places, first + at, long(places, first + at - 1))
        at -= 1
    put(values, at, value)
    put_long(places, first + at, place)


@entered
def best(logits, sentences, rows, width, shift, places, values, count):
    """Of logits (B, R, V) raised by shift (B, R) into places (B, X). values: (X,) to work in"""
    for sentence in range(sentences):
        filled, first = 0, sentence * count
        for row in range(rows):
            raised = number(shift, sentence * rows + row)
            start = (sentence * rows + row) * width
            for at in range(0, width, LANES):
                after = min(at + LANES, width)
                is_whole = filled == count and after == at + LANES
                if is_whole and not any_above(load(logits, start + at) + same(raised), same(number(values, count - 1))):
                    continue
                for place in range(at, after):
                    value = number(logits, start + place) + raised
                    if filled < count or value > number(values, count - 1):
                        insert(value, row * width + place, filled, count, values, places, first)
                        filled = min(filled + 1, count)
