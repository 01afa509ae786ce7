"""Threads that search together: a team computes every step of one search (`meeting`), or each thread has sentences of its own.

A search has a core of its own; others it takes only while no other search of this process has them, for whom all wait for must
not wait for a core.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

import torch

from dragoman.inference.backends.compiled.kernels.structs import CACHE_LINE_I64, ThreadGroup
from dragoman.runtime.processes import count_cores

ResultT = TypeVar("ResultT")


class WorkerThread:
    """A thread that does what it is asked, one thing after the other, until the process ends."""

    def __init__(self) -> None:
        """Raises RuntimeError where no thread can be had."""
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._last_future: Future[Any] | None = None
        Thread(target=self._run_tasks, name="worker", daemon=True).start()

    def submit(self, task: Callable[[], ResultT], future: Future[ResultT]) -> None:
        self._last_future = future
        self._tasks.put((future, task))

    def is_idle(self) -> bool:
        return self._last_future is None or self._last_future.done()

    def clear_last_result(self) -> None:
        """Hold nothing of what was done last."""
        self._last_future = None

    def shutdown(self) -> None:
        """Ask for nothing more."""
        self._tasks.put(None)

    def _run_tasks(self) -> None:
        while (item := self._tasks.get()) is not None:
            future, task = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(task())
                except BaseException as error:
                    future.set_exception(error)
            del item, future, task  # what they hold is not to wait for the next


_lock = Lock()
_num_busy = 0
_idle_workers: list[WorkerThread] = []
_thread_limit: ContextVar[int | None] = ContextVar("thread_limit", default=None)


def _reset_after_fork() -> None:
    """In a process that was forked off: threads stay behind."""
    global _lock, _num_busy, _idle_workers
    _lock, _num_busy, _idle_workers = Lock(), 0, []


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


@contextmanager
def limit_threads(threads: int) -> Iterator[None]:
    """What this thread searches meanwhile takes no more."""
    token = _thread_limit.set(threads)
    try:
        yield
    finally:
        _thread_limit.reset(token)


def get_thread_limit() -> int:
    """How many threads a search may take: what `at_most` says, else as many as torch takes."""
    return _thread_limit.get() or torch.get_num_threads()


@contextmanager
def borrow_workers(max_workers: int) -> Iterator[list[WorkerThread]]:
    """So many at most, as there are cores that no search has; the search that asks has one itself."""
    global _num_busy
    workers: list[WorkerThread] = []
    num_threads = 0
    try:
        with _lock:
            num_free, num_threads = min(max_workers, count_cores() - _num_busy - 1) if max_workers > 0 else 0, 1
            _num_busy += 1
            with suppress(RuntimeError):
                while len(workers) < num_free:
                    workers.append(_idle_workers.pop() if _idle_workers else WorkerThread())
                    num_threads, _num_busy = num_threads + 1, _num_busy + 1
        yield workers
    finally:
        with _lock:
            _num_busy -= num_threads
            for worker in workers:
                if worker.is_idle():
                    worker.clear_last_result()
                    _idle_workers.append(worker)
                else:  # nobody waited for it
                    worker.shutdown()


class StepGroup:
    """Where a thread and its helpers meet, who are a team."""

    def __init__(self, workers: Sequence[WorkerThread]) -> None:
        self.workers, num_threads = workers, len(workers) + 1
        self.arrivals_G = torch.zeros(num_threads + 1, CACHE_LINE_I64, dtype=torch.long, device="cpu")
        arrivals, cancelled = self.arrivals_G.data_ptr(), self.arrivals_G[num_threads].data_ptr()
        self.groups = [
            ThreadGroup(num_threads, thread_index, arrivals, cancelled, _find_yield_fn()) for thread_index in range(num_threads)
        ]

    def run(self, task: Callable[[int], int]) -> int:
        """What the first member's work comes to, when all have done theirs. Where one fails, nobody waits for it."""
        return run_all([partial(task, group.thread_index) for group in self.groups], self.workers, self._cancel)[0]

    def _cancel(self) -> None:
        ctypes.c_int64.from_address(
            self.groups[0].cancelled
        ).value = 1  # which torch may forbid: another thread has inference mode


class Cancelled(Exception):
    """Somebody else failed, and so this was not done."""


def run_all(
    tasks: Sequence[Callable[[], ResultT]], workers: Sequence[WorkerThread], cancel: Callable[[], None]
) -> list[ResultT]:
    """What each of these comes to, the first in this thread, the others by a helper each. Where one fails, `stop` is called,
    and when the failure is raised here, all have ended; only a second Ctrl-C does not wait for that."""
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
            cancel()  # also where Ctrl-C came before the other
    errors += [
        worker_error for future in futures if not future.cancelled() and (worker_error := future.exception()) is not None
    ]
    if errors:
        raise min(errors, key=lambda raised_error: isinstance(raised_error, Cancelled))
    return [first_result, *(future.result() for future in futures)]


def _run_or_cancel(task: Callable[[], ResultT], cancel: Callable[[], None]) -> ResultT:
    try:
        return task()
    except BaseException:
        cancel()
        raise


def _find_yield_fn() -> int:
    """Where the function stands by which a thread lets others of its core go on; 0 where there is none by that name."""
    if sys.platform == "win32":
        return 0
    return ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value or 0
