"""Tests of the autotuner: choices are measured once and remembered, and the default stays unless another clearly wins."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from dragoman.runtime.autotuner import choose_cached, get_measurement, measure_seconds, put_measurement, select_fastest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_choice_is_measured_once() -> None:
    assert choose_cached("key", ("a", "b"), lambda: "b") == "b"
    assert choose_cached("key", ("a", "b"), lambda: pytest.fail("measured again")) == "b"
    assert get_measurement("key") == "b"


def test_unknown_choice_is_measured_again() -> None:
    put_measurement("key", "c")
    assert choose_cached("key", ("a", "b"), lambda: "a") == "a"
    assert get_measurement("key") == "a"


def test_candidates_alternate_after_untimed_calls() -> None:
    calls: list[str] = []
    ticks = itertools.count()
    seconds = measure_seconds(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=2, clock=lambda: float(next(ticks))
    )
    assert calls == ["a", "a", "b", "b"] * 2
    assert seconds == {"a": 1.0, "b": 1.0}


@pytest.mark.parametrize(("seconds", "fastest"), [(9.0, "a"), (8.0, "b"), (1.0, "b")])
def test_default_stays_unless_clearly_slower(seconds: float, fastest: str) -> None:
    assert select_fastest({"a": 10.0, "b": seconds}, default="a", min_speedup=1.25) == fastest
