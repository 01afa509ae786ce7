"""HTML dashboard of a run, as `dragoman dashboard` writes it: tiles, curves, diagnoses and sample translations."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dragoman.errors import MissingDependencyError, OutputError
from dragoman.io.storage import to_write_error, write_lines
from dragoman.runtime.progress import format_duration
from dragoman.training.monitoring.diagnostics import diagnose
from dragoman.training.monitoring.events import EventKind
from dragoman.training.monitoring.run_status import LogEntry, RunState, RunStatus, RunSummary, read_run_status, summarize_run
from dragoman.viz import (
    MetricTile,
    Panel,
    ReportTable,
    SentenceHistory,
    Series,
    VerticalMarker,
    render_dashboard,
    render_learning_curve,
)

_MAX_VERSIONS, _MAX_SENTENCES, _MAX_EVENTS = 4, 8, 30
# Characters of a text that are shown.
_MAX_TEXT_LENGTH = 300
# Events that get a vertical line in the curves. Checkpoints are too many.
_MARKED_EVENTS: tuple[EventKind, ...] = (
    "resumed", "skipped_steps", "rolled_back", "diverged", "oom_split", "checkpoint_failed", "early_stop", "stopped", "failed",
)  # fmt: skip


def render_run_page(status: RunStatus, *, timestamp: str, refresh: int | None = None) -> str:
    """Return the page as HTML.

    timestamp: time of writing, as text
    refresh: seconds after which browsers reload the page; None for a page that stays as it is
    """
    summary = summarize_run(status)
    charts: list[str] = []
    chart_note = ""
    try:
        charts = _build_charts(status)
    except MissingDependencyError as error:
        chart_note = f"; {error}"
    refresh_note = f"; reloads every {refresh} seconds" if refresh is not None else ""
    return render_dashboard(
        status.recipe.name,
        state=summary.state,
        state_detail=_format_headline(status, summary),
        progress=summary.progress or 0.0,
        tiles=_build_tiles(status, summary),
        charts=charts,
        sentences=_build_sentences(status),
        tables=_build_tables(status),
        footer=f"{status.folder}, as of {timestamp}{refresh_note}{chart_note}",
        refresh_seconds=refresh,
    )


def _format_headline(status: RunStatus, summary: RunSummary) -> str:
    """Return the text after the state."""
    phrases = ["no step is logged yet"]
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

    mfu_note = f"{summary.mfu:.0%} MFU" if summary.mfu is not None else ""
    add_tile("step", summary.step, "{:,}", f"of {status.recipe.training.max_steps:,} at most")
    add_tile("epoch", summary.epoch, "{:.2f}")
    perplexity = f"perplexity {format_value(summary.perplexity, '{:,.2f}')}" if summary.perplexity else ""
    add_tile("training loss", summary.loss, "{:.3f}", perplexity)
    for name, key in (("validation perplexity", "perplexity"), ("BLEU", "bleu"), ("F1", "f1")):
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
        ("BLEU", Panel("greedy", validation_series("bleu"))),
        ("F1", Panel("greedy", validation_series("f1"))),
        ("Learning rate", Panel("as scheduled", training_series("lr"))),
        ("Gradient norm", Panel("before clipping", training_series("gradient_norm"), log_scale=True)),
        ("Speed", Panel("target tokens a second", training_series("tokens_per_second"), include_zero=True)),
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


def _build_tables(status: RunStatus) -> list[ReportTable]:
    diagnoses = [
        (diagnosis.name, f"{diagnosis.evidence}. Probably {diagnosis.cause}.", diagnosis.remedy)
        for diagnosis in diagnose(status)
    ]
    tables = [ReportTable("Diagnoses", ["", "evidence", "remedy"], diagnoses)] if diagnoses else []
    recent_events = [entry for entry in reversed(status.events) if entry.get("event") != "checkpoint"]
    rows = [
        (f"{entry['step']:,}", str(entry.get("event", "")), str(entry.get("text", ""))) for entry in recent_events[:_MAX_EVENTS]
    ]
    count_note = f" (the newest {_MAX_EVENTS} of {len(recent_events):,})" if len(recent_events) > _MAX_EVENTS else ""
    tables += [ReportTable(f"Events{count_note}", ["step", "event", ""], rows)] if rows else []
    run_info = status.run_info
    facts: list[tuple[str, str]] = []
    for name in ("machine", "parameters", "devices"):
        if name in run_info:
            facts.append((name, f"{run_info[name]:,}" if isinstance(run_info[name], int) else str(run_info[name])))
    if isinstance(peak_flops := run_info.get("peak_flops_per_second"), int | float):
        facts.append(("peak FLOP/s", f"{peak_flops / 1e12:,.2f} TFLOP/s in matrix products"))
    if checkpoint_events := status.events_of_kind("checkpoint"):
        facts.append(("newest checkpoint", str(checkpoint_events[-1].get("text", ""))))
    return [*tables, ReportTable("The run", ["", ""], facts)] if facts else tables


def update_dashboard(run_dir: Path, page: Path, *, interval_seconds: int | None) -> Iterator[RunState]:
    """Write the page and yield the run's state, again and again while the run is running.

    interval_seconds: pause between two pages; None to write the page once

    Raises RunError if `run_dir` is not a run, and OutputError if the page cannot be written or would replace another file.
    """
    _check_replaceable(page)
    while True:
        started = time.thread_time()
        status = read_run_status(run_dir)
        is_running = status.state == "running" and interval_seconds is not None
        timestamp = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
        write_lines(
            page,
            [render_run_page(status, timestamp=timestamp, refresh=interval_seconds if is_running else None)],
            overwrite=True,
        )
        yield status.state
        if interval_seconds is None or not is_running:
            return
        # Reading a long metrics log and drawing take CPU time, which the run needs.
        time.sleep(max(float(interval_seconds), 5.0 * (time.thread_time() - started)))


def _check_replaceable(page: Path) -> None:
    """Raise OutputError if the path is a file but not a page."""
    doctype = "<!DOCTYPE html>"
    try:
        with page.open(encoding="utf-8", errors="replace") as stream:
            if stream.read(len(doctype)) != doctype:
                raise OutputError(f"{page}: is not a dashboard page, so it is not replaced; give another name with -o")
    except FileNotFoundError:
        return
    except OSError as error:
        raise to_write_error(page, error) from None
