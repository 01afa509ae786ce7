"""Queue of lines that requests wait in, and the thread that translates them in batches across requests.

Each batch takes lines from the clients in turn, and from the waiting jobs of each client in turn. So neither a large job nor a
client with many jobs holds up a single sentence. The size of a batch follows the measured speed, so a new request waits for
a fraction of a second at most. A job that was canceled, or whose time is over, leaves the queue before the next batch.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from dragoman.serving.clients import has_share

logger = logging.getLogger("dragoman.serving")

KeyT = TypeVar("KeyT", bound=Hashable)
ResultT = TypeVar("ResultT")
ItemT = TypeVar("ItemT")

BATCH_SECONDS = 0.25
"""Time that a batch is meant to take."""
DEADLINE_SECONDS = 0.1
"""Time between two looks at the deadlines of all jobs, which thousands of jobs make long."""
FIRST_BATCH_TOKENS = 256
MIN_BATCH_TOKENS = 64
MAX_BATCH_TOKENS = 16_384
CHARACTERS_PER_TOKEN = 4
LINE_TOKENS = 4
"""Tokens of a line beside those of its characters, so that many short lines are no small job."""


class QueueClosedError(Exception):
    """Refusal of new work, because the server stops."""


class QueueFullError(Exception):
    """Refusal of a request, because the queue stayed full."""


class DeadlineError(Exception):
    """End of the time of a request before its answer."""


def estimate_tokens(line: str) -> int:
    """Return about how many tokens a line has; every fourth byte of UTF-8 counts."""
    return LINE_TOKENS + len(line.encode("utf-8", "replace")) // CHARACTERS_PER_TOKEN


@dataclass(frozen=True)
class BatchRecord:
    """Size of a batch, and its times by the clock of `time.monotonic_ns`."""

    start_ns: int
    end_ns: int
    num_lines: int
    num_tokens: int


@dataclass(eq=False)
class Job(Generic[KeyT, ResultT]):
    """Lines of one request.

    key: model and options; lines of a batch have equal keys
    client: name of the client that waits for it
    deadline: time of `time.monotonic` after which nobody waits for the result
    start_by: time after which the job is refused if none of its lines was translated; a late start would only be wasted work,
        because the client gives up
    on_done: called once, in the thread of the queue, with the results in order, or with an error
    on_line: called with the index and the result of each line
    on_batch: called after each batch with lines of the job
    """

    key: KeyT
    lines: Sequence[str]
    deadline: float
    on_done: Callable[[list[ResultT] | None, Exception | None], None]
    on_line: Callable[[int, ResultT], None] | None = None
    on_batch: Callable[[BatchRecord], None] | None = None
    start_by: float = math.inf
    client: str = ""
    waiting: deque[int] = field(default_factory=deque)
    results: dict[int, ResultT] = field(default_factory=dict)
    is_canceled: bool = False
    is_finished: bool = False

    def __post_init__(self) -> None:
        # Lines of similar length share a batch, so little of it is padding.
        self.waiting.extend(sorted(range(len(self.lines)), key=lambda index: len(self.lines[index])))
        self.tokens = [estimate_tokens(line) for line in self.lines]
        self.num_tokens = sum(self.tokens)

    @property
    def is_new(self) -> bool:
        """Return whether no line has been taken yet."""
        return len(self.waiting) == len(self.lines)

    def is_over(self, now: float) -> bool:
        """Return whether nobody waits for the job at a time of `time.monotonic`."""
        return self.is_canceled or self.deadline <= now or (self.start_by <= now and self.is_new)


def iter_queue(queue: deque[ItemT]) -> Iterator[ItemT]:
    """Yield and remove the items of a queue, those included that are appended meanwhile."""
    while queue:
        yield queue.popleft()


class RequestQueue(Generic[KeyT, ResultT]):
    """Bounded queue of jobs with one thread that translates batches.

    translate: function of a key and lines that returns one result for each line
    max_tokens: tokens of the waiting lines of all jobs
    on_batch: called after each batch with its lines, tokens and seconds
    flush: called in the thread of the queue after the calls of `on_line` and `on_done` of all jobs of a batch
    """

    def __init__(
        self,
        translate: Callable[[KeyT, Sequence[str]], Sequence[ResultT]],
        *,
        max_tokens: int,
        on_batch: Callable[[int, int, float], None] = lambda lines, tokens, seconds: None,
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        self._translate = translate
        self._on_batch = on_batch
        self._flush = flush
        self.max_tokens = max_tokens
        self._jobs: deque[Job[KeyT, ResultT]] = deque()
        self._num_tokens = 0
        self._client_tokens: Counter[str] = Counter()
        self._had_turn: set[str] = set()
        self._condition = threading.Condition()
        self._is_closed = False
        self._keys: dict[KeyT, KeyT] = {}
        self._has_canceled = False
        self._next_look = 0.0
        self._batch_tokens = FIRST_BATCH_TOKENS
        self._thread = threading.Thread(target=self._run, name="request-queue", daemon=True)
        self._thread.start()

    @property
    def num_tokens(self) -> int:
        """Tokens of the lines that wait."""
        return self._num_tokens

    @property
    def is_closed(self) -> bool:
        """Return whether the queue takes no new jobs."""
        return self._is_closed

    @property
    def num_jobs(self) -> int:
        """Jobs that wait or are in the current batch."""
        return len(self._jobs)

    def try_put(self, job: Job[KeyT, ResultT]) -> bool:
        """Add a job if there is room. A job that is larger than the queue has room in an empty queue.

        The jobs of a client take as much room at most as they leave, so that no client fills the queue.

        Raises QueueClosedError after `close`.
        """
        with self._condition:
            if self._is_closed:
                raise QueueClosedError
            if self._num_tokens:
                own = self._client_tokens[job.client] if job.client else 0
                has_room = has_share(own, self._num_tokens, self.max_tokens, job.num_tokens)
                if not has_room:
                    return False
            if not self._jobs:
                self._keys.clear()
            job.key = self._keys.setdefault(job.key, job.key)  # equal keys are one object, which makes comparisons fast
            self._jobs.append(job)
            self._add_tokens(job, job.num_tokens)
            self._condition.notify()
            return True

    def cancel(self, job: Job[KeyT, ResultT]) -> None:
        """Leave out the lines of a job that have not been translated."""
        with self._condition:
            job.is_canceled = self._has_canceled = True
            self._condition.notify()

    def close(self) -> None:
        """Take no new jobs. The thread ends when the jobs are finished."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()

    def join(self, timeout: float) -> bool:
        """Wait for the end of the thread after `close`; return whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while self._run_batch():
            pass

    def _run_batch(self) -> bool:
        """Wait for jobs, end those whose time is over, and translate a batch. Return whether the queue goes on.

        It is a call of its own, so that the thread holds no job while it waits for the next one.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._jobs or self._is_closed)
            finished = self._remove_dead_jobs()
            batch = self._take_batch()
            is_last = self._is_closed and not self._jobs
        for job, error in finished:
            job.on_done(None, error)
        if finished:
            self._flush()
        if batch:
            self._translate_batch(batch)
            self._flush()
        return bool(batch) or not is_last

    def _remove_dead_jobs(self) -> list[tuple[Job[KeyT, ResultT], Exception]]:
        """Return the jobs whose time is over, each with its error, and remove them and the canceled ones."""
        now = time.monotonic()
        if now < self._next_look and not self._has_canceled:
            return []
        self._next_look, self._has_canceled = now + DEADLINE_SECONDS, False
        dead = [job for job in self._jobs if job.is_over(now)]
        for job in dead:
            self._finish(job)
        if dead:
            self._jobs = deque(job for job in self._jobs if not job.is_finished)
        return [(job, DeadlineError() if job.deadline <= now else QueueFullError()) for job in dead if not job.is_canceled]

    def _remove(self, job: Job[KeyT, ResultT]) -> None:
        self._jobs.remove(job)
        self._finish(job)

    def _add_tokens(self, job: Job[KeyT, ResultT], num_tokens: int) -> None:
        """Count tokens that wait, or that wait no more, of all clients and of the client of a job."""
        self._num_tokens += num_tokens
        self._client_tokens[job.client] += num_tokens
        if not self._client_tokens[job.client]:
            del self._client_tokens[job.client]

    def _finish(self, job: Job[KeyT, ResultT]) -> None:
        self._add_tokens(job, -sum(job.tokens[index] for index in job.waiting))
        job.waiting.clear()
        job.is_finished = True

    def _take_batch(self) -> list[tuple[Job[KeyT, ResultT], int]]:
        """Return lines of the first job's kind until the batch is full: one of each client, and of its jobs, in turn.

        The clients have the first job in turn, and the first job moves behind the others.
        """
        if not self._jobs:
            return []
        first = self._take_turn()
        now = time.monotonic()
        clients: dict[str, deque[Job[KeyT, ResultT]]] = {}
        for job in self._jobs:
            if job.key is first.key and job.waiting and not job.is_over(now):
                clients.setdefault(job.client, deque()).append(job)
        batch: list[tuple[Job[KeyT, ResultT], int]] = []
        num_tokens = 0
        turn = deque(clients.values())
        for jobs in iter_queue(turn):
            job = jobs.popleft()
            index = job.waiting.popleft()
            batch.append((job, index))
            self._add_tokens(job, -job.tokens[index])
            num_tokens += job.tokens[index]
            if num_tokens >= self._batch_tokens:
                break
            if job.waiting:
                jobs.append(job)
            if jobs:
                turn.append(jobs)
        if not batch:
            self._next_look = 0.0  # the first job is over
        self._jobs.remove(first)
        self._jobs.append(first)
        return batch

    def _take_turn(self) -> Job[KeyT, ResultT]:
        """Return the first job of a client that has not had its turn, and note that it has it now."""
        first = next((job for job in self._jobs if job.client not in self._had_turn), None)
        if first is None:
            self._had_turn.clear()
            first = self._jobs[0]
        self._had_turn.add(first.client)
        return first

    def _translate_batch(self, batch: list[tuple[Job[KeyT, ResultT], int]]) -> None:
        start = time.monotonic_ns()
        lines = [job.lines[index] for job, index in batch]
        results: Sequence[ResultT] = ()
        error: Exception | None = None
        try:
            results = self._translate(batch[0][0].key, lines)
        except Exception as raised:  # the queue goes on; each request of the batch gets the error
            error = raised
        if error is not None and len(jobs := dict.fromkeys(job for job, _ in batch)) > 1:
            for job in jobs:  # find the job that fails, and spare the others
                self._translate_batch([item for item in batch if item[0] is job])
            return
        end = time.monotonic_ns()
        seconds = (end - start) / 1e9
        num_tokens = sum(job.tokens[index] for job, index in batch)
        for job in dict.fromkeys(job for job, _ in batch):
            if job.on_batch is not None:
                job.on_batch(BatchRecord(start, end, len(lines), num_tokens))
        if error is None:
            self._adapt_batch(num_tokens, seconds)
            self._on_batch(len(lines), num_tokens, seconds)
            for (job, index), result in zip(batch, results, strict=True):
                job.results[index] = result
                if job.on_line is not None and not job.is_canceled:
                    job.on_line(index, result)
        with self._condition:
            done = [job for job in dict.fromkeys(job for job, _ in batch) if error is not None or not job.waiting]
            done = [job for job in done if not job.is_finished and (error is not None or len(job.results) == len(job.lines))]
            for job in done:
                self._remove(job)
        for job in done:
            if not job.is_canceled:
                job.on_done([job.results[index] for index in range(len(job.lines))] if error is None else None, error)

    def _adapt_batch(self, num_tokens: int, seconds: float) -> None:
        """Follow the measured speed, at most by a factor of two for each batch."""
        if num_tokens >= self._batch_tokens // 2:
            target = num_tokens * BATCH_SECONDS / max(seconds, 1e-3)
            limits = max(MIN_BATCH_TOKENS, self._batch_tokens / 2), min(MAX_BATCH_TOKENS, self._batch_tokens * 2)
            self._batch_tokens = round(min(max(target, limits[0]), limits[1]))
