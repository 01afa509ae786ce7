"""How many processors there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.runtime import processes
from dragoman.runtime.processes import count_cores


def test_a_container_s_quota_counts_as_processors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(processes, "QUOTA", quota)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)), raising=False)
    assert count_cores() == 4
    for said, wanted in (
        ("max 100000", 4),
        ("nonsense", 4),
        ("", 4),
        ("900000 100000", 4),
        ("250000 100000", 3),
        ("100000 100000", 1),
        ("5000 100000", 1),
    ):
        quota.write_text(said)
        assert count_cores() == wanted
