"""Progress lines for logs without a terminal: done, total, rate and time left, one line every 20 seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

# Updates that come at least every 10 seconds make lines that are at most 30 seconds apart.
LINE_INTERVAL_SECONDS = 20.0
RATE_WINDOW_SECONDS = 60.0


class RecentRate:
    """Amount per second over the last minute. The first update sets the start and counts as no work."""

    def __init__(self, *, window_seconds: float = RATE_WINDOW_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self.window_seconds = window_seconds
        self.clock = clock
        self._points: deque[tuple[float, float]] = deque()

    def update(self, done: float) -> None:
        """Record the amount that is done now. An amount below the previous one starts anew."""
        now = self.clock()
        if self._points and done < self._points[-1][1]:
            self._points.clear()
        # One point a hundredth of the window is enough, so the queue stays short.
        if len(self._points) > 1 and now - self._points[-2][0] < self.window_seconds / 100:
            self._points.pop()
        self._points.append((now, done))
        while len(self._points) > 2 and now - self._points[1][0] >= self.window_seconds:
            self._points.popleft()

    def per_second(self) -> float | None:
        """Return the amount per second, or None while nothing has been measured."""
        if not self._points:
            return None
        seconds = self._points[-1][0] - self._points[0][0]
        amount = self._points[-1][1] - self._points[0][1]
        return amount / seconds if seconds > 0 and amount > 0 else None

    def seconds_left(self, total: float) -> float | None:
        """Return the seconds until `total` is done at the recent rate, or None while the rate is not known."""
        rate = self.per_second()
        return None if rate is None else max(total - self._points[-1][1], 0.0) / rate


class ProgressLog:
    """Writer of progress lines. Call `update` often: it writes a line when the last one is 20 seconds old.

    Args:
        write: takes one line without its end, for example `click.echo(line, err=True)`.
        task_name: names the work at the start of each line, for example "encoding train".
        unit: plural noun of what is counted.
        total: amount that ends the work, if it is known.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        task_name: str,
        *,
        unit: str = "lines",
        total: int | None = None,
        interval_seconds: float = LINE_INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.write = write
        self.task_name = task_name
        self.unit = unit
        self.total = total
        self.interval_seconds = interval_seconds
        self.clock = clock
        self.rate = RecentRate(clock=clock)
        self.rate.update(0)
        self._last_line_time = clock()

    def update(self, done: int, total: int | None = None) -> None:
        """Record that `done` units are done, and write a line if the last one is old enough."""
        self.total = self.total if total is None else total
        self.rate.update(done)
        if self.clock() - self._last_line_time >= self.interval_seconds:
            self._last_line_time = self.clock()
            self.write(self.format_line(done))

    def format_line(self, done: int) -> str:
        """Return a line such as `encoding train: 400 of 1,000 pairs (40 %), 20 pairs/s, 30 s left`."""
        parts = [f"{self.task_name}: {done:,} {self.unit}"]
        if self.total is not None:
            percent = 100 * done / max(self.total, 1)
            parts = [f"{self.task_name}: {done:,} of {self.total:,} {self.unit} ({percent:.0f} %)"]
        rate = self.rate.per_second()
        if rate is not None:
            parts.append(f"{format_rate(rate)} {self.unit}/s")
        seconds_left = None if self.total is None else self.rate.seconds_left(self.total)
        if seconds_left is not None:
            parts.append(f"{format_duration(seconds_left)} left")
        return ", ".join(parts)


def format_rate(rate: float) -> str:
    """Return a rate with the digits that a reader needs: `0.25`, `3.1`, `1,234`."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def format_duration(seconds: float) -> str:
    """Return a duration in at most two units: `40 s`, `3 min 30 s`, `12 min`, `3 h 20 min`.

    Seconds are left out from 10 minutes on.
    """
    rounded_seconds = round(seconds)
    if rounded_seconds < 60:
        return f"{rounded_seconds} s"
    if rounded_seconds < 600:
        minutes, seconds_rest = divmod(rounded_seconds, 60)
        return f"{minutes} min {seconds_rest} s" if seconds_rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return (f"{hours:,} h {minutes} min" if minutes else f"{hours:,} h") if hours else f"{minutes} min"
