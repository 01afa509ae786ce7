"""What a folder tells of its run, to another process and without torch: the recipe, the journal, and how long it is quiet."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from dragoman.config import Recipe, recipe_from_dict
from dragoman.errors import RunError
from dragoman.training.monitoring.metrics_log import read_journal

State = Literal["running", "finished", "stopped", "failed", "silent"]
Entry = dict[str, Any]
Points = Sequence[tuple[float, float]]

# Seconds without a word after which a run counts as silent: while its lines come, until the first ones, at its end.
_QUIET, _QUIET_AT_ENDS = 120.0, 1800.0


@dataclass(frozen=True)
class Record:
    """A run as its folder tells it."""

    folder: Path
    recipe: Recipe
    entries: Sequence[Entry] = ()
    quiet_seconds: float = 0.0
    """Since anything was written."""
    finished: bool = False
    damaged: Sequence[str] = field(default=())
    """Checkpoints that were set aside."""

    def of_kind(self, kind: str) -> list[Entry]:
        return [entry for entry in self.entries if entry["type"] == kind and isinstance(entry.get("step"), int)]

    @property
    def train(self) -> list[Entry]:
        numbers = ("share_spent", "minutes_left")
        return [one for one in self.of_kind("train") if all(isinstance(one.get(name), int | float) for name in numbers)]

    @property
    def valid(self) -> list[Entry]:
        return self.of_kind("valid")

    @property
    def events(self) -> list[Entry]:
        return self.of_kind("event")

    @property
    def about(self) -> Entry:
        """What the newest stretch of the run said of itself; empty where none did."""
        return next(reversed(self.of_kind("run")), {})

    def points(self, kind: str, key: str, *, times: float = 1.0) -> Points:
        """(step, value) wherever lines of this kind have a number for it, and not one that stands for an infinite one."""
        found = [(entry["step"], entry.get(key)) for entry in self.of_kind(kind)]
        return [(float(step), times * value) for step, value in found if isinstance(value, int | float) and abs(value) < 1e300]

    @property
    def state(self) -> State:
        if self.finished:
            return "finished"
        told = [entry for entry in self.entries if entry["type"] in ("event", "train", "run")]
        match told[-1].get("event") if told else None:
            case "stopped":
                return "stopped"
            case "failed":
                return "failed"
        return "running" if self.quiet_seconds <= self._patience() else "silent"

    def _patience(self) -> float:
        """How long a run that is well may be quiet: ten times what lies between its lines, three times a validation."""
        train = self.train
        # At a budget's end there is no time left to reckon by, which an extended one leaves behind.
        if len(train) < 2 or any(entry["share_spent"] >= 1.0 for entry in train[-2:]):
            return _QUIET_AT_ENDS
        spent = [minutes_spent(entry) for entry in train[-2:]]
        validations = [entry.get("seconds", 0.0) for entry in self.valid]
        return max(_QUIET, 600.0 * (spent[1] - spent[0]), 3.0 * max(validations, default=0.0))


def minutes_spent(entry: Entry) -> float:
    """Of a line of kind "train" before the end: the minutes behind it, by those ahead and the share of the budget."""
    share = float(entry["share_spent"])
    return float(entry["minutes_left"]) * share / (1.0 - share)


def quarter(points: Points, number: int) -> Points:
    """The first is number 0."""
    size = len(points) / 4
    return points[round(number * size) : round((number + 1) * size)]


def second_half(points: Points) -> Points:
    return points[len(points) // 2 :]


def means_of_quarters(points: Points) -> list[float]:
    return [fmean(value for _, value in quarter(points, number)) for number in range(4)]


def steps_of(points: Points) -> str:
    """Such as 1,000 to 2,000."""
    return f"{points[0][0]:,.0f} to {points[-1][0]:,.0f}"


def read_record(folder: Path) -> Record:
    """Read a run folder. Raises RunError where it is none, or where its recipe or journal cannot be read."""
    document: Any = None
    try:
        document = json.loads((folder / "recipe.json").read_bytes())
        entries = read_journal(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
        names = ("recipe.json", "metrics.jsonl", "checkpoints", "report.json")
        written = {name: (folder / name).stat().st_mtime for name in names if (folder / name).exists()}
        damaged = sorted(path.name for path in (folder / "checkpoints").glob("damaged-*"))
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{folder}: holds no recipe.json, so no run has begun to train there; give a run's folder") from None
    except OSError as error:
        raise RunError(f"{error.filename or folder}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise RunError(f"{folder / 'recipe.json'}: is damaged; `dragoman train` with the run's recipe writes it anew")
    recipe = recipe_from_dict(document, where=str(folder / "recipe.json"))
    finished = written.get("report.json", 0.0) >= max(written["recipe.json"], written.get("metrics.jsonl", 0.0))
    return Record(folder, recipe, entries, max(0.0, time.time() - max(written.values())), finished, damaged)


def standing(record: Record) -> dict[str, Any]:
    """Where a run stands, for machines; none where its journal does not tell."""
    last: Entry = next(reversed(record.train), {})
    best = [entry for entry in record.valid if entry.get("best")]
    events = record.events
    names = (
        "step", "epoch", "loss", "perplexity", "rate", "gradient_norm", "tokens_per_second", "share_spent", "minutes_left",
        "skipped", "waiting", "flops_per_second", "ceiling", "memory_mib", "devices", "padding",
    )  # fmt: skip
    return {
        "run": str(record.folder),
        "name": record.recipe.name,
        "state": record.state,
        "quiet_seconds": round(record.quiet_seconds, 1),
        **{name: last.get(name) for name in names},
        "step": max((entry["step"] for entry in record.entries if isinstance(entry.get("step"), int)), default=None),
        "valid": _judged(record.valid[-1]) if record.valid else None,
        "best": _judged(best[-1]) if best else None,
        "last_event": {name: events[-1].get(name) for name in ("event", "step", "text")} if events else None,
    }


def _judged(entry: Entry) -> Entry:
    return {name: entry.get(name) for name in ("step", "loss", "nll", "perplexity", "bleu", "f1")}
