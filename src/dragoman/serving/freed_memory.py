"""Memory that requests have freed goes back to the system when there are few requests again."""

from __future__ import annotations

import asyncio
import gc

from dragoman.documents.file_garbage import THRESHOLDS as FILE_THRESHOLDS
from dragoman.runtime.malloc import trim_malloc

MIN_PEAK_BYTES = 512 << 10
"""Memory of the requests in progress from which its release is worth the time."""
RELEASED_SHARE = 1 / 8
"""Share of the peak below which the memory of the requests has to fall."""
OLDEST = 2
"""Generation of the objects that live long. To collect it holds the interpreter, longer with more requests or files in work."""
DELAY_SECONDS = 1.0
"""Time between the fall and the release, so that a row of requests costs one release."""


class FreedMemory:
    """Peak of the memory of the requests in progress, and the release of what they have freed. For one event loop."""

    def __init__(self) -> None:
        self._peak = self._present = 0
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, num_bytes: int) -> None:
        """Take note of the memory of the requests in progress."""
        self._present = num_bytes
        if num_bytes > self._peak:
            self._peak = num_bytes
        elif self._timer is None and self._is_released:
            self._timer = asyncio.get_running_loop().call_later(DELAY_SECONDS, self._release)

    @property
    def _is_released(self) -> bool:
        return self._peak >= MIN_PEAK_BYTES and self._present <= self._peak * RELEASED_SHARE

    def _release(self) -> None:
        """Give freed memory back, if no other requests have come meanwhile."""
        self._timer = None
        if self._is_released:
            self._peak = self._present
            is_idle = not self._present and gc.get_threshold() != FILE_THRESHOLDS
            asyncio.get_running_loop().run_in_executor(None, _collect_and_trim, OLDEST if is_idle else OLDEST - 1)


def _collect_and_trim(generation: int) -> None:
    gc.collect(generation)
    trim_malloc()
