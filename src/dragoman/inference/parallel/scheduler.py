"""Batches side by side, each with its own share of the processor's cores: in processes where the bundles are on disk, else in
threads of Python that read the same weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Condition
from typing import Any, Generic, TypeVar, cast

import torch

from dragoman.inference.backends.compiled.threads import limit_threads
from dragoman.inference.parallel.worker import SearchResults as Searched
from dragoman.inference.parallel.worker import Worker, WorkerSpec, encode_request, is_serializable
from dragoman.runtime.autotune_cache import count_threads, get_measurement, put_measurement
from dragoman.runtime.processes import count_cores as processors
from dragoman.tasks.generation import GenerationJob

TRIALS = 3
"""Pieces that each way is given, the first of which does not count."""
MAX_WORKERS = 1024
"""Replicas, and threads of each."""
MIN_ITEMS_PER_WORKER = 8
"""Pieces for each replica from which on a process is worth its two seconds of starting."""
MAX_LOST_WORKERS = 2
"""Processes that ended by themselves, or were killed, after which no others are started."""
MAX_TRIAL_WORKERS = 4
"""Processes that are started to find out what is fastest; each holds what Python and torch take."""

ItemT = TypeVar("Given")
ResultT = TypeVar("Found")


@dataclass(frozen=True)
class WorkerLayout:
    """How the cores are shared out: `replicas` batches at once, each by `threads` threads."""

    inter_threads: int
    intra_threads: int

    def map(self, fn: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> Iterator[ResultT]:
        """The results in order. What one piece raises is raised here, and what was not begun is left undone."""
        if self == WorkerLayout(1, count_threads()):
            yield from map(fn, items)
            return
        futures: list[Future[ResultT]] = []
        pool = ThreadPoolExecutor(
            self.inter_threads, "replica", initializer=torch.set_num_threads, initargs=(self.intra_threads,)
        )
        with pool, preserve_num_threads():
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


@contextmanager
def preserve_num_threads() -> Iterator[None]:
    """Threads that others begin later compute with as many as before: torch has them take the number that was set last."""
    num_threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


class SharedQueue(Generic[ItemT, ResultT]):
    """Pieces that this thread and other processes take from, one after the other, until all are done."""

    def __init__(self, fn: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> None:
        self.fn, self.items = fn, items
        self.completed: dict[int, ResultT] = {}
        self._pending = list(range(len(items)))
        self._condition = Condition()

    def take(self) -> int | None:
        with self._condition:
            return self._pending.pop(0) if self._pending else None

    def build_request(self, index: int) -> dict[str, Any]:
        return encode_request(cast(GenerationJob, self.fn), cast("Sequence[int]", self.items[index]))

    def complete(self, index: int, results: Searched) -> None:
        with self._condition:
            self.completed[index] = cast(ResultT, results)
            self._condition.notify()

    def requeue(self, index: int) -> None:
        with self._condition:
            self._pending.insert(0, index)
            self._condition.notify()

    def results(self) -> Iterator[ResultT]:
        """In order. Whatever the others have not taken, or have given back, is done here."""
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
    """Shares the cores out in the way that is the fastest for this work: what the caller says, or what was measured.

    measured: by the first pieces of a long job, each way given as many pieces as it does at once; pieces next to each other
        must be alike. The winner is remembered for the machine and `question`, which names the kind of work.
    opening: what another process opens; none where the models are in this one's memory alone, and threads share them

    What a model searches for by itself (`Work.is_plain`) leaves Python's lock alone meanwhile: threads share it out, `count` by
    `threads` of them where both are given, and nothing is measured.
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
        if self.inter_threads is not None or self.intra_threads is not None or count_threads() == 1:
            count = self.inter_threads or 1
            self._layout = WorkerLayout(count, self.intra_threads or max(1, count_threads() // count))

    def map(self, fn: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> Iterator[ResultT]:
        """The results in order."""
        item_list = list(items)
        single_worker = WorkerLayout(1, count_threads())
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
        """As many pieces at once as there are threads; where they are fewer, each has several."""
        num_cores = min(count_threads(), processors())
        if self.inter_threads is not None:
            return WorkerLayout(self.inter_threads, self.intra_threads or max(1, num_cores // self.inter_threads))
        num_threads = self.intra_threads or num_cores
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
        """By this process and others, which are waited for only where the caller named their number."""
        if (
            self.inter_threads is None
            and len(items) < MIN_ITEMS_PER_WORKER * layout.inter_threads
            and not self._is_ready(layout)
        ):
            yield from WorkerLayout(1, count_threads()).map(fn, items)
            return
        self._start_workers(layout)
        if self.inter_threads is not None:
            for worker in self._workers:
                worker.ready.wait()
        queue = SharedQueue(fn, items)
        with preserve_num_threads():
            torch.set_num_threads(layout.intra_threads)
            try:
                for worker in self._workers[: layout.inter_threads - 1]:
                    worker.submit(queue)
                yield from queue.results()
            except BaseException:
                self.close()  # they may be in the middle of what nobody waits for
                raise

    def _is_ready(self, layout: WorkerLayout) -> bool:
        """Whether all processes have come up that this takes."""
        return len(self._workers) >= layout.inter_threads - 1 and all(worker.ready.is_set() for worker in self._workers)

    def _has_ended_worker(self) -> bool:
        return any(worker.ended.is_set() for worker in self._workers)

    def _start_workers(self, layout: WorkerLayout) -> None:
        """Have as many processes under way as this takes; after some that did not live, no more."""
        assert self.worker_spec is not None
        alive = [worker for worker in self._workers if not worker.ended.is_set()]
        self._num_lost += len(self._workers) - len(alive)
        self._workers[:] = alive
        if self._num_lost > MAX_LOST_WORKERS:
            return
        with suppress(OSError):
            while len(self._workers) < layout.inter_threads - 1:
                self._workers.append(Worker(self.worker_spec, layout.intra_threads))

    def close(self) -> None:
        """End the other processes; they are started again when there is work for them."""
        while self._workers:
            self._workers.pop().terminate()

    def _measure(self, fn: Callable[[ItemT], ResultT], items: list[ItemT]) -> Iterator[ResultT]:
        """Do the first pieces, each way in turn, several times over; the first round, which warms up, does not count."""
        seconds: dict[WorkerLayout, list[float]] = {}
        start = 0
        layouts = [WorkerLayout(count, max(1, count_threads() // count)) for count in self._list_worker_counts(fn)]
        uses_processes = self._can_use_processes(layouts[-1], fn)
        needed = TRIALS * sum(layout.inter_threads for layout in layouts)
        if uses_processes:
            self._start_workers(layouts[-1])
            while not self._is_ready(layouts[-1]) and len(items) - start > needed:
                yield fn(items[start])
                start += 1
            if not self._is_ready(layouts[-1]) or self._has_ended_worker():
                return  # next time
        for _ in range(TRIALS):
            for crew in layouts:
                trial_items = items[start : start + crew.inter_threads]
                start += crew.inter_threads
                start_time = time.perf_counter()
                results = list(
                    self._map_with_processes(crew, fn, trial_items)
                    if self._can_use_processes(crew, fn)
                    else crew.map(fn, trial_items)
                )
                seconds.setdefault(crew, []).append((time.perf_counter() - start_time) / crew.inter_threads)
                yield from results
        if self._has_ended_worker():
            return
        self._layout = min(seconds, key=lambda crew: min(seconds[crew][1:]))
        if self._layout.inter_threads == 1:
            self.close()
        put_measurement(self.cache_key, f"{self._layout.inter_threads} x {self._layout.intra_threads}")


def _is_native(fn: object) -> bool:
    return isinstance(fn, GenerationJob) and fn.is_native


def list_worker_counts() -> list[int]:
    """Into how many replicas the cores may be shared out: 1, 2, 4, …, and one core each."""
    return sorted(
        {count_threads(), *(2**power for power in range(count_threads().bit_length()) if 2**power <= count_threads())}
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
