"""The order of batches: a pure function of (seed, epoch, the lengths of the corpora, the recipe's shares).

    lengths → Runs: how many pairs of each length an epoch draws → Plan: where its batches begin → pairs of any one batch

Pairs are put in order of their longer side, and of the difference of their sides among those, ascending and descending by
turns, so that neighbours are alike on both sides. That row of slots is cut into batches whose padded size stays within the
budget on either side. Who takes a slot is drawn among the pairs of its lengths; the batches are shuffled. Everything is
computed for the batch that is asked for and nothing else, so that any place of any epoch is reached at once, however large the
corpora.

What an epoch draws from a corpus goes round and round it: each pair of some lengths is drawn once before any is drawn twice,
across epochs, whatever the corpus's share. Where every corpus is seen once an epoch, each pair comes exactly once in each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dragoman.data.counter_rng import Numbers, mixed, permuted, uniform
from dragoman.data.encoded_corpus import LengthTable
from dragoman.data.mixture import Mixture

# What a draw is for, so that no two use the same random numbers.
_PHASE, _SLOTS, _PAIRS, _BATCHES, _CUT = range(5)


@dataclass(frozen=True)
class Chosen:
    """The pairs of a batch: which corpus, which pair in it, and which slot of the epoch it takes, no two alike."""

    corpora: Numbers
    pairs: Numbers
    slots: Numbers

    def __len__(self) -> int:
        return len(self.pairs)


@dataclass(frozen=True)
class Plan:
    """An epoch laid out. Runs are the pairs of lengths that occur, in order; a run holds `slots` of the epoch."""

    before_CK: Numbers
    """How many pairs of corpus C and run K were drawn in the epochs before."""
    drawn_CK: Numbers
    """How many are drawn in this one."""
    ends_K: Numbers
    """Slots up to the end of each run."""
    starts: Numbers
    """The first slot of each batch, and at last the number of slots."""
    turns: Numbers
    """Which batch comes first, second, …"""

    def __len__(self) -> int:
        """Batches of the epoch."""
        return len(self.turns)


class Order:
    """The batches of every epoch of some corpora."""

    def __init__(self, tables: Sequence[LengthTable], mixture: Mixture, *, batch_tokens: int, seed: int) -> None:
        self.tables = tables
        self.mixture = mixture
        self.batch_tokens = batch_tokens
        self.seed = seed
        lengths = np.unique(np.concatenate([np.stack([table.source, table.target], axis=1) for table in tables]), axis=0)
        longest, difference = lengths.max(axis=1), lengths[:, 0] - lengths[:, 1]
        lengths = lengths[np.lexsort((np.where(longest % 2, difference, -difference), longest))]
        self.source_K: Numbers = lengths[:, 0]
        self.target_K: Numbers = lengths[:, 1]
        run_of = {(int(source), int(target)): run for run, (source, target) in enumerate(lengths.tolist())}
        shape = (len(tables), len(lengths))
        self.counts_CK = np.zeros(shape, dtype=np.int64)
        self.firsts_CK = np.zeros(shape, dtype=np.int64)
        for corpus, table in enumerate(tables):
            runs = [run_of[one] for one in zip(table.source.tolist(), table.target.tolist(), strict=True)]
            self.counts_CK[corpus, runs] = table.counts
            self.firsts_CK[corpus, runs] = table.starts[:-1]
        self.plan = lru_cache(maxsize=2)(self._plan)

    def _plan(self, epoch: int) -> Plan:
        """The layout of one epoch; a matter of milliseconds."""
        before_CK, after_CK = self._draws(epoch), self._draws(epoch + 1)
        drawn_CK = after_CK - before_CK
        ends_K = np.cumsum(drawn_CK.sum(axis=0))
        starts = self._cut(drawn_CK.sum(axis=0), epoch)
        turns = np.arange(len(starts) - 1)
        keys = np.broadcast_to(mixed(self.seed, _BATCHES, epoch), turns.shape)
        turns = permuted(turns, np.full_like(turns, len(turns)), keys)
        return Plan(before_CK, drawn_CK, ends_K, starts, turns)

    def _draws(self, epoch: int) -> Numbers:
        """How many pairs of each corpus and run are drawn in the epochs before this one."""
        rounds_C = np.array(self.mixture.rounds_before(epoch))
        if np.all(rounds_C == np.round(rounds_C)):
            return self.counts_CK * rounds_C.astype(np.int64)[:, None]
        # A share of a run is a fraction of a pair more often than not: where it is rounded up is drawn once for all epochs.
        places_CK = np.arange(self.counts_CK.size).reshape(self.counts_CK.shape)
        phase_CK = uniform(mixed(self.seed, _PHASE, places_CK))
        draws: Numbers = np.floor(self.counts_CK * rounds_C[:, None] + phase_CK).astype(np.int64)
        return np.where(self.counts_CK > 0, draws, 0)

    def _cut(self, slots_K: Numbers, epoch: int) -> Numbers:
        """Where batches begin. The first one's budget is drawn, so that the same pairs do not meet in every epoch."""
        longest_K = np.maximum(self.source_K, self.target_K)
        lengths, first = np.unique(longest_K, return_index=True)
        slots = np.add.reduceat(slots_K, first) if len(first) else slots_K
        budget = 1 + int(uniform(mixed(self.seed, _CUT, epoch)) * self.batch_tokens)
        starts: list[npt.NDArray[np.int64]] = []
        begin = end = 0  # the open batch's first slot, and the slots so far
        for length, count in zip(lengths.tolist(), slots.tolist(), strict=True):
            if count == 0:
                continue
            room = budget // length - (end - begin)
            if room < count:
                if end > begin or room > 0:
                    starts.append(np.array([begin]))
                    begin = end + max(room, 0)
                budget = self.batch_tokens
                size = max(budget // length, 1)
                whole = max(-(-(end + count - begin) // size) - 1, 0)
                starts.append(begin + size * np.arange(whole))
                begin += size * whole
            end += count
        return np.concatenate([*starts, [begin, end] if end > begin else [end]]).astype(np.int64)

    def batch(self, epoch: int, number: int) -> Chosen:
        """The pairs of batch `number` of an epoch."""
        plan = self.plan(epoch)
        turn = int(plan.turns[number])
        slots = np.arange(plan.starts[turn], plan.starts[turn + 1])
        runs = np.searchsorted(plan.ends_K, slots, side="right")
        sizes = plan.drawn_CK.sum(axis=0)[runs]
        places = slots - (plan.ends_K[runs] - sizes)
        places = permuted(places, sizes, mixed(self.seed, _SLOTS, epoch, runs))
        corpora = np.zeros_like(places)
        for corpus in range(len(self.tables) - 1):
            here = plan.drawn_CK[corpus, runs]
            beyond = (corpora == corpus) & (places >= here)
            places = np.where(beyond, places - here, places)
            corpora = np.where(beyond, corpus + 1, corpora)
        return Chosen(corpora, self._pairs(plan, corpora, runs, places), slots)

    def _pairs(self, plan: Plan, corpora: Numbers, runs: Numbers, places: Numbers) -> Numbers:
        """The pairs that are drawn as number `places` of this epoch from these runs of these corpora."""
        counts = self.counts_CK[corpora, runs]
        rounds, places = np.divmod(plan.before_CK[corpora, runs] + places, counts)
        places = permuted(places, counts, mixed(self.seed, _PAIRS, corpora, runs, rounds))
        rows = self.firsts_CK[corpora, runs] + places
        found = np.empty_like(rows)
        for corpus, table in enumerate(self.tables):
            here = corpora == corpus
            found[here] = table.pairs[rows[here]]
        return found
