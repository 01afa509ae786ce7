"""Prometheus metrics of the server. No label holds text of users, a key or an address."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

LATENCY_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class ServerMetrics:
    """Counters of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("dragoman_requests", "Answered requests.", ["route", "status"], registry=self.registry)
        self.latency = Histogram(
            "dragoman_request_seconds",
            "Time from request to answer.",
            ["route"],
            buckets=LATENCY_BUCKETS,
            registry=self.registry,
        )
        self.batch_lines = Histogram("dragoman_batch_lines", "Lines of a batch.", buckets=SIZE_BUCKETS, registry=self.registry)
        self.batch_seconds = Histogram(
            "dragoman_batch_seconds", "Time of a batch.", buckets=LATENCY_BUCKETS, registry=self.registry
        )
        self.tokens = Counter("dragoman_source_tokens", "Translated source tokens, estimated.", registry=self.registry)
        self.segments = Counter("dragoman_segments", "Translated segments by status.", ["status"], registry=self.registry)
        self._queue_tokens = Gauge("dragoman_queue_tokens", "Estimated tokens that wait.", registry=self.registry)
        self._queue_jobs = Gauge("dragoman_queue_jobs", "Requests that wait or are translated.", registry=self.registry)

    def watch_queue(self, num_tokens: Callable[[], float], num_jobs: Callable[[], float]) -> None:
        """Read the size of the queue by these functions whenever metrics are asked for."""
        self._queue_tokens.set_function(num_tokens)
        self._queue_jobs.set_function(num_jobs)

    def count_batch(self, num_lines: int, num_tokens: int, seconds: float) -> None:
        """Count a translated batch."""
        self.batch_lines.observe(num_lines)
        self.batch_seconds.observe(seconds)
        self.tokens.inc(num_tokens)

    def render(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
