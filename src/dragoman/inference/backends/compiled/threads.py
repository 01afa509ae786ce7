"""Threads that search together: a group computes each step of one search, or each thread has sentences of its own.

A search has one core of its own. It borrows other cores only while no other search of this process uses them, because a
thread that others wait for must not wait for a core.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

import numpy as np

from dragoman.inference.backends.compiled.arena import allocate, get_address
from dragoman.inference.backends.compiled.kernels.structs import CACHE_LINE_I64, ThreadGroup
from dragoman.platform_features import get_c_function
from dragoman.runtime.processes import count_cores
from dragoman.runtime.thread_count import get_num_threads

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class WorkerThread:
    """Thread that runs tasks one after the other until the process ends."""

    def __init__(self) -> None:
        """Start the thread. Raises RuntimeError if the system has no thread left."""
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._last_future: Future[Any] | None = None
        Thread(target=self._run_tasks, name="worker", daemon=True).start()

    def submit(self, task: Callable[[], ResultT], future: Future[ResultT]) -> None:
        self._last_future = future
        self._tasks.put((future, task))

    def is_idle(self) -> bool:
        return self._last_future is None or self._last_future.done()

    def clear_last_result(self) -> None:
        """Release the result of the last task."""
        self._last_future = None

    def shutdown(self) -> None:
        """End the thread after its last task."""
        self._tasks.put(None)

    def _run_tasks(self) -> None:
        while (item := self._tasks.get()) is not None:
            future, task = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(task())
                except BaseException as error:
                    future.set_exception(error)
            del item, future, task  # releases what they refer to before the next task arrives


class WorkerPool:
    """Worker threads that the searches of a process share, at most one for each core.

    num_cores: cores that they share; None for those of the process
    """

    def __init__(self, num_cores: int | None = None) -> None:
        self.num_cores = num_cores
        self.reset()

    def reset(self) -> None:
        """Drop all threads. A forked process has none of its parent's."""
        self._lock, self._num_busy = Lock(), 0
        self._idle_workers: list[WorkerThread] = []

    @contextmanager
    def borrow(self, max_workers: int) -> Iterator[list[WorkerThread]]:
        """Lend worker threads, at most one for each core that no search uses. The caller has a core of its own."""
        workers: list[WorkerThread] = []
        num_threads = 0
        try:
            with self._lock:
                num_free = min(max_workers, (self.num_cores or count_cores()) - self._num_busy - 1) if max_workers > 0 else 0
                num_threads = 1
                self._num_busy += 1
                with suppress(RuntimeError):
                    while len(workers) < num_free:
                        workers.append(self._idle_workers.pop() if self._idle_workers else WorkerThread())
                        num_threads, self._num_busy = num_threads + 1, self._num_busy + 1
            yield workers
        finally:
            with self._lock:
                self._num_busy -= num_threads
                for worker in workers:
                    if worker.is_idle():
                        worker.clear_last_result()
                        self._idle_workers.append(worker)
                    else:  # it is still at work, because nothing waited for it
                        worker.shutdown()


POOL = WorkerPool()
"""The threads of this process."""
_thread_limit: ContextVar[int | None] = ContextVar("thread_limit", default=None)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=POOL.reset)


@contextmanager
def limit_threads(threads: int) -> Iterator[None]:
    """Limit the threads of searches that this thread starts in the meantime."""
    token = _thread_limit.set(threads)
    try:
        yield
    finally:
        _thread_limit.reset(token)


def get_thread_limit() -> int:
    """Return the number of threads that a search may use: the limit of `limit_threads`, or that of the process."""
    return _thread_limit.get() or get_num_threads()


class StepGroup:
    """Barrier and thread groups of the caller's thread and its workers."""

    def __init__(self, workers: Sequence[WorkerThread]) -> None:
        self.workers, num_threads = workers, len(workers) + 1
        self.arrivals_G = allocate((num_threads + 1, CACHE_LINE_I64), np.int64, make=np.zeros)
        arrivals = get_address(self.arrivals_G)
        canceled = arrivals + num_threads * self.arrivals_G.strides[0]
        self.groups = [
            ThreadGroup(num_threads, thread_index, arrivals, canceled, _find_yield_fn()) for thread_index in range(num_threads)
        ]

    def run(self, task: Callable[[int], int]) -> int:
        """Run the task once for each thread index, and return the first result. If a thread fails, no other waits for it."""
        return run_all([partial(task, group.thread_index) for group in self.groups], self.workers, self._cancel)[0]

    def _cancel(self) -> None:
        self.arrivals_G[-1, 0] = 1


class Canceled(Exception):
    """End of a task because another thread failed."""


def run_all(
    tasks: Sequence[Callable[[], ResultT]], workers: Sequence[WorkerThread], cancel: Callable[[], None]
) -> list[ResultT]:
    """Run the first task in this thread and each other task in a worker, and return all results.

    If a task fails, `cancel` is called. Its error is raised after all tasks have ended; only a second Ctrl-C does not wait.
    """
    if len(tasks) == 1:
        return [tasks[0]()]
    errors: list[BaseException] = []
    futures: list[Future[ResultT]] = [Future() for _ in tasks[1:]]
    is_done = False
    try:
        for worker, task, future in zip(workers, tasks[1:], futures, strict=True):
            worker.submit(partial(_run_or_cancel, task, cancel), future)
        first_result = tasks[0]()
        wait(futures)
        is_done = True
    except BaseException as error:
        cancel()
        errors.append(error)
        wait([future for future in futures if not future.cancel()])
    finally:
        if not is_done:
            cancel()  # for a Ctrl-C during the wait
    errors += [
        worker_error for future in futures if not future.cancelled() and (worker_error := future.exception()) is not None
    ]
    if errors:
        raise min(errors, key=lambda raised_error: isinstance(raised_error, Canceled))
    return [first_result, *(future.result() for future in futures)]


def run_with_each(task: Callable[[ItemT], None], items: Iterable[ItemT], max_threads: int) -> None:
    """Run a task with each item, in this thread and in those of the pool that are idle. Items are made one after the other."""
    iterator, lock = iter(items), Lock()

    def run() -> None:
        while True:
            with lock:
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            task(item)

    with POOL.borrow(max_threads - 1) as workers:
        run_all([run] * (len(workers) + 1), workers, lambda: None)


def _run_or_cancel(task: Callable[[], ResultT], cancel: Callable[[], None]) -> ResultT:
    try:
        return task()
    except BaseException:
        cancel()
        raise


@cache
def _find_yield_fn() -> int:
    """Return the address of the function that yields a core to other threads, or 0 if the system has none."""
    sched_yield = get_c_function("sched_yield")
    return 0 if sched_yield is None else ctypes.cast(sched_yield, ctypes.c_void_p).value or 0
