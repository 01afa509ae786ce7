"""Batches side by side: threads of Python, each with its own share of the processor's cores, that read the same weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from dragoman.engine.remembered import cores, recall, remember

TRIED = 3
"""Pieces that each way is given, the first of which does not count."""
MOST = 1024
"""Replicas, and threads of each."""

Given = TypeVar("Given")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Crew:
    """How the cores are shared out: `replicas` batches at once, each by `threads` threads."""

    replicas: int
    threads: int

    def map(self, work: Callable[[Given], Found], pieces: Iterable[Given]) -> Iterator[Found]:
        """The results in order. What one piece raises is raised here, and what was not begun is left undone."""
        if self == Crew(1, cores()):
            yield from map(work, pieces)
            return
        waiting: list[Future[Found]] = []
        pool = ThreadPoolExecutor(self.replicas, "replica", initializer=torch.set_num_threads, initargs=(self.threads,))
        with pool, usual_threads():
            try:
                for piece in pieces:
                    waiting.append(pool.submit(work, piece))
                    if len(waiting) == 2 * self.replicas:
                        yield waiting.pop(0).result()
                while waiting:
                    yield waiting.pop(0).result()
            finally:
                for one in waiting:
                    one.cancel()


@contextmanager
def usual_threads() -> Iterator[None]:
    """Threads that others begin later compute with as many as before: torch has them take the number that was set last."""
    usual = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(usual)


@dataclass
class Replicas:
    """Shares the cores out in the way that is the fastest for this work: what the caller says, or what was measured.

    measured: by the first pieces of a long job, each way given as many pieces as it does at once; pieces next to each other
        must be alike. The winner is remembered for the machine and `question`, which names the kind of work.
    """

    count: int | None
    threads: int | None
    question: str
    _crew: Crew | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.count is not None or self.threads is not None or cores() == 1:
            count = self.count or 1
            self._crew = Crew(count, self.threads or max(1, cores() // count))

    def map(self, work: Callable[[Given], Found], pieces: Iterable[Given]) -> Iterator[Found]:
        """The results in order."""
        given = list(pieces)
        if self._crew is None:
            self._crew = _read(recall(self.question))
        if self._crew is not None:
            crew = self._crew if len(given) > 1 or self.threads is not None else Crew(1, cores())
            yield from crew.map(work, given)
            return
        done = 0
        if len(given) >= TRIED * sum(ways()):
            for found in self._measure(work, given):
                done += 1
                yield found
        yield from (self._crew or Crew(1, cores())).map(work, given[done:])

    def _measure(self, work: Callable[[Given], Found], given: list[Given]) -> Iterator[Found]:
        """Do the first pieces, each way in turn, several times over; the first round, which warms up, does not count."""
        seconds: dict[Crew, list[float]] = {}
        first = 0
        for _ in range(TRIED):
            for count in ways():
                crew = Crew(count, max(1, cores() // count))
                began = time.perf_counter()
                found = list(crew.map(work, given[first : first + count]))
                seconds.setdefault(crew, []).append((time.perf_counter() - began) / count)
                first += count
                yield from found
        self._crew = min(seconds, key=lambda crew: min(seconds[crew][1:]))
        remember(self.question, f"{self._crew.replicas} x {self._crew.threads}")


def ways() -> list[int]:
    """Into how many replicas the cores may be shared out: 1, 2, 4, …, and one core each."""
    return sorted({cores(), *(2**power for power in range(cores().bit_length()) if 2**power <= cores())})


def _read(answer: str | None) -> Crew | None:
    if answer is None:
        return None
    replicas, _, threads = answer.partition(" x ")
    if not (replicas.isdecimal() and threads.isdecimal() and 1 <= int(replicas) <= MOST and 1 <= int(threads) <= MOST):
        return None
    return Crew(int(replicas), int(threads))
