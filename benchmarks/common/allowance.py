"""How long measuring may go on: a quick run leaves out what it has no time for, and says so."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Allowance:
    """Until a moment of the steady clock; as long as it takes where none is set."""

    ends: float = math.inf

    @classmethod
    def of(cls, seconds: float) -> Allowance:
        """So many seconds from now on."""
        return cls(time.monotonic() + seconds)

    def share(self, part: float) -> Allowance:
        """This part of what is left."""
        now = time.monotonic()
        return Allowance(now + max(self.ends - now, 0.0) * part)

    @property
    def spent(self) -> bool:
        return time.monotonic() >= self.ends


UNBOUNDED = Allowance()
