"""Parallel map over processes: results in the order of the items, with a bounded number of pending items."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice
from math import ceil
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dragoman.errors import WorkerLostError
from dragoman.platform_features import count_allowed_cores, get_signals

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

# CPU time that a container may use in a period, and the period, both in microseconds (Linux, cgroup v2).
CPU_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")
# This process finishes so few items before a second process would start.
MAX_SERIAL_ITEMS = 4
# The terminal sends these to all processes. SIGTERM is not among them, because a broken pool ends its workers with it.
_PARENT_SIGNALS = get_signals("SIGINT", "SIGUSR1")


class MapFunction(Protocol):
    """Function with the arguments and the results of `map_in_processes`."""

    def __call__(
        self, function: Callable[[ItemT], ResultT], items: Iterable[ItemT], *, num_processes: int
    ) -> Iterator[ResultT]: ...


_worker_function: Callable[[Any], Any] | None = None


def count_cores() -> int:
    """Return the number of processors that this process may use, limited by the quota of its container, rounded up."""
    count = count_allowed_cores()
    with suppress(OSError, ValueError):
        quota, period = CPU_QUOTA_FILE.read_text(encoding="ascii").split()
        count = min(count, ceil(int(quota) / int(period)))  # without a limit, the quota is "max" and int() fails
    return max(1, count)


@contextmanager
def block_signals(*signals: signal.Signals) -> Iterator[None]:
    """Block signals in the processes that start meanwhile, from their first moment on; this process still receives them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker  # of systems with signal masks only

    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        resource_tracker.ensure_running()  # its start unblocks the signals
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


def unblock_signals(*signals: signal.Signals) -> None:
    """Receive signals again that the parent process blocked when it started this process."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


def map_in_processes(function: Callable[[ItemT], ResultT], items: Iterable[ItemT], *, num_processes: int) -> Iterator[ResultT]:
    """Yield `function(item)` for each item, in order, computed by several processes.

    function: sent to each process once, so it may hold much data
    items: read in this process
    num_processes: number of worker processes; with 1, this process does the work

    Raises WorkerLostError: the system killed a worker process.
    Raises BaseException: an exception of `function`.
    """
    iterator = iter(items)
    head = list(islice(iterator, MAX_SERIAL_ITEMS + 1)) if num_processes > 1 else []
    if len(head) <= MAX_SERIAL_ITEMS:
        yield from map(function, chain(head, iterator))
        return
    from concurrent.futures import Future, ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    context = get_context("spawn")  # a fork of a process that has threads may hang
    with block_signals(*_PARENT_SIGNALS):
        pool = ProcessPoolExecutor(num_processes, mp_context=context, initializer=_init_worker, initargs=(function,))
    try:
        pending: deque[Future[ResultT]] = deque()
        for item in chain(head, iterator):
            with block_signals(*_PARENT_SIGNALS):
                pending.append(pool.submit(_call_function, item))
            if len(pending) > 2 * num_processes:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise WorkerLostError(
            "data.preprocessing_workers: a worker process was killed, perhaps for lack of memory; lower the number of workers. "
            "(A script must call dragoman under `if __name__ == '__main__':`)"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _init_worker(function: Callable[[Any], Any]) -> None:
    """Store the function and make the worker exit when its parent exits."""
    global _worker_function
    _worker_function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for systems without pthread_sigmask
    exit_with_parent()


def exit_with_parent() -> None:
    """Make this process exit when its parent has exited for any reason."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call_function(item: Any) -> Any:
    assert _worker_function is not None
    return _worker_function(item)
