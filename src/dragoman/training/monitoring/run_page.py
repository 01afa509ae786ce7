"""Page `report.html` of a run: numbers, curves, translations and diagnoses, and at the end the scores on the test sets."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dragoman.errors import MissingDependencyError
from dragoman.evaluation.bootstrap import SMALL_TEST_SET
from dragoman.io.storage import write_lines
from dragoman.runtime.facts import format_facts
from dragoman.runtime.progress import format_duration
from dragoman.training.monitoring.diagnostics import diagnose
from dragoman.training.monitoring.events import EventKind, RunClosed, TrainingEvent, ValidationReport
from dragoman.training.monitoring.run_status import LogEntry, RunStatus, RunSummary, read_report, read_run_status, summarize_run
from dragoman.viz.charts import Panel, Series, VerticalMarker, render_learning_curve
from dragoman.viz.html_report import ReportTable
from dragoman.viz.run_page import MetricTile, PageState, SentenceHistory, render_run_page

PAGE_FILE, ATTENTION_FILE = "report.html", "attention.svg"
# Seconds after which browsers reload the page of a running run, and between two pages that a run writes.
_REFRESH_SECONDS, _MIN_SECONDS_BETWEEN_PAGES = 30, 60.0
_MAX_VERSIONS, _MAX_SENTENCES, _MAX_EVENTS = 4, 8, 30
# Characters of a text that are shown.
_MAX_TEXT_LENGTH = 300
# Events that get a vertical line in the curves. Checkpoints are too many.
_MARKED_EVENTS: tuple[EventKind, ...] = (
    "resumed", "skipped_steps", "rolled_back", "diverged", "oom_split", "checkpoint_failed", "early_stop", "stopped", "failed",
)  # fmt: skip


class RunPage:
    """Callback that writes the page of a run at its validations and at its end."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._next_time = time.monotonic() + _MIN_SECONDS_BETWEEN_PAGES

    def __call__(self, event: TrainingEvent) -> None:
        is_due = isinstance(event, ValidationReport) and time.monotonic() >= self._next_time
        if is_due or isinstance(event, RunClosed):
            write_run_page(self.run_dir, self.run_dir / PAGE_FILE)
            self._next_time = time.monotonic() + _MIN_SECONDS_BETWEEN_PAGES


def write_run_page(run_dir: Path, page: Path) -> None:
    """Write the page of a run. Raise RunError if `run_dir` is no run, and OutputError if the page cannot be written."""
    timestamp = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
    write_lines(page, [build_run_page(read_run_status(run_dir), timestamp=timestamp)], overwrite=True)


def build_run_page(status: RunStatus, *, timestamp: str) -> str:
    """Return the page as HTML. Browsers reload it while the run is running.

    timestamp: time of writing, as text
    """
    summary = summarize_run(status)
    report = read_report(status.folder) if status.is_finished else {}
    figures = []
    if status.is_finished and (attention_file := status.folder / ATTENTION_FILE).is_file():
        figures.append(("Cross-attention (mean of all heads, last layer)", attention_file.read_text(encoding="utf-8")))
    charts: list[str] = []
    chart_note = ""
    try:
        charts = _build_charts(status)
    except MissingDependencyError as error:
        chart_note = f"; this page has no curves: {error}"
    refresh = _REFRESH_SECONDS if summary.state == "running" else None
    refresh_note = f"; reloads every {refresh} seconds" if refresh is not None else ""
    return render_run_page(
        status.recipe.name,
        PageState(summary.state, _format_headline(status, summary), summary.progress or 0.0),
        tiles=_build_tiles(status, summary),
        charts=charts,
        figures=figures,
        sentences=_build_sentences(status),
        diagnoses=[
            (problem.name, f"{problem.evidence}. Probable cause: {problem.cause}. Remedy: {problem.remedy}.")
            for problem in diagnose(status)
        ],
        tables=[*_build_result_tables(report), *_build_run_tables(status, report)],
        footer=f"{status.folder}, as of {timestamp}{refresh_note}{chart_note}",
        refresh_seconds=refresh,
    )


def _format_headline(status: RunStatus, summary: RunSummary) -> str:
    """Return the text after the state."""
    phrases = [
        f"step {summary.step:,}" if summary.state == "finished" and summary.step is not None else "no step is logged yet"
    ]
    if summary.progress is not None:
        phrases = [f"step {summary.step:,}", f"{100 * summary.progress:.0f} % of the budget"]
    if status.is_training_complete and summary.state != "finished":
        phrases = [f"step {summary.step:,}", "training is complete; the bundle and the report are still to be written"]
    elif summary.state == "running" and summary.minutes_left is not None:
        phrases.append(f"{format_duration(60 * summary.minutes_left)} left")
    if summary.state == "stalled":
        phrases.append(
            f"nothing written for {format_duration(summary.seconds_since_update)}; if it was killed, the same command resumes"
        )
    if summary.state == "stopped":
        phrases.append("the same command resumes")
    if summary.state == "failed":
        phrases.append(str(status.events[-1].get("text", "")))
    return " · " + " · ".join(phrases)


