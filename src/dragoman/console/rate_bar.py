"""Bar of one task on a terminal: number of finished units, their rate, and the time left."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


def make_rate_bar(console: Console, task_name: str, total: int | None, unit: str) -> Progress:
    """Return the bar, which holds the task."""
    bar = Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _RateColumn(unit),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    bar.add_task(task_name, total=total)
    return bar


class _RateColumn(ProgressColumn):
    """Units per second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} {self.unit}/s" if task.speed else "")
