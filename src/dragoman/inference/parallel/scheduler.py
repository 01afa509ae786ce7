"""Scheduler that searches batches in parallel, each with its own share of the CPU cores.

It uses worker processes if the bundles are on disk, and otherwise Python threads that share the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Condition
from typing import Any, Generic, TypeVar, cast

from dragoman.inference.backends.compiled.threads import limit_threads
from dragoman.inference.backends.device import MAX_WORKERS
from dragoman.inference.parallel.messages import SearchResults, WorkerSpec, encode_request, is_serializable
from dragoman.inference.parallel.worker import Worker
from dragoman.runtime.autotuner import Stopwatch, get_measurement, put_measurement, select_fastest
from dragoman.runtime.processes import count_cores
from dragoman.runtime.thread_count import get_num_threads, preserve_torch_threads, set_torch_threads
from dragoman.tasks.generation import GenerationJob

TRIALS = 3
"""Rounds in which each layout is measured; the first round does not count."""
MIN_ITEMS_PER_WORKER = 8
"""Batches for each worker from which the two seconds for starting a process pay."""
MAX_LOST_WORKERS = 2
"""Lost processes after which no more are started."""
MAX_TRIAL_WORKERS = 4
"""Most processes of a measurement, because each takes the memory of Python and torch."""

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class WorkerLayout:
    """Division of the cores: `inter_threads` batches in parallel, each with `intra_threads` threads."""

    inter_threads: int
    intra_threads: int

    def map(self, fn: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> Iterator[ResultT]:
        """Yield the results in order. An error of one item is raised here, and items that have not started are cancelled."""
        if self == WorkerLayout(1, get_num_threads()):
            yield from map(fn, items)
            return
        futures: list[Future[ResultT]] = []
        pool = ThreadPoolExecutor(self.inter_threads, "batch", initializer=set_torch_threads, initargs=(self.intra_threads,))
        with pool, preserve_torch_threads():
            try:
                for item in items:
                    futures.append(pool.submit(fn, item))
                    if len(futures) == 2 * self.inter_threads:
                        yield futures.pop(0).result()
                while futures:
                    yield futures.pop(0).result()
            finally:
                for future in futures:
                    future.cancel()


class SharedQueue(Generic[ItemT, ResultT]):
    """Queue of items that this thread and worker processes take from, until all are done."""

    def __init__(self, fn: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> None:
        self.fn, self.items = fn, items
        self.completed: dict[int, ResultT] = {}
        self._pending = list(range(len(items)))
        self._condition = Condition()

    def take(self) -> int | None:
        """Return the index of the next item; None if there is none."""
        with self._condition:
            return self._pending.pop(0) if self._pending else None

    def build_request(self, index: int) -> dict[str, Any]:
        """Return the message for a worker process with this item."""
        return encode_request(cast(GenerationJob, self.fn), cast("Sequence[int]", self.items[index]))

    def complete(self, index: int, results: SearchResults) -> None:
        """Store the result of an item."""
        with self._condition:
            self.completed[index] = cast(ResultT, results)
            self._condition.notify()

    def requeue(self, index: int) -> None:
        """Put an item back, so that another worker does it."""
        with self._condition:
            self._pending.insert(0, index)
            self._condition.notify()

    def results(self) -> Iterator[ResultT]:
        """Yield the results in order. This thread does the items that no worker has taken, or that a worker has put back."""
        try:
            for next_index in range(len(self.items)):
                while next_index not in self.completed:
                    index = self.take()
                    if index is not None:
                        self.completed[index] = self.fn(self.items[index])
                    else:
                        with self._condition:
                            self._condition.wait_for(lambda: self._pending or next_index in self.completed)  # noqa: B023
                yield self.completed.pop(next_index)
        finally:
            with self._condition:
                self._pending.clear()


@dataclass
class BatchScheduler:
    """Scheduler that divides the cores as the caller sets it, or in the fastest measured layout.

    The first batches of a long job measure the layouts; neighboring batches must be similar. The autotune cache stores the
    fastest layout for the machine and the cache key.

    Native search (`GenerationJob.is_native`) releases Python's lock. So threads run it, and nothing is measured.

    inter_threads, intra_threads: layout of the caller; None for a measured one
    cache_key: name of this kind of work
    worker_spec: files that worker processes open; None if the models are in memory only, and threads share them
    """

    inter_threads: int | None
    intra_threads: int | None
    cache_key: str
    worker_spec: WorkerSpec | None = None
    _layout: WorkerLayout | None = field(default=None, init=False)
    _workers: list[Worker] = field(default_factory=list, init=False)
    _num_lost: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.worker_spec is not None:
            self.cache_key = f"processes, {self.cache_key}"
        if self.inter_threads is not None or self.intra_threads is not None or get_num_threads() == 1:
            count = self.inter_threads or 1
            self._layout = WorkerLayout(count, self.intra_threads or max(1, get_num_threads() // count))

    def map(self, fn: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> Iterator[ResultT]:
        """Yield the results in order."""
        item_list = list(items)
        single_worker = WorkerLayout(1, get_num_threads())
        if _is_native(fn):
            layout = self._choose_native_layout(len(item_list))

            def run_limited(item: ItemT) -> ResultT:
                with limit_threads(layout.intra_threads):
                    return fn(item)

            yield from map(run_limited, item_list) if layout.inter_threads == 1 else layout.map(run_limited, item_list)
            return
        if self._layout is None:
            self._layout = _parse_layout(get_measurement(self.cache_key))
        if self._layout is not None:
            layout = self._layout if len(item_list) > 1 or self.intra_threads is not None else single_worker
            yield from (
                self._map_with_processes(layout, fn, item_list)
                if self._can_use_processes(layout, fn)
                else layout.map(fn, item_list)
            )
            return
        done = 0
        if len(item_list) >= TRIALS * sum(self._list_worker_counts(fn)):
            for result in self._measure(fn, item_list):
                done += 1
                yield result
        yield from (self._layout or single_worker).map(fn, item_list[done:])

    def _choose_native_layout(self, num_items: int) -> WorkerLayout:
        """Return a layout with one thread for each batch, or with several if there are fewer batches than threads."""
        if self.inter_threads is not None:
            return WorkerLayout(self.inter_threads, self.intra_threads or max(1, _count_usable_cores() // self.inter_threads))
        num_threads = self.intra_threads or _count_usable_cores()
        num_workers = max(1, min(num_threads, num_items))
        return WorkerLayout(num_workers, num_threads // num_workers)

    def _can_use_processes(self, layout: WorkerLayout, fn: Callable[[ItemT], ResultT]) -> bool:
        return layout.inter_threads > 1 and self.worker_spec is not None and is_serializable(fn)

    def _list_worker_counts(self, fn: Callable[[ItemT], ResultT]) -> list[int]:
        uses_processes = self.worker_spec is not None and is_serializable(fn)
        return [count for count in list_worker_counts() if not uses_processes or count <= MAX_TRIAL_WORKERS]

    def _map_with_processes(
        self, layout: WorkerLayout, fn: Callable[[ItemT], ResultT], items: list[ItemT]
    ) -> Iterator[ResultT]:
        """Yield the results from this process and from worker processes; wait for the start of workers only if the caller set
        their number.
        """
        if (
            self.inter_threads is None
            and len(items) < MIN_ITEMS_PER_WORKER * layout.inter_threads
            and not self._is_ready(layout)
        ):
            yield from WorkerLayout(1, get_num_threads()).map(fn, items)
            return
        self._start_workers(layout)
        if self.inter_threads is not None:
            for worker in self._workers:
                worker.ready.wait()
        queue = SharedQueue(fn, items)
        with preserve_torch_threads():
            set_torch_threads(layout.intra_threads)
            try:
                for worker in self._workers[: layout.inter_threads - 1]:
                    worker.submit(queue)
                yield from queue.results()
            except BaseException:
                self.close()  # a worker may be searching a batch whose result is not needed anymore
                raise

    def _is_ready(self, layout: WorkerLayout) -> bool:
        """Return whether all worker processes of a layout have started."""
        return len(self._workers) >= layout.inter_threads - 1 and all(worker.ready.is_set() for worker in self._workers)

    def _has_ended_worker(self) -> bool:
        return any(worker.ended.is_set() for worker in self._workers)

    def _start_workers(self, layout: WorkerLayout) -> None:
        """Start the missing worker processes of a layout, unless too many were lost."""
        assert self.worker_spec is not None
        alive = [worker for worker in self._workers if not worker.ended.is_set()]
        self._num_lost += len(self._workers) - len(alive)
        self._workers[:] = alive
        if self._num_lost > MAX_LOST_WORKERS:
            return
        with suppress(OSError):
            while len(self._workers) < layout.inter_threads - 1:
                self._workers.append(Worker.start(self.worker_spec, layout.intra_threads))

    def close(self) -> None:
        """End the worker processes; the next job starts them again."""
        while self._workers:
            self._workers.pop().terminate()

    def _measure(self, fn: Callable[[ItemT], ResultT], items: list[ItemT]) -> Iterator[ResultT]:
        """Yield the results of the first items, and measure each layout in several rounds; the first round warms up."""
        stopwatch = Stopwatch[WorkerLayout]()
        start = 0
        layouts = [WorkerLayout(count, max(1, get_num_threads() // count)) for count in self._list_worker_counts(fn)]
        uses_processes = self._can_use_processes(layouts[-1], fn)
        needed = TRIALS * sum(layout.inter_threads for layout in layouts)
        if uses_processes:
            self._start_workers(layouts[-1])
            while not self._is_ready(layouts[-1]) and len(items) - start > needed:
                yield fn(items[start])
                start += 1
            if not self._is_ready(layouts[-1]) or self._has_ended_worker():
                return  # a later job measures again
        for _ in range(TRIALS):
            for layout in layouts:
                trial_items = items[start : start + layout.inter_threads]
                start += layout.inter_threads
                run_trial = partial(self._search_trial, layout, fn, trial_items)
                yield from stopwatch.measure(layout, run_trial, num_items=layout.inter_threads)
        if self._has_ended_worker():
            return
        self._layout = select_fastest(stopwatch.summarize(min, num_skipped=1), default=layouts[0], min_speedup=1.0)
        if self._layout.inter_threads == 1:
            self.close()
        put_measurement(self.cache_key, f"{self._layout.inter_threads} x {self._layout.intra_threads}")

    def _search_trial(self, layout: WorkerLayout, fn: Callable[[ItemT], ResultT], items: list[ItemT]) -> list[ResultT]:
        """Return the results of all items in this layout."""
        can_use_processes = self._can_use_processes(layout, fn)
        return list(self._map_with_processes(layout, fn, items) if can_use_processes else layout.map(fn, items))


def _count_usable_cores() -> int:
    """Return the number of threads, or of cores if there are fewer. Counting the cores reads a file."""
    num_threads = get_num_threads()
    return num_threads if num_threads == 1 else min(num_threads, count_cores())


def _is_native(fn: object) -> bool:
    return isinstance(fn, GenerationJob) and fn.is_native


def list_worker_counts() -> list[int]:
    """Return the numbers of parallel batches that are measured: 1, 2, 4, …, and the number of threads."""
    return sorted(
        {get_num_threads(), *(2**power for power in range(get_num_threads().bit_length()) if 2**power <= get_num_threads())}
    )


def _parse_layout(text: str | None) -> WorkerLayout | None:
    if text is None:
        return None
    inter_threads, _, intra_threads = text.partition(" x ")
    if not (
        inter_threads.isdecimal()
        and intra_threads.isdecimal()
        and 1 <= int(inter_threads) <= MAX_WORKERS
        and 1 <= int(intra_threads) <= MAX_WORKERS
    ):
        return None
    return WorkerLayout(int(inter_threads), int(intra_threads))
