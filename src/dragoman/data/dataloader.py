"""Endless sequence of training batches from any position on, built in this process or ahead of time in worker processes.

The sequence depends on the seed, the epoch and the recipe only. It is the same for any number of workers, and all ranks
together read the same sequence for any number of ranks. A position in it is two integers.
"""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
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
from dragoman.data.term_noise import Term, find_known_terms, find_linked_terms, read_term_file
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer, read_recipe_tokenizer
from dragoman.data.tokenization.sentencepiece import derive_sampling_seed
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.data.tokenization.word_boundaries import NO_ALIGNMENT, PairTokens
from dragoman.errors import WorkerLostError
from dragoman.platform_features import get_signals
from dragoman.runtime.processes import block_signals
from dragoman.text.glossary import Glossary, get_lemmatizer


@dataclass(frozen=True)
class DataPosition:
    """Position in the endless sequence of batches: the next batch is number `batch` of epoch `epoch`."""

    epoch: int = 0
    batch: int = 0


@dataclass(eq=False)
class TrainingBatches(Dataset[list[Batch]]):
    """Batches of a prepared folder by position. Files open at first use, so that the object can be sent to a worker process.

    start_id: first id that the decoder reads
    """

    recipe: Recipe
    folder: Path
    start_id: int

    @property
    def corpus_names(self) -> list[str]:
        """Names of the directions, sorted, because the order of the corpora in the recipe must not change the batches."""
        return sorted(self.recipe.training_directions)

    def __getstate__(self) -> dict[str, object]:
        """Return the attributes without the opened files, which a worker process opens itself."""
        cached = {"sampler", "corpora", "tokenizer", "noise", "term_file", "link_tables", "pair_tokens"}
        return {name: value for name, value in self.__dict__.items() if name not in cached}

    @cached_property
    def sampler(self) -> BatchSampler:
        tables = [LengthTable(get_lengths_file(self.folder, get_training_prefix(name))) for name in self.corpus_names]
        sizes = {name: len(table) for name, table in zip(self.corpus_names, tables, strict=True)}
        training = self.recipe.training
        return BatchSampler(
            tables,
            Mixture.from_config(self.recipe.data, sizes, self.recipe.training_directions),
            batch_tokens=training.batch_tokens,
            seed=training.seed,
        )

    @cached_property
    def corpora(self) -> list[Corpus]:
        return [Corpus(list_pair_files(self.folder, get_training_prefix(name))) for name in self.corpus_names]

    @cached_property
    def tokenizer(self) -> PairTokenizer:
        return read_recipe_tokenizer(self.folder, self.recipe)

    @cached_property
    def noise(self) -> PairNoise:
        has_marks = self.tokenizer.marked is not None
        return PairNoise(self.recipe.data.noise, seed=self.recipe.training.seed, has_marks=has_marks)

    @cached_property
    def term_file(self) -> Glossary | None:
        return read_term_file(self.recipe.data, self.recipe.default_pair)

    @cached_property
    def link_tables(self) -> list[LinkTable]:
        """Word alignment of each corpus, for guided alignment and for terms."""
        return [LinkTable(get_links_file(self.folder, get_training_prefix(name))) for name in self.corpus_names]

    @cached_property
    def pair_tokens(self) -> PairTokens:
        """Word boundaries of both sides, for guided alignment and for terms."""
        return PairTokens(self.tokenizer)

    def count_batches(self, epoch: int) -> int:
        return len(self.sampler.plan_epoch(epoch))

    def __getitem__(self, position: DataPosition) -> list[Batch]:
        """Return the batch at a position, in several parts if noise has changed the lengths of its pairs."""
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
            for row in noisy_rows:  # noise changes the words, so their links no longer hold
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
        """Add noise and sample subwords in place; a pair that would exceed data.max_length stays unchanged.

        The random numbers depend on the seed, the epoch and the position. Return the rows that noise may have changed.
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
                    epoch,
                    position,
                    source,
                    target,
                    partial(self._decode_pair, corpus, (pair + 1) % len(self.corpora[corpus])),
                    partial(self._find_terms, corpus, pair, source, target),
                )
            tokenizer = self.tokenizer.marked or self.tokenizer if is_noisy[row] else self.tokenizer
            ids = []
            for side, (vocabulary, text) in enumerate(((tokenizer.source, source), (tokenizer.target, target))):
                seed = derive_sampling_seed(self.recipe.training.seed, epoch, position, side)
                ids.append(vocabulary.sample_encode(text, alpha=alpha, seed=seed) if alpha else vocabulary.encode(text))
            source_prefix, target_prefix = self._get_prefixes(corpus, pair)
            if all(ids) and max(len(source_prefix) + len(ids[0]), len(target_prefix) + len(ids[1])) < limit:
                sources[row] = np.array([*source_prefix, *ids[0], *([END_ID] if self.tokenizer.append_source_eos else [])])
                targets[row] = np.array([*target_prefix, *ids[1]])
        return [int(row) for row in np.flatnonzero(is_noisy)]

    def _get_prefixes(self, corpus: int, pair: int) -> tuple[list[int], list[int]]:
        """Return the ids before the texts of the source and of the target of a pair; see `PairTokenizer.prefixes`."""
        num_source, num_target = self.tokenizer.prefix_lengths
        return (
            self.corpora[corpus].source(pair)[:num_source].tolist(),
            self.corpora[corpus].target(pair)[:num_target].tolist(),
        )

    def _decode_pair(self, corpus: int, pair: int) -> tuple[str, str]:
        """Return both texts of a pair, without the tokens and the text that `_get_prefixes` returns."""
        num_source, num_target = self.tokenizer.prefix_lengths
        source = self.corpora[corpus].source(pair).tolist()[num_source : -1 if self.tokenizer.append_source_eos else None]
        target = self.corpora[corpus].target(pair).tolist()[num_target:]
        return self.tokenizer.source.decode(source), self.tokenizer.target.decode(target)

    def _find_terms(self, corpus: int, pair: int, source: str, target: str) -> list[Term]:
        """Return the terms of a pair; none if the tokenizer changes the number of its words."""
        if self.term_file is not None:
            return find_known_terms(source, target, self.term_file)
        source_ids = self.pair_tokens.strip_source_eos(self.corpora[corpus].source(pair))
        sides = (self.pair_tokens.source, source_ids), (self.pair_tokens.target, self.corpora[corpus].target(pair))
        word_counts = tuple(words.count_words(ids) for words, ids in sides)
        prefix_lengths = self.tokenizer.prefix_lengths
        offsets = [words.count_words(ids[:length]) for (words, ids), length in zip(sides, prefix_lengths, strict=True)]
        direction = self.recipe.training_directions[self.corpus_names[corpus]]
        if word_counts != tuple(len(text.split(" ")) + offset for text, offset in zip((source, target), offsets, strict=True)):
            return []
        links = self.link_tables[corpus][pair] - np.array(offsets, dtype=np.int32)
        links = links[links.min(axis=1, initial=0) >= 0]
        return find_linked_terms(source, target, links, get_lemmatizer(direction.target_language))


class BatchStream:
    """Endless sequence of batches from a position on. Ranks take batches in turn and share the position.

    num_workers: worker processes that build batches ahead of time; with 0, this process builds them
    pin_memory: copy batches to page-locked memory
    """

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
        """Return the passes over the corpora so far."""
        return self.position.epoch + self.position.batch / self.batches.count_batches(self.position.epoch)

    def next_batch(self) -> list[Batch]:
        """Return this rank's next batch, in parts. The first call starts the workers, and `close` ends them."""
        if self._iterator is None:
            self._iterator = map(self.batches.__getitem__, self._sampler)
            if self._num_workers:
                self._iterator = _prefetch_batches(self.batches, self._sampler, self._num_workers, pin_memory=self._pin_memory)
        parts = next(self._iterator)
        for _ in range(self.world_size):
            self.position = self._sampler.next_position(self.position)
        return parts

    def close(self) -> None:
        self._iterator = iter(())


