"""Counter-based chance: random numbers and permutations as pure functions of whole numbers, with no state to keep.

`mixed(seed, epoch, index)` hashes its numbers to 64 bits; `permuted` tells where one element of a shuffled list comes from
without shuffling the rest, which is what makes any place of an epoch of any size reachable at once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

UInt64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]

_ONE = np.uint64(1)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = 4


def hash64(*numbers: int | npt.NDArray[np.integer]) -> UInt64Array:
    """64 bits that depend on every bit of the numbers and on their order; arrays are taken element by element.

    Each number is put through the finaliser of splitmix64 (Steele, Lea, Flood 2014) together with what came before it.
    """
    with np.errstate(over="ignore"):
        state: UInt64Array = np.zeros((), dtype=np.uint64)
        for number in numbers:
            state = (state ^ np.asarray(number).astype(np.uint64)) + _GOLDEN
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
        return state


def hash_to_uniform(hashes: UInt64Array) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1) from 64-bit words: their upper 53 bits."""
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permute_index(indices: Int64Array, sizes: Int64Array, keys: UInt64Array) -> Int64Array:
    """Where element `places[i]` of a permutation of `sizes[i]` elements, the one named by `keys[i]`, comes from.

    A keyed bijection of the smallest power of two that holds the size, walked on until it ends inside (cycle walking: Black
    and Rogaway 2002). Its rounds are multiplications by odd numbers, additions and shifts, each of which can be undone.
    """
    # As many bits as the largest element has: frexp's exponent is exact below 2⁵³.
    bits = np.maximum(np.frexp((sizes - 1).astype(np.float64))[1], 1).astype(np.uint64)
    masks = (_ONE << bits) - _ONE
    rounds = [(hash64(round_number, keys) | _ONE, hash64(round_number + _ROUNDS, keys)) for round_number in range(_ROUNDS)]
    shifts = (bits >> _ONE) + (bits & _ONE)
    sources = indices.astype(np.uint64)
    active = np.arange(len(indices))
    limits = sizes.astype(np.uint64)
    with np.errstate(over="ignore"):
        while len(active):
            word, mask, shift = sources[active], masks[active], shifts[active]
            for factor, term in rounds:
                word = (word * factor[active] + term[active]) & mask
                word = word ^ (word >> shift)
            sources[active] = word
            active = active[word >= limits[active]]
    return sources.astype(np.int64)
