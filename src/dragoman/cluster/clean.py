"""Cleaning of a recipe's training corpora in shards.

    pairs → chunks → workers filter → Arrow file, statistics and digests of each chunk
    digests, by their first byte → workers find repeated rows → mask over the rows of all corpora

The chunks are those of one machine, so the rows and the statistics are equal.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from dragoman.cleaning.cleaned_corpus import (
    SCHEMA,
    CleanedCorpus,
    FilterPipeline,
    ProgressCallback,
    TotalEstimator,
    build_filter_pipelines,
    digest_batch,
    drop_repeated_rows,
    list_duplicate_filters,
    split_into_chunks,
)
from dragoman.cleaning.deduplication import RECORD_DTYPE, Records, split_repeats
from dragoman.cleaning.pipeline import clean_corpora
from dragoman.cleaning.statistics import CleaningStats
from dragoman.cluster.shards import Executor, Shard, ShardRecord, open_request, read_output, run_shards
from dragoman.cluster.versions import get_versions
from dragoman.config import CorpusConfig, DataConfig, FilterName, Recipe
from dragoman.errors import DataError
from dragoman.formats.corpus_copies import copy_corpora, list_corpus_names
from dragoman.formats.object_store import StoreFolder, check_output_is_free, exists, is_url, normalize_url, upload_folder
from dragoman.formats.pair import Pair
from dragoman.formats.readers import check_files_exist, read_pairs
from dragoman.formats.writers import WritableFormat

NUM_BUCKETS = 256
"""Buckets of a shard's digests: one for each first byte."""
ROWS_PER_PARTITION = 2**22
"""Rows whose digests a worker holds at once. A row needs 24 bytes, and sorting four times as much."""
LAST_FILE = "cleaning.json"
"""File of the output that an object store receives last."""
EVALUATION_SPLITS: tuple[Literal["valid", "test"], ...] = ("valid", "test")
_HEADER_BYTES = 8 * (NUM_BUCKETS + 1)


@dataclass(frozen=True)
class FilterShard:
    """Shard function that filters a chunk of pairs. duplicate_filters: filters for which it computes digests"""

    filter_pipeline: FilterPipeline
    duplicate_filters: tuple[FilterName, ...]

    def __call__(self, numbered_chunk: tuple[int, list[Pair]]) -> tuple[dict[str, bytes], Any]:
        """Return the kept rows as an Arrow file and their digests, and the statistics."""
        batch, stats = self.filter_pipeline(numbered_chunk)
        sink = io.BytesIO()
        with pa.ipc.new_file(sink, SCHEMA) as writer:
            writer.write_batch(batch)
        contents = {"arrow": sink.getvalue()}
        for filter_name in self.duplicate_filters:
            contents[filter_name] = encode_digests(digest_batch(filter_name, batch))
        return contents, {"num_rows": batch.num_rows, "stats": stats.to_dict()}


def encode_digests(digests: np.ndarray[Any, np.dtype[np.uint64]]) -> bytes:
    """Return the digests of a shard's rows as records in 256 buckets by their first byte, after the bounds of the buckets."""
    records = np.empty(len(digests), dtype=RECORD_DTYPE)
    records["high"], records["low"] = digests[:, 0], digests[:, 1]
    records["row"] = np.arange(len(digests), dtype=np.uint64)
    first_byte = (records["high"] >> np.uint64(56)).astype(np.intp)
    bounds = np.concatenate([[0], np.cumsum(np.bincount(first_byte, minlength=NUM_BUCKETS))]).astype("<u8")
    return bounds.tobytes() + records[np.argsort(first_byte, kind="stable")].tobytes()


def read_digests(folder: StoreFolder, name: str, first_bucket: int, end_bucket: int) -> Records:
    """Return the records of some buckets of a shard, without reading the others."""
    bounds = np.frombuffer(folder.read(name, 0, _HEADER_BYTES), dtype="<u8")
    start, end = (_HEADER_BYTES + RECORD_DTYPE.itemsize * int(bounds[bucket]) for bucket in (first_bucket, end_bucket))
    return np.frombuffer(folder.read(name, start, end) if start < end else b"", dtype=RECORD_DTYPE)


