"""Bytes that requests share, so that the memory of the server does not grow with the number of its clients."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from dragoman.serving.clients import has_share
from dragoman.serving.request_queue import QueueFullError


@dataclass(eq=False)
class _Waiting:
    """Request that waits for its part of the budget."""

    part: int
    granted: asyncio.Future[None]


class ByteBudget:
    """Number of bytes that requests take a part of, in the order of their arrival. For one event loop.

    A request for more bytes than the budget has takes all of them, so every request has its turn. A client that has its share
    already waits without holding up others, so answers that one client does not read leave room for others.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = self._num_free = num_bytes
        self._client_bytes: Counter[Hashable] = Counter()
        self._waiting: dict[Hashable, deque[_Waiting]] = {}

    @property
    def num_taken(self) -> int:
        """Bytes that requests hold."""
        return self.num_bytes - self._num_free

    @asynccontextmanager
    async def take(self, num_bytes: int, seconds: float, client: Hashable = "") -> AsyncIterator[None]:
        """Hold a part of the budget. Raises QueueFullError if it does not become free within these seconds."""
        waiting = _Waiting(min(num_bytes, self.num_bytes), asyncio.get_running_loop().create_future())
        self._waiting.setdefault(client, deque()).append(waiting)
        self._grant()
        try:
            await _wait(waiting.granted, seconds)
            yield
        finally:
            if waiting in (queue := self._waiting.get(client, deque())):
                queue.remove(waiting)
            else:
                self._hold(client, -waiting.part)
            self._grant()

    def _hold(self, client: Hashable, num_bytes: int) -> None:
        """Count bytes that a request holds, or a negative number of those that it gives back."""
        self._num_free -= num_bytes
        self._client_bytes[client] += num_bytes
        if not self._client_bytes[client]:
            del self._client_bytes[client]

    def _grant(self) -> None:
        """Give free bytes to those that wait, the first one of each client first."""
        for client, queue in list(self._waiting.items()):
            while queue and self._may_have(client, queue[0].part):
                if queue[0].part > self._num_free:
                    return
                waiting = queue.popleft()
                self._hold(client, waiting.part)
                if not waiting.granted.done():
                    waiting.granted.set_result(None)
            if not queue:
                del self._waiting[client]

    def _may_have(self, client: Hashable, part: int) -> bool:
        """Return whether a client has nothing yet, or leaves enough to others."""
        own = self._client_bytes[client]
        return not own or has_share(own, self.num_taken, self.num_bytes, part)


async def _wait(granted: asyncio.Future[None], seconds: float) -> None:
    """Wait for a part. Raises QueueFullError after these seconds, unless the part is granted in the same moment."""
    try:
        async with asyncio.timeout(None if granted.done() else max(0.0, seconds)):
            await granted
    except TimeoutError:
        if granted.cancelled():
            raise QueueFullError from None
