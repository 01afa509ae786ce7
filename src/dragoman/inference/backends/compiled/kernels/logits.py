"""What may be said next, compiled: the sums over the vocabulary, and the best few tokens without sorting it.

N rows    B sentences of R hypotheses    V vocabulary    X best ones
"""

from __future__ import annotations

import numpy as np

from dragoman.inference.backends.compiled.kernels.memory import load, load_first, long, number, put, put_double, put_long
from dragoman.inference.backends.compiled.kernels.simd import (
    any_above,
    compiled,
    entered,
    exponential,
    greater,
    greatest,
    same,
    total,
)
from dragoman.inference.backends.compiled.kernels.structs import COLUMNS, LANES

LOWEST = -np.inf


@compiled
def highest_of(logits, start, width):
    """The greatest of so many numbers from there on."""
    filled = width // LANES * LANES
    highest = load_first(width - filled, logits, start + filled, same(LOWEST))
    for at in range(0, filled, LANES):
        highest = greater(load(logits, start + at), highest)
    return greatest(highest)


@compiled
def sum_of(logits, start, width, highest):
    """Σ exp of so many numbers from there on, each less the highest of them."""
    filled, most = width // LANES * LANES, same(highest)
    powers = exponential(load_first(width - filled, logits, start + filled, same(LOWEST)) - most)
    for at in range(0, filled, LANES):
        powers = powers + exponential(load(logits, start + at) - most)
    return np.float64(total(powers))


@compiled
def with_more(top, sum_, highest, more):
    """The greatest number so far and Σ exp of all less that, after others, whose greatest and sum those are."""
    if highest == LOWEST:
        return top, sum_
    above = max(top, highest)
    before = sum_ * np.exp(np.float64(top) - np.float64(above))
    return above, before + more * np.exp(np.float64(highest) - np.float64(above))


@compiled
def log_sum(logits, start, width):
    """log Σ exp of so many numbers from there on, in double precision; COLUMNS of them after the other."""
    top, sum_ = np.float32(LOWEST), 0.0
    for column in range(0, width, COLUMNS):
        count = min(COLUMNS, width - column)
        highest = highest_of(logits, start + column, count)
        top, sum_ = with_more(top, sum_, highest, sum_of(logits, start + column, count, highest))
    return np.float64(top) + np.log(sum_)


@entered(int, int, int, int)
def log_sums(logits, rows, width, sums):
    """Of logits (N, V) into sums (N,)."""
    for row in range(rows):
        put_double(sums, row, log_sum(logits, row * width, width))
    return 0


@compiled
def insert(value, place, first, filled, count, values, places):
    """Among the best so far, which stand in order from `first` on; of equals the first stays ahead. Where all are filled, the
    last goes."""
    at = first + min(filled, count - 1)
    while at > first and number(values, at - 1) < value:
        put(values, at, number(values, at - 1))
        put_long(places, at, long(places, at - 1))
        at -= 1
    put(values, at, value)
    put_long(places, at, place)


@entered(int, int, int, int, int, int, int, int)
def best(logits, sentences, rows, width, shift, places, values, count):
    """Of logits (B, R, V) raised by shift (B, R) into places (B, X). values: (B, X) theirs"""
    for sentence in range(sentences):
        filled, first = 0, sentence * count
        last = first + count - 1
        for row in range(rows):
            raised = number(shift, sentence * rows + row)
            start = (sentence * rows + row) * width
            for at in range(0, width, LANES):
                after = min(at + LANES, width)
                is_whole = filled == count and after == at + LANES
                if is_whole and not any_above(load(logits, start + at) + same(raised), same(number(values, last))):
                    continue
                for place in range(at, after):
                    value = number(logits, start + place) + raised
                    if filled < count or value > number(values, last):
                        insert(value, row * width + place, first, filled, count, values, places)
                        filled = min(filled + 1, count)
    return 0
