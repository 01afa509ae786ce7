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

from dragoman.inference.backends.compiled.kernels.structs import APART, Team
from dragoman.runtime.processes import cores

Found = TypeVar("Found")


class Helper:
    """A thread that does what it is asked, one thing after the other, until the process ends."""

    def __init__(self) -> None:
        """Raises RuntimeError where no thread can be had."""
        self._asked: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._last: Future[Any] | None = None
        Thread(target=self._serve, name="member", daemon=True).start()

    def ask(self, work: Callable[[], Found], found: Future[Found]) -> None:
        self._last = found
        self._asked.put((found, work))

    def is_idle(self) -> bool:
        return self._last is None or self._last.done()

    def rest(self) -> None:
        """Hold nothing of what was done last."""
        self._last = None

    def dismiss(self) -> None:
        """Ask for nothing more."""
        self._asked.put(None)

    def _serve(self) -> None:
        while (asked := self._asked.get()) is not None:
            found, work = asked
            if found.set_running_or_notify_cancel():
                try:
                    found.set_result(work())
                except BaseException as failure:
                    found.set_exception(failure)
            del asked, found, work  # what they hold is not to wait for the next


_lock = Lock()
_busy = 0
_idle: list[Helper] = []
_allowed: ContextVar[int | None] = ContextVar("allowed", default=None)


def _begin_anew() -> None:
    """In a process that was forked off: threads stay behind."""
    global _lock, _busy, _idle
    _lock, _busy, _idle = Lock(), 0, []


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


@contextmanager
def at_most(threads: int) -> Iterator[None]:
    """What this thread searches meanwhile takes no more."""
    before = _allowed.set(threads)
    try:
        yield
    finally:
        _allowed.reset(before)


def allowed() -> int:
    """How many threads a search may take: what `at_most` says, else as many as torch takes."""
    return _allowed.get() or torch.get_num_threads()


@contextmanager
def helpers(most: int) -> Iterator[list[Helper]]:
    """So many at most, as there are cores that no search has; the search that asks has one itself."""
    global _busy
    taken: list[Helper] = []
    busy = 0
    try:
        with _lock:
            free, busy = min(most, cores() - _busy - 1) if most > 0 else 0, 1
            _busy += 1
            with suppress(RuntimeError):
                while len(taken) < free:
                    taken.append(_idle.pop() if _idle else Helper())
                    busy, _busy = busy + 1, _busy + 1
        yield taken
    finally:
        with _lock:
            _busy -= busy
            for one in taken:
                if one.is_idle():
                    one.rest()
                    _idle.append(one)
                else:  # nobody waited for it
                    one.dismiss()


class Meeting:
    """Where a thread and its helpers meet, who are a team."""

    def __init__(self, helpers: Sequence[Helper]) -> None:
        self.helpers, members = helpers, len(helpers) + 1
        self.arrived_G = torch.zeros(members + 1, APART, dtype=torch.long, device="cpu")
        arrived, over = self.arrived_G.data_ptr(), self.arrived_G[members].data_ptr()
        self.teams = [Team(members, member, arrived, over, _pass_on()) for member in range(members)]

    def hold(self, work: Callable[[int], int]) -> int:
        """What the first member's work comes to, when all have done theirs. Where one fails, nobody waits for it."""
        return together([partial(work, team.member) for team in self.teams], self.helpers, self._end)[0]

    def _end(self) -> None:
        ctypes.c_int64.from_address(self.teams[0].over).value = 1  # which torch may forbid: another thread has inference mode


class Stopped(Exception):
    """Somebody else failed, and so this was not done."""


def together(works: Sequence[Callable[[], Found]], helpers: Sequence[Helper], stop: Callable[[], None]) -> list[Found]:
    """What each of these comes to, the first in this thread, the others by a helper each. Where one fails, `stop` is called,
    and when the failure is raised here, all have ended; only a second Ctrl-C does not wait for that."""
    if len(works) == 1:
        return [works[0]()]
    failures: list[BaseException] = []
    others: list[Future[Found]] = [Future() for _ in works[1:]]
    done = False
    try:
        for helper, work, other in zip(helpers, works[1:], others, strict=True):
            helper.ask(partial(_tried, work, stop), other)
        mine = works[0]()
        wait(others)
        done = True
    except BaseException as failure:
        stop()
        failures.append(failure)
        wait([other for other in others if not other.cancel()])
    finally:
        if not done:
            stop()  # also where Ctrl-C came before the other
    failures += [theirs for other in others if not other.cancelled() and (theirs := other.exception()) is not None]
    if failures:
        raise min(failures, key=lambda one: isinstance(one, Stopped))
    return [mine, *(other.result() for other in others)]


def _tried(work: Callable[[], Found], stop: Callable[[], None]) -> Found:
    try:
        return work()
    except BaseException:
        stop()
        raise


def _pass_on() -> int:
    """Where the function stands by which a thread lets others of its core go on; 0 where there is none by that name."""
    if sys.platform == "win32":
        return 0
    return ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value or 0
