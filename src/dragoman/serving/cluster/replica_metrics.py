"""Sums of the metrics of all replicas, on one page."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from dragoman.serving.metrics import sum_metrics

MAX_ENDED_REPLICAS = 100
"""Replicas that have ended and whose metrics are kept apart."""


class ReplicaMetrics:
    """Metrics of the replicas of several applications; those that have ended count with their latest metrics."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._replicas = Gauge("dragoman_replicas", "Replicas that answer.", ["application"], registry=self._registry)
        self._latest: dict[str, str] = {}
        self._past = ""
        self._lock = threading.Lock()

    def render(self, replicas: Mapping[str, Sequence[tuple[str, str]]]) -> bytes:
        """Return the sums in the text format of Prometheus. replicas: id and metrics of each replica of an application"""
        with self._lock:
            present = dict(replica for group in replicas.values() for replica in group)
            for name, text in present.items():
                self._latest.pop(name, None)
                self._latest[name] = text  # the latest are behind
            ended = [name for name in self._latest if name not in present]
            # A replica that misses one probe may answer the next one, so only the oldest are merged.
            for name in ended[:-MAX_ENDED_REPLICAS]:
                self._past = sum_metrics([], [self._past, self._latest.pop(name)]).decode()
            for name, group in replicas.items():
                self._replicas.labels(name).set(len(group))
            past = [self._past, *(self._latest[name] for name in ended[-MAX_ENDED_REPLICAS:])]
            return sum_metrics([*present.values(), generate_latest(self._registry).decode()], past)
