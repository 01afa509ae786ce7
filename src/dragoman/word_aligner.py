"""Word aligner: IBM model 2 with a prior near the diagonal, estimated by EM from the pairs that it aligns.

The probability that source word i of m generates target word j of n is t(word_j | word_i) times a prior. The prior falls with
the distance |i/m − j/n| from the diagonal and reserves a probability for the null word (Dyer, Chahuneau and Smith 2013, with a
fixed diagonal tension). The first half of the iterations uses no prior, so that systematic reordering is learned, too.
The links of both directions are combined by grow-diag-final-and (Koehn, Och and Marcu 2003).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Link = tuple[int, int]
"""Index of a source word and of a target word, both from 0."""
WordSequence = Sequence[Hashable]
"""Words of one sentence; the aligner only compares them for equality."""
Block = list[tuple[WordSequence, WordSequence]]

# Probability of the null word, and the steepness of the diagonal prior (Dyer et al., section 2).
NULL_PROBABILITY = 0.08
DIAGONAL_TENSION = 4.0
NUM_ITERATIONS = 10
# A pair takes one cell for each source word (the null word included) and target word; a block of cells takes up to 1 GB.
MAX_BLOCK_CELLS = 2**24
MIN_PROBABILITY = 1e-9
NEIGHBORS = [(-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)]


def align_pairs(
    sources: Sequence[WordSequence],
    targets: Sequence[WordSequence],
    *,
    on_progress: Callable[[int], None] = lambda _: None,
) -> list[list[Link]]:
    """Return the links of each pair in order of the source; a pair with an empty side has none.

    Large corpora are estimated and aligned in blocks.

    on_progress: receives the number of pairs after each iteration in each direction
    """
    links: list[list[Link]] = []
    for block in split_blocks(zip(sources, targets, strict=True)):
        links += align_block(block, on_progress)
    return links


def build_dictionary(
    sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]], links: Sequence[Sequence[Link]], *, min_count: int = 1
) -> dict[str, str]:
    """Return the target word that each source word is linked to most often, in order of the source words.

    min_count: fewest links of a source word with its target word
    """
    counts: dict[str, Counter[str]] = {}
    for source, target, pair_links in zip(sources, targets, links, strict=True):
        for source_number, target_number in pair_links:
            counts.setdefault(source[source_number], Counter())[target[target_number]] += 1
    best = {word: min(translations.items(), key=lambda item: (-item[1], item[0])) for word, translations in counts.items()}
    return {word: best[word][0] for word in sorted(best) if best[word][1] >= min_count}


def split_blocks(pairs: Iterable[tuple[WordSequence, WordSequence]]) -> Iterator[Block]:
    """Yield blocks of consecutive pairs with at most `MAX_BLOCK_CELLS` cells each."""
    block: Block = []
    num_cells = 0
    for source, target in pairs:
        pair_cells = (len(source) + 1) * len(target)
        if block and num_cells + pair_cells > MAX_BLOCK_CELLS:
            yield block
            block, num_cells = [], 0
        block.append((source, target))
        num_cells += pair_cells
    if block:
        yield block


def align_block(block: Block, on_progress: Callable[[int], None] = lambda _: None) -> list[list[Link]]:
    """Return the links of each pair, estimated from these pairs alone."""
    sources, targets = [source for source, _ in block], [target for _, target in block]
    forward_links = _align_direction(sources, targets, on_progress)
    backward_links = [
        {(source, target) for target, source in links} for links in _align_direction(targets, sources, on_progress)
    ]
    return [symmetrize(forward, backward) for forward, backward in zip(forward_links, backward_links, strict=True)]


def _align_direction(
    sources: Sequence[WordSequence], targets: Sequence[WordSequence], on_progress: Callable[[int], None]
) -> list[set[Link]]:
    """Return a link from each target word to its most probable source word, unless that is the null word."""
    source_ids, target_ids = _assign_ids(sources), _assign_ids(targets)
    vocab_size = 1 + max((int(ids.max()) for ids in target_ids if len(ids)), default=0)
    keys, priors, sizes = [], [], []
    for source, target in zip(source_ids, target_ids, strict=True):
        if len(source) and len(target):
            # Id 0 is the null word, the first of the m + 1 candidates of each target word.
            keys.append((np.r_[0, source + 1][None, :] * vocab_size + target[:, None]).ravel())
            priors.append(_diagonal_prior(len(source), len(target)).ravel())
            sizes.append(np.full(len(target), len(source) + 1))
    if not keys:
        return [set() for _ in sources]
    unique_P, pair_id_X = np.unique(np.concatenate(keys), return_inverse=True)
    prior_X, size_J = np.concatenate(priors), np.concatenate(sizes)
    start_J = np.r_[0, np.cumsum(size_J)[:-1]]
    source_id_P = unique_P // vocab_size
    probability_P = np.ones(len(unique_P))
    for iteration in range(NUM_ITERATIONS):
        posterior_X = probability_P[pair_id_X]
        if iteration >= NUM_ITERATIONS / 2:
            posterior_X *= prior_X
        posterior_X /= np.repeat(np.add.reduceat(posterior_X, start_J), size_J)
        count_P = np.bincount(pair_id_X, posterior_X, len(unique_P))
        probability_P = np.maximum(count_P / np.bincount(source_id_P, count_P)[source_id_P], MIN_PROBABILITY)
        on_progress(len(sources))
    best_positions = iter(_argmax_segments(probability_P[pair_id_X] * prior_X, start_J, size_J))
    return [
        {
            (position - 1, target_index)
            for target_index, position in zip(range(len(target)), best_positions, strict=False)
            if position > 0
        }
        if len(source) and len(target)
        else set()
        for source, target in zip(source_ids, target_ids, strict=True)
    ]


def _assign_ids(texts: Sequence[WordSequence]) -> list[NDArray[np.int64]]:
    ids: dict[Hashable, int] = {}
    return [np.array([ids.setdefault(word, len(ids)) for word in words], dtype=np.int64) for words in texts]


def _diagonal_prior(source_length: int, target_length: int) -> NDArray[np.float64]:
    """Return the prior of each source position, the null word first. → (target, 1 + source)"""
    distance = np.abs(
        np.arange(1, source_length + 1)[None, :] / source_length - np.arange(1, target_length + 1)[:, None] / target_length
    )
    prior = np.exp(-DIAGONAL_TENSION * distance)
    prior *= (1 - NULL_PROBABILITY) / prior.sum(1, keepdims=True)
    return np.concatenate([np.full((target_length, 1), NULL_PROBABILITY), prior], axis=1)


def _argmax_segments(value_X: NDArray[np.float64], start_J: NDArray[np.int64], size_J: NDArray[np.int64]) -> list[int]:
    """Return the index of the first maximum within each segment. Segment j has `size_J[j]` values from `start_J[j]` on."""
    max_X = np.repeat(np.maximum.reduceat(value_X, start_J), size_J)
    position_X = np.arange(len(value_X)) - np.repeat(start_J, size_J)
    best_positions = np.minimum.reduceat(np.where(value_X == max_X, position_X, len(value_X)), start_J)
    return [int(position) for position in best_positions]


def symmetrize(forward_links: Iterable[Link], backward_links: Iterable[Link]) -> list[Link]:
    """Combine the links of both directions by grow-diag-final-and.

    The result starts with the links in both directions. Then it grows by adjacent links of either direction with an unlinked
    word, and last by links of either direction between two unlinked words.
    """
    forward_links, backward_links = set(forward_links), set(backward_links)
    links, union = forward_links & backward_links, forward_links | backward_links
    has_grown = True
    while has_grown:
        has_grown = False
        for source, target in sorted(links):
            for step_source, step_target in NEIGHBORS:
                neighbor = source + step_source, target + step_target
                if (
                    neighbor in union
                    and neighbor not in links
                    and not (_is_linked(links, 0, neighbor[0]) and _is_linked(links, 1, neighbor[1]))
                ):
                    links.add(neighbor)
                    has_grown = True
    for direction in (forward_links, backward_links):
        for link in sorted(direction):
            if not _is_linked(links, 0, link[0]) and not _is_linked(links, 1, link[1]):
                links.add(link)
    return sorted(links)


def _is_linked(links: set[Link], side: int, word: int) -> bool:
    return any(link[side] == word for link in links)
