"""Bytes that requests share, so that the memory of the server does not grow with the number of its clients."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from dragoman.serving.request_queue import QueueFullError


class ByteBudget:
    """Number of bytes that requests take a part of, in the order of their arrival. For one event loop.

    A request for more bytes than the budget has takes all of them, so every request has its turn.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = self._num_free = num_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def num_taken(self) -> int:
        """Bytes that requests hold."""
        return self.num_bytes - self._num_free

    @asynccontextmanager
    async def take(self, num_bytes: int, seconds: float) -> AsyncIterator[None]:
        """Hold a part of the budget. Raises QueueFullError if it does not become free within these seconds."""
        part = min(num_bytes, self.num_bytes)
        if not self._waiting and part <= self._num_free:
            self._num_free -= part
        else:
            await self._wait(part, seconds)
        try:
            yield
        finally:
            self._num_free += part
            self._grant()

    async def _wait(self, part: int, seconds: float) -> None:
        """Wait for a part of the budget behind those that wait already."""
        granted = asyncio.get_running_loop().create_future()
        self._waiting.append(entry := (part, granted))
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await granted
        except BaseException as error:
            if granted.done() and not granted.cancelled():  # it was granted in the moment of the error
                self._num_free += part
            with suppress(ValueError):
                self._waiting.remove(entry)
            self._grant()
            if isinstance(error, TimeoutError):
                raise QueueFullError from None
            raise

    def _grant(self) -> None:
        """Give free bytes to those that wait, the first one first."""
        while self._waiting and self._waiting[0][0] <= self._num_free:
            part, granted = self._waiting.popleft()
            if not granted.done():
                self._num_free -= part
                granted.set_result(None)
