"""Progress lines: interval, rate, time left."""

from __future__ import annotations

import threading

import pytest

from dragoman.runtime.progress import Heartbeat, LineTimer, ProgressLog, RecentRate, format_duration

pytestmark = pytest.mark.usefixtures("progress_lines")


class FakeClock:
    """Clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_line_is_written_every_twenty_seconds() -> None:
    clock, lines = FakeClock(), list[str]()
    log = ProgressLog(lines.append, "encoding train", unit="pairs", total=1000, clock=clock)
    for second in range(1, 51):
        clock.seconds = second
        log.update(10 * second)
    assert lines == [
        "encoding train: 200 of 1,000 pairs (20 %), 10 pairs/s, 1 min 20 s left",
        "encoding train: 400 of 1,000 pairs (40 %), 10 pairs/s, 1 min left",
    ]


def test_line_without_rate_has_time_so_far() -> None:
    clock, lines = FakeClock(), list[str]()
    log = ProgressLog(lines.append, "translating", total=100, clock=clock)
    clock.seconds = 19.9
    log.write_if_due()
    assert lines == []
    clock.seconds = 90
    log.write_if_due()
    assert lines == ["translating: 0 of 100 lines (0 %), 1 min 30 s so far"]


def test_tasks_with_one_timer_keep_the_interval() -> None:
    """A task that begins 15 seconds after a line of another task writes its first line 5 seconds later."""
    clock, lines = FakeClock(), list[str]()
    timer = LineTimer(clock=clock)
    first = ProgressLog(lines.append, "reading", unit="pairs", timer=timer, clock=clock)
    clock.seconds = 20
    first.update(40)
    clock.seconds = 35
    second = ProgressLog(lines.append, "encoding", unit="pairs", timer=timer, clock=clock)
    clock.seconds = 40
    second.update(10)
    assert lines == ["reading: 40 pairs, 2 pairs/s", "encoding: 10 pairs, 2 pairs/s"]


def test_heartbeat_calls_during_work_without_updates() -> None:
    called_twice, calls = threading.Event(), list[int]()

    def count_call() -> None:
        calls.append(threading.get_ident())
        if len(calls) == 2:
            called_twice.set()

    with Heartbeat(count_call, period_seconds=0.01):
        assert called_twice.wait(60.0)
    num_calls = len(calls)
    assert threading.get_ident() not in calls
    assert not any(thread.name == "dragoman-heartbeat" for thread in threading.enumerate())
    assert len(calls) == num_calls


def test_rate_follows_the_last_minute() -> None:
    clock = FakeClock()
    rate = RecentRate(clock=clock)
    for second in range(101):  # 1 a second for 100 seconds, then 10 a second
        clock.seconds = second
        rate.update(second)
    for second in range(101, 201):
        clock.seconds = second
        rate.update(100 + 10 * (second - 100))
    assert rate.per_second() == pytest.approx(10.0)
    assert rate.seconds_left(1200) == pytest.approx(10.0)


def test_rate_keeps_few_points() -> None:
    clock = FakeClock()
    rate = RecentRate(clock=clock)
    for tick in range(100_000):
        clock.seconds = tick / 1000
        rate.update(tick)
    assert len(rate._points) < 250
    assert rate.per_second() == pytest.approx(1000.0)


def test_duration_is_in_two_units(subtests: pytest.Subtests) -> None:
    for seconds, text in [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (210.2, "3 min 30 s"),
        (599, "9 min 59 s"),
        (3599, "1 h"),
        (12_000, "3 h 20 min"),
        (100_000 * 3600, "100,000 h"),
    ]:
        with subtests.test(seconds=seconds, text=text):
            assert format_duration(seconds) == text
