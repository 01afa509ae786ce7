"""Status of a run, read from its folder without torch: recipe, metrics log, time since the last write."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeVar

from dragoman.config import Recipe, recipe_from_dict
from dragoman.errors import RunError
from dragoman.training.monitoring.events import EventKind, StepReport
from dragoman.training.monitoring.metrics_log import read_metrics_log

RunState = Literal["running", "finished", "stopped", "failed", "stalled"]
LogEntry = dict[str, Any]
Points = Sequence[tuple[float, float]]
ValuesT = TypeVar("ValuesT", "ValidationValues", "EventValues")

# Seconds without a write after which a run counts as stalled: during training, and before its first lines or after training.
_STALL_SECONDS, _STALL_SECONDS_AT_ENDS = 120.0, 1800.0
_COMPLETION_EVENTS = ("budget_spent", "early_stop")
# Values of the newest line of type "train" that a summary repeats.
_TRAIN_VALUES = [item.name for item in fields(StepReport) if item.name not in ("step", "type")]


@dataclass(frozen=True)
class RunStatus:
    """Content of a run folder."""

    folder: Path
    recipe: Recipe
    entries: Sequence[LogEntry] = ()
    seconds_since_update: float = 0.0
    """Seconds since the last write into the folder."""
    is_finished: bool = False
    damaged_checkpoints: Sequence[str] = field(default=())
    """Names of the checkpoints that failed their checksums and were set aside."""

    def entries_of_type(self, entry_type: str) -> list[LogEntry]:
        """Return the lines of one type that have a step."""
        return [entry for entry in self.entries if entry["type"] == entry_type and isinstance(entry.get("step"), int)]

    @property
    def train(self) -> list[LogEntry]:
        required_keys = ("progress", "minutes", "minutes_left")
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

    def events_of_kind(self, *kinds: EventKind) -> list[LogEntry]:
        """Return the events of these kinds, in the order of the log."""
        return [entry for entry in self.events if entry.get("event") in kinds]

    @property
    def run_info(self) -> LogEntry:
        """The newest line of type "run"; empty if there is none."""
        return next(reversed(self.entries_of_type("run")), {})

    def points(self, entry_type: str, key: str, *, scale: float = 1.0) -> Points:
        """Return (step, value) for each line of a type whose value is a finite number."""
        values = [(entry["step"], entry.get(key)) for entry in self.entries_of_type(entry_type)]
        return [(float(step), scale * value) for step, value in values if isinstance(value, int | float) and abs(value) < 1e300]

    @property
    def state(self) -> RunState:
        if self.is_finished:
            return "finished"
        match self.get_last_event():
            case "stopped" | "failed" as last_event:
                return last_event
        return "running" if self.seconds_since_update <= self._compute_stall_threshold() else "stalled"

    @property
    def is_training_complete(self) -> bool:
        """True if the budget is spent or early stopping ended the training. The bundle and the report may be still to write."""
        return self.get_last_event() in _COMPLETION_EVENTS

    def get_last_event(self) -> str | None:
        """Return the kind of the newest event, if no training step or start of a run follows it."""
        for entry in reversed(self.entries):
            # A checkpoint is saved after the last validation, so it may follow the end of training.
            if entry["type"] in ("event", "train", "run") and entry.get("event") not in ("checkpoint", "checkpoint_failed"):
                return str(entry["event"]) if "event" in entry else None
        return None

    def _compute_stall_threshold(self) -> float:
        """Return the seconds that a healthy run may be quiet: ten times its log interval, three times a validation."""
        train = self.train
        # The bundle and the scores of the test set take unknown time after the last line.
        if len(train) < 2 or train[-1]["progress"] >= 1.0 or self.is_training_complete:
            return _STALL_SECONDS_AT_ENDS
        log_interval_minutes: float = train[-1]["minutes"] - train[-2]["minutes"]
        validations = [entry.get("seconds", 0.0) for entry in self.valid]
        return max(_STALL_SECONDS, 600.0 * log_interval_minutes, 3.0 * max(validations, default=0.0))


@dataclass(frozen=True)
class ValidationValues:
    """Values of one line of type "valid"; see `ValidationReport`."""

    step: int | None
    loss: float | None
    nll: float | None
    perplexity: float | None
    token_accuracy: float | None
    bleu: float | None
    f1: float | None


@dataclass(frozen=True)
class EventValues:
    """Values of one line of type "event"; see `RunEvent`."""

    event: str | None
    step: int | None
    text: str | None


@dataclass(frozen=True)
class RunSummary:
    """Newest values of a run. `StepReport` describes the values from `epoch` to `padding_fraction`.

    run: folder of the run
    name: name of the recipe
    state: running, finished, stopped, failed or stalled
    seconds_since_update: seconds since the last write into the folder
    step: highest step in the metrics log
    valid: newest validation
    best: newest validation that was better than all before it
    last_event: newest event
    """

    run: str
    name: str
    state: RunState
    seconds_since_update: float
    step: int | None
    epoch: float | None
    loss: float | None
    perplexity: float | None
    lr: float | None
    gradient_norm: float | None
    tokens_per_second: float | None
    progress: float | None
    minutes: float | None
    minutes_left: float | None
    skipped_steps: int | None
    data_wait_fraction: float | None
    flops_per_second: float | None
    mfu: float | None
    memory_mib: float | None
    devices: int | None
    padding_fraction: float | None
    valid: ValidationValues | None
    best: ValidationValues | None
    last_event: EventValues | None


def select_quarter(points: Points, number: int) -> Points:
    """Return one quarter of the points, numbered from 0."""
    size = len(points) / 4
    return points[round(number * size) : round((number + 1) * size)]


def select_second_half(points: Points) -> Points:
    return points[len(points) // 2 :]


def compute_quarter_means(points: Points) -> list[float]:
    return [fmean(value for _, value in select_quarter(points, number)) for number in range(4)]


def format_step_range(points: Points) -> str:
    """Return text such as `1,000 to 2,000`."""
    return f"{points[0][0]:,.0f} to {points[-1][0]:,.0f}"


def read_run_status(folder: Path) -> RunStatus:
    """Read a run folder. Raise RunError if it is none, or if its recipe or metrics log cannot be read."""
    document: Any = None
    try:
        document = json.loads((folder / "recipe.json").read_bytes())
        entries = read_metrics_log(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
        names = ("recipe.json", "metrics.jsonl", "checkpoints", "report.json")
        modified_times = {name: (folder / name).stat().st_mtime for name in names if (folder / name).exists()}
        damaged = sorted(path.name for path in (folder / "checkpoints").glob("damaged-*"))
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(
            f"{folder}: holds no recipe.json, so no run has started there; give the folder of a run", code="run-not-found"
        ) from None
    except OSError as error:
        raise RunError(f"{error.filename or folder}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise RunError(
            f"{folder / 'recipe.json'}: is damaged; `dragoman train` with the run's recipe writes it again", code="run-damaged"
        )
    recipe = recipe_from_dict(document, where=str(folder / "recipe.json"))
    is_finished = modified_times.get("report.json", 0.0) >= max(
        modified_times["recipe.json"], modified_times.get("metrics.jsonl", 0.0)
    )
    return RunStatus(folder, recipe, entries, max(0.0, time.time() - max(modified_times.values())), is_finished, damaged)


def read_report(folder: Path, *required_keys: str) -> dict[str, Any]:
    """Return the content of `report.json`. Raise RunError if it cannot be read or lacks one of these keys."""
    path = folder / "report.json"
    with suppress(OSError, ValueError, RecursionError):
        report = json.loads(path.read_bytes())
        if isinstance(report, dict) and report.keys() >= set(required_keys):
            return report
    raise RunError(f"{path}: cannot be read; `dragoman train` with the run's recipe writes it again", code="run-damaged")


def summarize_run(status: RunStatus) -> RunSummary:
    """Return the newest values of a run; None for each value that the metrics log does not hold."""
    last_entry: LogEntry = next(reversed(status.train), {})
    best_entries = [entry for entry in status.valid if entry.get("best")]
    train_values = {name: last_entry.get(name) for name in _TRAIN_VALUES}
    if last_entry and status.get_last_event() == "budget_spent":
        train_values |= {"progress": 1.0, "minutes_left": 0.0}
    return RunSummary(
        run=str(status.folder),
        name=status.recipe.name,
        state=status.state,
        seconds_since_update=round(status.seconds_since_update, 1),
        step=max((entry["step"] for entry in status.entries if isinstance(entry.get("step"), int)), default=None),
        **train_values,
        valid=_select_values(ValidationValues, status.valid[-1]) if status.valid else None,
        best=_select_values(ValidationValues, best_entries[-1]) if best_entries else None,
        last_event=_select_values(EventValues, status.events[-1]) if status.events else None,
    )


def _select_values(kind: type[ValuesT], entry: LogEntry) -> ValuesT:
    return kind(**{item.name: entry.get(item.name) for item in fields(kind)})
