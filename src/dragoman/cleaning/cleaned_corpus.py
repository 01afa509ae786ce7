"""Cleaned text on disk: several processes filter each corpus once and write it as Arrow files.

    files → Pairs → filtered chunks → NAME-00000.arrow, NAME-00001.arrow, … → mask of repeated rows

A finished file has its statistics in a JSON file beside it. An interrupted run continues after the last finished file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dragoman.cleaning.decontamination import EvaluationTexts
from dragoman.cleaning.deduplication import DuplicateFinder, digest_pairs, digest_sources
from dragoman.cleaning.enabled_filters import PairFilter, iter_enabled
from dragoman.cleaning.statistics import CleaningStats, apply_filters
from dragoman.cleaning.total_estimator import TotalEstimator
from dragoman.config import CleaningConfig, CorpusConfig, DataConfig, Direction, FilterName, Recipe
from dragoman.errors import RecipeError
from dragoman.formats.pair import Pair
from dragoman.formats.parquet import atomic_arrow_file
from dragoman.formats.readers import read_pairs
from dragoman.io.storage import write_json
from dragoman.runtime.processes import MapFunction, map_in_processes

# Size of a chunk, which one process filters or encodes at once: the first limit that is reached counts.
CHUNK_PAIRS = 16_384
CHUNK_CHARACTERS = 2**22
PAIRS_PER_FILE = 64 * CHUNK_PAIRS
SCHEMA = pa.schema(
    [("source", pa.large_string()), ("target", pa.large_string()), ("origin", pa.large_string()), ("number", pa.int64())]
)

ProgressCallback = Callable[[str, int, int | None], None]
"""Callback with the name of the task, the pairs that are done, and their total if it is known."""


@dataclass(frozen=True)
class FilterPipeline:
    """Filters of one corpus, applied to chunks of pairs. Each process builds the filters for itself.

    root_names: folder of the files, and the URL that takes its place in the origins of the pairs; None to keep the origins
    """

    config: CleaningConfig
    source_language: str = ""
    target_language: str = ""
    evaluation: EvaluationTexts | None = None
    skip_filters: tuple[FilterName, ...] = ()
    root_names: tuple[str, str] | None = None

    @cached_property
    def filters(self) -> list[PairFilter]:
        """Enabled filters in their order. A skipped filter is never built. Raises the errors of `iter_enabled`."""
        enabled = iter_enabled(self.config, self.source_language, self.target_language, self.evaluation)
        return [
            PairFilter(name, text, make_predicate()) for name, text, make_predicate in enabled if name not in self.skip_filters
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "filters"}

    def __call__(self, numbered_chunk: tuple[int, list[Pair]]) -> tuple[pa.RecordBatch, CleaningStats]:
        """Return the kept pairs as a record batch, and the statistics.

        numbered_chunk: number of the first pair in its corpus, counted from 1, and the pairs
        """
        start_number, pairs = numbered_chunk
        if self.root_names is not None:
            folder, url = self.root_names
            pairs = [replace(pair, origin=url + pair.origin.removeprefix(folder)) for pair in pairs]
        kept_pairs, stats = apply_filters(pairs, self.filters)
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


class BatchReference(NamedTuple):
    """Place of a record batch on disk, which is cheaper to send to a process of this machine than its rows.

    keep_mask: mask over the rows, True for those that count; None if all do
    """

    path: Path
    batch_index: int
    keep_mask: npt.NDArray[np.bool_] | None = None

    def read_all(self) -> pa.RecordBatch:
        return pa.ipc.open_file(pa.memory_map(str(self.path))).get_batch(self.batch_index)

    def read(self) -> pa.RecordBatch:
        batch = self.read_all()
        return batch if self.keep_mask is None else batch.filter(pa.array(self.keep_mask))


def read_batch(batch: BatchReference | pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of a reference. A batch, which a worker on another machine gets, comes back unchanged."""
    return batch.read() if isinstance(batch, BatchReference) else batch


