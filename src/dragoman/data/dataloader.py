"""The endless sequence of training batches, from any place on, made in this process or ahead in others.

The sequence is a function of (seed, epoch, recipe) alone: the same with any number of loaders, and the same over all ranks
together, whatever their number. A place in it is two whole numbers.
"""

from __future__ import annotations

import atexit
import os
import signal
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from dragoman.config import Recipe
from dragoman.data.batch_sampler import Chosen, Order
from dragoman.data.collate import Batch, collate_within
from dragoman.data.encoded_corpus import Corpus, Ids, LengthTable, lengths_file, pair_files
from dragoman.data.link_table import LinkTable, links_file
from dragoman.data.mixture import Mixture
from dragoman.data.noise import Modifiers
from dragoman.data.prepare import training_name
from dragoman.data.tokenization.sentencepiece import sampling_seed
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.data.tokenization.tokenizer import Tokeniser, read_tokeniser
from dragoman.data.tokenization.word_boundaries import NOWHERE, Sides
from dragoman.errors import LostProcessError
from dragoman.runtime.processes import starting_deaf


@dataclass(frozen=True)
class Cursor:
    """A place in the endless sequence of batches: the next one is number `batch` of epoch `epoch`."""

    epoch: int = 0
    batch: int = 0


class TrainingBatches(Dataset[list[Batch]]):
    """Any batch of any epoch, from a prepared folder. Opened where it is used, so that it can be sent to another process."""

    def __init__(self, recipe: Recipe, folder: Path, *, start_id: int) -> None:
        self.recipe = recipe
        self.folder = folder
        self.start_id = start_id
        # Sorted: where their order changed nothing in what was prepared, it changes no batch either.
        self.corpus_names = sorted(recipe.data.training_corpora())
        self.modifiers = Modifiers(recipe.data.noise, seed=recipe.training.seed)

    def __getstate__(self) -> dict[str, object]:
        opened = {"order", "corpora", "tokeniser", "links", "sides"}
        return {name: value for name, value in self.__dict__.items() if name not in opened}

    @cached_property
    def order(self) -> Order:
        tables = [LengthTable(lengths_file(self.folder, training_name(name))) for name in self.corpus_names]
        sizes = {name: len(table) for name, table in zip(self.corpus_names, tables, strict=True)}
        training = self.recipe.training
        return Order(tables, Mixture.of(self.recipe.data, sizes), batch_tokens=training.batch_tokens, seed=training.seed)

    @cached_property
    def corpora(self) -> list[Corpus]:
        return [Corpus(pair_files(self.folder, training_name(name))) for name in self.corpus_names]

    @cached_property
    def tokeniser(self) -> Tokeniser:
        return read_tokeniser(self.folder, self.recipe.tokenizer, append_source_eos=self.recipe.model.append_source_eos)

    @cached_property
    def links(self) -> list[LinkTable]:
        return [LinkTable(links_file(self.folder, training_name(name))) for name in self.corpus_names]

    @cached_property
    def sides(self) -> Sides:
        return Sides(self.tokeniser)

    def batches_in_epoch(self, epoch: int) -> int:
        return len(self.order.plan(epoch))

    def __getitem__(self, cursor: Cursor) -> list[Batch]:
        """The batch at this place, in more than one part where modifiers changed the lengths of its pairs."""
        chosen = self.order.batch(cursor.epoch, cursor.batch)
        pairs = list(zip(chosen.corpora.tolist(), chosen.pairs.tolist(), strict=True))
        sources = [self.corpora[corpus].source(pair) for corpus, pair in pairs]
        targets = [self.corpora[corpus].target(pair) for corpus, pair in pairs]
        modified: Iterable[int] = ()
        if changes := bool(self.modifiers or self.recipe.tokenizer.sampling_alpha):
            modified = self._change(cursor.epoch, chosen, sources, targets)
        looks = None
        if self.recipe.training.guided_alignment_weight:
            linked = [self.links[corpus][pair] for corpus, pair in pairs]
            looks = [self.sides.looks(*given) for given in zip(linked, sources, targets, strict=True)]
            for row in modified:  # into other words than those that were linked
                looks[row] = NOWHERE
        budget = self.recipe.training.batch_tokens
        return collate_within(sources, targets, batch_tokens=budget, start_id=self.start_id, looks=looks, uneven=changes)

    def _change(self, epoch: int, chosen: Chosen, sources: list[Ids], targets: list[Ids]) -> list[int]:
        """Modify and split anew, in place, by chance of (seed, epoch, slot); what would then exceed data.max_length stays.

        Returns the rows that may have been modified.
        """
        alpha, limit = self.recipe.tokenizer.sampling_alpha, self.recipe.data.max_length
        modified = self.modifiers.changed(epoch, chosen.slots)
        for row in range(len(chosen)) if alpha else np.flatnonzero(modified).tolist():
            corpus, pair, slot = int(chosen.corpora[row]), int(chosen.pairs[row]), int(chosen.slots[row])
            source, target = self._text(corpus, pair)
            if modified[row]:
                source, target = self.modifiers.apply(epoch, slot, source, target, partial(self._next_text, corpus, pair))
            ids = []
            for side, (subword, text) in enumerate(((self.tokeniser.source, source), (self.tokeniser.target, target))):
                seed = sampling_seed(self.recipe.training.seed, epoch, slot, side)
                ids.append(subword.sample(text, alpha=alpha, seed=seed) if alpha else subword.encode(text))
            if all(ids) and max(map(len, ids)) < limit:
                sources[row] = np.array([*ids[0], END_ID] if self.tokeniser.append_source_eos else ids[0])
                targets[row] = np.array(ids[1])
        return [int(row) for row in np.flatnonzero(modified)]

    def _text(self, corpus: int, pair: int) -> tuple[str, str]:
        source = self.corpora[corpus].source(pair).tolist()
        ended = self.tokeniser.append_source_eos
        target = self.corpora[corpus].target(pair).tolist()
        return self.tokeniser.source.decode(source[:-1] if ended else source), self.tokeniser.target.decode(target)

    def _next_text(self, corpus: int, pair: int) -> tuple[str, str]:
        return self._text(corpus, (pair + 1) % len(self.corpora[corpus]))


