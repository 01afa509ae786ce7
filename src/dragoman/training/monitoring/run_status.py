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
from dragoman.training.monitoring.metrics_log import read_metrics_log

RunState = Literal["running", "finished", "stopped", "failed", "silent"]
LogEntry = dict[str, Any]
Points = Sequence[tuple[float, float]]

# Seconds without a word after which a run counts as silent: while its lines come, until the first ones, at its end.
_STALL_SECONDS, _STALL_SECONDS_AT_ENDS = 120.0, 1800.0


@dataclass(frozen=True)
class RunStatus:
    """A run as its folder tells it."""

    folder: Path
    recipe: Recipe
    entries: Sequence[LogEntry] = ()
    seconds_since_update: float = 0.0
    """Since anything was written."""
    is_finished: bool = False
    damaged_checkpoints: Sequence[str] = field(default=())
    """Checkpoints that were set aside."""

    def entries_of_type(self, entry_type: str) -> list[LogEntry]:
        return [entry for entry in self.entries if entry["type"] == entry_type and isinstance(entry.get("step"), int)]

    @property
    def train(self) -> list[LogEntry]:
        required_keys = ("share_spent", "minutes_left")
        return [
            entry
            for entry in self.entries_of_type("train")
            if all(isinstance(entry.get(name), int | float) for name in required_keys)
        ]

    @property
    def valid(self) -> list[LogEntry]:
        return self.entries_of_type("valid")

    @property
    def events(self) -> list[LogEntry]:
        return self.entries_of_type("event")

    @property
    def run_info(self) -> LogEntry:
        """What the newest stretch of the run said of itself; empty where none did."""
        return next(reversed(self.entries_of_type("run")), {})

    def points(self, entry_type: str, key: str, *, scale: float = 1.0) -> Points:
        """(step, value) wherever lines of this kind have a number for it, and not one that stands for an infinite one."""
        values = [(entry["step"], entry.get(key)) for entry in self.entries_of_type(entry_type)]
        return [(float(step), scale * value) for step, value in values if isinstance(value, int | float) and abs(value) < 1e300]

    @property
    def state(self) -> RunState:
        if self.is_finished:
            return "finished"
        state_entries = [entry for entry in self.entries if entry["type"] in ("event", "train", "run")]
        match state_entries[-1].get("event") if state_entries else None:
            case "stopped":
                return "stopped"
            case "failed":
                return "failed"
        return "running" if self.seconds_since_update <= self._compute_stall_threshold() else "silent"

    def _compute_stall_threshold(self) -> float:
        """How long a run that is well may be quiet: ten times what lies between its lines, three times a validation."""
        train = self.train
        # At a budget's end there is no time left to reckon by, which an extended one leaves behind.
        if len(train) < 2 or any(entry["share_spent"] >= 1.0 for entry in train[-2:]):
            return _STALL_SECONDS_AT_ENDS
        minutes = [compute_minutes_elapsed(entry) for entry in train[-2:]]
        validations = [entry.get("seconds", 0.0) for entry in self.valid]
        return max(_STALL_SECONDS, 600.0 * (minutes[1] - minutes[0]), 3.0 * max(validations, default=0.0))


def compute_minutes_elapsed(entry: LogEntry) -> float:
    """Of a line of kind "train" before the end: the minutes behind it, by those ahead and the share of the budget."""
    progress = float(entry["share_spent"])
    return float(entry["minutes_left"]) * progress / (1.0 - progress)


def select_quarter(points: Points, number: int) -> Points:
    """The first is number 0."""
    size = len(points) / 4
    return points[round(number * size) : round((number + 1) * size)]


def select_second_half(points: Points) -> Points:
    return points[len(points) // 2 :]


def compute_quarter_means(points: Points) -> list[float]:
    return [fmean(value for _, value in select_quarter(points, number)) for number in range(4)]


def format_step_range(points: Points) -> str:
    """Such as 1,000 to 2,000."""
    return f"{points[0][0]:,.0f} to {points[-1][0]:,.0f}"


def read_run_status(folder: Path) -> RunStatus:
    """Read a run folder. Raises RunError where it is none, or where its recipe or journal cannot be read."""
    document: Any = None
    try:
        document = json.loads((folder / "recipe.json").read_bytes())
        entries = read_metrics_log(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
        names = ("recipe.json", "metrics.jsonl", "checkpoints", "report.json")
        modified_times = {name: (folder / name).stat().st_mtime for name in names if (folder / name).exists()}
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
    finished = modified_times.get("report.json", 0.0) >= max(
        modified_times["recipe.json"], modified_times.get("metrics.jsonl", 0.0)
    )
    return RunStatus(folder, recipe, entries, max(0.0, time.time() - max(modified_times.values())), finished, damaged)


def summarize_run(status: RunStatus) -> dict[str, Any]:
    """Where a run stands, for machines; none where its journal does not tell."""
    last_entry: LogEntry = next(reversed(status.train), {})
    best_entries = [entry for entry in status.valid if entry.get("best")]
    events = status.events
    names = (
        "step", "epoch", "loss", "perplexity", "rate", "gradient_norm", "tokens_per_second", "share_spent", "minutes_left",
        "skipped", "waiting", "flops_per_second", "ceiling", "memory_mib", "devices", "padding",
    )  # fmt: skip
    return {
        "run": str(status.folder),
        "name": status.recipe.name,
        "state": status.state,
        "quiet_seconds": round(status.seconds_since_update, 1),
        **{name: last_entry.get(name) for name in names},
        "step": max((entry["step"] for entry in status.entries if isinstance(entry.get("step"), int)), default=None),
        "valid": _select_scores(status.valid[-1]) if status.valid else None,
        "best": _select_scores(best_entries[-1]) if best_entries else None,
        "last_event": {name: events[-1].get(name) for name in ("event", "step", "text")} if events else None,
    }


def _select_scores(entry: LogEntry) -> LogEntry:
    return {name: entry.get(name) for name in ("step", "loss", "nll", "perplexity", "bleu", "f1")}
