"""A lexical word aligner: IBM's second model with positions near the diagonal, learnt from the pairs that it aligns.

The probability that target word j of n came from source word i of m is t(word_j | word_i) times a distribution that falls off
with the distance |i/m − j/n| from the diagonal, and that leaves a share for words that came from nowhere (Dyer, Chahuneau and
Smith 2013, without their search for the steepness). The first half of the rounds knows no diagonal, so that words that always
change places are found, too. Both directions are learnt, and put together by growing from what they
agree on towards what either says (Koehn, Och and Marcu 2003: grow-diag-final-and).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Link = tuple[int, int]
"""Word of the source, word of the target, both counted from 0."""
Words = Sequence[Hashable]
"""Of which only that counts which of them are the same."""
Block = list[tuple[Words, Words]]

# The share of words that came from nowhere, and how steeply chances fall off from the diagonal (Dyer et al., section 2).
NOWHERE = 0.08
STEEPNESS = 4.0
ROUNDS = 10
# Of each pair there is a number for each of its words with each of the other side's; a block of them takes up to 1 GB.
BLOCK = 2**24
LEAST = 1e-9
NEIGHBOURS = [(-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)]


def align_pairs(
    sources: Sequence[Words], targets: Sequence[Words], *, rounds: int = ROUNDS, advance: Callable[[int], None] = lambda _: None
) -> list[list[Link]]:
    """The links of each pair, in order of the source; none where either side is empty.

    Where there are very many, they are learnt and aligned a block at a time. `advance` is told of pairs times rounds done.
    """
    found: list[list[Link]] = []
    for block in blocks(zip(sources, targets, strict=True)):
        found += align_block(block, rounds=rounds, advance=advance)
    return found


def blocks(pairs: Iterable[tuple[Words, Words]], *, most: int = BLOCK) -> Iterator[Block]:
    """The pairs in order, as many together as memory bears."""
    block: Block = []
    size = 0
    for source, target in pairs:
        more = (len(source) + 1) * len(target)
        if block and size + more > most:
            yield block
            block, size = [], 0
        block.append((source, target))
        size += more
    if block:
        yield block


def align_block(block: Block, *, rounds: int = ROUNDS, advance: Callable[[int], None] = lambda _: None) -> list[list[Link]]:
    """The links of each pair, by what these pairs teach together."""
    sources, targets = [source for source, _ in block], [target for _, target in block]
    forwards = _one_way(sources, targets, rounds, advance)
    backwards = [{(source, target) for target, source in links} for links in _one_way(targets, sources, rounds, advance)]
    return [grow(there, back) for there, back in zip(forwards, backwards, strict=True)]


def _one_way(
    sources: Sequence[Words], targets: Sequence[Words], rounds: int, advance: Callable[[int], None]
) -> list[set[Link]]:
    """For each target word the source word that it most probably came from, or nothing."""
    source_ids, target_ids = _numbered(sources), _numbered(targets)
    vocabulary = 1 + max((int(ids.max()) for ids in target_ids if len(ids)), default=0)
    keys, chances, sizes = [], [], []
    for source, target in zip(source_ids, target_ids, strict=True):
        if len(source) and len(target):
            # The number 0 is nowhere; it stands first among the m + 1 that each target word may have come from.
            keys.append((np.r_[0, source + 1][None, :] * vocabulary + target[:, None]).ravel())
            chances.append(_diagonal(len(source), len(target)).ravel())
            sizes.append(np.full(len(target), len(source) + 1))
    if not keys:
        return [set() for _ in sources]
    unique_P, place_X = np.unique(np.concatenate(keys), return_inverse=True)
    chance_X, size_J = np.concatenate(chances), np.concatenate(sizes)
    start_J = np.r_[0, np.cumsum(size_J)[:-1]]
    from_P = unique_P // vocabulary
    likely_P = np.ones(len(unique_P))
    for done in range(rounds):
        share_X = likely_P[place_X]
        if done >= rounds / 2:
            share_X *= chance_X
        share_X /= np.repeat(np.add.reduceat(share_X, start_J), size_J)
        count_P = np.bincount(place_X, share_X, len(unique_P))
        likely_P = np.maximum(count_P / np.bincount(from_P, count_P)[from_P], LEAST)
        advance(len(sources))
    found = iter(_best(likely_P[place_X] * chance_X, start_J, size_J))
    return [
        {(place - 1, number) for number, place in zip(range(len(target)), found, strict=False) if place > 0}
        if len(source) and len(target)
        else set()
        for source, target in zip(source_ids, target_ids, strict=True)
    ]


def _numbered(texts: Sequence[Words]) -> list[NDArray[np.int64]]:
    numbers: dict[Hashable, int] = {}
    return [np.array([numbers.setdefault(word, len(numbers)) for word in words], dtype=np.int64) for words in texts]


def _diagonal(source: int, target: int) -> NDArray[np.float64]:
    """The chance of each place before the words are looked at, nowhere first. → (target, 1 + source)"""
    distance = np.abs(np.arange(1, source + 1)[None, :] / source - np.arange(1, target + 1)[:, None] / target)
    near = np.exp(-STEEPNESS * distance)
    near *= (1 - NOWHERE) / near.sum(1, keepdims=True)
    return np.concatenate([np.full((target, 1), NOWHERE), near], axis=1)


def _best(value_X: NDArray[np.float64], start_J: NDArray[np.int64], size_J: NDArray[np.int64]) -> list[int]:
    """In each stretch, the place of the greatest value, the first of equals."""
    greatest_X = np.repeat(np.maximum.reduceat(value_X, start_J), size_J)
    place_X = np.arange(len(value_X)) - np.repeat(start_J, size_J)
    found = np.minimum.reduceat(np.where(value_X == greatest_X, place_X, len(value_X)), start_J)
    return [int(place) for place in found]


def grow(there: Iterable[Link], back: Iterable[Link]) -> list[Link]:
    """Both directions as one: what both say, then neighbours that either says, then what either says of two unlinked words."""
    there, back = set(there), set(back)
    links, either = there & back, there | back
    grown = True
    while grown:
        grown = False
        for source, target in sorted(links):
            for step_source, step_target in NEIGHBOURS:
                near = source + step_source, target + step_target
                if near in either and near not in links and not (_has(links, 0, near[0]) and _has(links, 1, near[1])):
                    links.add(near)
                    grown = True
    for direction in (there, back):
        for link in sorted(direction):
            if not _has(links, 0, link[0]) and not _has(links, 1, link[1]):
                links.add(link)
    return sorted(links)


def _has(links: set[Link], side: int, word: int) -> bool:
    return any(link[side] == word for link in links)
