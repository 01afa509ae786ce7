"""Tests of the number of processors."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.runtime import processes
from dragoman.runtime.processes import count_cores


def test_container_quota_limits_processors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(processes, "CPU_QUOTA_FILE", quota)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)), raising=False)
    assert count_cores() == 4
    for content, expected in (
        ("max 100000", 4),
        ("nonsense", 4),
        ("", 4),
        ("900000 100000", 4),
        ("250000 100000", 3),
        ("100000 100000", 1),
        ("5000 100000", 1),
    ):
        quota.write_text(content)
        assert count_cores() == expected