class BatchStream:
    """The endless sequence of batches from a cursor on. Several ranks take turns; the cursor is theirs together."""

    def __init__(
        self, batches: TrainingBatches, *, cursor: Cursor, loaders: int = 0, rank: int = 0, ranks: int = 1, pin: bool = False
    ) -> None:
        self.batches = batches
        self.cursor = cursor
        self.ranks = ranks
        self._turns = _Turns(batches, cursor, rank, ranks)
        self._loaders = loaders
        self._pin = pin
        self._made: Iterator[list[Batch]] | None = None

    def epochs(self) -> float:
        """Passes over the corpora so far."""
        return self.cursor.epoch + self.cursor.batch / self.batches.batches_in_epoch(self.cursor.epoch)

    def next(self) -> list[Batch]:
        """This rank's next batch, in parts. The first call starts the loaders, which `close` ends."""
        if self._made is None:
            self._made = self._begin()
        parts = next(self._made)
        for _ in range(self.ranks):
            self.cursor = self._turns.after(self.cursor)
        return parts

    def _begin(self) -> Iterator[list[Batch]]:
        if self._loaders:
            return _made_ahead(self.batches, self._turns, self._loaders, pin=self._pin)
        return map(self.batches.__getitem__, iter(self._turns))

    def close(self) -> None:
        """End the loaders."""
        self._made = iter(())


@contextmanager
def telling_of_lost_loaders() -> Iterator[None]:
    """Raise LostProcessError where a loader process ended, which torch tells anywhere in the code, in many ways."""
    try:
        yield
    except (RuntimeError, ConnectionError, EOFError) as error:
        if isinstance(error, RuntimeError) and "DataLoader worker (pid" not in str(error):
            raise
        raise LostProcessError(
            "a process that makes batches ahead has ended, for want of memory perhaps; lower data.num_workers or set it to 0"
        ) from None


def _made_ahead(batches: TrainingBatches, turns: _Turns, loaders: int, *, pin: bool) -> Iterator[list[Batch]]:
    """Batches from other processes, in the order of the turns."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # more loaders than cores are the recipe's wish
        ahead: DataLoader[list[Batch]] = DataLoader(
            batches,
            batch_size=None,
            sampler=turns,
            num_workers=loaders,
            prefetch_factor=4,
            collate_fn=_as_it_is,
            pin_memory=pin,
            worker_init_fn=_ends_at_once,
            multiprocessing_context="spawn",
            generator=torch.Generator(),  # the loader draws a seed, which must not come from training's own
        )
        # Signals that ask to stop are for the process that trains; it ends these when the batch in hand is done.
        with starting_deaf(signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            return iter(ahead)


def _ends_at_once(number: int) -> None:
    """A thread that still sends a batch is in torch's code: the interpreter's own end would end it there, and abort."""
    atexit.register(os._exit, 0)


class _Turns(Sampler[Cursor]):
    """Every place in the sequence that is this rank's turn."""

    def __init__(self, batches: TrainingBatches, cursor: Cursor, rank: int, ranks: int) -> None:
        self.batches = batches
        self.cursor = cursor
        self.rank = rank
        self.ranks = ranks

    def after(self, cursor: Cursor) -> Cursor:
        """The next place: an epoch ends where its batches do."""
        if cursor.batch + 1 < self.batches.batches_in_epoch(cursor.epoch):
            return Cursor(cursor.epoch, cursor.batch + 1)
        return Cursor(cursor.epoch + 1, 0)

    def __iter__(self) -> Iterator[Cursor]:
        cursor = self.cursor
        for turn in count():
            if turn % self.ranks == self.rank:
                yield cursor
            cursor = self.after(cursor)


def _as_it_is(parts: list[Batch]) -> list[Batch]:
    return parts
