"""A whole search, compiled: step after step until the outputs end or room does, and nothing of Python in between.

These are `decoding.greedy` and `decoding.beam` for what is asked for most: no wishes but to go round in circles, one group, no
rules but those of `Asked`. A sentence leaves as soon as it is done. The output's product and what is made of its logits take
some tokens at a time, of all rows, so that logits never leave the cache, and weights are read once.

    as in `kernels`, and    R hypotheses of each sentence    X = 2R candidates    M longest output
"""

from __future__ import annotations

import numpy as np

from dragoman.engine.addresses import double, load, long, number, put, put_double, put_long, put_whole, whole
from dragoman.engine.kernels import advance
from dragoman.engine.layout import COLUMNS, LANES, Asked, Batch, Line, Memory, Model, Past, Space, Tree
from dragoman.engine.matrices import begin, end, multiply_bytes, to_bytes
from dragoman.engine.meeting import meet, share
from dragoman.engine.ranking import LOWEST, highest_of, insert, sum_of, with_more
from dragoman.engine.vectors import any_above, compiled, entered, same

# Where nothing was allowed, this is said.
STUCK = -1


@compiled
def speak(rows, now, model, memory, past, space, batch):
    """The decoder's step, up to the output's product."""
    for row in range(rows):
        said = long(batch.last, row)
        put_long(batch.tokens, row, long(model.words, said) if model.words else said)
        put_long(batch.at, row, now)
    advance(
        batch.tokens,
        batch.at,
        rows,
        now,
        model.table,
        model.positions,
        model.layers,
        model.across,
        model.heads,
        memory,
        past,
        space,
    )


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
    size, start = asked.no_repeat, row * asked.longest
    for first in range(length - size if size else 0):  # a group that it would close has been said from there on
        alike = np.int64(0)
        while alike < size - 1 and whole(said, start + first + alike) == whole(said, start + length - size + alike):
            alike += 1
        if alike == size - 1 and whole(said, start + first + alike) == token:
            return False
    return True


