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

from dragoman.errors import LostProcessError

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

# What a container may take of the processors' time, and how often that is counted, both in microseconds (Linux, cgroup v2).
QUOTA = Path("/sys/fs/cgroup/cpu.max")
# So few items are done before a second process would have come up.
FEW = 4
# Ctrl-C and the like go to all processes of a terminal or a job; SIGTERM is how a broken pool ends its own.
_LEFT_TO_THE_FIRST = (signal.SIGINT, signal.SIGUSR1)

_work: Callable[[Any], Any] | None = None


def cores() -> int:
    """Processors that this process may run on, or that its container has a quota of, rounded up."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = QUOTA.read_text(encoding="ascii").split()
        found = min(found, ceil(int(quota) / int(period)))  # which is no number where there is no limit
    return max(1, found)


@contextmanager
def starting_deaf(*signals: signal.Signals) -> Iterator[None]:
    """Processes that are started meanwhile leave these signals to this one, from their first moment on."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        resource_tracker.ensure_running()  # where it starts, it lets signals through again
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def spread(work: Callable[[ItemT], ResultT], items: Iterable[ItemT], *, processes: int) -> Iterator[ResultT]:
    """`map(work, items)` by several processes. `work` is sent to each of them once, and may be heavy.

    Raises what `work` raises, and LostProcessError where a process was killed.
    """
    iterator = iter(items)
    first = list(islice(iterator, FEW + 1)) if processes > 1 else []
    if len(first) <= FEW:
        yield from map(work, chain(first, iterator))
        return
    context = multiprocessing.get_context("spawn")  # a fork of a process that has threads may hang
    with starting_deaf(*_LEFT_TO_THE_FIRST):
        pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_begin, initargs=(work,))
    try:
        waiting: deque[Future[ResultT]] = deque()
        for item in chain(first, iterator):
            with starting_deaf(*_LEFT_TO_THE_FIRST):
                waiting.append(pool.submit(_call, item))
            if len(waiting) > 2 * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise LostProcessError(
            "a process that works ahead has ended, for want of memory perhaps; set data.preprocessing_workers=1 or lower than now. "
            "(A script that calls dragoman does so under `if __name__ == '__main__':`)"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(work: Callable[[Any], Any]) -> None:
    """What a process does first: see to it that it ends when the one that started it has."""
    global _work
    _work = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for systems that cannot hold signals back
    end_with_parent()


def end_with_parent() -> None:
    """Let this process end when the one that started it has, however that was."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call(item: Any) -> Any:
    assert _work is not None
    return _work(item)