def _build_tiles(status: RunStatus, summary: RunSummary) -> list[MetricTile]:
    tiles = []

    def add_tile(name: str, value: object, form: str, remark: str = "") -> None:
        if isinstance(value, int | float):
            tiles.append(MetricTile(name, format_value(value, form), remark))

    def format_value(value: float, form: str) -> str:
        return form.format(value) if value < 1e9 else "> 1e9"  # the perplexity of a diverged run has hundreds of digits

    mfu_note = f"{summary.mfu:.0%} of peak" if summary.mfu is not None else ""
    add_tile("step", summary.step, "{:,}", f"of {status.recipe.training.max_steps:,} at most")
    add_tile("epoch", summary.epoch, "{:.2f}")
    perplexity = f"perplexity {format_value(summary.perplexity, '{:,.2f}')}" if summary.perplexity else ""
    add_tile("training loss", summary.loss, "{:.3f}", perplexity)
    scores = (("validation perplexity", "perplexity"), ("token accuracy", "token_accuracy"), ("BLEU", "bleu"), ("F1", "f1"))
    for name, key in scores:
        best_value, best_note = getattr(summary.best, key, None), ""
        if summary.best is not None and isinstance(best_value, int | float):
            best_note = f"best {format_value(best_value, '{:,.2f}')}, step {summary.best.step:,}"
        add_tile(name, getattr(summary.valid, key, None), "{:,.2f}", best_note)
    add_tile("tokens a second", summary.tokens_per_second, "{:,.0f}", mfu_note)
    add_tile("learning rate", summary.lr, "{:.2e}")
    add_tile("gradient norm", summary.gradient_norm, "{:.3g}")
    add_tile("memory", summary.memory_mib, "{:,.0f} MiB")
    add_tile("waiting for batches", summary.data_wait_fraction, "{:.1%}")
    add_tile("skipped steps", summary.skipped_steps, "{:,}")
    add_tile("devices", summary.devices if (summary.devices or 1) > 1 else None, "{}")
    return tiles


def _build_charts(status: RunStatus) -> list[str]:
    marks = [VerticalMarker(entry["step"], str(entry.get("text", ""))) for entry in status.events_of_kind(*_MARKED_EVENTS)]
    train, valid = Series("training", (), color_index=0), Series("validation", (), color_index=1)

    def training_series(key: str, *, scale: float = 1.0) -> list[Series]:
        points = status.points("train", key, scale=scale)
        return [replace(train, points=points)] if points else []

    def validation_series(key: str) -> list[Series]:
        points = status.points("valid", key)
        return [replace(valid, points=points)] if points else []

    panels = [
        ("Loss", Panel("nats per token", [*training_series("loss"), *validation_series("nll")])),
        ("Perplexity", Panel("per token", [*training_series("perplexity"), *validation_series("perplexity")], log_scale=True)),
        ("Token accuracy", Panel("% of the tokens", validation_series("token_accuracy"))),
        ("BLEU", Panel("greedy", validation_series("bleu"))),
        ("F1", Panel("greedy", validation_series("f1"))),
        ("Learning rate", Panel("as scheduled", training_series("lr"))),
        ("Gradient norm", Panel("before clipping", training_series("gradient_norm"), log_scale=True)),
        ("Speed", Panel("tokens a second", training_series("tokens_per_second"), include_zero=True)),
        ("MFU", Panel("% of peak FLOP/s", training_series("mfu", scale=100.0), include_zero=True)),
        ("Waiting for batches", Panel("% of the time", training_series("data_wait_fraction", scale=100.0), include_zero=True)),
        ("Memory", Panel("MiB", training_series("memory_mib"), include_zero=True)),
    ]
    # The first chart is drawn even without a point, so the page keeps its form from the start.
    nonempty_panels = [panels[0], *(title_and_panel for title_and_panel in panels[1:] if title_and_panel[1].series)]
    steps = [entry["step"] for entry in (*status.train, *status.valid, *status.events)] or [0, 1]
    return [
        render_learning_curve(
            [panel], title=title, x_label="step", width=360, panel_height=150, markers=marks, x_range=(min(steps), max(steps))
        )
        for title, panel in nonempty_panels
    ]


