"""Reading a source, and the decoder's step, as one compiled function each: section 3 of the paper in plain loops.

Products multiply bytes (`matrices`); everything between them is in float32, but keys and values are remembered in halves of 16
bits. Nothing is allocated: who calls gives addresses of memory to work in.

Heads stand side by side in a vector: lane n of queries, keys and values belongs to head n modulo their number, so that all
heads are computed at once, and a score is never summed up across a vector but for lanes of the same head.

    N rows    D width of the model    L layers    K, U width of keys and values of all heads together    V vocabulary
    B sentences    S places of the source    T places of the output    P rows that are stored
"""

from __future__ import annotations

import numpy as np

from dragoman.inference.backends.compiled.kernels.barrier import meet, share
from dragoman.inference.backends.compiled.kernels.gemm import begin, end, multiply
from dragoman.inference.backends.compiled.kernels.memory import (
    load,
    load_halves,
    long,
    number,
    put_long,
    put_whole,
    store,
    store_halves,
    whole,
)
from dragoman.inference.backends.compiled.kernels.simd import (
    compiled,
    entered,
    exponential,
    greater,
    quotient,
    same,
    total,
    turned_by_1,
    turned_by_2,
    turned_by_4,
    turned_by_8,
)
from dragoman.inference.backends.compiled.kernels.structs import (
    LANES,
    Across,
    Heads,
    Layers,
    Matrices,
    Memory,
    Past,
    Space,
    Table,
)

# Lower than any score.
NOTHING = -1e30


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
def match(query, at, keys, key_at, width, heads):
    """Query by key, of every head in each of its lanes."""
    a, b = same(0.0), same(0.0)
    twos = width // (2 * LANES) * (2 * LANES)
    for place in range(0, twos, 2 * LANES):
        a = a + load(query, at + place) * load_halves(keys, key_at + place)
        b = b + load(query, at + place + LANES) * load_halves(keys, key_at + place + LANES)
    if twos < width:
        a = a + load(query, at + twos) * load_halves(keys, key_at + twos)
    a = a + b
    if heads <= 8:
        a = a + turned_by_8(a)
    if heads <= 4:
        a = a + turned_by_4(a)
    if heads <= 2:
        a = a + turned_by_2(a)
    if heads == 1:
        a = a + turned_by_1(a)
    return a


@compiled
def weigh(values, width, count, share, found, found_at, space):
    """The sum of so many values, each by its weight: eight vectors at once, so that none waits for its last sum."""
    weights, places = space.scores, space.places
    eights = width // (8 * LANES) * (8 * LANES)
    for column in range(0, eights, 8 * LANES):
        a = b = c = d = e = f = g = h = same(0.0)
        for place in range(count):
            at, weight = long(places, place) * width + column, load(weights, place * LANES)
            a = a + weight * load_halves(values, at)
            b = b + weight * load_halves(values, at + LANES)
            c = c + weight * load_halves(values, at + 2 * LANES)
            d = d + weight * load_halves(values, at + 3 * LANES)
            e = e + weight * load_halves(values, at + 4 * LANES)
            f = f + weight * load_halves(values, at + 5 * LANES)
            g = g + weight * load_halves(values, at + 6 * LANES)
            h = h + weight * load_halves(values, at + 7 * LANES)
        for lanes, sum_ in enumerate((a, b, c, d, e, f, g, h)):
            store(found, found_at + column + lanes * LANES, sum_ * share)
    for column in range(eights, width, LANES):
        a = same(0.0)
        for place in range(count):
            a = a + load(weights, place * LANES) * load_halves(values, long(places, place) * width + column)
        store(found, found_at + column, a * share)


@compiled
def look(heads, query_at, keys, values, count, row, space):
    """Equation 1 for the query at this place of `wide`: what it finds at so many `places`, into that row of `found`."""
    scores, places = space.scores, space.places
    highest = same(NOTHING)
    for place in range(count):
        score = match(space.wide, query_at, keys, long(places, place) * heads.key_width, heads.key_width, heads.number)
        store(scores, place * LANES, score)
        highest = greater(highest, score)
    sum_ = same(0.0)
    for place in range(count):
        weight = exponential(load(scores, place * LANES) - highest)
        store(scores, place * LANES, weight)
        sum_ = sum_ + weight
    weigh(values, heads.value_width, count, quotient(same(1.0), sum_), space.found, row * heads.value_width, space)


@compiled
def remember(heads, start, keys, values, place, space):
    """Put a key and the value behind it, which are in `wide`, where they stay."""
    for at in range(0, heads.key_width, LANES):
        store_halves(keys, place * heads.key_width + at, load(space.wide, start + at))
    for at in range(0, heads.value_width, LANES):
        store_halves(values, place * heads.value_width + at, load(space.wide, start + heads.key_width + at))


@compiled
def look_around(heads, first, after, start, stop, space):
    """What rows from `start` to `stop` find in all of their sentence's, from `first` to `after`: from `wide` into `found`."""
    apart = 2 * heads.key_width + heads.value_width
    for row in range(first, after):
        remember(heads, row * apart + heads.key_width, space.keys, space.values, row - first, space)
        put_long(space.places, row - first, row - first)
    for row in range(start, stop):
        look(heads, row * apart, space.keys, space.values, after - first, row, space)


