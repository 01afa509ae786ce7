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
from dragoman.data.batch_sampler import BatchIndices, BatchSampler
from dragoman.data.collate import Batch, collate_with_budget
from dragoman.data.encoded_corpus import Corpus, Ids, LengthTable, get_lengths_file, list_pair_files
from dragoman.data.link_table import LinkTable, get_links_file
from dragoman.data.mixture import Mixture
from dragoman.data.noise import PairNoise
from dragoman.data.prepare import get_training_prefix
from dragoman.data.tokenization.sentencepiece import derive_sampling_seed
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.data.tokenization.tokenizer import PairTokenizer, read_tokenizer
from dragoman.data.tokenization.word_boundaries import NO_ALIGNMENT, PairTokens
from dragoman.errors import WorkerLostError
from dragoman.runtime.processes import block_signals


@dataclass(frozen=True)
class DataPosition:
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
        self.noise = PairNoise(recipe.data.noise, seed=recipe.training.seed)

    def __getstate__(self) -> dict[str, object]:
        cached = {"order", "corpora", "tokeniser", "links", "sides"}
        return {name: value for name, value in self.__dict__.items() if name not in cached}

    @cached_property
    def sampler(self) -> BatchSampler:
        tables = [LengthTable(get_lengths_file(self.folder, get_training_prefix(name))) for name in self.corpus_names]
        sizes = {name: len(table) for name, table in zip(self.corpus_names, tables, strict=True)}
        training = self.recipe.training
        return BatchSampler(
            tables, Mixture.from_config(self.recipe.data, sizes), batch_tokens=training.batch_tokens, seed=training.seed
        )

    @cached_property
    def corpora(self) -> list[Corpus]:
        return [Corpus(list_pair_files(self.folder, get_training_prefix(name))) for name in self.corpus_names]

    @cached_property
    def tokenizer(self) -> PairTokenizer:
        return read_tokenizer(self.folder, self.recipe.tokenizer, append_source_eos=self.recipe.model.append_source_eos)

    @cached_property
    def link_tables(self) -> list[LinkTable]:
        return [LinkTable(get_links_file(self.folder, get_training_prefix(name))) for name in self.corpus_names]

    @cached_property
    def pair_tokens(self) -> PairTokens:
        return PairTokens(self.tokenizer)

    def count_batches(self, epoch: int) -> int:
        return len(self.sampler.plan_epoch(epoch))

    def __getitem__(self, position: DataPosition) -> list[Batch]:
        """The batch at this place, in more than one part where modifiers changed the lengths of its pairs."""
        indices = self.sampler.get_batch(position.epoch, position.batch)
        pairs = list(zip(indices.corpus_indices.tolist(), indices.pair_indices.tolist(), strict=True))
        sources = [self.corpora[corpus].source(pair) for corpus, pair in pairs]
        targets = [self.corpora[corpus].target(pair) for corpus, pair in pairs]
        noisy_rows: Iterable[int] = ()
        if is_changed := bool(self.noise or self.recipe.tokenizer.sampling_alpha):
            noisy_rows = self._apply_noise(position.epoch, indices, sources, targets)
        alignment_targets = None
        if self.recipe.training.guided_alignment_weight:
            links = [self.link_tables[corpus][pair] for corpus, pair in pairs]
            alignment_targets = [
                self.pair_tokens.build_alignment_target(*sample) for sample in zip(links, sources, targets, strict=True)
            ]
            for row in noisy_rows:  # into other words than those that were linked
                alignment_targets[row] = NO_ALIGNMENT
        budget = self.recipe.training.batch_tokens
        return collate_with_budget(
            sources,
            targets,
            batch_tokens=budget,
            start_id=self.start_id,
            alignment_targets=alignment_targets,
            reduce_padding=is_changed,
        )

    def _apply_noise(self, epoch: int, indices: BatchIndices, sources: list[Ids], targets: list[Ids]) -> list[int]:
        """Modify and split anew, in place, by chance of (seed, epoch, slot); what would then exceed data.max_length stays.

        Returns the rows that may have been modified.
        """
        alpha, limit = self.recipe.tokenizer.sampling_alpha, self.recipe.data.max_length
        is_noisy = self.noise.select_noisy(epoch, indices.positions)
        for row in range(len(indices)) if alpha else np.flatnonzero(is_noisy).tolist():
            corpus, pair, position = (
                int(indices.corpus_indices[row]),
                int(indices.pair_indices[row]),
                int(indices.positions[row]),
            )
            source, target = self._decode_pair(corpus, pair)
            if is_noisy[row]:
                source, target = self.noise.apply(
                    epoch, position, source, target, partial(self._decode_next_pair, corpus, pair)
                )
            ids = []
            for side, (vocabulary, text) in enumerate(((self.tokenizer.source, source), (self.tokenizer.target, target))):
                seed = derive_sampling_seed(self.recipe.training.seed, epoch, position, side)
                ids.append(vocabulary.sample_encode(text, alpha=alpha, seed=seed) if alpha else vocabulary.encode(text))
            if all(ids) and max(map(len, ids)) < limit:
                sources[row] = np.array([*ids[0], END_ID] if self.tokenizer.append_source_eos else ids[0])
                targets[row] = np.array(ids[1])
        return [int(row) for row in np.flatnonzero(is_noisy)]

    def _decode_pair(self, corpus: int, pair: int) -> tuple[str, str]:
        source = self.corpora[corpus].source(pair).tolist()
        has_eos = self.tokenizer.append_source_eos
        target = self.corpora[corpus].target(pair).tolist()
        return self.tokenizer.source.decode(source[:-1] if has_eos else source), self.tokenizer.target.decode(target)

    def _decode_next_pair(self, corpus: int, pair: int) -> tuple[str, str]:
        return self._decode_pair(corpus, (pair + 1) % len(self.corpora[corpus]))


