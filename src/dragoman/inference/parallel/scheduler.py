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

from dragoman.inference.backends.compiled.threads import at_most
from dragoman.inference.parallel.worker import Found as Searched
from dragoman.inference.parallel.worker import Opening, Worker, is_portable, request_of
from dragoman.runtime.autotune_cache import cores, recall, remember
from dragoman.runtime.processes import cores as processors
from dragoman.tasks.generation import Work

TRIED = 3
"""Pieces that each way is given, the first of which does not count."""
MOST = 1024
"""Replicas, and threads of each."""
LONG = 8
"""Pieces for each replica from which on a process is worth its two seconds of starting."""
MOST_LOST = 2
"""Processes that ended by themselves, or were killed, after which no others are started."""
MOST_TRIED = 4
"""Processes that are started to find out what is fastest; each holds what Python and torch take."""

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


class _Shared(Generic[Given, Found]):
    """Pieces that this thread and other processes take from, one after the other, until all are done."""

    def __init__(self, work: Callable[[Given], Found], pieces: Sequence[Given]) -> None:
        self.work, self.pieces = work, pieces
        self.found: dict[int, Found] = {}
        self._left = list(range(len(pieces)))
        self._changed = Condition()

    def take(self) -> int | None:
        with self._changed:
            return self._left.pop(0) if self._left else None

    def request(self, number: int) -> dict[str, Any]:
        return request_of(cast(Work, self.work), cast("Sequence[int]", self.pieces[number]))

    def finish(self, number: int, found: Searched) -> None:
        with self._changed:
            self.found[number] = cast(Found, found)
            self._changed.notify()

    def give_back(self, number: int) -> None:
        with self._changed:
            self._left.insert(0, number)
            self._changed.notify()

    def results(self) -> Iterator[Found]:
        """In order. Whatever the others have not taken, or have given back, is done here."""
        try:
            for wanted in range(len(self.pieces)):
                while wanted not in self.found:
                    number = self.take()
                    if number is not None:
                        self.found[number] = self.work(self.pieces[number])
                    else:
                        with self._changed:
                            self._changed.wait_for(lambda: self._left or wanted in self.found)  # noqa: B023
                yield self.found.pop(wanted)
        finally:
            with self._changed:
                self._left.clear()


