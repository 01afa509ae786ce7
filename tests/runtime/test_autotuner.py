"""Tests of the autotuner: choices are measured once and remembered, and the default stays unless another clearly wins."""

from __future__ import annotations

import itertools

import pytest

from dragoman.runtime.autotuner import (
    Stopwatch,
    measure_seconds,
    select_fastest,
)


def test_candidates_alternate_after_untimed_calls() -> None:
    calls: list[str] = []
    ticks = itertools.count()
    seconds = measure_seconds(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=2, clock=lambda: float(next(ticks))
    )
    assert calls == ["a", "a", "b", "b"] * 2
    assert seconds == {"a": 1.0, "b": 1.0}


def test_stopwatch_returns_results_and_skips_first_samples() -> None:
    ticks = iter([0.0, 1.0, 2.0, 8.0, 10.0, 14.0])
    stopwatch = Stopwatch[str](lambda: next(ticks))
    assert [stopwatch.measure("a", lambda: "result", num_items=2) for _ in range(3)] == ["result"] * 3
    assert stopwatch.samples == {"a": [0.5, 3.0, 2.0]}
    assert stopwatch.summarize(min) == {"a": 0.5}
    assert stopwatch.summarize(min, num_skipped=1) == {"a": 2.0}


@pytest.mark.parametrize(("seconds", "fastest"), [(9.0, "a"), (8.0, "b"), (1.0, "b")])
def test_default_stays_unless_clearly_slower(seconds: float, fastest: str) -> None:
    assert select_fastest({"a": 10.0, "b": seconds}, default="a", min_speedup=1.25) == fastest
