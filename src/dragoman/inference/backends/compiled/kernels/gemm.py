"""Products of bytes, compiled: weights that never change by inputs that are made whole row by row.

A row's scale is its own, and sums of products of bytes are exact, so that neither the number of rows nor the way in which they
are multiplied changes a result.

    N rows    I, O inputs and outputs    L layers
"""

from __future__ import annotations

import numpy as np

from dragoman.inference.backends.compiled.kernels.amx import (
    configure_tiles,
    empty_tile,
    load_tile,
    multiply_tiles,
    release_tiles,
    store_tile,
)
from dragoman.inference.backends.compiled.kernels.barrier import meet, share
from dragoman.inference.backends.compiled.kernels.memory import (
    load,
    load_bytes,
    load_first,
    load_sums,
    number,
    put,
    same_bytes,
    store,
    store_bytes,
    store_first,
    store_sums,
)
from dragoman.inference.backends.compiled.kernels.simd import (
    add_products,
    compiled,
    greater,
    greatest,
    inlined,
    same,
    same_sums,
    size,
    to_floats,
    to_sums,
)
from dragoman.inference.backends.compiled.kernels.structs import (
    ADDED,
    BYTES,
    GROUP,
    LANES,
    LEVELS,
    MANY_ROWS,
    ONTO,
    ONTO_FROM_RELU,
    RELU,
    SUMS_APART,
    TILE_ROWS,
    TINY,
)


@compiled
def to_bytes(x, rows, width, space, positive):
    """Each row of x (N, I) as whole steps from 0 to 255, and its step. Signed ones, from -127 to 127, have 128 added."""
    stride = space.stride
    for row in range(rows):
        start = row * width
        highest = same(0.0)
        for at in range(0, width, LANES):
            highest = greater(highest, size(load(x, start + at)))
        step = max(greatest(highest) / (2 * LEVELS + 1 if positive else LEVELS), TINY)
        put(space.steps, row, np.float32(step))
        scale, added = same(1.0 / step), same_sums(0 if positive else ADDED)
        for at in range(0, width, LANES):
            store_bytes(space.inputs, row * stride + at, to_sums(load(x, start + at) * scale) + added)


@compiled
def finish(matrices, layer, y, apart, row, rows, column, columns, space):
    """Sums of products of bytes become outputs: these rows and columns of y, whose rows are so far apart."""
    outputs = matrices.outputs
    first = layer * matrices.filled
    for at in range(column, min(column + columns, outputs), LANES):
        scale, bias = load(matrices.scale, first + at), load(matrices.bias, first + at)
        shift = load_sums(matrices.shift, first + at)
        panel = (at - column) // LANES * SUMS_APART
        for here in range(rows):
            exact = to_floats(load_sums(space.sums, panel + here * LANES) - shift)
            found = exact * (scale * same(number(space.steps, row + here))) + bias
            place = (row + here) * apart + at
            if matrices.then == RELU:
                found = greater(found, same(0.0))
            if at + LANES > outputs:
                if matrices.then >= ONTO:
                    found = found + load_first(outputs - at, space.x, place, same(0.0))
                store_first(outputs - at, y, place, found)
            elif matrices.then >= ONTO:
                store(y, place, found + load(space.x, place))
            else:
                store(y, place, found)


@compiled
def four_rows(matrices, first, space, row, quads):
    """The sums of four rows and 64 outputs."""
    panel_size, stride = quads * BYTES, space.stride
    weights, inputs, sums = matrices.weights, space.inputs, space.sums
    zero = same_sums(0)
    a = b = c = d = (zero, zero, zero, zero)
    for quad in range(quads):
        at, x_at = first + quad * BYTES, row * stride + 4 * quad
        four = (
            load_bytes(weights, at),
            load_bytes(weights, at + panel_size),
            load_bytes(weights, at + 2 * panel_size),
            load_bytes(weights, at + 3 * panel_size),
        )
        a = _times(a, same_bytes(inputs, x_at), four)
        b = _times(b, same_bytes(inputs, x_at + stride), four)
        c = _times(c, same_bytes(inputs, x_at + 2 * stride), four)
        d = _times(d, same_bytes(inputs, x_at + 3 * stride), four)
    for here, some in enumerate((a, b, c, d)):
        for panel in range(4):
            store_sums(sums, panel * SUMS_APART + here * LANES, some[panel])


