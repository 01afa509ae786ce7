"""The page of a run as `dragoman watch` writes it: what its record holds, put into tiles, curves and sentences."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dragoman.errors import OutputError
from dragoman.io.storage import describe_write_error, write_lines
from dragoman.training.monitoring.diagnostics import diagnose
from dragoman.training.monitoring.run_status import LogEntry, RunState, RunStatus, read_run_status, summarize_run
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
# Letters of a text that are shown.
_MAX_TEXT_LENGTH = 300
# Checkpoints come and go; these are worth a line in the curves.
_MARKED_EVENTS = ("resumed", "skipped", "restored", "memory", "unsaved", "patience", "stopped", "failed")


def render_run_page(status: RunStatus, *, timestamp: str, refresh: int | None = None) -> str:
    """The page as HTML. `written`: when, in words; `refresh`: seconds after which browsers load it anew."""
    summary = summarize_run(status)
    refresh_note = f"; loads itself anew every {refresh} seconds" if refresh is not None else ""
    return render_dashboard(
        status.recipe.name,
        state=summary["state"],
        state_detail=_format_headline(status, summary),
        progress=summary["share_spent"] or 0.0,
        tiles=_build_tiles(status, summary),
        charts=_build_charts(status),
        sentences=_build_sentences(status),
        tables=_build_tables(status),
        footer=f"{status.folder}, as of {timestamp}{refresh_note}",
        refresh_seconds=refresh,
    )


def _format_headline(status: RunStatus, summary: dict[str, Any]) -> str:
    """What follows the word for the state."""
    phrases = ["no step is journaled yet"]
    if summary["share_spent"] is not None:
        phrases = [f"step {summary['step']:,}", f"{100 * summary['share_spent']:.0f} % of the budget"]
    if summary["state"] == "running" and summary["minutes_left"] is not None:
        phrases.append(f"{format_duration(summary['minutes_left'])} left")
    if summary["state"] == "silent":
        phrases.append(
            f"no word for {format_duration(summary['quiet_seconds'] / 60)}; if it was killed, the same command goes on"
        )
    if summary["state"] == "stopped":
        phrases.append("the same command goes on")
    if summary["state"] == "failed":
        phrases.append(str(status.events[-1].get("text", "")))
    return " · " + " · ".join(phrases)


def format_duration(minutes: float) -> str:
    """Such as 40 s, 12 min, 3 h 20 min."""
    if minutes < 1:
        return f"{60 * minutes:.0f} s"
    rounded_minutes = round(minutes)
    return f"{rounded_minutes} min" if rounded_minutes < 60 else f"{rounded_minutes // 60:,} h {rounded_minutes % 60} min"


def _build_tiles(status: RunStatus, summary: dict[str, Any]) -> list[MetricTile]:
    tiles = []

    def add_tile(name: str, value: object, form: str, remark: str = "") -> None:
        if isinstance(value, int | float):
            tiles.append(MetricTile(name, format_value(value, form), remark))

    def format_value(value: float, form: str) -> str:
        return form.format(value) if value < 1e9 else f"{value:.2e}"  # a perplexity may have hundreds of digits

    mfu_note = f"{summary['ceiling']:.0%} of the ceiling" if summary["ceiling"] is not None else ""
    best, last = summary["best"] or {}, summary["valid"] or {}
    add_tile("step", summary["step"], "{:,}", f"of {status.recipe.training.max_steps:,} at most")
    add_tile("epoch", summary["epoch"], "{:.2f}")
    perplexity = f"perplexity {format_value(summary['perplexity'], '{:,.2f}')}" if summary["perplexity"] else ""
    add_tile("training loss", summary["loss"], "{:.3f}", perplexity)
    for name, key in (("validation perplexity", "perplexity"), ("BLEU", "bleu"), ("F1", "f1")):
        is_known = isinstance(best.get(key), int | float)
        add_tile(
            name,
            last.get(key),
            "{:,.2f}",
            f"best {format_value(best[key], '{:,.2f}')}, step {best['step']:,}" if is_known else "",
        )
    add_tile("tokens a second", summary["tokens_per_second"], "{:,.0f}", mfu_note)
    add_tile("learning rate", summary["rate"], "{:.2e}")
    add_tile("gradient norm", summary["gradient_norm"], "{:.3g}")
    add_tile("memory", summary["memory_mib"], "{:,.0f} MiB")
    add_tile("waiting for batches", summary["waiting"], "{:.1%}")
    add_tile("steps skipped", summary["skipped"], "{:,}")
    add_tile("devices", summary["devices"] if (summary["devices"] or 1) > 1 else None, "{}")
    return tiles


def _build_charts(status: RunStatus) -> list[str]:
    marks = [
        VerticalMarker(entry["step"], str(entry.get("text", "")))
        for entry in status.events
        if entry.get("event") in _MARKED_EVENTS
    ]
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
        ("Learning rate", Panel("as scheduled", training_series("rate"))),
        ("Gradient norm", Panel("before clipping", training_series("gradient_norm"), log_scale=True)),
        ("Speed", Panel("target tokens a second", training_series("tokens_per_second"), include_zero=True)),
        ("Share of the ceiling", Panel("%", training_series("ceiling", scale=100.0), include_zero=True)),
        ("Waiting for batches", Panel("% of the time", training_series("waiting", scale=100.0), include_zero=True)),
        ("Memory", Panel("MiB", training_series("memory_mib"), include_zero=True)),
    ]
    # The first is drawn even before it has a point, so that the page has its form from the start.
    nonempty_panels = [panels[0], *(title_and_panel for title_and_panel in panels[1:] if title_and_panel[1].series)]
    steps = [entry["step"] for entry in (*status.train, *status.valid, *status.events)] or [0, 1]
    return [
        render_learning_curve(
            [panel], title=title, x_label="step", width=360, panel_height=150, markers=marks, x_range=(min(steps), max(steps))
        )
        for title, panel in nonempty_panels
    ]


def _build_sentences(status: RunStatus) -> list[SentenceHistory]:
    """The first few of the newest samples, each with what it was at the validations before."""
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
    return text if len(text) <= _MAX_TEXT_LENGTH else f"{text[:_MAX_TEXT_LENGTH]} … ({len(text):,} letters)"


def _get_samples(entry: LogEntry) -> list[LogEntry]:
    samples = entry.get("samples")
    return [sample for sample in samples if isinstance(sample, dict)] if isinstance(samples, list) else []


def _build_tables(status: RunStatus) -> list[ReportTable]:
    diagnoses = [
        (diagnosis.name, f"{diagnosis.evidence}. Probably {diagnosis.cause}.", diagnosis.remedy)
        for diagnosis in diagnose(status)
    ]
    tables = [ReportTable("What the doctor says", ["", "seen", "turn"], diagnoses)] if diagnoses else []
    recent_events = [entry for entry in reversed(status.events) if entry.get("event") != "checkpoint"]
    rows = [
        (f"{entry['step']:,}", str(entry.get("event", "")), str(entry.get("text", ""))) for entry in recent_events[:_MAX_EVENTS]
    ]
    count_note = f" (the newest {_MAX_EVENTS} of {len(recent_events):,})" if len(recent_events) > _MAX_EVENTS else ""
    tables += [ReportTable(f"What happened{count_note}", ["step", "what", ""], rows)] if rows else []
    run_info = status.run_info
    facts: list[tuple[str, str]] = []
    for name in ("machine", "parameters", "devices"):
        if name in run_info:
            facts.append((name, f"{run_info[name]:,}" if isinstance(run_info[name], int) else str(run_info[name])))
    if isinstance(ceiling := run_info.get("ceiling"), int | float):
        facts.append(("ceiling", f"{ceiling / 1e12:,.2f} TFLOP/s in matrix products"))
    if checkpoint_events := [entry for entry in status.events if entry.get("event") == "checkpoint"]:
        facts.append(("newest checkpoint", str(checkpoint_events[-1].get("text", ""))))
    return [*tables, ReportTable("The run", ["", ""], facts)] if facts else tables


def update_dashboard(run_dir: Path, page: Path, *, interval_seconds: int | None) -> Iterator[RunState]:
    """Write the page, yield the run's state, and so on every so many seconds while it is running; once if `every` is None.

    Raises RunError where `run` is no run's folder, and OutputError where the page cannot be written or would replace something
    else.
    """
    _check_replaceable(page)
    while True:
        started = time.monotonic()
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
        # A long journal takes time to read, which the run itself could use.
        time.sleep(max(float(interval_seconds), 20.0 * (time.monotonic() - started)))


def _check_replaceable(page: Path) -> None:
    """Raise OutputError where something else than a page stands in its place."""
    doctype = "<!DOCTYPE html>"
    try:
        with page.open(encoding="utf-8", errors="replace") as stream:
            if stream.read(len(doctype)) != doctype:
                raise OutputError(f"{page}: is not a page, and is left as it is; give another name with -o")
    except FileNotFoundError:
        return
    except OSError as error:
        raise OutputError(describe_write_error(page, error)) from None
