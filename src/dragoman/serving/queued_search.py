"""Searches of requests in a queue: results come back to the event loop of each request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Generic, TypeVar

from dragoman.serving.clients import QUEUE_CLIENT
from dragoman.serving.request_queue import Job, QueueFullError, RequestQueue
from dragoman.serving.telemetry import Telemetry

POLL_SECONDS = 0.02
"""Time between two looks at a full queue."""
WAITING_PER_POLL = 16
"""Waiting requests that look at a full queue in that time. With more of them, each one looks less often."""

KeyT = TypeVar("KeyT", bound=Hashable)
ResultT = TypeVar("ResultT")


@dataclass
class RequestTimes:
    """Times of `time.monotonic` for a request: until when its first search may start, and until when it is answered."""

    start_by: float
    answer_by: float


class QueuedSearch(Generic[KeyT, ResultT]):
    """Queue of searches whose requests wait in event loops. Its parameters are those of `RequestQueue`."""

    def __init__(
        self,
        search: Callable[[KeyT, Sequence[str]], Sequence[ResultT]],
        *,
        max_tokens: int,
        on_batch: Callable[[int, int, float], None] = lambda lines, tokens, seconds: None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.queue: RequestQueue[KeyT, ResultT] = RequestQueue(
            search, max_tokens=max_tokens, on_batch=on_batch, flush=self._deliver
        )
        self._telemetry = telemetry
        self._results: list[tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = []
        self._num_waiting = 0

    async def run(
        self,
        key: KeyT,
        lines: Sequence[str],
        times: RequestTimes,
        on_line: Callable[[str, Any], None] | None = None,
    ) -> list[ResultT]:
        """Put lines of one kind into the queue, and return their results in order.

        on_line: called with each line and its result, as it is finished

        Raises QueueFullError if the queue stays full, DeadlineError if the time of the request is over, QueueClosedError if the
        server stops, and the errors of the search.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[ResultT]] = loop.create_future()

        def finish(results: list[ResultT] | None, error: Exception | None) -> None:
            if not future.done():
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(results or [])

        job: Job[KeyT, ResultT] = Job(
            key,
            lines,
            times.answer_by,
            client=QUEUE_CLIENT.get(),
            start_by=times.start_by,
            on_done=lambda results, error: self._results.append((loop, partial(finish, results, error))),
            on_line=None
            if on_line is None
            else lambda index, result: self._results.append((loop, partial(on_line, lines[index], result))),
            on_batch=None if self._telemetry is None else self._telemetry.watch_job(),
        )
        await self._put(job)
        try:
            results = await future
            times.start_by = times.answer_by  # a request that has begun is not refused any more
            return results
        finally:
            if not future.done() or future.cancelled():
                self.queue.cancel(job)

    async def close(self, seconds: float) -> None:
        """Finish the requests in the queue within these seconds, and refuse new ones."""
        self.queue.close()
        await asyncio.to_thread(self.queue.join, seconds)

    async def _put(self, job: Job[KeyT, ResultT]) -> None:
        """Add a job to the queue, after a wait for room."""
        self._num_waiting += 1
        try:
            while not self.queue.try_put(job):
                if time.monotonic() >= min(job.deadline, job.start_by):
                    raise QueueFullError
                await asyncio.sleep(POLL_SECONDS * (1 + self._num_waiting // WAITING_PER_POLL))
        finally:
            self._num_waiting -= 1

    def _deliver(self) -> None:
        """Give the results of a batch to the event loops of their requests, in the thread of the queue.

        Each loop is woken once. If every result woke it, the loop would hold the interpreter lock while the next batch waits.
        """
        results, self._results = self._results, []
        for loop, loop_results in groupby(results, key=itemgetter(0)):
            if not loop.is_closed():
                loop.call_soon_threadsafe(_call_all, [call for _, call in loop_results])


def _call_all(functions: Sequence[Callable[[], None]]) -> None:
    """Call functions in order."""
    for function in functions:
        function()
