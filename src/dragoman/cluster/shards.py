"""Work on a corpus in shards: each shard is processed by one worker, committed once, and recorded.

    FOLDER/
      request.json      description of the work; another request is an error
      NAME.SUFFIX       output of a shard
      NAME.json         record of a shard: digest of its input, digests of its output, and a summary

The record is written after the output and makes the shard count. A repeated command processes the shards that have no valid
record. Equal inputs make equal outputs, so a shard that two workers process does no harm.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count, islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dragoman.cleaning.cleaned_corpus import BatchReference
from dragoman.cluster.interruption import remember_interrupts
from dragoman.cluster.versions import check_versions, get_versions
from dragoman.errors import ClusterError, DragomanError, OutputError, WorkerLostError
from dragoman.formats.object_store import StoreFolder, check_output_is_free, normalize_url, write_pieces

MAX_ATTEMPTS = 4
"""Number of times that a shard is tried, whether it fails or its worker is lost."""
MAX_FAILED_SHARDS = 10
"""Number of failed shards after which the work ends, because the cause is probably not in the shards."""
REQUEST_FILE = "request.json"
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

ShardFunction = Callable[[Any], tuple[Mapping[str, bytes], Any]]
"""Function of a shard's payload that returns the contents of its output files by suffix, and a summary as JSON values."""


@dataclass(frozen=True)
class Shard:
    """Part of a corpus.

    name: name of its files, without a suffix
    payload: argument of the shard function
    digest: SHA-256 of the payload
    num_units: number of lines or pairs, for the progress
    """

    name: str
    payload: Any
    digest: str
    num_units: int


@dataclass(frozen=True)
class ShardRecord:
    """Record of a finished shard.

    files: SHA-256 of each output file by suffix
    summary: JSON values of the function
    seconds: time of the function and of its output, in the worker
    """

    name: str
    digest: str
    files: Mapping[str, str]
    summary: Any
    num_units: int
    seconds: float = 0.0


class Executor(Protocol):
    """Workers that process items. A handle stands for an item that is being processed."""

    def count_workers(self) -> int:
        """Return the number of items that can be processed at once."""

    def submit(self, function: Callable[[Any], Any], item: Any) -> Any:
        """Start to process an item, and return its handle."""

    def wait_any(self, handles: list[Any]) -> Any | None:
        """Return a handle that has ended, or None if none has after a second."""

    def get_result(self, handle: Any) -> Any:
        """Return the result. Raises WorkerLostError, or the error of the function."""


@dataclass(frozen=True)
class ShardTask:
    """Function that a worker calls for each shard: it processes the shard, commits the output and returns the record.

    versions: those of the command; a worker with other versions refuses to work
    """

    function: ShardFunction
    folder: StoreFolder
    versions: Mapping[str, str] = field(default_factory=get_versions)

    def __call__(self, shard: Shard) -> ShardRecord:
        """Process a shard. Raises ClusterError for other versions, WriteError for a full disk, or an error of the function."""
        check_versions(self.versions)
        start = time.perf_counter()
        contents, summary = self.function(shard.payload)
        files = {}
        for suffix, content in contents.items():
            self.folder.write(f"{shard.name}.{suffix}", content)
            files[suffix] = sha256(content).hexdigest()
        record = ShardRecord(shard.name, shard.digest, files, summary, shard.num_units, time.perf_counter() - start)
        self.folder.write(f"{shard.name}.json", json.dumps(vars(record)).encode())
        return record


def open_request(folder: StoreFolder, request: Mapping[str, Any], *, overwrite: bool) -> None:
    """Store the description of the work in the folder. Raises OutputError if the folder belongs to another request."""
    content = json.dumps(request, sort_keys=True).encode()
    existing = folder.read_if_exists(REQUEST_FILE)
    if existing == content:
        return
    if existing is not None and not overwrite:
        raise OutputError(
            f"{folder.url}: belongs to another request; give another output name, or start again with --overwrite",
            code="output-mismatch",
        )
    if existing is not None:
        folder.delete()
    folder.write(REQUEST_FILE, content)


def read_record(folder: StoreFolder, shard: Shard) -> ShardRecord | None:
    """Return the record of a finished shard whose input and output are unchanged, or None."""
    content = folder.read_if_exists(f"{shard.name}.json")
    if content is None:
        return None
    try:
        record = ShardRecord(**json.loads(content))
        is_valid = record.digest == shard.digest and record.num_units == shard.num_units
        files = dict(record.files)
    except (ValueError, TypeError):
        return None
    for suffix, digest in files.items() if is_valid else ():
        output = folder.read_if_exists(f"{shard.name}.{suffix}")
        is_valid = is_valid and output is not None and sha256(output).hexdigest() == digest
    return record if is_valid else None


def read_output(folder: StoreFolder, record: ShardRecord, suffix: str) -> bytes:
    """Return an output file of a shard. Raises OutputError if it is not as it was committed."""
    content = folder.read_if_exists(f"{record.name}.{suffix}")
    if content is None:
        raise OutputError(
            f"{folder.get_url(record.name)}.{suffix}: a worker wrote it, but this machine does not see it; give a folder that "
            "all machines share, or an object store",
            code="output-damaged",
        )
    if sha256(content).hexdigest() != record.files[suffix]:
        raise OutputError(
            f"{folder.get_url(record.name)}.{suffix}: was changed after it was written; run the same command again",
            code="output-damaged",
        )
    return content