@contextmanager
def translate_worker_errors() -> Iterator[None]:
    """Raise WorkerLostError if a worker process of the data loader ended; torch reports that by several exceptions."""
    try:
        yield
    except (RuntimeError, ConnectionError, EOFError) as error:
        if isinstance(error, RuntimeError) and "DataLoader worker (pid" not in str(error):
            raise
        _reap_ended_worker()
        raise WorkerLostError(
            "data.num_workers: a worker process was killed, perhaps for lack of memory; lower it or set it to 0"
        ) from None


def _reap_ended_worker() -> None:
    """Wait until the system has ended the lost worker.

    The system closes the connections of a killed process first, and sends SIGCHLD later. The handler of torch raises
    RuntimeError wherever the main thread is then.
    """
    with suppress(RuntimeError):
        workers = {process.sentinel: process for process in multiprocessing.active_children()}
        ended = multiprocessing.connection.wait(list(workers), timeout=5) if workers else []
        for sentinel, process in workers.items():
            if sentinel in ended:
                process.join(5)


def _prefetch_batches(
    batches: TrainingBatches, sampler: _RankSampler, num_workers: int, *, pin_memory: bool
) -> Iterator[list[Batch]]:
    """Return an iterator over batches from worker processes, in the order of the sampler."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # the recipe may ask for more workers than cores
        loader: DataLoader[list[Batch]] = DataLoader(
            batches,
            batch_size=None,
            sampler=sampler,
            num_workers=num_workers,
            prefetch_factor=4,
            collate_fn=list,
            pin_memory=pin_memory,
            worker_init_fn=_exit_without_cleanup,
            multiprocessing_context="spawn",
            generator=torch.Generator(),  # the loader draws a seed, which must not change the generator of the training
        )
        # The training process handles stop signals, and ends the workers after the current batch.
        with block_signals(*get_signals("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")), _keep_child_handler():
            return iter(loader)


@contextmanager
def _keep_child_handler() -> Iterator[None]:
    """Restore the handler of SIGCHLD after the block.

    That of torch raises RuntimeError for a lost worker wherever the main thread is then, so a step could be half done. Without
    it, the next batch raises the error, and the state of the run is that of the last step.
    """
    numbers = get_signals("SIGCHLD") if threading.current_thread() is threading.main_thread() else ()
    handlers = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in handlers.items():
        if handler is not None:
            signal.signal(number, handler)


def _exit_without_cleanup(worker_id: int) -> None:
    """Exit without the interpreter's cleanup, which would abort while a thread of torch still sends a batch."""
    atexit.register(os._exit, 0)


class _RankSampler(Sampler[DataPosition]):
    """Positions of this rank's batches."""

    def __init__(self, batches: TrainingBatches, position: DataPosition, rank: int, world_size: int) -> None:
        self.batches = batches
        self.position = position
        self.rank = rank
        self.world_size = world_size

    def next_position(self, position: DataPosition) -> DataPosition:
        """Return the following position; after the last batch of an epoch, the start of the next."""
        if position.batch + 1 < self.batches.count_batches(position.epoch):
            return DataPosition(position.epoch, position.batch + 1)
        return DataPosition(position.epoch + 1, 0)

    def __iter__(self) -> Iterator[DataPosition]:
        position = self.position
        for index in count():
            if index % self.world_size == self.rank:
                yield position
            position = self.next_position(position)
