"""What people see while they wait, on standard error: a bar with rate and time left, and lines that stay."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, cast

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

if TYPE_CHECKING:
    from dragoman.training.monitoring.callbacks import EventKind, RunInfo, StepReport, ValidationReport
    from dragoman.training.validation import Sample


def stderr_console() -> Console:
    """Where progress and remarks go, so that standard output holds results alone."""
    return Console(file=cast(IO[str], _SafeStderr()), highlight=False, soft_wrap=True)


class _SafeStderr:
    """Standard error, as long as somebody takes it: a reader that went away, or a full disk, ends no work."""

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
        """Which is rich's own while a bar is shown."""
        stream: IO[str] = getattr(sys.stderr, "rich_proxied_file", sys.stderr)
        return stream

    @contextmanager
    def _ignore_write_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            with suppress(OSError, ValueError):  # what was left in between is not to be tried again at the end
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._get_stream().fileno())


def print_json(document: Any) -> None:
    """For machines: one JSON document on standard output."""
    click.echo(json.dumps(document, ensure_ascii=False))


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table of results on standard output."""
    table = Table(title=Text(title, style="bold"), title_justify="left", header_style="bold", show_header=any(header))
    for name in header:
        table.add_column(name, overflow="fold")  # a signature is for quoting, so it is never cut
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(highlight=False).print(table)


def print_facts(title: str, facts: Mapping[str, Any]) -> None:
    """Names and values on standard output."""
    print_table(title, ["", ""], [(name, str(value)) for name, value in facts.items()])


class PreparationProgressBar:
    """A bar for each thing that is done to a corpus, with rate and, where the number of pairs is known, time left."""

    def __init__(self, console: Console) -> None:
        self.progress_bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _RateColumn("pairs"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task_name = ""

    def progress(self, what: str, done: int, total: int | None) -> None:
        """So many pairs are done of what is being done."""
        if what != self.task_name:
            self.close()
            self.progress_bar.start()
            self.task_id = self.progress_bar.add_task(what, total=total)
            self.task_name = what
        self.progress_bar.update(self.task_id, completed=done, total=total)

    def close(self) -> None:
        """Take the bar away."""
        if self.task_name:
            self.progress_bar.remove_task(self.task_id)
            self.progress_bar.stop()
        self.task_name = ""


class TrainingProgressBar:
    """A listener that shows a run as a bar, and a line for each validation and each thing that happens."""

    def __init__(self, console: Console) -> None:
        self.console = console
        is_wide = console.width >= 120
        self.state_width = console.width - 22 - (30 if is_wide else 0)
        self.bar = Progress(
            *([TextColumn("[bold]training"), BarColumn(bar_width=20)] if is_wide else []),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[state]}"),
            _TimeLeftColumn(table_column=Column(no_wrap=True)),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task_id = self.bar.add_task("training", total=1.0, state="")
        self.preparation_bar = PreparationProgressBar(console)

    def notice(self, text: str) -> None:
        self.preparation_bar.close()
        self.console.print(Text(text, style="dim"))

    def progress(self, what: str, done: int, total: int | None) -> None:
        self.preparation_bar.progress(what, done, total)

    def begin(self, run_info: RunInfo) -> None:
        device_text = f"{run_info.devices} devices, each " if run_info.devices > 1 else ""
        peak_flops_text = f", {run_info.ceiling / 1e12:,.2f} TFLOP/s in matrix products" if run_info.ceiling else ""
        self.notice(f"{run_info.parameters:,} parameters on {device_text}{run_info.machine}{peak_flops_text}")

    def advance(self, progress: float) -> None:
        if not self.bar.live.is_started:
            self.bar.start()
        task_fields = self.bar.tasks[0].fields
        if "first" not in task_fields:  # a run that goes on had spent this before, and it took no time now
            self.bar.reset(self.task_id, **task_fields, first=progress)
        self.bar.update(self.task_id, completed=progress)
        if progress >= 1.0:
            self.close()

    def step(self, report: StepReport) -> None:
        speed_text = f"{report.tokens_per_second:,.0f} tokens/s"
        if report.mfu is not None:
            speed_text += f" ({report.mfu:.0%} of ceiling)"
        norm_text = f"norm {report.gradient_norm:.3g}"
        state_text = f"step {report.step:,}  loss {report.loss:.3f}  ppl {_format_perplexity(report.perplexity, ',.1f')}"
        for detail in (speed_text.replace(" of ceiling", ""), norm_text):
            state_text = f"{state_text}  {detail}" if len(state_text) + 2 + len(detail) <= self.state_width else state_text
        self.bar.update(self.task_id, state=state_text)
        if not self.console.is_terminal:
            self.console.print(
                f"step {report.step:>7,}  epoch {report.epoch:6.2f}  loss {report.loss:.3f}  "
                f"perplexity {_format_perplexity(report.perplexity, '.2f'):>8}  {norm_text}  rate {report.lr:.2e}  {speed_text}  "
                f"{report.minutes_left:.1f} min left",
                markup=False,
            )

    def event(self, kind: EventKind, step: int, text: str) -> None:
        if kind not in ("checkpoint", "stopped", "failed"):  # as it should be, or what the command itself ends with
            self.console.print(Text(text, style="dim" if kind == "resumed" else "yellow"))

    def validation(self, report: ValidationReport) -> None:
        scores = [("BLEU", report.bleu), ("F1", report.f1)]
        score_text = "".join(f"  {name} {value:.2f} (greedy)" for name, value in scores if value is not None)
        best_mark = "  best so far" if report.best else ""
        self.console.print(
            f"step {report.step:>7,}  [bold]validation[/bold]  loss {report.nll:.3f}  "
            f"perplexity {_format_perplexity(report.perplexity, '.2f')}{score_text}{best_mark}"
        )

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        """They are for the page that `dragoman watch` writes."""

    def finish(self, report: Mapping[str, Any]) -> None:
        self.console.print(Text(format_cost(report)))

    def close(self) -> None:
        self.preparation_bar.close()
        self.bar.stop()


def _format_perplexity(perplexity: float, format_spec: str) -> str:
    """That of a run that was lost has hundreds of digits."""
    return f"{perplexity:{format_spec}}" if perplexity < 1e6 else f"{perplexity:.2e}"


def format_cost(report: Mapping[str, Any]) -> str:
    """What a run took, in one line; energy and the ceiling where the machine tells."""
    parts = [
        f"{report['seconds'] / 60:,.1f} min",
        f"{report['steps']:,} steps",
        f"{report['target_tokens']:,} target tokens ({report['target_tokens_per_second']:,} a second)",
        f"{report['flops']:.2e} floating-point operations",
    ]
    if "share_of_ceiling" in report:
        peak_warning = ", which was measured while others were at work, it seems" if report["share_of_ceiling"] > 1 else ""
        parts.append(f"{report['share_of_ceiling']:.0%} of this machine's ceiling{peak_warning}")
    if "kilowatt_hours" in report:
        parts.append(f"{report['kilowatt_hours']:.3g} kWh")
    parts += [f"{report['share_waiting_for_batches']:.1%} waiting for batches", f"{report['skipped_steps']:,} steps skipped"]
    return "cost: " + ", ".join(parts)


class _TimeLeftColumn(ProgressColumn):
    """Minutes left, from the share of the budget that is spent: a budget may be in minutes, so rates mislead."""

    def render(self, task: Task) -> Text:
        progress_made = task.completed - task.fields.get("first", 0.0)
        if progress_made <= 0.0 or task.elapsed is None:
            return Text("-:-- left")
        seconds_left = round(task.elapsed / progress_made * (1.0 - task.completed))
        hours = f"{seconds_left // 3600}:" if seconds_left >= 3600 else ""
        minutes = f"{seconds_left // 60 % 60:02d}" if hours else f"{seconds_left // 60}"
        return Text(f"{hours}{minutes}:{seconds_left % 60:02d} left", style="cyan")


@contextmanager
def progress_bar(console: Console, description: str, total: int | None, *, hidden: bool = False) -> Iterator[Progress]:
    """A bar over lines, with rate and time left where the total is known."""
    columns = [
        TextColumn(f"[bold]{description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _RateColumn("lines"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as bar:
        bar.add_task(description, total=total)
        yield bar


class _RateColumn(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} {self.unit}/s" if task.speed else "")
