"""Throughput of a run since its last line in the metrics log, and its time spent waiting for batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from dragoman.training.monitoring.flops import BatchCost


class Throughput:
    """Counter of work and time on this rank. Work between steps, such as validation, is excluded with `paused`."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start to count anew."""
        self._started = time.monotonic()
        self.cost = BatchCost()
        self.target_tokens = 0
        self.data_wait_seconds = 0.0

    def add_step(self, cost: BatchCost, *, target_tokens: int, data_wait_seconds: float) -> None:
        """Add a step: the cost over all ranks, and the seconds that this rank waited for batches."""
        self.cost += cost
        self.target_tokens += target_tokens
        self.data_wait_seconds += data_wait_seconds

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self._started, 1e-9)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time of the `with` block."""
        pause_started = time.monotonic()
        try:
            yield
        finally:
            self._started += time.monotonic() - pause_started