@dataclass
class CleanedCorpus:
    """Cleaned text of one corpus.

    is_repeated: mask over the rows of all files; True for rows that repeat an earlier row of this or another corpus
    """

    name: str
    files: list[Path]
    stats: CleaningStats
    is_repeated: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return self.stats.num_kept

    @property
    def num_rows(self) -> int:
        """Return the number of rows in all files, repeated rows included."""
        return sum(sum(_count_batch_rows(path)) for path in self.files)

    def drop_rows(self, filter_name: FilterName, mask: npt.NDArray[np.bool_]) -> None:
        """Drop the rows of the mask, and count those that were kept until now under the filter."""
        already_repeated = self.is_repeated if self.is_repeated is not None else np.zeros_like(mask)
        newly_dropped = mask & ~already_repeated
        self.stats.add_filter(filter_name)
        row_offset = 0
        for reference in self.iter_batches():
            batch = reference.read_all()
            for pair in _batch_to_pairs(batch.filter(pa.array(newly_dropped[row_offset : row_offset + batch.num_rows]))):
                self.stats.count_drop(filter_name, pair)
            row_offset += batch.num_rows
        self.is_repeated = already_repeated | mask

    def iter_batches(self, file_index: int | None = None) -> Iterator[BatchReference]:
        """Yield the reference of each record batch, or of those in one file."""
        row_offset = 0
        for current_file, path in enumerate(self.files):
            for batch_index, num_rows in enumerate(_count_batch_rows(path)):
                keep_mask = None if self.is_repeated is None else ~self.is_repeated[row_offset : row_offset + num_rows]
                row_offset += num_rows
                if file_index in (None, current_file):
                    yield BatchReference(path, batch_index, keep_mask)

    def iter_pairs(self) -> Iterator[Pair]:
        for batch_reference in self.iter_batches():
            yield from _batch_to_pairs(batch_reference.read())


def _batch_to_pairs(batch: pa.RecordBatch) -> Iterator[Pair]:
    for source, target, origin in zip(*(batch.column(column_index).to_pylist() for column_index in range(3)), strict=True):
        yield Pair(source, target, origin)


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
    map_items: MapFunction = map_in_processes,
) -> CleanedCorpus:
    """Filter a corpus into files in `folder`, and continue after the files that are finished."""
    finished = [] if corpus.reads_standard_input else _read_finished_records(folder, name)
    files = [folder / f"{name}-{number:05d}.arrow" for number in range(len(finished))]
    stats = CleaningStats.merge_all(CleaningStats.from_dict(record["stats"]) for record in finished)
    if finished and finished[-1]["is_last"]:
        return CleanedCorpus(name, files, stats)
    estimator = TotalEstimator(corpus, root)
    if not stats.num_read:
        on_progress(f"cleaning {name}", 0, None)
    pairs = read_pairs(
        corpus, root, source_language=filter_pipeline.source_language, target_language=filter_pipeline.target_language
    )
    chunks = split_into_chunks(islice(estimator.count(pairs), stats.num_read, None), start_number=stats.num_read + 1)
    # The filter for empty sides alone is faster than sending the pairs to another process.
    results = map_items(filter_pipeline, chunks, num_processes=processes if len(filter_pipeline.filters) > 1 else 1)
    is_last = False
    while not is_last:
        path = folder / f"{name}-{len(files):05d}.arrow"
        file_stats, is_last = CleaningStats(), True
        with atomic_arrow_file(path, SCHEMA) as writer:
            for batch, batch_stats in results:
                writer.write_batch(batch)
                file_stats = file_stats.merge(batch_stats)
                on_progress(f"cleaning {name}", stats.num_read + file_stats.num_read, estimator.estimate())
                if file_stats.num_read >= PAIRS_PER_FILE:
                    is_last = False
                    break
        write_json(path.with_suffix(".json"), {"is_last": is_last, "stats": file_stats.to_dict()}, overwrite=True)
        files.append(path)
        stats = stats.merge(file_stats)
    return CleanedCorpus(name, files, stats)


