"""Terminal output: progress, messages and lines on standard error, tables and JSON on standard output.

A terminal shows progress as a bar with rate and time left. Without a terminal, progress is one line at least every 30 seconds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

import click

from dragoman.runtime.progress import Heartbeat, LineTimer, ProgressLog, format_duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

T = TypeVar("T")


TERMINAL_VARIABLES = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""Environment variables by which a user tells rich that a stream is a terminal."""


class PlainConsole:
    """Standard error that is no terminal. A command in a pipe imports no rich."""

    is_terminal = False

    def print(self, text: object, *, markup: Literal[False], style: str = "") -> None:
        """Print a line, in which brackets are no markup. A style is for terminals."""
        stream = _SafeStderr()
        stream.write(f"{text}\n")
        stream.flush()


AnyConsole: TypeAlias = "Console | PlainConsole"


def stderr_console() -> AnyConsole:
    """Return the console of standard error for progress and messages. Standard output holds results only."""
    is_terminal = sys.stderr.isatty() or any(name in os.environ for name in TERMINAL_VARIABLES)
    return rich_console() if is_terminal else PlainConsole()


def rich_console() -> Console:
    """Return the console of standard error with the functions of rich."""
    from rich.console import Console

    return Console(file=cast(IO[str], _SafeStderr()), highlight=False, soft_wrap=True)


class _SafeStderr:
    """Standard error that ignores write errors, so that a closed pipe or a full disk does not end the work."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._get_stream(), name)

    def write(self, text: str) -> int:
        with self._ignore_write_errors():
            self._get_stream().write(text)
        return len(text)

    def flush(self) -> None:
        with self._ignore_write_errors():
            self._get_stream().flush()

    def _get_stream(self) -> IO[str]:
        """Return the real stream. While a bar is shown, rich puts its own stream into `sys.stderr`."""
        stream: IO[str] = getattr(sys.stderr, "rich_proxied_file", sys.stderr)
        return stream

    @contextmanager
    def _ignore_write_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            with suppress(OSError, ValueError):  # Python must not write the buffered text again at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._get_stream().fileno())


def print_json(document: Any) -> None:
    """Print one JSON document on standard output. A dataclass is printed as an object."""
    from dragoman.io.json_fields import to_json_line

    click.echo(to_json_line(document))


_SHOWN_CONTROLS = dict.fromkeys((*range(9), *range(14, 32), *range(127, 160)), "\ufffd")


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table of results on standard output.

    A terminal shows a frame and folds long cells. A file or a pipe gets columns divided by at least two spaces, and so does a
    terminal that is too narrow for the frame alone. Control characters become U+FFFD, because the names in a stranger's bundle
    must not control a terminal.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    rows = [[cell.translate(_SHOWN_CONTROLS) for cell in row] for row in rows]
    widths = [max(cell_len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    frame_width = sum(widths) + 3 * len(widths) + 1
    if not console.is_terminal or sum(widths) + 2 * len(widths) - 2 <= console.width < frame_width:
        click.echo(title)  # flushes, so that a full disk or a closed pipe is an error here
        for line in [*([header] if any(header) else []), *rows]:
            padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True))
            click.echo("  ".join(padded).rstrip())
        return
    table = Table(header_style="bold", show_header=any(header))
    for index, name in enumerate(header):  # the names in the first column can be copied
        table.add_column(name, overflow="fold", no_wrap=index == 0 and widths[0] <= console.width // 2)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(Text(title, style="bold"), soft_wrap=True)
    console.print(table)


def print_facts(title: str, facts: Mapping[str, Any]) -> None:
    """Print names and values as a table on standard output."""
    print_table(title, ["", ""], [(name, str(value)) for name, value in facts.items()])


class ProgressReporter:
    """Progress of one task: a bar on a terminal, else log lines."""

    def __init__(
        self,
        console: AnyConsole,
        task_name: str,
        total: int | None,
        unit: str = "lines",
        *,
        hidden: bool = False,
        timer: LineTimer | None = None,
    ) -> None:
        self.task_name, self.total, self.unit, self.done = task_name, total, unit, 0
        self.is_waiting = False
        self.bar: Progress | None = None
        if console.is_terminal and not hidden:
            from dragoman.console.rate_bar import make_rate_bar

            self.bar = make_rate_bar(cast("Console", console), task_name, total, unit)
        self.log = None if hidden or console.is_terminal else ProgressLog(
            lambda line: console.print(line, markup=False), task_name, unit=unit, total=total, timer=timer
        )  # fmt: skip

    def advance(self, count: int) -> None:
        """Record that `count` further units are done."""
        self.set_done(self.done + count)

    def set_done(self, done: int, total: int | None = None) -> None:
        """Record that `done` units are done in all."""
        self.done = done
        self.total = self.total if total is None else total
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=done, total=self.total)
        if self.log is not None:
            self.log.update(done, self.total)

    def write_if_due(self) -> None:
        """Write a log line if the last one is old enough."""
        if self.log is not None and not self.is_waiting:
            self.log.write_if_due()

    def iter_input(self, windows: Iterator[T], *, is_live: bool) -> Iterator[T]:
        """Yield the windows. While a live input has no next window yet, no log line is written."""
        while True:
            self.is_waiting = is_live
            window = next(windows, None)
            self.is_waiting = False
            if window is None:
                return
            yield window


@contextmanager
def progress_bar(
    console: AnyConsole, task_name: str, total: int | None, *, unit: str = "lines", hidden: bool = False
) -> Iterator[ProgressReporter]:
    """Show the progress of one task, with rate, and with the time left if the total is known."""
    reporter = ProgressReporter(console, task_name, total, unit, hidden=hidden)
    with reporter.bar or nullcontext(), Heartbeat(reporter.write_if_due):
        yield reporter


class PreparationProgressBar:
    """Progress of several tasks in turn, such as reading and encoding each corpus."""

    def __init__(self, console: AnyConsole, *, timer: LineTimer | None = None) -> None:
        self.console = console
        self.reporter: ProgressReporter | None = None
        self.timer = timer or LineTimer()
        self._start_time = self.timer.clock()

    def update(self, task_name: str, done: int, total: int | None, unit: str = "pairs") -> None:
        """Record that `done` units of this task are done. Another task name starts a new bar."""
        if self.reporter is None or self.reporter.task_name != task_name:
            self.close()
            self.reporter = ProgressReporter(self.console, task_name, total, unit, timer=self.timer)
            if self.reporter.bar is not None:
                self.reporter.bar.start()
        self.reporter.set_done(done, total)

    def write_if_due(self) -> None:
        """Write a log line if the last one is old enough, also between two tasks. A `Heartbeat` calls this."""
        if (reporter := self.reporter) is not None:
            reporter.write_if_due()
        elif not self.console.is_terminal and self.timer.claim_line():
            seconds = self.timer.clock() - self._start_time
            self.console.print(f"preparing: {format_duration(seconds)} so far", markup=False)

    def close(self) -> None:
        """Remove the bar."""
        if self.reporter is not None and (bar := self.reporter.bar) is not None:
            bar.remove_task(bar.task_ids[0])
            bar.stop()
        self.reporter = None
