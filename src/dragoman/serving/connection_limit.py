"""Limit on open connections, below the number of files that the process may open.

Without it, clients that open connections and send nothing use up the descriptors, and nobody else is answered.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dragoman.platform_features import resource

MAX_OPEN = 4096
"""Most connections of a process, because each takes memory for its buffers."""
MIN_OPEN = 16
"""Connections that a process has under the smallest limit of the system."""
ACCEPTED_PER_TURN = 32
"""Connections that the event loop takes before it looks at those that it has."""
RESERVED_FILES = 6 * ACCEPTED_PER_TURN
"""Descriptors for files, for health checks, and for connections that were taken but not looked at yet."""
LOG_SECONDS = 60.0
ACCEPT_PROBLEM = "socket.accept() out of system resource"
"""Message of asyncio when there is no descriptor for a connection."""

logger = logging.getLogger("dragoman.serving")


class RateLimitedLog:
    """Log of one kind of problem, with at most one line a minute."""

    def __init__(self, get_time: Callable[[], float] = time.monotonic) -> None:
        self._get_time = get_time
        self._next = float("-inf")

    def warn(self, message: str, *values: object) -> None:
        """Write a line, unless there was one a moment ago."""
        if (now := self._get_time()) >= self._next:
            self._next = now + LOG_SECONDS
            logger.warning(message, *values)


class ConnectionLimit:
    """Largest number of open connections of a process, and the log of the times when it is reached."""

    def __init__(self, max_open: int | None = None) -> None:
        self.max_open = count_allowed_connections() if max_open is None else max_open
        self._log = RateLimitedLog()

    def report(self, num_open: int) -> None:
        """Log that there are more connections than allowed."""
        self._log.warn(
            "%d connections are open, and this process may have %d; those that wait longest for their clients are closed",
            num_open,
            self.max_open,
        )


def count_allowed_connections() -> int:
    """Return the number of connections that this process may have open, beside the files that it has open now."""
    if resource is None:  # Windows, whose limit is far higher
        return MAX_OPEN
    limit: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return MAX_OPEN
    free = limit - _count_open_files()
    return max(MIN_OPEN, min(MAX_OPEN, max(free - RESERVED_FILES, free // 2)))


def _count_open_files() -> int:
    """Return the number of open descriptors; 64 where the system does not list them."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return len(os.listdir(folder))
    return 64


def limit_accept_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Log one line a minute, and not a traceback for each connection, if there are no descriptors left all the same."""
    log = RateLimitedLog()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log a problem of the event loop."""
        if context.get("message") == ACCEPT_PROBLEM:
            log.warn("no connection can be taken: %s; raise the limit on open files", context.get("exception"))
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
