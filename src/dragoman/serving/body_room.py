"""Room for bodies of requests while they arrive, so that memory does not grow with the number of clients.

Bytes count when they have arrived, not when a header announces them. A client that announces much and sends little takes none.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from dragoman.serving.request_queue import QueueFullError


@dataclass(eq=False)
class ArrivingBody:
    """Body that arrives. client: its sender. num_bytes: bytes that it holds room for"""

    client: Hashable
    num_bytes: int = 0
    wait: asyncio.Future[None] | None = field(default=None, repr=False)


class BodyRoom:
    """Number of bytes that arriving bodies share. For one event loop.

    A body waits when the room is full, or when its client has half of it, so that one client leaves room for others. The oldest
    body never waits, so one of them always ends, and the bodies hold the room and one body more at most.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.num_taken = 0
        self._bodies: dict[ArrivingBody, None] = {}
        self._client_bytes: Counter[Hashable] = Counter()

    def open(self, client: Hashable) -> ArrivingBody:
        """Return a body that holds nothing yet."""
        body = ArrivingBody(client)
        self._bodies[body] = None
        return body

    async def grow(self, body: ArrivingBody, num_bytes: int, seconds: float) -> None:
        """Hold more bytes for a body. Raises QueueFullError if there is no room for them within these seconds."""
        if not self._has_room(body, num_bytes):
            await self._wait(body, num_bytes, seconds)
        body.num_bytes += num_bytes
        self.num_taken += num_bytes
        self._client_bytes[body.client] += num_bytes

    def close(self, body: ArrivingBody) -> None:
        """Give the room of a body back. Closing it again has no effect."""
        if body in self._bodies:
            del self._bodies[body]
            self.num_taken -= body.num_bytes
            self._client_bytes[body.client] -= body.num_bytes
            if not self._client_bytes[body.client]:
                del self._client_bytes[body.client]
            self._wake()

    def _has_room(self, body: ArrivingBody, num_bytes: int) -> bool:
        if body is next(iter(self._bodies)):
            return True
        has_share = self._client_bytes[body.client] + num_bytes <= self.num_bytes // 2
        return has_share and self.num_taken + num_bytes <= self.num_bytes

    async def _wait(self, body: ArrivingBody, num_bytes: int, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                while not self._has_room(body, num_bytes):
                    body.wait = loop.create_future()
                    await body.wait
        except TimeoutError:
            raise QueueFullError from None
        finally:
            body.wait = None

    def _wake(self) -> None:
        """Let the bodies that wait look again, the oldest first."""
        for body in self._bodies:
            if body.wait is not None and not body.wait.done():
                body.wait.set_result(None)