@compiled
def one_row(matrices, first, space, row, quads):
    """The sums of one row and 64 outputs."""
    panel_size = quads * BYTES
    weights = matrices.weights
    zero = same_sums(0)
    a = (zero, zero, zero, zero)
    for quad in range(quads):
        at = first + quad * BYTES
        four = (
            load_bytes(weights, at),
            load_bytes(weights, at + panel_size),
            load_bytes(weights, at + 2 * panel_size),
            load_bytes(weights, at + 3 * panel_size),
        )
        a = _times(a, same_bytes(space.inputs, row * space.stride + 4 * quad), four)
    for panel in range(4):
        store_sums(space.sums, panel * SUMS_APART, a[panel])


@inlined
def _times(sums, x, weights):
    return (
        add_products(sums[0], x, weights[0]),
        add_products(sums[1], x, weights[1]),
        add_products(sums[2], x, weights[2]),
        add_products(sums[3], x, weights[3]),
    )


@compiled
def multiply_few(matrices, layer, y, apart, column, after, rows, width, space):
    """By vectors, four rows at once."""
    groups, quads = matrices.filled // GROUP, -(-width // BYTES) * LANES
    for group in range(column // GROUP, after // GROUP):
        first = (layer * groups + group) * GROUP * 4 * quads
        row = np.int64(0)
        while row < rows:
            if rows - row >= 4:
                four_rows(matrices, first, space, row, quads)
            else:
                one_row(matrices, first, space, row, quads)
            done = 4 if rows - row >= 4 else 1
            finish(matrices, layer, y, apart, row, done, group * GROUP, np.int64(GROUP), space)
            row += done


@compiled
def multiply_many(matrices, layer, y, apart, column, after, rows, width, space):
    """By tiles, 32 rows and 32 outputs at once."""
    pairs, blocks = matrices.filled // (2 * LANES), -(-width // BYTES)
    tile = TILE_ROWS * BYTES
    panel_size, stride = blocks * tile, space.stride
    weights, inputs, sums = matrices.weights, space.inputs, space.sums
    for pair in range(column // (2 * LANES), after // (2 * LANES)):
        first = (layer * pairs + pair) * 2 * panel_size
        for row in range(0, rows, 2 * TILE_ROWS):
            two = row + TILE_ROWS < rows
            empty_tile(0)
            empty_tile(1)
            empty_tile(2)
            empty_tile(3)
            for block in range(blocks):
                x_at, at = row * stride + block * BYTES, first + block * tile
                load_tile(4, inputs, x_at, stride)
                load_tile(6, weights, at, BYTES)
                load_tile(7, weights, at + panel_size, BYTES)
                multiply_tiles(0, 4, 6)
                multiply_tiles(1, 4, 7)
                if two:
                    load_tile(5, inputs, x_at + TILE_ROWS * stride, stride)
                    multiply_tiles(2, 5, 6)
                    multiply_tiles(3, 5, 7)
            store_tile(0, sums, 0, BYTES)
            store_tile(1, sums, 4 * SUMS_APART, BYTES)
            if two:
                store_tile(2, sums, 4 * TILE_ROWS * LANES, BYTES)
                store_tile(3, sums, 4 * (SUMS_APART + TILE_ROWS * LANES), BYTES)
            count = min(2 * TILE_ROWS, rows - row)
            finish(matrices, layer, y, apart, row, count, pair * 2 * LANES, np.int64(2 * LANES), space)


@compiled
def multiply(x, matrices, layer, y, rows, width, space):
    """x·Wᵀ + b (N, O), put into y: as it is, or what a ReLU lets through of it, or added to the x of `space`.

    Each member of the team computes some outputs; then they meet.
    """
    to_bytes(x, rows, width, space, matrices.then == ONTO_FROM_RELU)
    first, after = share(matrices.filled // GROUP, space.team)
    multiply_bytes(matrices, layer, y, matrices.outputs, GROUP * first, GROUP * after, rows, width, space)
    meet(space.team)


@compiled
def multiply_bytes(matrices, layer, y, apart, column, after, rows, width, space):
    """The same of what `to_bytes` made, from one output up to another, whole groups of them.

    y: where the first output of all would stand. apart: how far its rows are
    """
    if space.described and rows >= MANY_ROWS:
        multiply_many(matrices, layer, y, apart, column, after, rows, width, space)
    else:
        multiply_few(matrices, layer, y, apart, column, after, rows, width, space)


@compiled
def begin(space):
    """Before the first product of a function."""
    if space.described:
        configure_tiles(space.described)


@compiled
def end(space):
    """After the last."""
    if space.described:
        release_tiles()
