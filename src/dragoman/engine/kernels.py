"""Reading a source, and the decoder's step, as one compiled function each: section 3 of the paper in plain loops.

Products multiply bytes (`matrices`); everything between them is in float32. Nothing is allocated: who calls gives arrays to
work in. Rows of `wide` hold queries, keys and values head by head.

    N rows    D width of the model    L layers    H heads    K, U width of keys and values    V vocabulary    B sentences
    S places of the source    T places of the output    P rows that are stored
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dragoman.engine.matrices import Floats, Matrices, Whole, begin, end, multiply
from dragoman.engine.vectors import LANES, compiled, entered, exponential, greater, greatest, load, same, store, total

# Fills a vector of scores up, and is nothing beside any other.
NOT_SEEN = -1e30


class Norms(NamedTuple):
    """Layer normalisations (L, D); none where L is 0."""

    weight: Floats
    bias: Floats
    epsilon: float


class Layers(NamedTuple):
    """What both stacks have. norms: those of attention and of the feed-forward. before: whether they come first"""

    look: Matrices
    output: Matrices
    inner: Matrices
    outer: Matrices
    norms: tuple[Norms, Norms]
    before: bool
    final: Norms


class Across(NamedTuple):
    """What the decoder's layers have besides. remember: keys and values of the source, head by head"""

    look: Matrices
    output: Matrices
    remember: Matrices
    norms: Norms


class Heads(NamedTuple):
    """How many, and how wide their keys and values are."""

    number: int
    key_width: int
    value_width: int


class Seen(NamedTuple):
    """What the rows look at. past_keys, past_values: (T, L, P, H, K or U). memory_keys, memory_values: (L, B, H, S, K or U).

    lineage: (N, T), the stored row that holds what each row descends from at each place. stored: (N,), where each row writes
    sentence: (N,), the source of each row. length: (B,), places of each source
    """

    past_keys: Floats
    past_values: Floats
    memory_keys: Floats
    memory_values: Floats
    lineage: Whole
    stored: Whole
    sentence: Whole
    length: Whole


