"""Prometheus metrics of the server. No label holds text of users, a key or an address."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

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


class ProcessMetrics:
    """Metrics of the parent of several server processes."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.processes = Gauge("dragoman_processes", "Server processes that are ready.", registry=self.registry)
        self.restarts = Counter(
            "dragoman_process_restarts", "Server processes started again after they ended.", registry=self.registry
        )

    def render(self) -> str:
        """Return the metrics in the text format of Prometheus."""
        return generate_latest(self.registry).decode()


class _SummedMetrics(Collector):
    """Metrics that are known already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        yield from self._families


def sum_metrics(present: Iterable[str], past: Iterable[str] = ()) -> bytes:
    """Return the sums of the metrics of several processes, all in the text format of Prometheus.

    past: metrics of processes that have ended; their counters count, so that no sum falls, but their gauges do not
    """
    families: dict[str, Metric] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for texts, is_past in ((present, False), (past, True)):
        for family in chain.from_iterable(map(text_string_to_metric_families, texts)):
            # The time at which a counter was made is a gauge here; a sum of times has no meaning.
            if family.name.endswith("_created") or (is_past and family.type == "gauge"):
                continue
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            sums = values.setdefault(family.name, {})
            for sample in family.samples:
                key = sample.name, tuple(sample.labels.items())
                sums[key] = sums.get(key, 0.0) + sample.value
    for name, sums in values.items():
        for (sample_name, labels), value in sums.items():
            families[name].add_sample(sample_name, dict(labels), value)
    registry = CollectorRegistry()
    registry.register(_SummedMetrics(families.values()))
    return generate_latest(registry)
