"""How much each rank has to do in a step: the batches that dragoman's own order gives it.

Lengths are drawn like those of WMT14 English-German: the source's log-normal, median 23, σ 0.65; the target's that times a
log-normal ratio, median 1.05, σ 0.2. No pair is longer than the budget of a batch, which is what the recipe asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dragoman.data.batch_sampler import BatchSampler
from dragoman.data.encoded_corpus import LengthTable
from dragoman.data.mixture import Mixture

PAIRS = 500_000
LONGEST = 250

Floats = npt.NDArray[np.float64]


class DrawnLengths(LengthTable):
    """Lengths of pairs that nobody wrote."""

    def __init__(self, source: npt.NDArray[np.int64], target: npt.NDArray[np.int64]) -> None:
        found, counts = np.unique(np.stack([source, target], axis=1), axis=0, return_counts=True)
        self.source_lengths, self.target_lengths = found[:, 0], found[:, 1]
        self.starts = np.concatenate([[0], np.cumsum(counts)])
        self.pair_indices = np.arange(len(source), dtype=np.uint32)


@dataclass(frozen=True)
class Loads:
    """For each step S and rank R: padded source and target tokens, and target tokens that are none of padding."""

    source_SR: Floats
    target_SR: Floats
    tokens_SR: Floats


@lru_cache(maxsize=4)
def draw_lengths(longest: int) -> DrawnLengths:
    chance = np.random.default_rng(1)
    source = np.exp(chance.normal(np.log(23.0), 0.65, PAIRS))
    target = source * np.exp(chance.normal(np.log(1.05), 0.2, PAIRS))
    sides = np.stack([source, target]).round().astype(np.int64)
    kept = (sides.min(axis=0) >= 1) & (sides.max(axis=0) <= min(LONGEST, longest))
    return DrawnLengths(sides[0, kept], sides[1, kept])


def loads_of(*, batch_tokens: int, ranks: int, steps: int, seed: int = 1) -> Loads:
    """What `ranks` ranks get in so many steps, a batch of at most `batch_tokens` padded tokens a side to each."""
    order = BatchSampler([draw_lengths(batch_tokens)], Mixture.single_pass(), batch_tokens=batch_tokens, seed=seed)
    parts, found, epoch = [], 0, 0
    while found < ranks * steps:
        parts.append(_epoch(order, epoch))
        found += parts[-1].shape[1]
        epoch += 1
    sides = np.concatenate(parts, axis=1)[:, : ranks * steps].reshape(3, steps, ranks).astype(np.float64)
    return Loads(*sides)


def even_loads(*, batch_tokens: int, ranks: int) -> Loads:
    """One step in which every rank has exactly so many tokens on either side."""
    full = np.full((1, ranks), float(batch_tokens))
    return Loads(full, full, full)


def _epoch(order: BatchSampler, epoch: int) -> npt.NDArray[np.int64]:
    """Padded source tokens, padded target tokens and target tokens of each batch of an epoch, in the order of serving."""
    plan = order.plan_epoch(epoch)
    begins, ends = plan.batch_starts[:-1], plan.batch_starts[1:]
    first = np.searchsorted(plan.run_ends_K, begins, side="right")
    last = np.searchsorted(plan.run_ends_K, ends - 1, side="right")
    spans = np.stack([first, last + 1], axis=1).ravel()
    sides = [np.maximum.reduceat(np.append(side, 0), spans)[::2] for side in (order.source_lengths_K, order.target_lengths_K)]
    sizes_K = plan.draws_CK.sum(axis=0)
    before_K = np.cumsum(sizes_K * order.target_lengths_K) - sizes_K * order.target_lengths_K
    upto = [
        before_K[run] + (slot - (plan.run_ends_K[run] - sizes_K[run])) * order.target_lengths_K[run]
        for run, slot in ((first, begins), (last, ends))
    ]
    rows = ends - begins
    return np.stack([rows * sides[0], rows * sides[1], upto[1] - upto[0]])[:, plan.batch_order]