@compiled
def softmax(scores, count):
    """In place; what fills the last vector up becomes nothing."""
    for place in range(count, -(-count // LANES) * LANES):
        scores[place] = NOT_SEEN
    highest = same(NOT_SEEN)
    for at in range(0, count, LANES):
        highest = greater(highest, load(scores, at))
    highest = same(greatest(highest))
    whole = same(0.0)
    for at in range(0, count, LANES):
        powers = exponential(load(scores, at) - highest)
        whole = whole + powers
        store(scores, at, powers)
    share = same(1.0 / total(whole))
    for at in range(0, count, LANES):
        store(scores, at, load(scores, at) * share)


@compiled
def normalise(x, y, rows, norms, layer):
    """Layer normalisation of each row of x, into y."""
    width = norms.weight.shape[1]
    first = layer * width
    for row in range(rows):
        start = row * width
        sum_ = same(0.0)
        for at in range(0, width, LANES):
            sum_ = sum_ + load(x, start + at)
        mean = same(total(sum_) / width)
        squares = same(0.0)
        for at in range(0, width, LANES):
            apart = load(x, start + at) - mean
            squares = squares + apart * apart
        scale = same(1.0 / np.sqrt(total(squares) / width + norms.epsilon))
        for at in range(0, width, LANES):
            apart = (load(x, start + at) - mean) * scale
            store(y, start + at, apart * load(norms.weight, first + at) + load(norms.bias, first + at))


@compiled
def dot(query, at, keys, key_at, width):
    sum_ = same(0.0)
    for place in range(0, width, LANES):
        sum_ = sum_ + load(query, at + place) * load(keys, key_at + place)
    return total(sum_)


@compiled
def look_around(heads, first, places, space):
    """What the rows of one sentence, from `first` on, find in each other: from `wide` into y (N, H·U)."""
    key_width, value_width = heads.key_width, heads.value_width
    each = 2 * key_width + value_width
    apart = heads.number * each
    wide, scores = space.wide, space.scores
    for head in range(heads.number):
        start = first * apart + head * each
        for row in range(places):
            for place in range(places):
                scores[place] = dot(wide, start + row * apart, wide, start + place * apart + key_width, key_width)
            softmax(scores, places)
            for column in range(0, value_width, LANES):
                value_at = start + 2 * key_width + column
                found = same(0.0)
                for place in range(places):
                    found = found + same(scores[place]) * load(wide, value_at + place * apart)
                store(space.y, ((first + row) * heads.number + head) * value_width + column, found)


@compiled
def look_back(heads, layer, seen, space, rows, now):
    """What each row finds among what it said: from `wide`, whose keys and values are kept, into y (N, H·U)."""
    key_width, value_width = heads.key_width, heads.value_width
    each = 2 * key_width + value_width
    _, layers, stored, _, _ = seen.past_keys.shape
    scores = space.scores
    for row in range(rows):
        here = ((now * layers + layer) * stored + seen.stored[row]) * heads.number
        for head in range(heads.number):
            at = (row * heads.number + head) * each
            for place in range(0, key_width, LANES):
                store(seen.past_keys, (here + head) * key_width + place, load(space.wide, at + key_width + place))
            for place in range(0, value_width, LANES):
                store(seen.past_values, (here + head) * value_width + place, load(space.wide, at + 2 * key_width + place))
    for row in range(rows):
        for head in range(heads.number):
            at = (row * heads.number + head) * each
            for time in range(now + 1):
                place = ((time * layers + layer) * stored + seen.lineage[row, time]) * heads.number + head
                scores[time] = dot(space.wide, at, seen.past_keys, place * key_width, key_width)
            softmax(scores, now + 1)
            for column in range(0, value_width, LANES):
                found = same(0.0)
                for time in range(now + 1):
                    place = ((time * layers + layer) * stored + seen.lineage[row, time]) * heads.number + head
                    found = found + same(scores[time]) * load(seen.past_values, place * value_width + column)
                store(space.y, (row * heads.number + head) * value_width + column, found)


@compiled
def look_across(heads, layer, seen, space, rows):
    """What each row finds in its source: from `wide` into y (N, H·U)."""
    key_width, value_width = heads.key_width, heads.value_width
    _, sentences, _, places, _ = seen.memory_keys.shape
    scores = space.scores
    row = 0
    while row < rows:
        sentence = seen.sentence[row]
        length = np.int64(seen.length[sentence])
        after = row + 1
        while after < rows and seen.sentence[after] == sentence:
            after += 1
        for head in range(heads.number):
            first = ((layer * sentences + sentence) * heads.number + head) * places
            for one in range(row, after):
                at = (one * heads.number + head) * key_width
                for place in range(length):
                    scores[place] = dot(space.wide, at, seen.memory_keys, (first + place) * key_width, key_width)
                softmax(scores, length)
                for column in range(0, value_width, LANES):
                    found = same(0.0)
                    for place in range(length):
                        found = found + same(scores[place]) * load(seen.memory_values, (first + place) * value_width + column)
                    store(space.y, (one * heads.number + head) * value_width + column, found)
        row = after


@compiled
def read(tokens, at, table, gain, positions, space):
    """The vectors of tokens (N,), each times its gain and plus its position's."""
    width = table.shape[1]
    for row in range(len(tokens)):
        scale = same(gain[tokens[row]])
        for place in range(0, width, LANES):
            vector = load(table, tokens[row] * width + place) * scale + load(positions, at[row] * width + place)
            store(space.x, row * width + place, vector)


@compiled
def project(norms, before, matrices, layer, to, rows, space):
    """What a sub-layer begins with: of x, or of x after its normalisation."""
    width = space.x.shape[1]
    if before:
        normalise(space.x, space.y, rows, norms, layer)
        multiply(space.y, matrices, layer, to, rows, width, space)
    else:
        multiply(space.x, matrices, layer, to, rows, width, space)


@compiled
def give_back(found, width, norms, before, matrices, layer, rows, space):
    """What a sub-layer ends with: a product added onto x."""
    multiply(found, matrices, layer, space.x, rows, width, space)
    if not before:
        normalise(space.x, space.x, rows, norms, layer)


@compiled
def feed_forward(layers, layer, rows, space):
    norms = layers.norms[1]
    project(norms, layers.before, layers.inner, layer, space.wide, rows, space)
    give_back(space.wide, layers.inner.outputs, norms, layers.before, layers.outer, layer, rows, space)


@entered
def encode(tokens, at, first, numbers, table, gain, positions, layers, across, heads, memory_keys, memory_values, space):
    """The keys and values (L, B, H, S, K or U) of some sentences, for every layer of the decoder.

    tokens, at: (N,), all tokens of these sentences one after the other, and their places. first: where each sentence begins,
    and the last ends. numbers: which of the B they are
    """
    begin(space)
    rows = len(tokens)
    key_width, value_width = heads.key_width, heads.value_width
    found_width = heads.number * value_width
    read(tokens, at, table, gain, positions, space)
    for layer in range(len(layers.inner.scale)):
        project(layers.norms[0], layers.before, layers.look, layer, space.wide, rows, space)
        for sentence in range(len(numbers)):
            look_around(heads, first[sentence], first[sentence + 1] - first[sentence], space)
        give_back(space.y, found_width, layers.norms[0], layers.before, layers.output, layer, rows, space)
        feed_forward(layers, layer, rows, space)
    if len(layers.final.weight):
        normalise(space.x, space.x, rows, layers.final, np.int64(0))
    _, sentences, _, places, _ = memory_keys.shape
    each = key_width + value_width
    for layer in range(len(across.remember.scale)):
        multiply(space.x, across.remember, layer, space.wide, rows, space.x.shape[1], space)
        for sentence in range(len(numbers)):
            for head in range(heads.number):
                there = ((layer * sentences + numbers[sentence]) * heads.number + head) * places
                for row in range(first[sentence], first[sentence + 1]):
                    here = (row * heads.number + head) * each
                    to = there + row - first[sentence]
                    for place in range(0, key_width, LANES):
                        store(memory_keys, to * key_width + place, load(space.wide, here + place))
                    for place in range(0, value_width, LANES):
                        store(memory_values, to * value_width + place, load(space.wide, here + key_width + place))
    end(space)


@entered
def step(tokens, at, now, table, gain, positions, layers, across, heads, output, seen, space, logits):
    """The logits (N, V) after one more token in each row, which is number `now` of its output.

    at: (N,), rows of `positions`
    """
    begin(space)
    rows = len(tokens)
    found_width = heads.number * heads.value_width
    read(tokens, at, table, gain, positions, space)
    for layer in range(len(layers.inner.scale)):
        project(layers.norms[0], layers.before, layers.look, layer, space.wide, rows, space)
        look_back(heads, layer, seen, space, rows, now)
        give_back(space.y, found_width, layers.norms[0], layers.before, layers.output, layer, rows, space)
        project(across.norms, layers.before, across.look, layer, space.wide, rows, space)
        look_across(heads, layer, seen, space, rows)
        give_back(space.y, found_width, across.norms, layers.before, across.output, layer, rows, space)
        feed_forward(layers, layer, rows, space)
    if len(layers.final.weight):
        normalise(space.x, space.x, rows, layers.final, np.int64(0))
    multiply(space.x, output, np.int64(0), logits, rows, space.x.shape[1], space)
    end(space)