@dataclass
class Replicas:
    """Shares the cores out in the way that is the fastest for this work: what the caller says, or what was measured.

    measured: by the first pieces of a long job, each way given as many pieces as it does at once; pieces next to each other
        must be alike. The winner is remembered for the machine and `question`, which names the kind of work.
    opening: what another process opens; none where the models are in this one's memory alone, and threads share them

    What a model searches for by itself (`Work.is_plain`) leaves Python's lock alone meanwhile: threads share it out, `count` by
    `threads` of them where both are given, and nothing is measured.
    """

    count: int | None
    threads: int | None
    question: str
    opening: Opening | None = None
    _crew: Crew | None = field(default=None, init=False)
    _workers: list[Worker] = field(default_factory=list, init=False)
    _lost: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.opening is not None:
            self.question = f"processes, {self.question}"
        if self.count is not None or self.threads is not None or cores() == 1:
            count = self.count or 1
            self._crew = Crew(count, self.threads or max(1, cores() // count))

    def map(self, work: Callable[[Given], Found], pieces: Iterable[Given]) -> Iterator[Found]:
        """The results in order."""
        given = list(pieces)
        alone = Crew(1, cores())
        if _is_plain(work):
            crew = self._plain_crew(len(given))

            def limited(piece: Given) -> Found:
                with at_most(crew.threads):
                    return work(piece)

            yield from map(limited, given) if crew.replicas == 1 else crew.map(limited, given)
            return
        if self._crew is None:
            self._crew = _read(recall(self.question))
        if self._crew is not None:
            crew = self._crew if len(given) > 1 or self.threads is not None else alone
            yield from self._shared_out(crew, work, given) if self._is_portable(crew, work) else crew.map(work, given)
            return
        done = 0
        if len(given) >= TRIED * sum(self._ways(work)):
            for found in self._measure(work, given):
                done += 1
                yield found
        yield from (self._crew or alone).map(work, given[done:])

    def _plain_crew(self, pieces: int) -> Crew:
        """As many pieces at once as there are threads; where they are fewer, each has several."""
        usual = min(cores(), processors())
        if self.count is not None:
            return Crew(self.count, self.threads or max(1, usual // self.count))
        threads = self.threads or usual
        replicas = max(1, min(threads, pieces))
        return Crew(replicas, threads // replicas)

    def _is_portable(self, crew: Crew, work: Callable[[Given], Found]) -> bool:
        return crew.replicas > 1 and self.opening is not None and is_portable(work)

    def _ways(self, work: Callable[[Given], Found]) -> list[int]:
        by_processes = self.opening is not None and is_portable(work)
        return [count for count in ways() if not by_processes or count <= MOST_TRIED]

    def _shared_out(self, crew: Crew, work: Callable[[Given], Found], given: list[Given]) -> Iterator[Found]:
        """By this process and others, which are waited for only where the caller named their number."""
        if self.count is None and len(given) < LONG * crew.replicas and not self._ready(crew):
            yield from Crew(1, cores()).map(work, given)
            return
        self._start(crew)
        if self.count is not None:
            for worker in self._workers:
                worker.ready.wait()
        job = _Shared(work, given)
        with usual_threads():
            torch.set_num_threads(crew.threads)
            try:
                for worker in self._workers[: crew.replicas - 1]:
                    worker.join(job)
                yield from job.results()
            except BaseException:
                self.close()  # they may be in the middle of what nobody waits for
                raise

    def _ready(self, crew: Crew) -> bool:
        """Whether all processes have come up that this takes."""
        return len(self._workers) >= crew.replicas - 1 and all(worker.ready.is_set() for worker in self._workers)

    def _any_over(self) -> bool:
        return any(worker.over.is_set() for worker in self._workers)

    def _start(self, crew: Crew) -> None:
        """Have as many processes under way as this takes; after some that did not live, no more."""
        assert self.opening is not None
        living = [worker for worker in self._workers if not worker.over.is_set()]
        self._lost += len(self._workers) - len(living)
        self._workers[:] = living
        if self._lost > MOST_LOST:
            return
        with suppress(OSError):
            while len(self._workers) < crew.replicas - 1:
                self._workers.append(Worker(self.opening, crew.threads))

    def close(self) -> None:
        """End the other processes; they are started again when there is work for them."""
        while self._workers:
            self._workers.pop().end()

    def _measure(self, work: Callable[[Given], Found], given: list[Given]) -> Iterator[Found]:
        """Do the first pieces, each way in turn, several times over; the first round, which warms up, does not count."""
        seconds: dict[Crew, list[float]] = {}
        first = 0
        crews = [Crew(count, max(1, cores() // count)) for count in self._ways(work)]
        portable = self._is_portable(crews[-1], work)
        needed = TRIED * sum(crew.replicas for crew in crews)
        if portable:
            self._start(crews[-1])
            while not self._ready(crews[-1]) and len(given) - first > needed:
                yield work(given[first])
                first += 1
            if not self._ready(crews[-1]) or self._any_over():
                return  # next time
        for _ in range(TRIED):
            for crew in crews:
                some = given[first : first + crew.replicas]
                first += crew.replicas
                began = time.perf_counter()
                found = list(self._shared_out(crew, work, some) if self._is_portable(crew, work) else crew.map(work, some))
                seconds.setdefault(crew, []).append((time.perf_counter() - began) / crew.replicas)
                yield from found
        if self._any_over():
            return
        self._crew = min(seconds, key=lambda crew: min(seconds[crew][1:]))
        if self._crew.replicas == 1:
            self.close()
        remember(self.question, f"{self._crew.replicas} x {self._crew.threads}")


def _is_plain(work: object) -> bool:
    return isinstance(work, Work) and work.is_plain


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
