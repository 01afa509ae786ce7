"""Reading a source, and the decoder's step, as one compiled function each: section 3 of the paper in plain loops.

Products multiply bytes (`matrices`); everything between them is in float32. Nothing is allocated: who calls gives addresses
of memory to work in. Rows of `wide` hold queries, keys and values head by head.

    N rows    D width of the model    L layers    H heads    K, U width of keys and values    V vocabulary    B sentences
    S places of the source    T places of the output    P rows that are stored
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dragoman.engine.matrices import Address, Matrices, begin, end, multiply
from dragoman.engine.vectors import (
    LANES,
    compiled,
    entered,
    exponential,
    greater,
    greatest,
    load,
    long,
    number,
    put,
    put_whole,
    same,
    store,
    total,
    whole,
)

# Fills a vector of scores up, and is nothing beside any other.
NOT_SEEN = -1e30


class Norms(NamedTuple):
    """Layer normalisations: where their weights and biases (L, D) stand. there: whether there are any"""

    weight: Address
    bias: Address
    epsilon: float
    there: bool


class Layers(NamedTuple):
    """What both stacks have. norms: those of attention and of the feed-forward. before: whether they come first"""

    number: int
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


class Table(NamedTuple):
    """Vectors of tokens: vectors (V, D), gain (V,) by which each is multiplied."""

    vectors: Address
    gain: Address


class Memory(NamedTuple):
    """Keys and values of the sources (L, B, H, S, K or U). length: (B,), places of each that are there"""

    keys: Address
    values: Address
    length: Address
    sentences: int
    places: int


class Past(NamedTuple):
    """Keys and values of the outputs (T, L, P, H, K or U), and what tells the rows apart.

    lineage: (N, room), the stored row that holds what each row descends from at each place. stored: (N,), where each row writes
    sentence: (N,), the source of each row
    """

    keys: Address
    values: Address
    lineage: Address
    stored: Address
    sentence: Address
    rows: int
    room: int


@compiled
def softmax(scores, count):
    """In place; what fills the last vector up becomes nothing that counts."""
    for place in range(count, -(-count // LANES) * LANES):
        put(scores, place, np.float32(NOT_SEEN))
    highest = same(NOT_SEEN)
    for at in range(0, count, LANES):
        highest = greater(highest, load(scores, at))
    highest = same(greatest(highest))
    sum_ = same(0.0)
    for at in range(0, count, LANES):
        powers = exponential(load(scores, at) - highest)
        sum_ = sum_ + powers
        store(scores, at, powers)
    share = same(1.0 / total(sum_))
    for at in range(0, count, LANES):
        store(scores, at, load(scores, at) * share)


@compiled
def normalise(x, y, rows, width, norms, layer):
    """Layer normalisation of each row of x, into y."""
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
                put(scores, place, dot(wide, start + row * apart, wide, start + place * apart + key_width, key_width))
            softmax(scores, places)
            for column in range(0, value_width, LANES):
                value_at = start + 2 * key_width + column
                found = same(0.0)
                for place in range(places):
                    found = found + same(number(scores, place)) * load(wide, value_at + place * apart)
                store(space.y, ((first + row) * heads.number + head) * value_width + column, found)


@compiled
def look_back(heads, layer, layers, past, space, rows, now):
    """What each row finds among what it said: from `wide`, whose keys and values are kept, into y (N, H·U)."""
    key_width, value_width = heads.key_width, heads.value_width
    each = 2 * key_width + value_width
    scores = space.scores
    for row in range(rows):
        stored = whole(past.stored, row)
        put_whole(past.lineage, row * past.room + now, np.int32(stored))
        here = ((now * layers + layer) * past.rows + stored) * heads.number
        for head in range(heads.number):
            at = (row * heads.number + head) * each
            for place in range(0, key_width, LANES):
                store(past.keys, (here + head) * key_width + place, load(space.wide, at + key_width + place))
            for place in range(0, value_width, LANES):
                store(past.values, (here + head) * value_width + place, load(space.wide, at + 2 * key_width + place))
    for row in range(rows):
        for head in range(heads.number):
            at = (row * heads.number + head) * each
            for time in range(now + 1):
                before = whole(past.lineage, row * past.room + time)
                place = ((time * layers + layer) * past.rows + before) * heads.number + head
                put(scores, time, dot(space.wide, at, past.keys, place * key_width, key_width))
            softmax(scores, now + 1)
            for column in range(0, value_width, LANES):
                found = same(0.0)
                for time in range(now + 1):
                    before = whole(past.lineage, row * past.room + time)
                    place = ((time * layers + layer) * past.rows + before) * heads.number + head
                    found = found + same(number(scores, time)) * load(past.values, place * value_width + column)
                store(space.y, (row * heads.number + head) * value_width + column, found)


@compiled
def look_across(heads, layer, memory, sentence_of, space, rows):
    """What each row finds in its source: from `wide` into y (N, H·U)."""
    key_width, value_width = heads.key_width, heads.value_width
    scores = space.scores
    for row in range(rows):
        sentence = whole(sentence_of, row)
        length = whole(memory.length, sentence)
        for head in range(heads.number):
            first = ((layer * memory.sentences + sentence) * heads.number + head) * memory.places
            at = (row * heads.number + head) * key_width
            for place in range(length):
                put(scores, place, dot(space.wide, at, memory.keys, (first + place) * key_width, key_width))
            softmax(scores, length)
            for column in range(0, value_width, LANES):
                found = same(0.0)
                for place in range(length):
                    found = found + same(number(scores, place)) * load(memory.values, (first + place) * value_width + column)
                store(space.y, (row * heads.number + head) * value_width + column, found)


@compiled
def read(tokens, at, rows, table, positions, space):
    """The vectors of tokens (N,), each times its gain and plus its position's."""
    width = space.width
    for row in range(rows):
        token, position = long(tokens, row), long(at, row)
        gain = same(number(table.gain, token))
        for place in range(0, width, LANES):
            vector = load(table.vectors, token * width + place) * gain + load(positions, position * width + place)
            store(space.x, row * width + place, vector)


