"""What each row would best say next, compiled: the output's product, and of its logits the highest that may be said.

Both take some tokens at a time, of all rows, so that logits never leave the cache, and weights are read once.
"""

from __future__ import annotations

import numpy as np

from dragoman.inference.backends.compiled.kernels.barrier import meet, share
from dragoman.inference.backends.compiled.kernels.gemm import multiply_bytes, to_bytes
from dragoman.inference.backends.compiled.kernels.logits import LOWEST, highest_of, insert, sum_of, with_more
from dragoman.inference.backends.compiled.kernels.memory import double, load, long, number, put, put_double, put_long, whole
from dragoman.inference.backends.compiled.kernels.simd import any_above, compiled, same
from dragoman.inference.backends.compiled.kernels.structs import COLUMNS, LANES


@compiled
def rank(rows, length, model, space, batch, asked, said):
    """The best tokens of each row, and log Σ exp over all. said: (N, M), what rows said, where that matters

    The first member has them; the others have put theirs where it looks for them.
    """
    output, logits, team = model.output, batch.logits, space.team
    parts, lists = -(-output.outputs // COLUMNS), team.member * batch.rows
    for row in range(rows):
        put_long(batch.filled, lists + row, 0)
    to_bytes(space.x, rows, space.width, space, False)
    mine, others = share(parts, team)
    for part in range(mine, others):
        column = part * COLUMNS
        after, count = min(column + COLUMNS, output.filled), min(COLUMNS, output.outputs - column)
        multiply_bytes(output, np.int64(0), logits - 4 * column, COLUMNS, column, after, rows, space.width, space)
        for row in range(rows):
            start = row * COLUMNS
            highest = highest_of(logits, start, count)
            put(batch.top, row * parts + part, highest)
            put_double(batch.sum, row * parts + part, sum_of(logits, start, count, highest))
            keep_best(row, lists, column, start, count, highest, length, batch, asked, said)
    meet(team)
    if team.member == 0:
        for row in range(rows):
            sum_up(row, parts, batch)
            for member in range(1, team.members):
                join(row, member * batch.rows + row, batch)


@compiled
def sum_up(row, parts, batch):
    """log Σ exp of all logits of a row."""
    top, sum_ = np.float32(LOWEST), 0.0
    for part in range(row * parts, (row + 1) * parts):
        top, sum_ = with_more(top, sum_, number(batch.top, part), double(batch.sum, part))
    put_double(batch.total, row, np.float64(top) + np.log(sum_))


@compiled
def join(row, other, batch):
    """Another list's best, whose tokens have higher numbers, among those of a row."""
    first, filled = row * batch.proposed, long(batch.filled, row)
    for at in range(other * batch.proposed, other * batch.proposed + long(batch.filled, other)):
        value = number(batch.values, at)
        if filled == batch.proposed and not value > number(batch.values, first + filled - 1):
            break
        insert(value, long(batch.best, at), first, filled, batch.proposed, batch.values, batch.best)
        filled = min(filled + 1, batch.proposed)
    put_long(batch.filled, row, filled)


@compiled
def keep_best(row, lists, column, start, count, highest, length, batch, asked, said):
    """Those of some more logits that are among the best of their row and may be said. lists: where this member's begin"""
    mine = lists + row
    first, filled = mine * batch.proposed, long(batch.filled, mine)
    last = first + batch.proposed - 1
    if filled == batch.proposed and highest <= number(batch.values, last):
        return
    for at in range(0, count, LANES):
        after = min(at + LANES, count)
        is_whole = filled == batch.proposed and after == at + LANES
        if is_whole and not any_above(load(batch.logits, start + at), same(number(batch.values, last))):
            continue
        for place in range(at, after):
            value = number(batch.logits, start + place)
            if filled == batch.proposed and not value > number(batch.values, last):
                continue
            if may_be_said(column + place, row, length, asked, said):
                insert(value, column + place, first, filled, batch.proposed, batch.values, batch.best)
                filled = min(filled + 1, batch.proposed)
    put_long(batch.filled, mine, filled)


@compiled
def may_be_said(token, row, length, asked, said):
    """Whether this may be token number `length` of the row's output, from 1."""
    for place in range(asked.never + (1 if length <= asked.min_length else 0)):
        if long(asked.banned, place) == token:
            return False
    size, start = asked.no_repeat_ngram_size, row * asked.longest
    for first in range(length - size if size else 0):  # a group that it would close has been said from there on
        alike = np.int64(0)
        while alike < size - 1 and whole(said, start + first + alike) == whole(said, start + length - size + alike):
            alike += 1
        if alike == size - 1 and whole(said, start + first + alike) == token:
            return False
    return True
