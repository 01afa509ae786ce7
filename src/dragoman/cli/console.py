"""Terminal output: progress, messages and lines on standard error, tables and JSON on standard output.

A terminal shows progress as a bar with rate and time left. Without a terminal, progress is one line at least every 30 seconds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

import click
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from dragoman.runtime.counts import format_perplexity
from dragoman.runtime.progress import Heartbeat, LineTimer, ProgressLog, RecentRate, format_duration, format_rate

if TYPE_CHECKING:
    from dragoman.training.monitoring.events import RunInfo, StepReport, TrainingEvent, ValidationReport

T = TypeVar("T")


def stderr_console() -> Console:
    """Return the console of standard error for progress and messages. Standard output holds results only."""
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
    """Print one JSON document on standard output. A dataclass of `json_outputs` is printed as an object."""
    from dragoman.io.json_fields import to_json_line

    click.echo(to_json_line(document))


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table of results on standard output.

    A terminal shows a frame and folds long cells. A file or a pipe gets columns divided by at least two spaces.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        lines = [*([header] if any(header) else []), *rows]
        widths = [max(cell_len(cell) for cell in column) for column in zip(*lines, strict=True)]
        click.echo(title)  # flushes, so that a full disk or a closed pipe is an error here
        for line in lines:
            padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True))
            click.echo("  ".join(padded).rstrip())
        return
    table = Table(header_style="bold", show_header=any(header))
    for name in header:
        table.add_column(name, overflow="fold")
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
        console: Console,
        task_name: str,
        total: int | None,
        unit: str = "lines",
        *,
        hidden: bool = False,
        timer: LineTimer | None = None,
    ) -> None:
        self.task_name, self.total, self.unit, self.done = task_name, total, unit, 0
        self.is_waiting = False
        self.bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _RateColumn(unit),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=hidden or not console.is_terminal,
        )
        self.task_id = self.bar.add_task(task_name, total=total)
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
        self.bar.update(self.task_id, completed=done, total=self.total)
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
    console: Console, task_name: str, total: int | None, *, unit: str = "lines", hidden: bool = False
) -> Iterator[ProgressReporter]:
    """Show the progress of one task, with rate, and with the time left if the total is known."""
    reporter = ProgressReporter(console, task_name, total, unit, hidden=hidden)
    with reporter.bar, Heartbeat(reporter.write_if_due):
        yield reporter


class PreparationProgressBar:
    """Progress of several tasks in turn, such as reading and encoding each corpus."""

    def __init__(self, console: Console, *, timer: LineTimer | None = None) -> None:
        self.console = console
        self.reporter: ProgressReporter | None = None
        self.timer = timer or LineTimer()
        self._start_time = self.timer.clock()

    def update(self, task_name: str, done: int, total: int | None, unit: str = "pairs") -> None:
        """Record that `done` units of this task are done. Another task name starts a new bar."""
        if self.reporter is None or self.reporter.task_name != task_name:
            self.close()
            self.reporter = ProgressReporter(self.console, task_name, total, unit, timer=self.timer)
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
        if self.reporter is not None:
            self.reporter.bar.remove_task(self.reporter.task_id)
            self.reporter.bar.stop()
        self.reporter = None


class TrainingProgressBar:
    """Callback of a run: a bar for its progress, and one line for each validation and event."""

    def __init__(self, console: Console) -> None:
        self.console = console
        is_wide = console.width >= 120
        self.state_width = console.width - 22 - (30 if is_wide else 0)
        self.rate, self.step_rate = RecentRate(), RecentRate()
        self.timer = LineTimer()
        self.phase, self._phase_start_time = "preparing", self.timer.clock()
        self.step, self.progress = 0, 0.0
        self.bar = Progress(
            *([TextColumn("[bold]training"), BarColumn(bar_width=20)] if is_wide else []),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[state]}"),
            _TimeLeftColumn(self.rate),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task_id = self.bar.add_task("training", total=1.0, state="")
        self.preparation_bar = PreparationProgressBar(console, timer=self.timer)

    def __call__(self, event: TrainingEvent) -> None:
        from dragoman.training.monitoring import events

        match event:
            case events.Notice():
                self.notice(event.text)
            case events.PreparationProgress():
                self.bar.stop()  # a terminal shows one bar at a time
                self.preparation_bar.update(event.task_name, event.done, event.total, event.unit)
            case events.RunStarted():
                self.begin(event.run_info)
            case events.StepDone():
                self.advance(event.progress, event.step)
            case events.StepReport():
                self.show_step(event)
            case events.RunEvent():
                if event.event in ("early_stop", "budget_spent"):
                    self._start_phase("finishing the run")
                # The command itself ends with the text of a stop or an error. A checkpoint is not shown.
                if event.event not in ("checkpoint", "stopped", "failed"):
                    self._print_line(Text(event.text, style="dim" if event.event == "resumed" else "yellow"))
            case events.ValidationReport():
                self.show_validation(event)
            case events.RunFinished():
                self._print_line(Text(format_cost(event.report)))
            case events.RunClosed():
                self.close()

    def notice(self, text: str) -> None:
        """Print a message."""
        self.preparation_bar.close()
        self._print_line(Text(text, style="dim"))

    def begin(self, run_info: RunInfo) -> None:
        """Print the size of the model and the machine."""
        device_text = f"{run_info.devices} devices, each " if run_info.devices > 1 else ""
        peak_flops = run_info.peak_flops_per_second
        peak_flops_text = f", {peak_flops / 1e12:,.2f} TFLOP/s in matrix products" if peak_flops else ""
        self.notice(f"{run_info.parameters:,} parameters on {device_text}{run_info.machine}{peak_flops_text}")
        self._start_phase("first step")

    def advance(self, progress: float, step: int) -> None:
        """Record the share of the budget that is spent, from 0 to 1, and the step."""
        self.preparation_bar.close()
        if not self.bar.live.is_started:
            self.bar.start()
        self.phase, self.step, self.progress = "training", step, progress
        self.rate.update(progress)
        self.step_rate.update(step)
        self.bar.update(self.task_id, completed=progress)
        self.write_if_due()
        if progress >= 1.0:
            self._start_phase("finishing the run")
            self.close()

    def write_if_due(self) -> None:
        """Write a log line if the last one is old enough. A `Heartbeat` calls this."""
        if (reporter := self.preparation_bar.reporter) is not None:
            reporter.write_if_due()
        elif not self.console.is_terminal and self.timer.claim_line():
            self._print_line(self._format_status())

    def _format_status(self) -> str:
        if self.phase != "training":
            return f"{self.phase}: {format_duration(self.timer.clock() - self._phase_start_time)} so far"
        seconds_left, steps_per_second = self.rate.seconds_left(1.0), self.step_rate.per_second()
        rate_text = "" if steps_per_second is None else f", {format_rate(steps_per_second)} steps/s"
        time_text = "" if seconds_left is None else f", {format_duration(seconds_left)} left"
        return f"training: step {self.step:,}, {self.progress:.1%} of the budget{rate_text}{time_text}"

    def _start_phase(self, phase: str) -> None:
        self.phase, self._phase_start_time = phase, self.timer.clock()

    def show_step(self, report: StepReport) -> None:
        """Show loss, perplexity, speed and gradient norm. Details that do not fit into the terminal are left out."""
        speed_text = f"{report.tokens_per_second:,.0f} tokens/s"
        mfu_text = f" ({report.mfu:.0%})" if report.mfu is not None else ""
        norm_text = f"norm {report.gradient_norm:.3g}"
        state_text = f"step {report.step:,}  loss {report.loss:.3f}  ppl {format_perplexity(report.perplexity, ',.1f')}"
        for detail in (speed_text + mfu_text, norm_text):
            state_text = f"{state_text}  {detail}" if len(state_text) + 2 + len(detail) <= self.state_width else state_text
        self.bar.update(self.task_id, state=state_text)
        if not self.console.is_terminal:
            self._print_line(
                f"step {report.step:>7,}  epoch {report.epoch:6.2f}  loss {report.loss:.3f}  "
                f"perplexity {format_perplexity(report.perplexity, '.2f'):>8}  {norm_text}  lr {report.lr:.2e}  "
                f"{speed_text}{mfu_text.replace(')', ' MFU)')}  {format_duration(60 * report.minutes_left)} left"
            )

    def show_validation(self, report: ValidationReport) -> None:
        """Print the scores of a validation."""
        self.preparation_bar.close()
        scores = [("BLEU", report.bleu), ("F1", report.f1)]
        score_text = "".join(f"  {name} {value:.2f} (greedy)" for name, value in scores if value is not None)
        best_mark = "  best so far" if report.best else ""
        self._print_line(
            Text.from_markup(
                f"step {report.step:>7,}  [bold]validation[/bold]  loss {report.nll:.3f}  "
                f"perplexity {format_perplexity(report.perplexity, '.2f')}{score_text}{best_mark}"
            )
        )
        if report.pair_scores:
            pair_texts = (f"{pair} {scores['bleu']:.2f}" for pair, scores in report.pair_scores.items())
            self._print_line(f"step {report.step:>7,}  BLEU of each pair: {'  '.join(pair_texts)}")

    def close(self) -> None:
        """Remove the bars."""
        self.preparation_bar.close()
        self.bar.stop()

    def _print_line(self, line: Text | str) -> None:
        self.timer.restart()
        self.console.print(line, markup=False)


def format_cost(report: Mapping[str, Any]) -> str:
    """Return the cost of a run in one line: time, steps, tokens, FLOPs, MFU and the share of time without batches."""
    parts = [
        format_duration(report["seconds"]),
        f"{report['steps']:,} steps",
        f"{report['target_tokens']:,} target tokens ({report['target_tokens_per_second']:,}/s)",
        f"{report['flops']:.2e} floating-point operations",
    ]
    if report.get("mfu") is not None:
        peak_warning = ", whose measured peak is too low: other work ran at the time" if report["mfu"] > 1 else ""
        parts.append(f"{report['mfu']:.0%} of the peak FLOP/s of this machine{peak_warning}")
    parts += [
        f"{report['data_wait_fraction']:.1%} of the time waiting for batches",
        f"{report['skipped_steps']:,} steps skipped",
    ]
    if report.get("infeasible_pairs"):
        parts.append(
            f"{report['infeasible_pairs']:,} pairs had more target tokens than the CTC decoder has positions, and no loss"
        )
    return "cost: " + ", ".join(parts)


class _TimeLeftColumn(ProgressColumn):
    """Time until the budget is spent, at the rate of the last minute."""

    def __init__(self, rate: RecentRate) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self.rate = rate

    def render(self, task: Task) -> Text:
        remaining_seconds = self.rate.seconds_left(1.0)
        if remaining_seconds is None:
            return Text("-:-- left")
        seconds_left = round(remaining_seconds)
        hours = f"{seconds_left // 3600}:" if seconds_left >= 3600 else ""
        minutes = f"{seconds_left // 60 % 60:02d}" if hours else f"{seconds_left // 60}"
        return Text(f"{hours}{minutes}:{seconds_left % 60:02d} left", style="cyan")


class _RateColumn(ProgressColumn):
    """Units per second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} {self.unit}/s" if task.speed else "")