@compiled
def project(norms, before, matrices, layer, to, rows, space):
    """What a sub-layer begins with: of x, or of x after its normalisation."""
    if before:
        normalise(space.x, space.y, rows, space.width, norms, layer)
    multiply(space.y if before else space.x, matrices, layer, to, rows, space.width, space)


@compiled
def give_back(found, width, norms, before, matrices, layer, rows, space):
    """What a sub-layer ends with: a product added onto x."""
    multiply(found, matrices, layer, space.x, rows, width, space)
    if not before:
        normalise(space.x, space.x, rows, space.width, norms, layer)


@compiled
def feed_forward(layers, layer, rows, space):
    norms = layers.norms[1]
    project(norms, layers.before, layers.inner, layer, space.wide, rows, space)
    give_back(space.wide, layers.inner.outputs, norms, layers.before, layers.outer, layer, rows, space)


@compiled
def keep(heads, layer, memory, sentence, first, after, space):
    """Put the keys and values of a source's rows, which are in `wide`, where they stay."""
    key_width, value_width = heads.key_width, heads.value_width
    each = key_width + value_width
    for head in range(heads.number):
        there = ((layer * memory.sentences + sentence) * heads.number + head) * memory.places
        for row in range(first, after):
            here, to = (row * heads.number + head) * each, there + row - first
            for place in range(0, key_width, LANES):
                store(memory.keys, to * key_width + place, load(space.wide, here + place))
            for place in range(0, value_width, LANES):
                store(memory.values, to * value_width + place, load(space.wide, here + key_width + place))


@entered
def encode(tokens, at, rows, first, numbers, count, table, positions, layers, across, decoders, heads, memory, space):
    """The keys and values of some sentences, for every layer of the decoder, into the memory.

    tokens, at: (N,), all tokens of these sentences one after the other, and their places. first: where each sentence begins,
    and the last ends. numbers: which of the B they are. decoders: layers of the decoder
    """
    begin(space)
    found_width = heads.number * heads.value_width
    read(tokens, at, rows, table, positions, space)
    for layer in range(layers.number):
        project(layers.norms[0], layers.before, layers.look, layer, space.wide, rows, space)
        for some in range(count):
            look_around(heads, long(first, some), long(first, some + 1) - long(first, some), space)
        give_back(space.y, found_width, layers.norms[0], layers.before, layers.output, layer, rows, space)
        feed_forward(layers, layer, rows, space)
    if layers.final.there:
        normalise(space.x, space.x, rows, space.width, layers.final, np.int64(0))
    for layer in range(decoders):
        multiply(space.x, across.remember, layer, space.wide, rows, space.width, space)
        for some in range(count):
            keep(heads, layer, memory, long(numbers, some), long(first, some), long(first, some + 1), space)
    end(space)


@entered
def step(tokens, at, rows, now, table, positions, layers, across, heads, output, memory, past, space, logits):
    """The logits (N, V) after one more token in each row, which is number `now` of its output.

    at: (N,), rows of `positions`
    """
    begin(space)
    found_width = heads.number * heads.value_width
    read(tokens, at, rows, table, positions, space)
    for layer in range(layers.number):
        project(layers.norms[0], layers.before, layers.look, layer, space.wide, rows, space)
        look_back(heads, layer, layers.number, past, space, rows, now)
        give_back(space.y, found_width, layers.norms[0], layers.before, layers.output, layer, rows, space)
        project(across.norms, layers.before, across.look, layer, space.wide, rows, space)
        look_across(heads, layer, memory, past.sentence, space, rows)
        give_back(space.y, found_width, across.norms, layers.before, across.output, layer, rows, space)
        feed_forward(layers, layer, rows, space)
    if layers.final.there:
        normalise(space.x, space.x, rows, space.width, layers.final, np.int64(0))
    multiply(space.x, output, np.int64(0), logits, rows, space.width, space)
    end(space)
