"""Scheduler that searches batches in parallel threads, which share the weights and divide the CPU cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from dragoman.inference.backends.compiled.threads import limit_threads
from dragoman.runtime.processes import count_cores
from dragoman.runtime.thread_count import get_num_threads, preserve_torch_threads, set_torch_threads
from dragoman.tasks.generation import GenerationJob

MAX_PYTHON_BATCHES = 4
"""Most batches at the same time whose search runs in Python, unless the caller sets the number. They wait for one lock."""

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class WorkerLayout:
    """Division of the cores: `inter_threads` batches in parallel, each with `intra_threads` threads."""

    inter_threads: int
    intra_threads: int

    def map(self, fn: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> Iterator[ResultT]:
        """Yield the results in order. An error of one item is raised here, and items that have not started are cancelled."""
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


@dataclass(frozen=True)
class BatchScheduler:
    """Scheduler that divides the cores as the caller sets it, or by the number of batches.

    inter_threads, intra_threads: layout of the caller; None for a chosen one
    """

    inter_threads: int | None = None
    intra_threads: int | None = None

    def map(self, fn: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> Iterator[ResultT]:
        """Yield the results in order."""
        item_list = list(items)
        is_native = isinstance(fn, GenerationJob) and fn.is_native
        layout = self.choose_layout(len(item_list) if is_native else min(len(item_list), MAX_PYTHON_BATCHES))

        def run_limited(item: ItemT) -> ResultT:
            with limit_threads(layout.intra_threads):
                return fn(item)

        # PyTorch's number of threads, which native search does not need, is set in other threads only.
        runs_here = layout.inter_threads == 1 and (is_native or self.intra_threads is None)
        yield from map(run_limited, item_list) if runs_here else layout.map(run_limited, item_list)

    def choose_layout(self, max_batches: int) -> WorkerLayout:
        """Return a layout with one thread for each batch, or with several if there are fewer batches than threads."""
        if self.inter_threads is not None:
            return WorkerLayout(self.inter_threads, self.intra_threads or max(1, _count_usable_cores() // self.inter_threads))
        num_threads = self.intra_threads or _count_usable_cores()
        num_workers = max(1, min(num_threads, max_batches))
        return WorkerLayout(num_workers, num_threads // num_workers)


def _count_usable_cores() -> int:
    """Return the number of threads, or of cores if there are fewer. Counting the cores reads a file."""
    num_threads = get_num_threads()
    return num_threads if num_threads == 1 else min(num_threads, count_cores())
