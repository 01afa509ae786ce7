"""Counts in messages."""

from __future__ import annotations

from dragoman.runtime.counts import format_count


def test_only_one_is_singular() -> None:
    assert [format_count(count, "line") for count in (0, 1, 2, 1200)] == ["0 lines", "1 line", "2 lines", "1,200 lines"]
