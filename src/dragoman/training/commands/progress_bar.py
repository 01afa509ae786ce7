"""Progress of a training run in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from dragoman.console.terminal import PreparationProgressBar
from dragoman.runtime.counts import format_perplexity
from dragoman.runtime.progress import LineTimer, RecentRate, format_duration, format_rate
from dragoman.runtime.thread_count import describe_load, get_num_threads

if TYPE_CHECKING:
    from dragoman.training.monitoring.events import (
        EvaluationCost,
        RecentSteps,
        RunInfo,
        StepReport,
        TrainingEvent,
        ValidationReport,
    )


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
        self.config: Mapping[str, Any] = {}
        self._pause_start: float | None = None
        self._evaluation_cost: EvaluationCost | None = None
        self._evaluation_seconds = 0.0, 0.0  # of one validation, and of the test set
        self._num_threads = get_num_threads()  # 0 after a line about the load of the machine
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
                self._pause_start = self._pause_start or self.timer.clock()
                self.preparation_bar.update(event.task_name, event.done, event.total, event.unit)
            case events.EvaluationCost():
                self._evaluation_cost = event
            case events.RunStarted():
                self.config = event.recipe.get("training", {})
                self.begin(event.run_info)
            case events.StepDone():
                self.advance(event.progress, event.step)
                if event.recent is not None:
                    self.show_state(event.recent)
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
        machine = ", ".join(run_info.machine.split(", ")[:2])  # the report also has the kernels
        self.notice(f"{run_info.parameters:,} parameters on {device_text}{machine}")
        if (peak := run_info.peak_flops_per_second) and (cost := self._evaluation_cost):
            self._evaluation_seconds = cost.validation_flops / peak, cost.test_flops / peak
        self._describe_evaluations("each validation adds")
        self._start_phase("first step")

    def _describe_evaluations(self, beginning: str, count: int = 1) -> None:
        """Print what some validations, and then the test set, add to `training.max_minutes`, if the recipe sets that."""
        if (max_minutes := self.config.get("max_minutes")) is None:
            return
        validation, test = self._evaluation_seconds
        seconds_by_name = {beginning: count * validation, "the test set": test}
        parts = [f"{name} about {format_duration(max(seconds, 1))}" for name, seconds in seconds_by_name.items() if seconds]
        added = ", ".join(parts) or "validations and the test set come on top"
        self.notice(f"training.max_minutes = {max_minutes:g} counts the steps; {added}")

    def _measure_evaluations(self, seconds: float) -> None:
        """Print what all evaluations add, by the time of the first validation."""
        validation, test = self._evaluation_seconds
        self._evaluation_seconds = seconds, test * seconds / validation if validation else 0.0
        num_validations = round(self.step / self.progress / self.config["validate_every_steps"])
        self._describe_evaluations(f"all {num_validations:,} validations add", num_validations)

    def advance(self, progress: float, step: int) -> None:
        """Record the share of the budget that is spent, from 0 to 1, and the step."""
        self.preparation_bar.close()
        if not self.bar.live.is_started:
            self.bar.start()
        self.phase, self.step, self.progress, self._pause_start = "training", step, progress, None
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
        """Show loss, perplexity, speed and gradient norm."""
        self.step = report.step
        self.show_state(report)
        if not self.console.is_terminal:
            self._print_line(
                f"step {report.step:>7,}  epoch {report.epoch:6.2f}  loss {report.loss:.3f}  "
                f"perplexity {format_perplexity(report.perplexity, '.2f'):>8}  gradient norm {report.gradient_norm:.3g}  "
                f"learning rate {report.lr:.2e}  {_format_speed(report)}  {format_duration(60 * report.minutes_left)} left"
            )

    def show_state(self, state: RecentSteps | StepReport) -> None:
        """Show a few lines beside the share of the budget: steps, epoch, loss, speed, and what comes next."""
        self._name_load()
        parts = [f"step {self.step:,}{self._format_total()}", f"epoch {state.epoch:.2f}", f"loss {state.loss:.3f}"]
        lines = [parts.pop(0)]
        for part in [*parts, _format_speed(state), *self._list_next()]:
            is_short = len(lines[-1]) + 2 + len(part) <= self.state_width
            lines[-1:] = [f"{lines[-1]}  {part}"] if is_short else [lines[-1], part]
        self.bar.update(self.task_id, state="\n".join(lines))

    def _name_load(self) -> None:
        """Say once that other programs take the cores of this training."""
        if self._num_threads and (load := describe_load(self._num_threads)):
            advice = "; OMP_NUM_THREADS=1 may be faster" if self._num_threads > 1 else ""
            self.notice(f"other programs slow this training: {load}{advice}")
            self._num_threads = 0

    def _format_total(self) -> str:
        """Return the steps of the whole budget, which are estimated if it is no number of steps."""
        max_steps = self.config.get("max_steps")
        if not max_steps or not self.progress:
            return ""
        total = round(self.step / self.progress)
        return f" of {max_steps:,}" if total >= max_steps else f" of about {total:,}"

    def _list_next(self) -> list[str]:
        """Return the steps of the next validation and of the next checkpoint, or the minutes between checkpoints."""
        texts: dict[str, str] = {}
        for name, key in (("validation", "validate_every_steps"), ("checkpoint", "checkpoint_every_steps")):
            if interval := self.config.get(key):
                texts[name] = f"{name} at step {(self.step // interval + 1) * interval:,}"
        if minutes := self.config.get("checkpoint_every_minutes"):
            texts.setdefault("checkpoint", f"checkpoint every {minutes:g} min")
        return list(texts.values())

    def show_validation(self, report: ValidationReport) -> None:
        """Print the scores of a validation."""
        self.preparation_bar.close()
        scores = [("BLEU", report.bleu), ("F1", report.f1)]
        score_text = f"  accuracy {report.token_accuracy:.2f}" if report.token_accuracy is not None else ""
        score_text += "".join(f"  {name} {value:.2f} (greedy)" for name, value in scores if value is not None)
        best_mark = "  best so far" if report.best else ""
        seconds = 0.0 if self._pause_start is None else self.timer.clock() - self._pause_start
        best_mark += f"  took {format_duration(seconds)}" if seconds >= 1.0 else ""
        self._print_line(
            Text.from_markup(
                f"step {report.step:>7,}  [bold]validation[/bold]  loss {report.nll:.3f}  "
                f"perplexity {format_perplexity(report.perplexity, '.2f')}{score_text}{best_mark}"
            )
        )
        if self._evaluation_cost is not None and 0.0 < self.progress < 1.0 and report.seconds:
            self._evaluation_cost = None
            self._measure_evaluations(report.seconds)
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


def _format_speed(state: RecentSteps | StepReport) -> str:
    peak = f", {state.mfu:.0%} of peak" if state.mfu is not None else ""
    return f"{state.tokens_per_second:,.0f} tokens/s{peak}"


def format_cost(report: Mapping[str, Any]) -> str:
    """Return the cost of a run in one line: time, steps, tokens, FLOPs, MFU and the share of time without batches."""
    parts = [
        format_duration(report["seconds"]),
        f"{report['steps']:,} steps",
        f"{report['target_tokens']:,} target tokens ({report['target_tokens_per_second']:,}/s)",
        f"{report['flops']:.2e} floating-point operations",
    ]
    if report.get("mfu") is not None:
        parts.append(f"{report['mfu']:.0%} of the peak FLOP/s of this machine")
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