class BatchStream:
    """The endless sequence of batches from a cursor on. Several ranks take turns; the cursor is theirs together."""

    def __init__(
        self,
        batches: TrainingBatches,
        *,
        position: DataPosition,
        num_workers: int = 0,
        rank: int = 0,
        world_size: int = 1,
        pin_memory: bool = False,
    ) -> None:
        self.batches = batches
        self.position = position
        self.world_size = world_size
        self._sampler = _RankSampler(batches, position, rank, world_size)
        self._num_workers = num_workers
        self._pin_memory = pin_memory
        self._iterator: Iterator[list[Batch]] | None = None

    def count_epochs(self) -> float:
        """Passes over the corpora so far."""
        return self.position.epoch + self.position.batch / self.batches.count_batches(self.position.epoch)

    def next_batch(self) -> list[Batch]:
        """This rank's next batch, in parts. The first call starts the loaders, which `close` ends."""
        if self._iterator is None:
            self._iterator = self._start()
        parts = next(self._iterator)
        for _ in range(self.world_size):
            self.position = self._sampler.next_position(self.position)
        return parts

    def _start(self) -> Iterator[list[Batch]]:
        if self._num_workers:
            return _prefetch_batches(self.batches, self._sampler, self._num_workers, pin_memory=self._pin_memory)
        return map(self.batches.__getitem__, iter(self._sampler))

    def close(self) -> None:
        """End the loaders."""
        self._iterator = iter(())


@contextmanager
def translate_worker_errors() -> Iterator[None]:
    """Raise LostProcessError where a loader process ended, which torch tells anywhere in the code, in many ways."""
    try:
        yield
    except (RuntimeError, ConnectionError, EOFError) as error:
        if isinstance(error, RuntimeError) and "DataLoader worker (pid" not in str(error):
            raise
        raise WorkerLostError(
            "a process that makes batches ahead has ended, for want of memory perhaps; lower data.num_workers or set it to 0"
        ) from None


def _prefetch_batches(
    batches: TrainingBatches, sampler: _RankSampler, num_workers: int, *, pin_memory: bool
) -> Iterator[list[Batch]]:
    """Batches from other processes, in the order of the turns."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # more loaders than cores are the recipe's wish
        loader: DataLoader[list[Batch]] = DataLoader(
            batches,
            batch_size=None,
            sampler=sampler,
            num_workers=num_workers,
            prefetch_factor=4,
            collate_fn=_identity,
            pin_memory=pin_memory,
            worker_init_fn=_exit_without_cleanup,
            multiprocessing_context="spawn",
            generator=torch.Generator(),  # the loader draws a seed, which must not come from training's own
        )
        # Signals that ask to stop are for the process that trains; it ends these when the batch in hand is done.
        with block_signals(signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            return iter(loader)


def _exit_without_cleanup(worker_id: int) -> None:
    """A thread that still sends a batch is in torch's code: the interpreter's own end would end it there, and abort."""
    atexit.register(os._exit, 0)


class _RankSampler(Sampler[DataPosition]):
    """Every place in the sequence that is this rank's turn."""

    def __init__(self, batches: TrainingBatches, position: DataPosition, rank: int, world_size: int) -> None:
        self.batches = batches
        self.position = position
        self.rank = rank
        self.world_size = world_size

    def next_position(self, position: DataPosition) -> DataPosition:
        """The next place: an epoch ends where its batches do."""
        if position.batch + 1 < self.batches.count_batches(position.epoch):
            return DataPosition(position.epoch, position.batch + 1)
        return DataPosition(position.epoch + 1, 0)

    def __iter__(self) -> Iterator[DataPosition]:
        position = self.position
        for index in count():
            if index % self.world_size == self.rank:
                yield position
            position = self.next_position(position)


def _identity(parts: list[Batch]) -> list[Batch]:
    return parts
