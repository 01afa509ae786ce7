"""A whole search, compiled: step after step until the outputs end or room does, and nothing of Python in between.

These are `decoding.greedy` and `decoding.beam` for what is asked for most: no wishes but to go round in circles, one group, no
rules but those of `Asked`. A sentence leaves as soon as it is done.

    as in `kernels`, and    R hypotheses of each sentence    X = 2R candidates    M longest output
"""

from __future__ import annotations

import numpy as np

from dragoman.inference.backends.compiled.kernels.barrier import meet
from dragoman.inference.backends.compiled.kernels.candidates import rank
from dragoman.inference.backends.compiled.kernels.gemm import begin, end
from dragoman.inference.backends.compiled.kernels.logits import LOWEST
from dragoman.inference.backends.compiled.kernels.memory import double, long, number, put, put_long, put_whole, whole
from dragoman.inference.backends.compiled.kernels.simd import compiled, entered
from dragoman.inference.backends.compiled.kernels.structs import Asked, Batch, Line, Memory, Model, Past, Space, Tree
from dragoman.inference.backends.compiled.kernels.transformer import advance

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