@dataclass(frozen=True)
class FindRepeats:
    """Shard function that finds the repeated rows among the digests of a partition.

    files: digest files of all shards in order
    row_offsets: number of rows before each shard

    The worker holds the different digests of the partition, however often they occur, and those of one block.
    """

    folder: StoreFolder
    files: tuple[str, ...]
    row_offsets: tuple[int, ...]
    rows_per_block: int = ROWS_PER_PARTITION

    def __call__(self, buckets: tuple[int, int]) -> tuple[dict[str, bytes], Any]:
        """Return the numbers of the repeated rows, in order."""
        blocks: list[Records] = []
        repeated = [np.empty(0, dtype="<u8")]
        num_rows = 0
        for name, offset in zip(self.files, self.row_offsets, strict=True):
            records = read_digests(self.folder, name, *buckets).copy()
            records["row"] += np.uint64(offset)
            blocks.append(records)
            num_rows += len(records)
            if num_rows > self.rows_per_block:
                first_records, rows = split_repeats(np.concatenate(blocks))
                blocks, num_rows = [first_records], 0
                repeated.append(rows)
        if blocks:
            repeated.append(split_repeats(np.concatenate(blocks))[1])
        rows = np.sort(np.concatenate(repeated))
        return {"rows": rows.astype("<u8").tobytes()}, {"num_rows": len(rows)}


def clean_on_cluster(
    recipe: Recipe,
    output: str | Path,
    executor: Executor,
    *,
    file_format: WritableFormat = "tsv",
    overwrite: bool = False,
    on_progress: ProgressCallback = lambda *_: None,
) -> dict[str, CleaningStats]:
    """Write what `clean_corpora` writes, byte for byte, and return the statistics by corpus.

    The shards are in `OUTPUT.shards` until the end. All machines must reach this folder.

    recipe: its `data.root` may be a URL of an object store
    output: folder, or URL of an object store
    """
    if any(corpus.reads_standard_input for corpus in recipe.data.training_corpora().values()):
        raise DataError("standard input: cannot be read again after an interruption; give a file with --cluster")
    url, root_url = normalize_url(output), normalize_url(recipe.data.root)
    shard_folder = StoreFolder(f"{url}.shards")
    request = {"command": "clean", "recipe": recipe.data.model_dump(), "versions": get_versions()}
    is_remote = is_url(url)
    with ExitStack() as stack:
        temporary_folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-clean-")))
        folder = temporary_folder / "output" if is_remote else Path(url)
        # An upload that was interrupted has no cleaning.json, which is written last, and its shards are still there.
        is_interrupted = is_remote and exists(shard_folder.url) and not exists(f"{url}/{LAST_FILE}")
        check_output_is_free(url, overwrite=overwrite or is_interrupted)
        data = copy_corpora(recipe.data, list_corpus_names(list_filter_corpora(recipe.data)), temporary_folder / "input")
        recipe = recipe.model_copy(update={"data": data})
        check_files_exist(recipe.data.root, recipe.name, recipe.data.training_corpora().values())
        open_request(shard_folder, request, overwrite=overwrite)

        def clean_training() -> list[CleanedCorpus]:
            arrow_folder = Path(shard_folder.url)
            if is_remote:
                arrow_folder = temporary_folder / "arrow"
                arrow_folder.mkdir()
            return clean_training_shards(
                data,
                build_filter_pipelines(recipe),
                shard_folder,
                executor,
                arrow_folder=arrow_folder,
                root_url=root_url,
                on_progress=on_progress,
            )

        stats_by_corpus = clean_corpora(
            recipe, folder, file_format=file_format, overwrite=overwrite, on_progress=on_progress, clean_training=clean_training
        )
        if is_remote:
            upload_folder(folder, url, last=LAST_FILE)
    shard_folder.delete()
    return stats_by_corpus


def list_filter_corpora(data: DataConfig) -> list[CorpusConfig]:
    """Return the corpora that the filters read: the training corpora, and those of the evaluation if they count as overlap."""
    corpora = [*data.training_corpora().values()]
    if data.cleaning.eval_overlap:
        for split in EVALUATION_SPLITS:
            corpora += data.evaluation_corpora(split).values()
    return corpora


