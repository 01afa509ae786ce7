"""Time budget of a benchmark: a quick run skips what it has no time for and reports what it skipped."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class TimeBudget:
    """Time budget that ends at a moment of the monotonic clock; it never ends by default."""

    deadline: float = math.inf

    @classmethod
    def from_seconds(cls, seconds: float) -> TimeBudget:
        """Return a budget that ends after this many seconds."""
        return cls(time.monotonic() + seconds)

    def take_share(self, fraction: float) -> TimeBudget:
        """Return a budget for this fraction of the time that is left."""
        now = time.monotonic()
        return TimeBudget(now + max(self.deadline - now, 0.0) * fraction)

    @property
    def is_spent(self) -> bool:
        return time.monotonic() >= self.deadline

    @property
    def seconds_left(self) -> float:
        """Return the seconds until the end; 0 after it, and infinity if it never ends."""
        return max(self.deadline - time.monotonic(), 0.0)


UNBOUNDED = TimeBudget()
