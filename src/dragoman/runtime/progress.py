"""Progress lines for logs without a terminal: done, total, rate and time left, one line every 20 seconds."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

# The promise is a line at least every 30 seconds. The difference is for a busy machine, which delays the heartbeat.
LINE_INTERVAL_SECONDS = 20.0
HEARTBEAT_SECONDS = 1.0
RATE_WINDOW_SECONDS = 60.0


class LineTimer:
    """Time since the last line of a log. The tasks of one command share a timer, so the interval holds across tasks."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._last_line_time = clock()
        self._lock = threading.Lock()

    def restart(self) -> None:
        """Record that a line is written now."""
        with self._lock:
            self._last_line_time = self.clock()

    def claim_line(self) -> bool:
        """Return whether a line is due. If it is, the caller writes it, and the timer starts again."""
        with self._lock:
            now = self.clock()
            if now - self._last_line_time < LINE_INTERVAL_SECONDS:
                return False
            self._last_line_time = now
            return True


class Heartbeat:
    """Background thread that calls a function every second, inside a `with` block.

    The function writes a line if one is due. Long work without updates, such as a compilation, therefore writes lines too.
    """

    def __init__(self, function: Callable[[], None], *, period_seconds: float = HEARTBEAT_SECONDS) -> None:
        self.function = function
        self.period_seconds = period_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dragoman-heartbeat", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._stopped.set()
        self._thread.join(timeout=1.0)  # a reader of standard error that has stopped reading does not block the end

    def _run(self) -> None:
        while not self._stopped.wait(self.period_seconds):
            self.function()


class RecentRate:
    """Amount per second over the last minute. The first update sets the start and counts as no work."""

    def __init__(self, *, window_seconds: float = RATE_WINDOW_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self.window_seconds = window_seconds
        self.clock = clock
        self._points: deque[tuple[float, float]] = deque()
        self._lock = threading.RLock()  # a heartbeat reads the rate while the work updates it

    def update(self, done: float) -> None:
        """Record the amount that is done now. An amount below the previous one starts anew."""
        now = self.clock()
        with self._lock:
            if self._points and done < self._points[-1][1]:
                self._points.clear()
            # One point a hundredth of the window is enough, so the queue stays short.
            if len(self._points) > 1 and now - self._points[-2][0] < self.window_seconds / 100:
                self._points.pop()
            self._points.append((now, done))
            while len(self._points) > 2 and now - self._points[1][0] >= self.window_seconds:
                self._points.popleft()

    def per_second(self) -> float | None:
        """Return the amount per second, or None before a hundredth of the window has been measured."""
        with self._lock:
            if not self._points:
                return None
            seconds = self._points[-1][0] - self._points[0][0]
            amount = self._points[-1][1] - self._points[0][1]
        return amount / seconds if seconds >= self.window_seconds / 100 and amount > 0 else None

    def seconds_left(self, total: float) -> float | None:
        """Return the seconds until `total` is done at the recent rate, or None while the rate is not known."""
        with self._lock:
            rate = self.per_second()
            return None if rate is None else max(total - self._points[-1][1], 0.0) / rate


class ProgressLog:
    """Writer of progress lines. `update` and `write_if_due` write a line when the last one is 20 seconds old.

    write: takes one line without its end, for example `click.echo(line, err=True)`.
    task_name: names the work at the start of each line, for example "encoding train".
    unit: plural noun of what is counted.
    total: amount that ends the work, if it is known.
    timer: timer that is shared with other tasks; by default a new one.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        task_name: str,
        *,
        unit: str = "lines",
        total: int | None = None,
        timer: LineTimer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.write = write
        self.task_name = task_name
        self.unit = unit
        self.total = total
        self.timer = timer or LineTimer(clock=clock)
        self.clock = clock
        self.done = 0
        self.rate = RecentRate(clock=clock)
        self.rate.update(0)
        self._start_time = clock()

    def update(self, done: int, total: int | None = None) -> None:
        """Record that `done` units are done, and write a line if the last one is old enough."""
        self.total = self.total if total is None else total
        self.done = done
        self.rate.update(done)
        self.write_if_due()

    def write_if_due(self) -> None:
        """Write a line if the last one is old enough. A `Heartbeat` may call this."""
        if self.timer.claim_line():
            self.write(self.format_line(self.done))

    def format_line(self, done: int) -> str:
        """Return a line such as `encoding train: 400 of 1,000 pairs (40 %), 20 pairs/s, 30 s left`.

        While no rate is known, the line has the time so far instead.
        """
        parts = [f"{self.task_name}: {done:,} {self.unit}"]
        if self.total is not None:
            percent = 100 * done / max(self.total, 1)
            parts = [f"{self.task_name}: {done:,} of {self.total:,} {self.unit} ({percent:.0f} %)"]
        rate = self.rate.per_second()
        if rate is not None:
            parts.append(f"{format_rate(rate)} {self.unit}/s")
        else:
            parts.append(f"{format_duration(self.clock() - self._start_time)} so far")
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