@compiled
def look_back(heads, layer, past, space, rows, now):
    """What each row finds among what it said: from `wide`, whose keys and values are kept, into `found`."""
    apart = 2 * heads.key_width + heads.value_width
    start, stop = share(rows, space.team)
    for row in range(start, stop):
        stored = whole(past.stored, row)
        put_whole(past.lineage, row * past.room + now, np.int32(stored))
        here = (layer * past.rows + stored) * past.room + now
        remember(heads, row * apart + heads.key_width, past.keys, past.values, here, space)
    for row in range(start, stop):
        for time in range(now + 1):
            before = whole(past.lineage, row * past.room + time)
            put_long(space.places, time, (layer * past.rows + before) * past.room + time)
        look(heads, row * apart, past.keys, past.values, now + 1, row, space)
    meet(space.team)


@compiled
def look_across(heads, layer, memory, sentence_of, space, rows):
    """What each row finds in its source: from `wide` into `found`."""
    start, stop = share(rows, space.team)
    for row in range(start, stop):
        sentence = whole(sentence_of, row)
        length = whole(memory.length, sentence)
        first = (layer * memory.sentences + sentence) * memory.places
        for place in range(length):
            put_long(space.places, place, first + place)
        look(heads, row * heads.key_width, memory.keys, memory.values, length, row, space)
    meet(space.team)


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
    multiply(found, matrices, layer, space.onto, rows, width, space)
    if not before:
        normalise(space.onto, space.x, rows, space.width, norms, layer)
    elif space.onto != space.x:
        for at in range(0, rows * space.width, LANES):
            store(space.x, at, load(space.onto, at))


@compiled
def feed_forward(layers, layer, rows, space):
    norms = layers.norms[1]
    project(norms, layers.before, layers.inner, layer, space.wide, rows, space)
    give_back(space.wide, layers.inner.outputs, norms, layers.before, layers.outer, layer, rows, space)


@compiled
def keep(heads, layer, memory, sentence, first, start, stop, space):
    """Put the keys and values of rows from `start` to `stop` where they stay. first: their sentence's first"""
    there = (layer * memory.sentences + sentence) * memory.places
    for row in range(start, stop):
        remember(heads, row * (heads.key_width + heads.value_width), memory.keys, memory.values, there + row - first, space)


@entered(int, int, int, int, int, int, Table, int, Layers, Across, int, Heads, Memory, Space)
def encode(tokens, at, rows, first, numbers, count, table, positions, layers, across, decoders, heads, memory, space):
    """The keys and values of some sentences, for every layer of the decoder, into the memory.

    tokens, at: (N,), all tokens of these sentences one after the other, and their places. first: where each sentence begins,
    and the last ends. numbers: which of the B they are. decoders: layers of the decoder
    """
    begin(space)
    read(tokens, at, rows, table, positions, space)
    mine, others = share(rows, space.team)
    for layer in range(layers.number):
        project(layers.norms[0], layers.before, layers.look, layer, space.wide, rows, space)
        for some in range(count):
            here, after = long(first, some), long(first, some + 1)
            if max(here, mine) < min(after, others):
                look_around(heads, here, after, max(here, mine), min(after, others), space)
        meet(space.team)
        give_back(space.found, heads.value_width, layers.norms[0], layers.before, layers.output, layer, rows, space)
        feed_forward(layers, layer, rows, space)
    if layers.final.there:
        normalise(space.x, space.x, rows, space.width, layers.final, np.int64(0))
    for layer in range(decoders):
        multiply(space.x, across.remember, layer, space.wide, rows, space.width, space)
        for some in range(count):
            here, after = long(first, some), long(first, some + 1)
            keep(heads, layer, memory, long(numbers, some), here, max(here, mine), min(after, others), space)
        meet(space.team)
    end(space)
    return 0


@compiled
def advance(tokens, at, rows, now, table, positions, layers, across, heads, memory, past, space):
    """One more token in each row, which is number `now` of its output: x becomes what the output's product reads.

    at: (N,), rows of `positions`
    """
    read(tokens, at, rows, table, positions, space)
    for layer in range(layers.number):
        project(layers.norms[0], layers.before, layers.look, layer, space.wide, rows, space)
        look_back(heads, layer, past, space, rows, now)
        give_back(space.found, heads.value_width, layers.norms[0], layers.before, layers.output, layer, rows, space)
        project(across.norms, layers.before, across.look, layer, space.wide, rows, space)
        look_across(heads, layer, memory, past.sentence, space, rows)
        give_back(space.found, heads.value_width, across.norms, layers.before, across.output, layer, rows, space)
        feed_forward(layers, layer, rows, space)
    if layers.final.there:
        normalise(space.x, space.x, rows, space.width, layers.final, np.int64(0))


@entered(int, int, int, int, Table, int, Layers, Across, Heads, Matrices, Memory, Past, Space, int)
def step(tokens, at, rows, now, table, positions, layers, across, heads, output, memory, past, space, logits):
    """The logits (N, V) of the next token; the rest as `advance` has it."""
    begin(space)
    advance(tokens, at, rows, now, table, positions, layers, across, heads, memory, past, space)
    multiply(space.x, output, np.int64(0), logits, rows, space.width, space)
    end(space)
    return 0
