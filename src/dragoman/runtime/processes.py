"""Work spread over processes, its results in the order of the items, with no more in hand than the processes can chew."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from itertools import chain, islice
from math import ceil
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TypeVar

from dragoman.errors import WorkerLostError

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

# What a container may take of the processors' time, and how often that is counted, both in microseconds (Linux, cgroup v2).
CPU_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")
# So few items are done before a second process would have come up.
MAX_SERIAL_ITEMS = 4
# Ctrl-C and the like go to all processes of a terminal or a job; SIGTERM is how a broken pool ends its own.
_PARENT_SIGNALS = (signal.SIGINT, signal.SIGUSR1)

_worker_function: Callable[[Any], Any] | None = None


def count_cores() -> int:
    """Processors that this process may run on, or that its container has a quota of, rounded up."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = CPU_QUOTA_FILE.read_text(encoding="ascii").split()
        count = min(count, ceil(int(quota) / int(period)))  # which is no number where there is no limit
    return max(1, count)


@contextmanager
def block_signals(*signals: signal.Signals) -> Iterator[None]:
    """Processes that are started meanwhile leave these signals to this one, from their first moment on."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        resource_tracker.ensure_running()  # where it starts, it lets signals through again
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


def map_in_processes(function: Callable[[ItemT], ResultT], items: Iterable[ItemT], *, num_processes: int) -> Iterator[ResultT]:
    """`map(work, items)` by several processes. `work` is sent to each of them once, and may be heavy.

    Raises what `work` raises, and LostProcessError where a process was killed.
    """
    iterator = iter(items)
    head = list(islice(iterator, MAX_SERIAL_ITEMS + 1)) if num_processes > 1 else []
    if len(head) <= MAX_SERIAL_ITEMS:
        yield from map(function, chain(head, iterator))
        return
    context = multiprocessing.get_context("spawn")  # a fork of a process that has threads may hang
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
            "a process that works ahead has ended, for want of memory perhaps; set data.preprocessing_workers=1 or lower than now. "
            "(A script that calls dragoman does so under `if __name__ == '__main__':`)"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _init_worker(function: Callable[[Any], Any]) -> None:
    """What a process does first: see to it that it ends when the one that started it has."""
    global _worker_function
    _worker_function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for systems that cannot hold signals back
    exit_with_parent()


def exit_with_parent() -> None:
    """Let this process end when the one that started it has, however that was."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call_function(item: Any) -> Any:
    assert _worker_function is not None
    return _worker_function(item)
