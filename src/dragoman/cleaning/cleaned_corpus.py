"""Cleaned text on disk: corpora read once, sifted by several processes, and kept as Arrow files until they are used.

    files → Pairs → sifted chunks → NAME-00000.arrow, NAME-00001.arrow, … → which rows are repeated

A part that is whole has its tally beside it. A spool that was interrupted goes on after its last whole part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dragoman.cleaning.decontamination import EvaluationTexts
from dragoman.cleaning.deduplication import DuplicateFinder, digest_pairs, digest_sources
from dragoman.cleaning.rules import Rule, build_rules
from dragoman.cleaning.statistics import CleaningStats, apply_filters
from dragoman.config import CleaningConfig, CorpusConfig, FilterName, Recipe
from dragoman.errors import RecipeError
from dragoman.formats.pair import Pair
from dragoman.formats.readers import read_pairs
from dragoman.io.storage import commit_file, write_json
from dragoman.runtime.processes import map_in_processes

# Pairs that are sifted and encoded at once: so many, or so many characters of them, whichever comes first.
CHUNK_PAIRS = 16_384
CHUNK_CHARACTERS = 2**22
PAIRS_PER_FILE = 64 * CHUNK_PAIRS
SCHEMA = pa.schema(
    [("source", pa.large_string()), ("target", pa.large_string()), ("origin", pa.large_string()), ("number", pa.int64())]
)

ProgressCallback = Callable[[str, int, int | None], None]
"""Told what is being done, how many pairs of it are done, and how many there are where that is known."""


@dataclass(frozen=True)
class FilterPipeline:
    """What sifts a chunk of pairs; sent to each process, where it makes its rules."""

    config: CleaningConfig
    source_language: str = ""
    target_language: str = ""
    evaluation: EvaluationTexts | None = None
    skip_filters: tuple[FilterName, ...] = ()

    @cached_property
    def rules(self) -> list[Rule]:
        return build_rules(
            self.config,
            source_language=self.source_language,
            target_language=self.target_language,
            evaluation=self.evaluation,
            skip_filters=self.skip_filters,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "rules"}

    def __call__(self, numbered_chunk: tuple[int, list[Pair]]) -> tuple[pa.RecordBatch, CleaningStats]:
        """The pairs that stay, and what became of the others; the chunk comes with the number of its first pair."""
        start_number, pairs = numbered_chunk
        kept_pairs, stats = apply_filters(pairs, self.rules)
        numbers: Sequence[int] = range(start_number, start_number + len(pairs))
        if len(kept_pairs) < len(pairs):
            numbers_by_id = {id(pair): number for number, pair in zip(numbers, pairs, strict=True)}
            numbers = [numbers_by_id[id(pair)] for pair in kept_pairs]
        columns = [
            [pair.source for pair in kept_pairs],
            [pair.target for pair in kept_pairs],
            [pair.origin for pair in kept_pairs],
            numbers,
        ]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        return pa.record_batch(arrays, schema=SCHEMA), stats


@dataclass
class CleanedCorpus:
    """The cleaned text of one corpus."""

    name: str
    files: list[Path]
    stats: CleaningStats
    is_repeated: npt.NDArray[np.bool_] | None = None
    """Of the rows of all parts, those that an earlier row of this or another corpus makes superfluous."""

    def __len__(self) -> int:
        """Pairs that stay."""
        return self.stats.num_kept

    @property
    def num_rows(self) -> int:
        """Rows of all parts, those included that do not stay."""
        return sum(sum(_count_batch_rows(path)) for path in self.files)

    def drop_rows(self, rule: FilterName, mask: npt.NDArray[np.bool_]) -> None:
        """Let these rows go, too."""
        already_repeated = self.is_repeated if self.is_repeated is not None else np.zeros_like(mask)
        newly_dropped = mask & ~already_repeated
        self.stats.add_rule(rule)
        row_offset = 0
        for path, index, _ in self.iter_batches():
            batch = read_batch(path, index)
            for pair in _batch_to_pairs(batch.filter(pa.array(newly_dropped[row_offset : row_offset + batch.num_rows]))):
                self.stats.count_drop(rule, pair)
            row_offset += batch.num_rows
        self.is_repeated = already_repeated | mask

    def iter_batches(self, file_index: int | None = None) -> Iterator[tuple[Path, int, npt.NDArray[np.bool_] | None]]:
        """Each record batch (of one part), as a file and an index, with which of its rows stay; all where that is None."""
        row_offset = 0
        for current_file, path in enumerate(self.files):
            for batch_index, num_rows in enumerate(_count_batch_rows(path)):
                keep_mask = None if self.is_repeated is None else ~self.is_repeated[row_offset : row_offset + num_rows]
                row_offset += num_rows
                if file_index in (None, current_file):
                    yield path, batch_index, keep_mask

    def iter_pairs(self) -> Iterator[Pair]:
        """The pairs that stay, in order."""
        for batch_reference in self.iter_batches():
            yield from _batch_to_pairs(read_batch(*batch_reference))


def _batch_to_pairs(batch: pa.RecordBatch) -> Iterator[Pair]:
    for source, target, origin in zip(*(batch.column(column_index).to_pylist() for column_index in range(3)), strict=True):
        yield Pair(source, target, origin)


def read_batch(path: Path, batch_index: int, keep_mask: npt.NDArray[np.bool_] | None = None) -> pa.RecordBatch:
    """One record batch of a part, less the rows that do not stay."""
    batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(batch_index)
    return batch if keep_mask is None else batch.filter(pa.array(keep_mask))


def _count_batch_rows(path: Path) -> list[int]:
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    return [reader.get_batch(index).num_rows for index in range(reader.num_record_batches)]


def clean_corpus(
    folder: Path,
    name: str,
    corpus: CorpusConfig,
    root: Path,
    filter_pipeline: FilterPipeline,
    *,
    processes: int,
    on_progress: ProgressCallback,
) -> CleanedCorpus:
    """Read, sift and keep a corpus in `folder`, going on after the parts that are whole."""
    finished = [] if corpus.reads_standard_input else _read_finished_records(folder, name)
    files = [folder / f"{name}-{number:05d}.arrow" for number in range(len(finished))]
    stats = CleaningStats.merge_all(CleaningStats.from_dict(record["tally"]) for record in finished)
    if finished and finished[-1]["last"]:
        return CleanedCorpus(name, files, stats)
    pairs = read_pairs(
        corpus, root, source_language=filter_pipeline.source_language, target_language=filter_pipeline.target_language
    )
    chunks = _split_into_chunks(islice(pairs, stats.num_read, None), start_number=stats.num_read + 1)
    # With nothing but empty sides to look for, handing pairs to another process takes longer than looking.
    results = map_in_processes(filter_pipeline, chunks, num_processes=processes if len(filter_pipeline.rules) > 1 else 1)
    is_last = False
    while not is_last:
        path = folder / f"{name}-{len(files):05d}.arrow"
        file_stats = CleaningStats()
        partial_path = path.with_suffix(".partial")
        with pa.OSFile(str(partial_path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            is_last = True
            for batch, batch_stats in results:
                writer.write_batch(batch)
                file_stats = file_stats.merge(batch_stats)
                on_progress(f"reading {name}", stats.num_read + file_stats.num_read, None)
                if file_stats.num_read >= PAIRS_PER_FILE:
                    is_last = False
                    break
        commit_file(partial_path, path)
        write_json(path.with_suffix(".json"), {"last": is_last, "tally": file_stats.to_dict()}, overwrite=True)
        files.append(path)
        stats = stats.merge(file_stats)
    return CleanedCorpus(name, files, stats)


def _read_finished_records(folder: Path, name: str) -> list[dict[str, Any]]:
    """What stands beside the parts that are whole, up to the first that is not."""
    records: list[dict[str, Any]] = []
    while (path := folder / f"{name}-{len(records):05d}.json").exists() and path.with_suffix(".arrow").exists():
        records.append(json.loads(path.read_bytes()))
    return records


def _split_into_chunks(pairs: Iterable[Pair], *, start_number: int) -> Iterator[tuple[int, list[Pair]]]:
    chunk: list[Pair] = []
    characters = 0
    for pair in pairs:
        chunk.append(pair)
        characters += len(pair.source) + len(pair.target)
        if len(chunk) == CHUNK_PAIRS or characters > CHUNK_CHARACTERS:
            yield start_number, chunk
            start_number += len(chunk)
            chunk, characters = [], 0
    if chunk:
        yield start_number, chunk


def mark_duplicates(
    cleaned_corpora: Sequence[CleanedCorpus],
    folder: Path,
    config: CleaningConfig,
    skip_filters: Sequence[Sequence[str]],
    *,
    processes: int,
) -> None:
    """Mark the rows that repeat an earlier one, across all corpora in their order, as the rules on duplicates ask."""
    rules: list[tuple[FilterName, bool]] = [
        ("duplicate-pair", config.duplicate_pairs),
        ("duplicate-source", config.duplicate_sources),
    ]
    for rule, is_enabled in rules:
        if not is_enabled:
            continue
        batch_references = [
            batch_reference[:2] for cleaned_corpus in cleaned_corpora for batch_reference in cleaned_corpus.iter_batches()
        ]
        with DuplicateFinder(folder / rule) as finder:
            for digests in map_in_processes(partial(_compute_digests, rule), batch_references, num_processes=processes):
                finder.add(digests)
            is_repeated = finder.find_repeated()
        row_ends = np.cumsum([spool.num_rows for spool in cleaned_corpora])
        for spool, mask, skipped_filters in zip(
            cleaned_corpora, np.split(is_repeated, row_ends[:-1]), skip_filters, strict=True
        ):
            if rule not in skipped_filters:
                spool.drop_rows(rule, mask)


def _compute_digests(rule: FilterName, batch_reference: tuple[Path, int]) -> npt.NDArray[np.uint64]:
    batch = read_batch(*batch_reference)
    sources = batch.column(0).to_pylist()
    return digest_sources(sources) if rule == "duplicate-source" else digest_pairs(sources, batch.column(1).to_pylist())


def clean_training_corpora(
    recipe: Recipe, folder: Path, *, processes: int, on_progress: ProgressCallback
) -> list[CleanedCorpus]:
    """Read and clean the corpora that the recipe learns from, each into its files in `folder`."""
    root, cleaning = Path(recipe.data.root), recipe.data.cleaning
    corpora = recipe.data.training_corpora()
    if not corpora:
        raise RecipeError("data.train is not given: name the files to learn from, or those of a mixture in data.corpora")
    filter_pipeline = FilterPipeline(cleaning, recipe.task.source_language, recipe.task.target_language)
    if cleaning.eval_overlap:
        filter_pipeline = replace(filter_pipeline, evaluation=EvaluationTexts.from_pairs(_read_evaluation_pairs(recipe, root)))
    folder.mkdir(parents=True, exist_ok=True)
    cleaned_corpora = []
    for name, corpus in corpora.items():
        corpus_pipeline = replace(filter_pipeline, exempt=tuple(corpus.skip_filters))
        cleaned_corpora.append(
            clean_corpus(folder, name, corpus, root, corpus_pipeline, processes=processes, on_progress=on_progress)
        )
    skip_filters = [corpus.skip_filters for corpus in corpora.values()]
    mark_duplicates(cleaned_corpora, folder, cleaning, skip_filters, processes=processes)
    return cleaned_corpora


def _read_evaluation_pairs(recipe: Recipe, root: Path) -> Iterator[Pair]:
    languages = {"source_language": recipe.task.source_language, "target_language": recipe.task.target_language}
    for corpus in (recipe.data.valid, recipe.data.test):
        if corpus is not None:
            yield from read_pairs(corpus, root, **languages)
