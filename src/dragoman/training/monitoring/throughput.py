"""What a run did since its last journal line: how fast it was, and what it waited for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from dragoman.training.monitoring.flops import Work


class Meter:
    """Counts by this process's clock. What is done between steps, such as validation, is taken off with `beside`."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Count from here."""
        self._since = time.monotonic()
        self.work = Work()
        self.target_tokens = 0
        self.waited = 0.0

    def count(self, work: Work, *, target_tokens: int, waited: float) -> None:
        """One more step: what all ranks did in it, and the seconds that this one waited for batches."""
        self.work += work
        self.target_tokens += target_tokens
        self.waited += waited

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self._since, 1e-9)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Work that is not training and does not count."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._since += time.monotonic() - started
