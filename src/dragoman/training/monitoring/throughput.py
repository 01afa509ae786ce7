"""What a run did since its last journal line: how fast it was, and what it waited for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from dragoman.training.monitoring.flops import BatchCost


class Throughput:
    """Counts by this process's clock. What is done between steps, such as validation, is taken off with `beside`."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Count from here."""
        self._started = time.monotonic()
        self.cost = BatchCost()
        self.target_tokens = 0
        self.data_wait_seconds = 0.0

    def add_step(self, cost: BatchCost, *, target_tokens: int, data_wait_seconds: float) -> None:
        """One more step: what all ranks did in it, and the seconds that this one waited for batches."""
        self.cost += cost
        self.target_tokens += target_tokens
        self.data_wait_seconds += data_wait_seconds

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self._started, 1e-9)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Work that is not training and does not count."""
        pause_started = time.monotonic()
        try:
            yield
        finally:
            self._started += time.monotonic() - pause_started
