"""Bar of one task on a terminal: number of finished units, and their rate and the time left as the log lines state them."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from dragoman.runtime.progress import RecentRate, format_duration, format_rate


def make_rate_bar(console: Console, task_name: str, total: int | None, unit: str) -> Progress:
    """Return the bar, which holds the task."""
    bar = Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        CountColumn(),
        RateColumn(unit),
        console=console,
        transient=True,
    )
    bar.add_task(task_name, total=total)
    return bar


class CountColumn(MofNCompleteColumn):
    """Finished units of all; without a known number of all, the finished ones alone, and nothing before the first."""

    def render(self, task: Task) -> Text:
        """Return the text."""
        return super().render(task) if task.total is not None else Text(f"{task.completed:,.0f}" if task.completed else "")


class RateColumn(ProgressColumn):
    """Units per second of the last minute, and the time left; nothing before they are measured."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit, self._rate = unit, RecentRate()

    def render(self, task: Task) -> Text:
        """Record what is done, and return the text."""
        self._rate.update(task.completed)
        rate = self._rate.per_second()
        left = None if rate is None or task.total is None else self._rate.seconds_left(task.total)
        parts = [
            "" if rate is None else f"{format_rate(rate)} {self.unit}/s",
            "" if left is None else f"{format_duration(left)} left",
        ]
        return Text(", ".join(filter(None, parts)))
