"""Arrays in one block of memory: their places, their content at the start, and their views."""

from __future__ import annotations

import ctypes
from itertools import pairwise

import numpy as np

from dragoman.inference.backends.compiled.arena import Arena
from dragoman.inference.backends.compiled.entry_points import flatten
from dragoman.inference.backends.compiled.kernels.structs import HeadLayout, NormWeights, ThreadGroup


def test_arrays_begin_at_cache_lines_and_do_not_overlap() -> None:
    sizes = {"a": 1, "b": 64, "c": 0, "d": 65, "e": 8}
    addresses = Arena(sizes).addresses
    assert all(address % 64 == 0 for address in addresses.values())
    for name, next_name in pairwise(sizes):
        assert addresses[name] + sizes[name] <= addresses[next_name]


def test_views_share_the_memory_of_the_addresses() -> None:
    arena = Arena({"ids": 6 * 8, "zeros": 16}, zeros=("zeros",))
    ids_BT = arena.view("ids", np.int64, 2, 3)
    ids_BT[:] = [[1, 2, 3], [4, 5, 6]]
    assert (ctypes.c_int64 * 6).from_address(arena.addresses["ids"])[:] == [1, 2, 3, 4, 5, 6]
    assert arena.view("ids", np.int64).tolist() == [1, 2, 3, 4, 5, 6]
    assert arena.view("zeros", np.uint8).tolist() == [0] * 16


def test_a_view_keeps_the_memory_alive() -> None:
    view = Arena({"zeros": 1 << 20}, zeros=("zeros",)).view("zeros", np.uint8)
    others = [np.full(1 << 20, 255, np.uint8) for _ in range(8)]
    assert len(others) == 8
    assert not view.any()


def test_words_of_arguments_are_the_fields_of_tuples_in_order() -> None:
    half_bits = 0x3FE0000000000000  # 0.5 in IEEE 754
    norms = NormWeights(11, 12, 0.5, 13, True, False)
    layout = HeadLayout(1, 2, 3, 4, False, 5, 2)
    assert list(flatten((7, norms, layout))) == [7, 11, 12, half_bits, 13, 1, 0, 1, 2, 3, 4, 0, 5, 2]
    words = flatten((layout, 9))
    assert list(flatten((words, ThreadGroup(1, 0, 5, 6, 0)))) == [1, 2, 3, 4, 0, 5, 2, 9, 1, 0, 5, 6, 0]
