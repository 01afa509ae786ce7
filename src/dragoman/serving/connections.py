"""Connections with a time limit for clients that do not send or do not read, and with a stop that loses no request.

uvicorn itself has a limit for an idle connection after an answer only. When there are as many connections as the process may
have, those that have waited longest for their clients are closed. If all have a request in progress, others are answered at the
paths of health checks only.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol

from dragoman.serving.connection_limit import ACCEPTED_PER_TURN, ConnectionLimit

HEAD_SECONDS = 15.0
"""Time for the head of a request, from the start of the connection or from its first byte."""
WRITE_SECONDS = 60.0
"""Time that a client may leave its answer unread, once the buffers of the connection are full."""
READ_BYTES = 16 << 10
"""Most bytes that a connection reads at once, so that one whose body waits for its turn holds little memory, and that one with
chunks of one byte holds the others up for 0.05 s at most."""
MAX_JOINED_BYTES = 64 << 10
"""Most bytes of an answer that wait for the end of a turn of the event loop."""
STOP_SECONDS = 0.25
"""Time for a request that is on its way as the server stops."""
RESERVED = "is_reserved"
"""Name, in the state of a request, of a connection beyond the limit, which health checks alone may use."""


class JoinedWrites:
    """Transport that sends what is written in one turn of the event loop together: the head and the body of an answer."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self._num_bytes = 0

    def __getattr__(self, name: str) -> Any:
        """Return what the transport has."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send data in this turn, or at once if much waits, so that the transport can ask for a pause."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        self._num_bytes += len(data)
        if self._num_bytes >= MAX_JOINED_BYTES:
            self._flush()

    def close(self) -> None:
        """Send what waits, and close the connection."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._parts:
            self._transport.write(b"".join(self._parts))
            self._parts, self._num_bytes = [], 0


class TimedConnection(H11Protocol):
    """HTTP connection that a client cannot hold without a request in progress.

    limit: limit on the open connections of the process
    """

    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _is_stopping = False
    _is_reserved = False
    _last_received = 0.0

    def __init__(self, *arguments: Any, limit: ConnectionLimit, **named_arguments: Any) -> None:
        super().__init__(*arguments, **named_arguments)
        self._limit = limit

    @property
    def _waits_for_client(self) -> bool:
        """Return whether the client has to send or to read something before the server can go on."""
        if not self._is_answering:
            return True
        return self.flow.write_paused or (self.cycle.more_body and not self.flow.read_paused)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request."""
        super().connection_made(transport)
        # asyncio does this for sockets that it opens itself. Without it, a part of an answer waits 40 ms behind the one before.
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]  # of asyncio's own transports
        self.transport = JoinedWrites(transport, self.loop)  # type: ignore[assignment]
        self._last_received = self.loop.time()
        self._make_room()
        self._watch_head()

    def _make_room(self) -> None:
        """Close idle connections if there are too many; without any, keep this one for health checks, or close it."""
        if (excess := len(self.connections) - self._limit.max_open) <= 0:
            return
        others = cast("set[TimedConnection]", self.connections - {self})
        closable = [other for other in others if not other.transport.is_closing() and other._waits_for_client]
        closing = sum(other.transport.is_closing() for other in others)
        self._limit.report(len(self.connections))
        if not closable and closing < excess:
            self._is_reserved = True
            self.app_state = {**self.app_state, RESERVED: True}
            if excess - closing > ACCEPTED_PER_TURN:
                self.transport.abort()
            return
        # Several at once, because each look at all connections takes time.
        number = max(excess - closing, min(len(closable), self._limit.max_open // 16))
        for other in sorted(closable, key=lambda other: other._last_received)[:number]:
            other.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        self._last_received = self.loop.time()
        super().data_received(data)
        self._watch_head()
        if (self._is_stopping or self._is_reserved) and self._is_answering:
            self._close_after_answer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        _cancel(self._head_timer)
        _cancel(self._write_timer)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Give the client some time to read."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on writing."""
        _cancel(self._write_timer)
        super().resume_writing()

    def shutdown(self) -> None:
        """Close the connection after the answer in progress, or after a moment in which a request may still arrive."""
        self._is_stopping = True
        if self._is_answering:
            self._close_after_answer()
            super().shutdown()
        else:
            self.loop.call_later(STOP_SECONDS, self._end)

    def _end(self) -> None:
        if not self.transport.is_closing():
            super().shutdown()

    def _close_after_answer(self) -> None:
        """Tell the client that no other request is answered on this connection."""
        cycle: Any = self.cycle
        if CLOSE_HEADER not in cycle.default_headers:
            cycle.default_headers = [*cycle.default_headers, CLOSE_HEADER]

    def _watch_head(self) -> None:
        """Close the connection later, unless a request is in progress. Bytes after an answer do not prolong the time."""
        if self._is_answering:
            _cancel(self._head_timer)
            self._head_timer = None
        elif self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    """Stop a timer, if there is one."""
    if timer is not None:
        timer.cancel()
