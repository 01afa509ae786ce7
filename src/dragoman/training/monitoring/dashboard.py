"""The page of a run as `dragoman watch` writes it: what its record holds, put into tiles, curves and sentences."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dragoman.errors import OutputError
from dragoman.io.storage import cannot_write, write_lines
from dragoman.training.monitoring.diagnostics import diagnose
from dragoman.training.monitoring.run_status import Entry, Record, State, read_record, standing
from dragoman.viz import Mark, Panel, Sentence, Series, Table, Tile, learning_curve, watch_page

_VERSIONS, _SENTENCES, _EVENTS = 4, 8, 30
# Letters of a text that are shown.
_LETTERS = 300
# Checkpoints come and go; these are worth a line in the curves.
_MARKED = ("resumed", "skipped", "restored", "memory", "unsaved", "patience", "stopped", "failed")


def run_page(record: Record, *, written: str, refresh: int | None = None) -> str:
    """The page as HTML. `written`: when, in words; `refresh`: seconds after which browsers load it anew."""
    now = standing(record)
    again = f"; loads itself anew every {refresh} seconds" if refresh is not None else ""
    return watch_page(
        record.recipe.name,
        state=now["state"],
        sentence=_sentence(record, now),
        share=now["share_spent"] or 0.0,
        tiles=_tiles(record, now),
        charts=_charts(record),
        sentences=_sentences(record),
        tables=_tables(record),
        footer=f"{record.folder}, as of {written}{again}",
        refresh=refresh,
    )


def _sentence(record: Record, now: dict[str, Any]) -> str:
    """What follows the word for the state."""
    told = ["no step is journaled yet"]
    if now["share_spent"] is not None:
        told = [f"step {now['step']:,}", f"{100 * now['share_spent']:.0f} % of the budget"]
    if now["state"] == "running" and now["minutes_left"] is not None:
        told.append(f"{duration(now['minutes_left'])} left")
    if now["state"] == "silent":
        told.append(f"no word for {duration(now['quiet_seconds'] / 60)}; if it was killed, the same command goes on")
    if now["state"] == "stopped":
        told.append("the same command goes on")
    if now["state"] == "failed":
        told.append(str(record.events[-1].get("text", "")))
    return " · " + " · ".join(told)


def duration(minutes: float) -> str:
    """Such as 40 s, 12 min, 3 h 20 min."""
    if minutes < 1:
        return f"{60 * minutes:.0f} s"
    whole = round(minutes)
    return f"{whole} min" if whole < 60 else f"{whole // 60:,} h {whole % 60} min"


def _tiles(record: Record, now: dict[str, Any]) -> list[Tile]:
    tiles = []

    def tile(name: str, value: object, form: str, remark: str = "") -> None:
        if isinstance(value, int | float):
            tiles.append(Tile(name, written(value, form), remark))

    def written(value: float, form: str) -> str:
        return form.format(value) if value < 1e9 else f"{value:.2e}"  # a perplexity may have hundreds of digits

    share = f"{now['ceiling']:.0%} of the ceiling" if now["ceiling"] is not None else ""
    best, last = now["best"] or {}, now["valid"] or {}
    tile("step", now["step"], "{:,}", f"of {record.recipe.training.max_steps:,} at most")
    tile("epoch", now["epoch"], "{:.2f}")
    perplexity = f"perplexity {written(now['perplexity'], '{:,.2f}')}" if now["perplexity"] else ""
    tile("training loss", now["loss"], "{:.3f}", perplexity)
    for name, key in (("validation perplexity", "perplexity"), ("BLEU", "bleu"), ("F1", "f1")):
        known = isinstance(best.get(key), int | float)
        tile(name, last.get(key), "{:,.2f}", f"best {written(best[key], '{:,.2f}')}, step {best['step']:,}" if known else "")
    tile("tokens a second", now["tokens_per_second"], "{:,.0f}", share)
    tile("learning rate", now["rate"], "{:.2e}")
    tile("gradient norm", now["gradient_norm"], "{:.3g}")
    tile("memory", now["memory_mib"], "{:,.0f} MiB")
    tile("waiting for batches", now["waiting"], "{:.1%}")
    tile("steps skipped", now["skipped"], "{:,}")
    tile("devices", now["devices"] if (now["devices"] or 1) > 1 else None, "{}")
    return tiles


def _charts(record: Record) -> list[str]:
    marks = [Mark(entry["step"], str(entry.get("text", ""))) for entry in record.events if entry.get("event") in _MARKED]
    train, valid = Series("training", (), tone=0), Series("validation", (), tone=1)

    def lines(key: str, *, times: float = 1.0) -> list[Series]:
        points = record.points("train", key, times=times)
        return [replace(train, points=points)] if points else []

    def judged(key: str) -> list[Series]:
        points = record.points("valid", key)
        return [replace(valid, points=points)] if points else []

    wanted = [
        ("Loss", Panel("nats per token", [*lines("loss"), *judged("nll")])),
        ("Perplexity", Panel("per token", [*lines("perplexity"), *judged("perplexity")], logarithmic=True)),
        ("BLEU", Panel("greedy", judged("bleu"))),
        ("F1", Panel("greedy", judged("f1"))),
        ("Learning rate", Panel("as scheduled", lines("rate"))),
        ("Gradient norm", Panel("before clipping", lines("gradient_norm"), logarithmic=True)),
        ("Speed", Panel("target tokens a second", lines("tokens_per_second"), from_zero=True)),
        ("Share of the ceiling", Panel("%", lines("ceiling", times=100.0), from_zero=True)),
        ("Waiting for batches", Panel("% of the time", lines("waiting", times=100.0), from_zero=True)),
        ("Memory", Panel("MiB", lines("memory_mib"), from_zero=True)),
    ]
    # The first is drawn even before it has a point, so that the page has its form from the start.
    shown = [wanted[0], *(one for one in wanted[1:] if one[1].series)]
    steps = [entry["step"] for entry in (*record.train, *record.valid, *record.events)] or [0, 1]
    return [
        learning_curve(
            [panel], title=title, x_label="step", width=360, panel_height=150, marks=marks, x_range=(min(steps), max(steps))
        )
        for title, panel in shown
    ]


def _sentences(record: Record) -> list[Sentence]:
    """The first few of the newest samples, each with what it was at the validations before."""
    rounds = record.of_kind("samples")[-_VERSIONS:]
    if not rounds:
        return []
    return [
        Sentence(_text(newest, "source"), _text(newest, "reference"), _versions(rounds, newest))
        for newest in _texts(rounds[-1])[:_SENTENCES]
    ]


def _versions(rounds: Sequence[Entry], newest: Entry) -> list[tuple[str, str]]:
    return [
        (f"step {entry['step']:,}", _text(sample, "translation"))
        for entry in rounds
        for sample in _texts(entry)
        if sample.get("source") == newest.get("source") and sample.get("reference") == newest.get("reference")
    ]


def _text(sample: Entry, key: str) -> str:
    text = str(sample.get(key, ""))
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS]} … ({len(text):,} letters)"


def _texts(entry: Entry) -> list[Entry]:
    samples = entry.get("samples")
    return [sample for sample in samples if isinstance(sample, dict)] if isinstance(samples, list) else []


def _tables(record: Record) -> list[Table]:
    findings = [(one.name, f"{one.seen}. Probably {one.means}.", one.turn) for one in diagnose(record)]
    tables = [Table("What the doctor says", ["", "seen", "turn"], findings)] if findings else []
    newest = [entry for entry in reversed(record.events) if entry.get("event") != "checkpoint"]
    rows = [(f"{entry['step']:,}", str(entry.get("event", "")), str(entry.get("text", ""))) for entry in newest[:_EVENTS]]
    more = f" (the newest {_EVENTS} of {len(newest):,})" if len(newest) > _EVENTS else ""
    tables += [Table(f"What happened{more}", ["step", "what", ""], rows)] if rows else []
    about = record.about
    facts: list[tuple[str, str]] = []
    for name in ("machine", "parameters", "devices"):
        if name in about:
            facts.append((name, f"{about[name]:,}" if isinstance(about[name], int) else str(about[name])))
    if isinstance(ceiling := about.get("ceiling"), int | float):
        facts.append(("ceiling", f"{ceiling / 1e12:,.2f} TFLOP/s in matrix products"))
    if kept := [entry for entry in record.events if entry.get("event") == "checkpoint"]:
        facts.append(("newest checkpoint", str(kept[-1].get("text", ""))))
    return [*tables, Table("The run", ["", ""], facts)] if facts else tables


def keep_page(run: Path, page: Path, *, every: int | None) -> Iterator[State]:
    """Write the page, yield the run's state, and so on every so many seconds while it is running; once if `every` is None.

    Raises RunError where `run` is no run's folder, and OutputError where the page cannot be written or would replace something
    else.
    """
    _refuse_to_replace(page)
    while True:
        began = time.monotonic()
        record = read_record(run)
        going = record.state == "running" and every is not None
        written = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
        write_lines(page, [run_page(record, written=written, refresh=every if going else None)], overwrite=True)
        yield record.state
        if every is None or not going:
            return
        # A long journal takes time to read, which the run itself could use.
        time.sleep(max(float(every), 20.0 * (time.monotonic() - began)))


def _refuse_to_replace(page: Path) -> None:
    """Raise OutputError where something else than a page stands in its place."""
    start = "<!DOCTYPE html>"
    try:
        with page.open(encoding="utf-8", errors="replace") as stream:
            if stream.read(len(start)) != start:
                raise OutputError(f"{page}: is not a page, and is left as it is; give another name with -o")
    except FileNotFoundError:
        return
    except OSError as error:
        raise OutputError(cannot_write(page, error)) from None