def clean_training_shards(
    data: DataConfig,
    filter_pipelines: Mapping[str, FilterPipeline],
    folder: StoreFolder,
    executor: Executor,
    *,
    arrow_folder: Path,
    root_url: str,
    on_progress: ProgressCallback,
) -> list[CleanedCorpus]:
    """Clean the training corpora into shards.

    filter_pipelines: filters of each corpus by its name
    arrow_folder: local folder of the rows: that of the shards, or one that receives copies of them
    root_url: root of the corpora in the origins of the pairs
    """
    root, corpora = Path(data.root), data.training_corpora()
    duplicate_filters = list_duplicate_filters(data.cleaning)
    cleaned_corpora, all_records = [], list[ShardRecord]()
    for name, filter_pipeline in filter_pipelines.items():
        languages = {
            "source_language": filter_pipeline.source_language,
            "target_language": filter_pipeline.target_language,
        }
        estimator = TotalEstimator(corpora[name], root)
        records = run_shards(
            FilterShard(filter_pipeline, duplicate_filters),
            _split_pairs(name, _rename_origins(estimator.count(read_pairs(corpora[name], root, **languages)), root, root_url)),
            folder,
            executor,
            on_progress=_report(on_progress, f"cleaning {name}", estimator.estimate),
        )
        all_records += records
        stats = CleaningStats.merge_all(CleaningStats.from_dict(record.summary["stats"]) for record in records)
        for record in records:
            content = read_output(folder, record, "arrow")
            if not folder.is_local:
                (arrow_folder / f"{record.name}.arrow").write_bytes(content)
        files = [arrow_folder / f"{record.name}.arrow" for record in records]
        cleaned_corpora.append(CleanedCorpus(name, files, stats))
    skip_filters = [corpus.skip_filters for corpus in corpora.values()]
    for filter_name in duplicate_filters:
        is_repeated = find_repeated_rows(filter_name, all_records, folder, executor, on_progress=on_progress)
        drop_repeated_rows(filter_name, is_repeated, cleaned_corpora, skip_filters)
    return cleaned_corpora


def find_repeated_rows(
    filter_name: FilterName,
    records: Sequence[ShardRecord],
    folder: StoreFolder,
    executor: Executor,
    *,
    on_progress: ProgressCallback = lambda *_: None,
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a mask over the rows of all shards: True if an earlier row has the same digest."""
    row_counts = [record.summary["num_rows"] for record in records]
    num_rows = sum(row_counts)
    num_partitions = min(NUM_BUCKETS, max(executor.count_workers(), -(-num_rows // ROWS_PER_PARTITION)))
    bounds = [partition * NUM_BUCKETS // num_partitions for partition in range(num_partitions + 1)]
    files = tuple(f"{record.name}.{filter_name}" for record in records)
    digests = [record.files[filter_name] for record in records]
    function = FindRepeats(folder, files, tuple(accumulate(row_counts, initial=0))[:-1], ROWS_PER_PARTITION)
    shards = [
        Shard(
            f"{filter_name}-{start:03d}-{end:03d}",
            (start, end),
            sha256(json.dumps([start, end, digests]).encode()).hexdigest(),
            num_rows // num_partitions,
        )
        for start, end in pairwise(bounds)
        if num_rows
    ]
    is_repeated = np.zeros(num_rows, dtype=np.bool_)
    report = _report(on_progress, f"finding {filter_name} rows", lambda: num_rows)
    for record in run_shards(function, shards, folder, executor, on_progress=report):
        is_repeated[np.frombuffer(read_output(folder, record, "rows"), dtype="<u8")] = True
    return is_repeated


def _report(on_progress: ProgressCallback, task_name: str, get_total: Callable[[], int | None]) -> Callable[[int], None]:
    on_progress(task_name, 0, None)
    return lambda done: on_progress(task_name, done, get_total())


def _rename_origins(pairs: Iterator[Pair], root: Path, root_url: str) -> Iterator[Pair]:
    """Yield pairs whose origins name the files of an object store instead of their local copies."""
    if not is_url(root_url):
        yield from pairs
        return
    prefix = str(root)
    for pair in pairs:
        yield replace(pair, origin=root_url.rstrip("/") + pair.origin.removeprefix(prefix))


def _split_pairs(name: str, pairs: Iterator[Pair]) -> Iterator[Shard]:
    """Yield the chunks of a corpus as shards. The digest covers both texts and the origin of each pair."""
    for index, (start_number, chunk) in enumerate(split_into_chunks(pairs, start_number=1)):
        texts = [text for pair in chunk for text in (pair.source, pair.target, pair.origin)]
        content = f"{start_number} {' '.join(str(len(text)) for text in texts)} {''.join(texts)}"
        digest = sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
        yield Shard(f"{name}-{index:07d}", (start_number, chunk), digest, len(chunk))
