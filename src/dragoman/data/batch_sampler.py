"""Order of batches: a pure function of the seed, the epoch, the lengths of the corpora and the shares in the recipe.

    lengths → runs: the number of pairs of equal lengths that an epoch draws → plan: the start of each batch → pairs of a batch

A run holds all pairs with one source length and one target length. Runs are sorted by the longer side. Within one longer
side, the difference of the sides ascends and descends in turn, so neighbors are similar on both sides. The sorted positions
are cut into batches whose padded size stays within the budget on either side. Each position draws its pair from its run, and
the batches are shuffled. Only the requested batch is computed, so any batch of any epoch is available at once.

Draws from a run continue across epochs: each pair of the run is drawn once before any pair is drawn twice. If each epoch
passes over each corpus once, each pair occurs exactly once in each epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dragoman.data.counter_rng import Int64Array, hash64, hash_to_uniform, permute_index
from dragoman.data.encoded_corpus import LengthTable
from dragoman.data.mixture import Mixture

# Purposes of draws. Each purpose has its own random numbers.
_PHASE, _POSITIONS, _PAIRS, _BATCHES, _FIRST_BUDGET = range(5)


@dataclass(frozen=True)
class BatchIndices:
    """Pairs of a batch.

    corpus_indices: corpus of each pair
    pair_indices: index of each pair in its corpus
    positions: position of each pair in the sorted epoch; each position occurs once
    """

    corpus_indices: Int64Array
    pair_indices: Int64Array
    positions: Int64Array

    def __len__(self) -> int:
        return len(self.pair_indices)


@dataclass(frozen=True)
class EpochPlan:
    """Layout of an epoch.

    draws_before_CK: pairs of corpus C and run K that earlier epochs draw
    draws_CK: pairs of corpus C and run K that this epoch draws
    run_ends_K: position after the last one of each run
    batch_starts: first position of each batch; the last entry is the number of positions
    batch_order: index of the batch that comes first, second, …
    """

    draws_before_CK: Int64Array
    draws_CK: Int64Array
    run_ends_K: Int64Array
    batch_starts: Int64Array
    batch_order: Int64Array

    def __len__(self) -> int:
        return len(self.batch_order)


class BatchSampler:
    """Batches of every epoch of a mixture of corpora.

    mixture: the passes over each corpus in each epoch
    batch_tokens: limit of the padded tokens of a batch on either side
    """

    def __init__(self, tables: Sequence[LengthTable], mixture: Mixture, *, batch_tokens: int, seed: int) -> None:
        self.tables = tables
        self.mixture = mixture
        self.batch_tokens = batch_tokens
        self.seed = seed
        length_pairs = np.unique(
            np.concatenate([np.stack([table.source_lengths, table.target_lengths], axis=1) for table in tables]), axis=0
        )
        max_lengths, difference = length_pairs.max(axis=1), length_pairs[:, 0] - length_pairs[:, 1]
        length_pairs = length_pairs[np.lexsort((np.where(max_lengths % 2, difference, -difference), max_lengths))]
        self.source_lengths_K: Int64Array = length_pairs[:, 0]
        self.target_lengths_K: Int64Array = length_pairs[:, 1]
        run_indices = {(int(source), int(target)): run for run, (source, target) in enumerate(length_pairs.tolist())}
        shape = (len(tables), len(length_pairs))
        self.pair_counts_CK = np.zeros(shape, dtype=np.int64)
        self.run_starts_CK = np.zeros(shape, dtype=np.int64)
        for corpus, table in enumerate(tables):
            runs = [
                run_indices[length_pair]
                for length_pair in zip(table.source_lengths.tolist(), table.target_lengths.tolist(), strict=True)
            ]
            self.pair_counts_CK[corpus, runs] = table.counts
            self.run_starts_CK[corpus, runs] = table.starts[:-1]
        self.plan_epoch = lru_cache(maxsize=2)(self._plan_epoch)

    def _plan_epoch(self, epoch: int) -> EpochPlan:
        """Return the layout of one epoch, which takes milliseconds."""
        draws_before_CK, draws_after_CK = self._count_draws(epoch), self._count_draws(epoch + 1)
        draws_CK = draws_after_CK - draws_before_CK
        run_ends_K = np.cumsum(draws_CK.sum(axis=0))
        batch_starts = self._split_into_batches(draws_CK.sum(axis=0), epoch)
        batch_order = np.arange(len(batch_starts) - 1)
        keys = np.broadcast_to(hash64(self.seed, _BATCHES, epoch), batch_order.shape)
        batch_order = permute_index(batch_order, np.full_like(batch_order, len(batch_order)), keys)
        return EpochPlan(draws_before_CK, draws_CK, run_ends_K, batch_starts, batch_order)

    def _count_draws(self, epoch: int) -> Int64Array:
        """Return the number of pairs of each corpus and run that earlier epochs draw. (C, K)"""
        passes_C = np.array(self.mixture.count_passes_before(epoch))
        if np.all(passes_C == np.round(passes_C)):
            return self.pair_counts_CK * passes_C.astype(np.int64)[:, None]
        # A share of a run is usually no whole number. The epochs that round it up are drawn once, as a phase.
        indices_CK = np.arange(self.pair_counts_CK.size).reshape(self.pair_counts_CK.shape)
        phases_CK = hash_to_uniform(hash64(self.seed, _PHASE, indices_CK))
        draws_CK: Int64Array = np.floor(self.pair_counts_CK * passes_C[:, None] + phases_CK).astype(np.int64)
        return np.where(self.pair_counts_CK > 0, draws_CK, 0)

    def _split_into_batches(self, run_sizes_K: Int64Array, epoch: int) -> Int64Array:
        """Return the first position of each batch. The budget of the first is random, so batches differ between epochs."""
        max_lengths_K = np.maximum(self.source_lengths_K, self.target_lengths_K)
        lengths, first_runs = np.unique(max_lengths_K, return_index=True)
        length_counts = np.add.reduceat(run_sizes_K, first_runs) if len(first_runs) else run_sizes_K
        budget = 1 + int(hash_to_uniform(hash64(self.seed, _FIRST_BUDGET, epoch)) * self.batch_tokens)
        starts: list[npt.NDArray[np.int64]] = []
        begin = end = 0  # the first position of the open batch, and the positions so far
        for length, count in zip(lengths.tolist(), length_counts.tolist(), strict=True):
            if count == 0:
                continue
            capacity = budget // length - (end - begin)
            if capacity < count:
                if end > begin or capacity > 0:
                    starts.append(np.array([begin]))
                    begin = end + max(capacity, 0)
                budget = self.batch_tokens
                batch_rows = max(budget // length, 1)
                num_full_batches = max(-(-(end + count - begin) // batch_rows) - 1, 0)
                starts.append(begin + batch_rows * np.arange(num_full_batches))
                begin += batch_rows * num_full_batches
            end += count
        return np.concatenate([*starts, [begin, end] if end > begin else [end]]).astype(np.int64)

    def get_batch(self, epoch: int, batch_index: int) -> BatchIndices:
        plan = self.plan_epoch(epoch)
        sorted_index = int(plan.batch_order[batch_index])
        positions = np.arange(plan.batch_starts[sorted_index], plan.batch_starts[sorted_index + 1])
        runs = np.searchsorted(plan.run_ends_K, positions, side="right")
        run_sizes = plan.draws_CK.sum(axis=0)[runs]
        draw_indices = positions - (plan.run_ends_K[runs] - run_sizes)
        draw_indices = permute_index(draw_indices, run_sizes, hash64(self.seed, _POSITIONS, epoch, runs))
        corpus_indices = np.zeros_like(draw_indices)
        for corpus in range(len(self.tables) - 1):
            corpus_draws = plan.draws_CK[corpus, runs]
            is_beyond = (corpus_indices == corpus) & (draw_indices >= corpus_draws)
            draw_indices = np.where(is_beyond, draw_indices - corpus_draws, draw_indices)
            corpus_indices = np.where(is_beyond, corpus + 1, corpus_indices)
        return BatchIndices(corpus_indices, self._find_pairs(plan, corpus_indices, runs, draw_indices), positions)

    def _find_pairs(
        self, plan: EpochPlan, corpus_indices: Int64Array, runs: Int64Array, draw_indices: Int64Array
    ) -> Int64Array:
        """Return the pairs of draws `draw_indices` of this epoch from these runs of these corpora."""
        pair_counts = self.pair_counts_CK[corpus_indices, runs]
        passes, draw_indices = np.divmod(plan.draws_before_CK[corpus_indices, runs] + draw_indices, pair_counts)
        draw_indices = permute_index(draw_indices, pair_counts, hash64(self.seed, _PAIRS, corpus_indices, runs, passes))
        rows = self.run_starts_CK[corpus_indices, runs] + draw_indices
        pair_indices = np.empty_like(rows)
        for corpus, table in enumerate(self.tables):
            mask = corpus_indices == corpus
            pair_indices[mask] = table.pair_indices[rows[mask]]
        return pair_indices
