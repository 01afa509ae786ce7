"""Threads that search together: a team computes every step of one search (`meeting`), or each thread has sentences of its own.

A search has a core of its own at least; it takes others only where no other search of this process has them, since whom all
wait for must not wait for a core.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import TypeVar

import torch

from dragoman.engine.layout import APART, Team

Found = TypeVar("Found")

_lock = Lock()
_taken = 0
_pool: ThreadPoolExecutor | None = None


def _begin_anew() -> None:
    """In a process that was forked off: threads stay behind."""
    global _lock, _taken, _pool
    _lock, _taken, _pool = Lock(), 0, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


@contextmanager
def members(most: int) -> Iterator[int]:
    """How many threads a search may have while this lasts: so many at most, itself among them."""
    global _taken
    with _lock:
        granted = max(1, min(most, _cores() - _taken))
        _taken += granted
    try:
        yield granted
    finally:
        with _lock:
            _taken -= granted


class Meeting:
    """Where the members of a team meet."""

    def __init__(self, members: int) -> None:
        self.arrived_G = torch.zeros(members + 1, APART, dtype=torch.long, device="cpu")
        arrived, over = self.arrived_G.data_ptr(), self.arrived_G[members].data_ptr()
        self.teams = [Team(members, member, arrived, over, _pass_on()) for member in range(members)]

    def hold(self, work: Callable[[int], int]) -> int:
        """What the first member's work comes to, when all have done theirs. Where one fails, nobody waits for it."""
        return together([partial(work, team.member) for team in self.teams], self._end)[0]

    def _end(self) -> None:
        self.arrived_G[-1, 0] = 1


class Stopped(Exception):
    """Somebody else failed, and so this was not done."""


def together(works: Sequence[Callable[[], Found]], stop: Callable[[], None]) -> list[Found]:
    """What each of these comes to, the first in this thread. Where one fails, `stop` is called, and all have ended when it
    is raised here."""
    if len(works) == 1:
        return [works[0]()]

    def tried(work: Callable[[], Found]) -> Found:
        try:
            return work()
        except BaseException:
            stop()
            raise

    others: list[Future[Found]] = []
    failures: list[BaseException] = []
    try:
        for work in works[1:]:
            others.append(_threads().submit(tried, work))
        mine = works[0]()
        wait(others)
    except BaseException as failure:
        stop()
        failures.append(failure)
        wait(others)
    failures += [theirs for other in others if (theirs := other.exception()) is not None]
    if failures:
        raise min(failures, key=lambda one: isinstance(one, Stopped))
    return [mine, *(other.result() for other in others)]


def _threads() -> ThreadPoolExecutor:
    """As many as are ever taken at once, so that no member waits for a thread that another team has."""
    global _pool
    with _lock:
        _pool = _pool or ThreadPoolExecutor(_cores(), "member")
        return _pool


def _cores() -> int:
    """That this process may compute on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _pass_on() -> int:
    """Where the function stands by which a thread lets others of its core go on; 0 where there is none by that name."""
    if sys.platform == "win32":
        return 0
    return ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value or 0