def _build_sentences(status: RunStatus) -> list[SentenceHistory]:
    """Return the first few of the newest samples, each with its translations at earlier validations."""
    sample_entries = status.entries_of_type("samples")[-_MAX_VERSIONS:]
    if not sample_entries:
        return []
    return [
        SentenceHistory(
            _truncate_text(newest, "source"), _truncate_text(newest, "reference"), _collect_versions(sample_entries, newest)
        )
        for newest in _get_samples(sample_entries[-1])[:_MAX_SENTENCES]
    ]


def _collect_versions(sample_entries: Sequence[LogEntry], newest: LogEntry) -> list[tuple[str, str]]:
    return [
        (f"step {entry['step']:,}", _truncate_text(sample, "translation"))
        for entry in sample_entries
        for sample in _get_samples(entry)
        if sample.get("source") == newest.get("source") and sample.get("reference") == newest.get("reference")
    ]


def _truncate_text(sample: LogEntry, key: str) -> str:
    text = str(sample.get(key, ""))
    return text if len(text) <= _MAX_TEXT_LENGTH else f"{text[:_MAX_TEXT_LENGTH]} … ({len(text):,} characters)"


def _get_samples(entry: LogEntry) -> list[LogEntry]:
    samples = entry.get("samples")
    return [sample for sample in samples if isinstance(sample, dict)] if isinstance(samples, list) else []


def _build_result_tables(report: Mapping[str, Any]) -> list[ReportTable]:
    """Return the scores on the test sets, the first lines of the first one, and the deviations from the paper."""
    tables = []
    if test_sets := report.get("test_sets"):
        tables.append(_build_test_set_table(test_sets))
    if signatures := report.get("signatures"):
        scores = [(name, f"{report[name]:.2f}", signature) for name, signature in signatures.items()]
        tables.append(ReportTable("Scores on the test set", ["metric", "value", "signature"], scores))
    if samples := report.get("samples"):
        rows = [(sample["source"], sample["reference"], sample["translation"]) for sample in samples]
        output_name = "parse" if "f1" in report else "translation"
        tables.append(ReportTable("The first lines of the test set", ["source", "reference", output_name], rows))
    if deviations := report.get("paper_deviations"):
        tables.append(ReportTable("Deviations from the paper", ["setting"], [(sentence,) for sentence in deviations]))
    return tables


def _build_test_set_table(test_sets: Mapping[str, Any]) -> ReportTable:
    """Return the scores on each test set, before and after fine-tuning if there is an initial model."""
    if all(test_set.get("changes") is None for test_set in test_sets.values()):
        metrics = list(next(iter(test_sets.values()))["scores"])
        rows = [
            (name, f"{test_set['sentences']:,}", *(f"{test_set['scores'][metric]:.2f}" for metric in metrics))
            for name, test_set in test_sets.items()
        ]
        return ReportTable("Scores on each test set", ["test set", "sentences", *metrics], rows)
    rows = [
        (
            name,
            f"{test_set['sentences']:,}",
            metric,
            f"{change['before']:.2f}",
            f"{change['after']:.2f}",
            f"{change['difference']:+.2f}",
            f"{change['low']:+.2f} to {change['high']:+.2f}",
            f"{change['p_value']:.3f}",
        )
        for name, test_set in test_sets.items()
        for metric, change in (test_set.get("changes") or {}).items()
    ]
    caption = "Scores before and after fine-tuning, by paired bootstrap"
    if any(test_set["is_small"] for test_set in test_sets.values()):
        caption += f"; p-values are too small for sets of fewer than {SMALL_TEST_SET} sentences"
    return ReportTable(
        caption, ["test set", "sentences", "metric", "before", "after", "difference", "95 % interval", "p"], rows
    )


def _build_run_tables(status: RunStatus, report: dict[str, Any]) -> list[ReportTable]:
    """Return the newest events, and facts about the run."""
    recent_events = [entry for entry in reversed(status.events) if entry.get("event") != "checkpoint"]
    rows = [
        (f"{entry['step']:,}", str(entry.get("event", "")), str(entry.get("text", ""))) for entry in recent_events[:_MAX_EVENTS]
    ]
    count_note = f" (the newest {_MAX_EVENTS} of {len(recent_events):,})" if len(recent_events) > _MAX_EVENTS else ""
    tables = [ReportTable(f"Events{count_note}", ["step", "event", ""], rows)] if rows else []
    run_info = status.run_info
    facts = format_facts(report or {name: run_info[name] for name in ("machine", "parameters", "devices") if name in run_info})
    if isinstance(peak_flops := run_info.get("peak_flops_per_second"), int | float):
        facts.append(("peak FLOP/s", f"{peak_flops / 1e12:,.2f} TFLOP/s in matrix products"))
    if checkpoint_events := status.events_of_kind("checkpoint"):
        facts.append(("newest checkpoint", str(checkpoint_events[-1].get("text", ""))))
    return [*tables, ReportTable("The run", ["", ""], facts)] if facts else tables