@compiled
def goes_round(said, start, length, asked):
    """Whether an output's last tokens are one group said again and again: see `decoding.loops`."""
    if length < asked.span:
        return False
    for period in range(1, min(asked.span, length // asked.times) + 1):
        needed, here = max(asked.span - period, (asked.times - 1) * period), start + length - 1
        alike = np.int64(0)
        while alike < needed and whole(said, here - alike) == whole(said, here - alike - period):
            alike += 1
        if alike == needed:
            return True
    return False


@compiled
def move(past, batch, said, longest, row, to, length):
    """A row takes the place of one before it that has left."""
    put_long(batch.last, to, long(batch.last, row))
    put_whole(past.stored, to, np.int32(whole(past.stored, row)))
    put_whole(past.sentence, to, np.int32(whole(past.sentence, row)))
    copy(past.lineage, to * past.room, past.lineage, row * past.room, length)
    copy(said, to * longest, said, row * longest, length)


@compiled
def copy(to, to_at, from_, at, count):
    """Whole numbers."""
    for place in range(count):
        put_whole(to, to_at + place, np.int32(whole(from_, at + place)))


@entered(int, int, int, Model, Memory, Past, Space, Batch, Asked, Line)
def greedy(now, until, rows, model, memory, past, space, batch, asked, line):
    """From `now` tokens on until there are so many, or no rows are left: how many are."""
    begin(space)
    while now < until and rows > 0:
        speak(rows, now, model, memory, past, space, batch)
        rank(rows, now + 1, model, space, batch, asked, line.said)
        if space.team.member == 0:
            put_long(batch.left, 0, say(rows, now, past, batch, asked, line))
        meet(space.team)
        now, rows = now + 1, long(batch.left, 0)
    end(space)
    return rows


@compiled
def say(rows, now, past, batch, asked, line):
    """The best token of each row, and which rows go on: how many."""
    length, kept = now + 1, 0
    for row in range(rows):
        sentence = whole(past.sentence, row)
        token = long(batch.best, row) if long(batch.filled, row) else STUCK
        value = np.float64(number(batch.values, row)) if long(batch.filled, row) else LOWEST
        put_whole(line.said, row * asked.longest + now, np.int32(token))
        put(line.log_probs, sentence * asked.longest + now, np.float32(value - double(batch.total, row)))
        looks = asked.span > 0 and length % asked.every == 0 and not long(asked.may_loop, sentence)
        looped = looks and goes_round(line.said, row * asked.longest, length, asked)
        if token == asked.end or token == STUCK or looped or length == long(asked.limits, sentence):
            put_long(line.length, sentence, length)
            put_long(line.looped, sentence, 1 if looped else 0)
            copy(line.tokens, sentence * asked.longest, line.said, row * asked.longest, length)
            continue
        put_long(batch.last, row, token)
        if kept != row:
            move(past, batch, line.said, asked.longest, row, kept, length)
        kept += 1
    return kept


@compiled
def grow(sentence, row, now, batch, tree):
    """The best X extensions of a sentence's living, into its history. row: its first. → where they stand there"""
    rows, columns = tree.rows, 2 * tree.rows
    first = (now * tree.sentences + sentence) * columns
    for place in range(rows):
        put_long(tree.taken, place, 0)
    for column in range(columns):
        parent, highest = np.int64(0), np.float32(LOWEST)
        for place in range(rows):
            mine = row + place
            at = long(tree.taken, place)
            if at == long(batch.filled, mine):
                continue
            score = np.float64(number(tree.score, sentence * rows + place))
            value = number(batch.values, mine * batch.proposed + at) + np.float32(score - double(batch.total, mine))
            if value > highest:
                parent, highest = place, value
        at, mine = long(tree.taken, parent), row + parent
        token, log_prob = np.int64(0), np.float32(LOWEST)  # where nothing is left
        if at < long(batch.filled, mine):
            token = long(batch.best, mine * batch.proposed + at)
            log_prob = np.float32(np.float64(number(batch.values, mine * batch.proposed + at)) - double(batch.total, mine))
            put_long(tree.taken, parent, at + 1)
        put_whole(tree.parents, first + column, np.int32(parent))
        put_whole(tree.tokens, first + column, np.int32(token))
        put(tree.log_probs, first + column, log_prob)
        put(tree.values, column, number(tree.score, sentence * rows + parent) + log_prob)
    return first


@compiled
def finish(sentence, length, first, asked, tree):
    """Those that end compete for the finished places."""
    rows, columns = tree.rows, 2 * tree.rows
    penalty = number(tree.penalties, length)
    competing = columns
    if tree.all_finished:
        competing = rows
    if rows == 1:  # as greedy search ends: by its best alone
        competing = 1
    for column in range(competing):
        score = number(tree.values, column) / penalty
        if whole(tree.tokens, first + column) != asked.end or score == LOWEST:
            continue
        place = rows
        while place > 0 and number(tree.finished, sentence * rows + place - 1) < score:
            place -= 1
        if place == rows:
            continue
        for at in range(sentence * rows + rows - 1, sentence * rows + place, -1):
            put(tree.finished, at, number(tree.finished, at - 1))
            put_long(tree.codes, at, long(tree.codes, at - 1))
        put(tree.finished, sentence * rows + place, score)
        put_long(tree.codes, sentence * rows + place, length * columns + column)


@compiled
def choose(sentence, now, first, asked, tree):
    """Those that live on: the best that do not end, in order."""
    rows, columns = tree.rows, 2 * tree.rows
    for column in range(columns):
        is_end = whole(tree.tokens, first + column) == asked.end
        put_long(tree.taken, column, 0)
        if is_end:
            put(tree.values, column, np.float32(LOWEST))
    for place in range(rows):
        best = np.int64(-1)
        for column in range(columns):
            free = not long(tree.taken, column)
            if free and (best < 0 or number(tree.values, column) > number(tree.values, best)):
                best = column
        put_long(tree.taken, best, 1)
        put(tree.score, sentence * rows + place, number(tree.values, best))
        put_whole(tree.living, (now * tree.sentences + sentence) * rows + place, np.int32(best))


@compiled
def follow(sentence, row, now, first, past, batch, asked, tree):
    """Each row becomes what the living one at its place descends from, with what that said last."""
    rows, length = tree.rows, now + 1
    living = (now * tree.sentences + sentence) * rows
    for place in range(rows):
        column = first + whole(tree.living, living + place)
        put_long(batch.last, row + place, whole(tree.tokens, column))
        parent = row + whole(tree.parents, column)
        copy(tree.again, place * length, past.lineage, parent * past.room, length)
    for place in range(rows):
        copy(past.lineage, (row + place) * past.room, tree.again, place * length, length)
    for place in range(rows):
        parent = row + whole(tree.parents, first + whole(tree.living, living + place))
        copy(tree.again, place * length, tree.said, parent * asked.longest, now)
        put_whole(tree.again, place * length + now, np.int32(long(batch.last, row + place)))
    for place in range(rows):
        copy(tree.said, (row + place) * asked.longest, tree.again, place * length, length)


@compiled
def stop_circles(sentence, row, length, asked, tree):
    """Hypotheses that go round in circles leave the beam and are remembered."""
    rows = tree.rows
    for place in range(rows):
        at = ((length // asked.every - 1) * tree.sentences + sentence) * rows + place
        score = number(tree.score, sentence * rows + place)
        if score > LOWEST and goes_round(tree.said, (row + place) * asked.longest, length, asked):
            put_long(tree.looped, at, 1)
            put(tree.looped_score, at, score)
            put(tree.score, sentence * rows + place, np.float32(LOWEST))


@compiled
def is_done(sentence, length, asked, tree):
    """Whether nothing that lives can still win, or the limit is reached."""
    rows = tree.rows
    best = number(tree.score, sentence * rows)
    for place in range(1, rows):
        best = max(best, number(tree.score, sentence * rows + place))
    finished = sentence * rows
    if length == long(asked.limits, sentence):
        return True
    if rows == 1:
        return number(tree.finished, finished) > LOWEST or best == LOWEST
    if tree.all_finished and number(tree.finished, finished + rows - 1) > LOWEST:
        return True
    return number(tree.finished, finished + tree.counted) >= best / number(tree.cap, sentence)


@entered(int, int, int, Model, Memory, Past, Space, Batch, Asked, Tree)
def beam(now, until, left, model, memory, past, space, batch, asked, tree):
    """As `greedy`, by sentences."""
    begin(space)
    rows = tree.rows
    while now < until and left > 0:
        speak(left * rows, now, model, memory, past, space, batch)
        rank(left * rows, now + 1, model, space, batch, asked, tree.said)
        if space.team.member == 0:
            put_long(batch.left, 0, extend(left, now, past, batch, asked, tree))
        meet(space.team)
        now, left = now + 1, long(batch.left, 0)
    end(space)
    return left


@compiled
def extend(left, now, past, batch, asked, tree):
    """Each sentence's beam by one token, and which sentences go on: how many."""
    rows, length, kept = tree.rows, now + 1, 0
    for row in range(0, left * rows, rows):
        sentence = whole(past.sentence, row)
        first = grow(sentence, row, now, batch, tree)
        finish(sentence, length, first, asked, tree)
        choose(sentence, now, first, asked, tree)
        follow(sentence, row, now, first, past, batch, asked, tree)
        if asked.span > 0 and length % asked.every == 0 and not long(asked.may_loop, sentence):
            stop_circles(sentence, row, length, asked, tree)
        if is_done(sentence, length, asked, tree):
            put_long(tree.length, sentence, length)
            continue
        if kept != row:
            for place in range(rows):
                move(past, batch, tree.said, asked.longest, row + place, kept + place, length)
        kept += rows
    return kept // rows