def _read_finished_records(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the records beside the finished files, up to the first unfinished file."""
    records: list[dict[str, Any]] = []
    while (path := folder / f"{name}-{len(records):05d}.json").exists() and path.with_suffix(".arrow").exists():
        records.append(json.loads(path.read_bytes()))
    return records


def split_into_chunks(pairs: Iterable[Pair], *, start_number: int) -> Iterator[tuple[int, list[Pair]]]:
    """Yield chunks of pairs, each with the number of its first pair."""
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
    on_progress: ProgressCallback = lambda *_: None,
    map_items: MapFunction = map_in_processes,
) -> None:
    """Drop the rows that repeat an earlier row, across all corpora in their order, if the filters for duplicates are on.

    skip_filters: names of the filters that each corpus skips
    """
    num_rows = sum(cleaned_corpus.num_rows for cleaned_corpus in cleaned_corpora)
    filters: dict[FilterName, bool] = {
        "duplicate-pair": config.duplicate_pairs,
        "duplicate-source": config.duplicate_sources,
    }
    for filter_name in (name for name, is_enabled in filters.items() if is_enabled):
        batch_references = [
            batch_reference._replace(keep_mask=None)
            for cleaned_corpus in cleaned_corpora
            for batch_reference in cleaned_corpus.iter_batches()
        ]
        with DuplicateFinder(folder / filter_name) as finder:
            compute = partial(_compute_digests, filter_name)
            for digests in map_items(compute, batch_references, num_processes=processes):
                finder.add(digests)
                on_progress(f"finding {filter_name} rows", finder.num_rows, num_rows)
            is_repeated = finder.find_repeated()
        row_ends = np.cumsum([cleaned_corpus.num_rows for cleaned_corpus in cleaned_corpora])
        masks = np.split(is_repeated, row_ends[:-1])
        for cleaned_corpus, mask, skipped_filters in zip(cleaned_corpora, masks, skip_filters, strict=True):
            if filter_name not in skipped_filters:
                cleaned_corpus.drop_rows(filter_name, mask)


def _compute_digests(filter_name: FilterName, batch: BatchReference | pa.RecordBatch) -> npt.NDArray[np.uint64]:
    """Return the digests of a batch's rows that a filter for duplicates compares, of shape (rows, 2)."""
    batch = read_batch(batch)
    sources = batch.column(0).to_pylist()
    if filter_name == "duplicate-source":
        return digest_sources(sources)
    return digest_pairs(sources, batch.column(1).to_pylist())


def clean_training_corpora(
    data: DataConfig,
    filter_pipelines: Mapping[str, FilterPipeline],
    folder: Path,
    *,
    processes: int,
    on_progress: ProgressCallback,
    map_items: MapFunction = map_in_processes,
) -> list[CleanedCorpus]:
    """Clean the training corpora into files in `folder`.

    filter_pipelines: filters of each corpus by its name
    """
    root, corpora = Path(data.root), data.training_corpora()
    folder.mkdir(parents=True, exist_ok=True)
    cleaned_corpora = [
        clean_corpus(
            folder,
            name,
            corpora[name],
            root,
            filter_pipeline,
            processes=processes,
            on_progress=on_progress,
            map_items=map_items,
        )
        for name, filter_pipeline in filter_pipelines.items()
    ]
    skip_filters = [corpus.skip_filters for corpus in corpora.values()]
    mark_duplicates(
        cleaned_corpora,
        folder,
        data.cleaning,
        skip_filters,
        processes=processes,
        on_progress=on_progress,
        map_items=map_items,
    )
    return cleaned_corpora


def build_filter_pipelines(recipe: Recipe) -> dict[str, FilterPipeline]:
    """Return the filters of each training corpus by its name. Raises RecipeError if the recipe names no corpus."""
    corpora = recipe.data.training_corpora()
    if not corpora:
        raise RecipeError(
            "data.train: is not set; name the training files in it, or those of a mixture in data.corpora", code="missing-key"
        )
    filter_pipeline = FilterPipeline(recipe.data.cleaning)
    if recipe.data.cleaning.eval_overlap:
        directions = [*recipe.evaluation_directions("valid").values(), *recipe.evaluation_directions("test").values()]
        pairs = _read_evaluation_pairs(directions, Path(recipe.data.root))
        filter_pipeline = replace(filter_pipeline, evaluation=EvaluationTexts.from_pairs(pairs))
    return {
        name: replace(
            filter_pipeline,
            source_language=recipe.training_directions[name].source_language,
            target_language=recipe.training_directions[name].target_language,
            skip_filters=tuple(corpus.skip_filters),
        )
        for name, corpus in corpora.items()
    }


def _read_evaluation_pairs(directions: Iterable[Direction], root: Path) -> Iterator[Pair]:
    for direction in directions:
        if not direction.is_reversed:  # the filter compares both sides with both sides
            languages = {"source_language": direction.source_language, "target_language": direction.target_language}
            yield from read_pairs(direction.corpus, root, **languages)