def run_shards(
    function: ShardFunction,
    shards: Iterable[Shard],
    folder: StoreFolder,
    executor: Executor,
    *,
    on_progress: Callable[[int], None] = lambda _: None,
) -> list[ShardRecord]:
    """Process the shards that have no record, and return the records of all shards in order.

    At most two shards for each worker are in memory. A shard whose worker is lost, or which fails, is tried again. Raises
    ClusterError if shards fail repeatedly; it names them, and the other shards are kept.

    on_progress: called with the number of units in finished shards
    """
    task = ShardTask(function, folder)
    records: dict[int, ShardRecord] = {}
    pending: dict[Any, tuple[int, Shard, int]] = {}
    failures: list[tuple[str, BaseException]] = []
    num_done = 0

    def finish_one() -> None:
        nonlocal num_done
        while (handle := executor.wait_any(list(pending))) is None:
            pass
        index, shard, attempt = pending.pop(handle)
        try:
            records[index] = executor.get_result(handle)
            num_done += shard.num_units
            on_progress(num_done)
        except Exception as error:
            if isinstance(error, ClusterError):
                raise  # other versions: every shard would fail
            if attempt < MAX_ATTEMPTS:
                pending[executor.submit(task, shard)] = index, shard, attempt + 1
                return
            failures.append((shard.name, error))

    with remember_interrupts() as check_interrupt:
        for index, shard in enumerate(shards):
            check_interrupt()
            record = read_record(folder, shard)
            if record is not None:
                records[index] = record
                num_done += shard.num_units
                on_progress(num_done)
                continue
            while len(pending) >= 2 * max(1, executor.count_workers()):
                finish_one()
            if len(failures) >= MAX_FAILED_SHARDS:
                break
            pending[executor.submit(task, shard)] = index, shard, 1
        while pending:
            check_interrupt()
            finish_one()
        check_interrupt()
    if failures:
        raise _to_cluster_error(failures, len(records), folder)
    return [records[index] for index in sorted(records)]


def write_by_shards(
    function: ShardFunction,
    shards: Iterable[Shard],
    output: str | Path,
    request: Mapping[str, Any],
    executor: Executor,
    *,
    overwrite: bool,
    on_progress: Callable[[int], None],
) -> list[ShardRecord]:
    """Process shards, join their outputs with the suffix `txt`, and return their records in order.

    The shards are in `OUTPUT.shards` until the output is written.

    output: local path or URL of an object store
    request: everything that determines the output
    """
    url = normalize_url(output)
    check_output_is_free(url, overwrite=overwrite)
    folder = StoreFolder(f"{url}.shards")
    open_request(folder, {**request, "versions": get_versions()}, overwrite=overwrite)
    records = run_shards(function, shards, folder, executor, on_progress=on_progress)
    check_output_is_free(url, overwrite=overwrite)
    write_pieces(url, (read_output(folder, record, "txt") for record in records))
    folder.delete()
    return records


@dataclass(frozen=True)
class ClusterMap:
    """Map over the workers of a cluster, in the place of `dragoman.runtime.processes.map_in_processes`.

    The results stay in memory until they are yielded, so the caller writes and records them. Workers get rows instead of
    references to batches, so they need no folder of the command's machine.
    """

    executor: Executor

    def __call__(
        self, function: Callable[[ItemT], ResultT], items: Iterable[ItemT], *, num_processes: int = 0
    ) -> Iterator[ResultT]:
        """Yield `function(item)` for each item, in order. An item whose worker is lost is processed again.

        num_processes: ignored, because the cluster has its own number of workers

        Raises ClusterError if a worker has another version or is lost repeatedly, and the errors of `function`.
        """
        task = VersionedCall(function)
        pending: deque[tuple[Any, ItemT, int]] = deque()
        iterator = iter(items)
        while True:
            for item in islice(iterator, 2 * max(1, self.executor.count_workers()) - len(pending)):
                item = item.read() if isinstance(item, BatchReference) else item
                pending.append((self.executor.submit(task, item), item, 1))
            if not pending:
                return
            handle, item, attempt = pending.popleft()
            while self.executor.wait_any([handle]) is None:
                pass
            try:
                result = self.executor.get_result(handle)
            except WorkerLostError as error:
                if attempt == MAX_ATTEMPTS:
                    raise ClusterError(f"{error}, {MAX_ATTEMPTS} times for one part; run the same command again") from None
                pending.appendleft((self.executor.submit(task, item), item, attempt + 1))
                continue
            yield result


@dataclass(frozen=True)
class VersionedCall:
    """Function of a worker that refuses to work with other versions than those of the command."""

    function: Callable[[Any], Any]
    versions: Mapping[str, str] = field(default_factory=get_versions)

    def __call__(self, item: Any) -> Any:
        """Return the function's result. Raises ClusterError for other versions."""
        check_versions(self.versions)
        return self.function(item)


def _to_cluster_error(failures: list[tuple[str, BaseException]], num_kept: int, folder: StoreFolder) -> ClusterError:
    name, error = failures[0]
    reason = str(error) if isinstance(error, DragomanError) else f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    others = f", and so did {', '.join(name for name, _ in failures[1:])}" if len(failures) > 1 else ""
    return ClusterError(
        f"shard {name}: failed {MAX_ATTEMPTS} times{others}: {reason}; {num_kept} finished shards are kept in {folder.url}, "
        "and the same command continues",
        code="shards-failed",
    )


def split_lines(lines: Iterable[str], *, lines_per_shard: int) -> Iterator[Shard]:
    """Yield shards of lines. The payload is the number of lines before the shard, and its lines."""
    iterator = iter(lines)
    for index in count():
        block = list(islice(iterator, lines_per_shard))
        if not block:
            return
        digest = sha256("\n".join(block).encode("utf-8", "surrogatepass")).hexdigest()
        yield Shard(f"lines-{index:07d}", (index * lines_per_shard, block), digest, len(block))
