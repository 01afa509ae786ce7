"""Counter-based random numbers: pure functions of integers, without state.

`hash64(seed, epoch, index)` hashes its numbers to 64 bits. `permute_index` returns the origin of one element of a shuffled
list without shuffling the rest, so any position of an epoch is available at once.
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
    """Return 64 bits that depend on every bit of the numbers and on their order; arrays are hashed element by element.

    Each number passes through the finalizer of splitmix64 (Steele, Lea, Flood 2014) together with the previous state.
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
    """Return numbers in [0, 1) from the upper 53 bits of 64-bit words."""
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permute_index(indices: Int64Array, sizes: Int64Array, keys: UInt64Array) -> Int64Array:
    """Return the origin of element `indices[i]` in the permutation of `sizes[i]` elements with the key `keys[i]`.

    The permutation is a keyed bijection on the smallest power of two that holds the size. It is applied again while the
    result lies outside (cycle walking, Black and Rogaway 2002). Each round multiplies by an odd number, adds and shifts, and
    all three are invertible.
    """
    # The number of bits of the largest element; the exponent of frexp is exact below 2⁵³.
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
