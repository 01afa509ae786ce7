"""Autotuner: times alternatives on this machine, chooses the fastest, and caches the choice.

The cache is a small JSON file in the user's cache folder. It is optional: if it cannot be read or written, the next run
measures again.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from dragoman.errors import OutputError
from dragoman.io.cache_folder import get_cache_folder
from dragoman.io.storage import write_json
from dragoman.platform_features import get_processor_name
from dragoman.runtime.thread_count import get_num_threads

CandidateT = TypeVar("CandidateT", bound=Hashable)
ResultT = TypeVar("ResultT")


def median(values: Iterable[float]) -> float:
    """Return the median. The module `statistics` would import much that a translation does not need."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[~middle]) / 2


@dataclass
class Stopwatch(Generic[CandidateT]):
    """Seconds of each candidate, sample by sample.

    clock: returns the present time in seconds; `time.thread_time` counts the processor time of one thread
    samples: seconds per item, by candidate
    """

    clock: Callable[[], float] = time.perf_counter
    samples: dict[CandidateT, list[float]] = field(default_factory=dict)

    def measure(self, candidate: CandidateT, run_once: Callable[[], ResultT], *, num_items: int = 1) -> ResultT:
        """Return the result of one call, and store its seconds divided by the number of items."""
        start = self.clock()
        result = run_once()
        self.samples.setdefault(candidate, []).append((self.clock() - start) / num_items)
        return result

    def summarize(
        self, summarize: Callable[[Iterable[float]], float] = median, *, num_skipped: int = 0
    ) -> dict[CandidateT, float]:
        """Return the seconds of each candidate. The first samples do not count if `num_skipped` is above 0."""
        return {candidate: summarize(samples[num_skipped:]) for candidate, samples in self.samples.items()}


def measure_seconds(
    candidates: Mapping[CandidateT, Callable[[], object]],
    *,
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
    summarize: Callable[[Iterable[float]], float] = median,
    warm_up: bool = True,
) -> dict[CandidateT, float]:
    """Return the seconds that each candidate takes. The candidates alternate.

    summarize: returns the seconds of a candidate from those of all rounds
    warm_up: whether an untimed call precedes each timed one
    """
    stopwatch = Stopwatch[CandidateT](clock)
    for _ in range(rounds):
        for name, run_once in candidates.items():
            if warm_up:
                run_once()
            stopwatch.measure(name, run_once)
    return stopwatch.summarize(summarize)


def measure_shortest_call(run_once: Callable[[], object], *, min_seconds: float) -> float:
    """Return the seconds of the fastest of repeated calls. They end after the first one that reaches `min_seconds` in all."""
    stopwatch = Stopwatch[str](time.perf_counter)
    deadline = time.perf_counter() + min_seconds
    stopwatch.measure("call", run_once)
    while time.perf_counter() < deadline:
        stopwatch.measure("call", run_once)
    return stopwatch.summarize(min)["call"]


def select_fastest(seconds: Mapping[CandidateT, float], *, default: CandidateT, min_speedup: float) -> CandidateT:
    """Return the fastest candidate if it beats the default by at least this factor, else the default."""
    fastest = min(seconds, key=seconds.__getitem__)
    return fastest if seconds[fastest] * min_speedup <= seconds[default] else default


def get_cache_path() -> Path:
    """Return the path of the file in the user's cache folder."""
    return get_cache_folder() / "autotune.json"


def get_machine_key() -> str:
    """Return what a measured speed depends on apart from the model: processor, cores and version of torch."""
    from importlib.metadata import PackageNotFoundError, version

    with suppress(PackageNotFoundError):
        return f"{get_processor_name()}, {platform.machine()}, {get_num_threads()} cores, torch {version('torch')}"
    return f"{get_processor_name()}, {platform.machine()}, {get_num_threads()} cores"


def get_measurement(key: str) -> str | None:
    """Return the measurement of this machine with the key, or None."""
    with suppress(OSError, RuntimeError, ValueError, AttributeError):
        value = json.loads(get_cache_path().read_text(encoding="utf-8")).get(get_machine_key(), {}).get(key)
        return value if isinstance(value, str) else None
    return None


def put_measurement(key: str, value: str) -> None:
    """Store a measurement of this machine for later runs."""
    entries: dict[str, dict[str, str]] = {}
    with suppress(OSError, RuntimeError, ValueError):
        document = json.loads(get_cache_path().read_text(encoding="utf-8"))
        entries = document if isinstance(document, dict) else {}
    machine_entries = entries.get(get_machine_key())
    entries[get_machine_key()] = {**(machine_entries if isinstance(machine_entries, dict) else {}), key: value}
    with suppress(OSError, RuntimeError, OutputError):
        get_cache_path().parent.mkdir(parents=True, exist_ok=True)
        write_json(get_cache_path(), entries, overwrite=True)
