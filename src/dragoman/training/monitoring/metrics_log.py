"""Metrics log `metrics.jsonl`: one JSON object a line, appended during the run.

`type` is "run" (a run starts or resumes), "train", "valid", "samples" or "event". Each line has its `step`. A number that is
not finite is null. `LogLine` of `monitoring.events` is the type of a line, from which a JSON schema can be made.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dragoman.io.storage import to_write_error, write_lines
from dragoman.training.monitoring.events import LogLine, RunStarted, TrainingEvent

# Lines that are kept in memory while the disk is full. Older lines are lost.
_MAX_UNWRITTEN_LINES = 10_000


class MetricsLog:
    """Writer of a metrics log. It is a callback for training events.

    on_error: takes a message when a line cannot be written; without it, OutputError is raised
    """

    def __init__(self, path: Path, *, on_error: Callable[[str], None] | None = None) -> None:
        self.path = path
        self._on_error = on_error
        self._unwritten_lines: list[str] = []

    @classmethod
    def resume(cls, path: Path, *, step: int, on_error: Callable[[str], None] | None = None) -> MetricsLog:
        """Return a writer that continues after `step`. Lines of later steps are removed, since a resumed run repeats them."""
        if path.exists():
            kept_lines = [json.dumps(entry) for entry in read_metrics_log(path) if entry.get("step", 0) <= step]
            write_lines(path, kept_lines, overwrite=True)
        return cls(path, on_error=on_error)

    def __call__(self, event: TrainingEvent) -> None:
        """Write the event, if it is one of the log's lines. The recipe has a file of its own."""
        line = event.run_info if isinstance(event, RunStarted) else event
        if isinstance(line, LogLine):
            self.write(**asdict(line))

    def write(self, type: str, **values: Any) -> None:
        """Append a line. If that fails, the line is written with the next one."""
        is_first_failure = not self._unwritten_lines
        self._unwritten_lines = [
            *self._unwritten_lines[1 - _MAX_UNWRITTEN_LINES :],
            json.dumps({"type": type, **_replace_nonfinite(values)}) + "\n",
        ]
        try:
            _append_bytes(self.path, "".join(self._unwritten_lines).encode())
        except OSError as error:
            write_error = to_write_error(self.path, error)
            if self._on_error is None:
                raise write_error from None
            if is_first_failure:
                self._on_error(f"{write_error}; training continues, and the metrics log is written as soon as possible")
            return
        self._unwritten_lines = []


def _replace_nonfinite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with null for numbers that JSON cannot hold."""
    return {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()}


def _append_bytes(path: Path, data: bytes) -> None:
    """Append all bytes or none, since half a line would spoil the next one."""
    with path.open("ab", buffering=0) as stream:
        end = stream.tell()
        try:
            while data:
                data = data[stream.write(data) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(stream.fileno(), end)
            raise


def read_metrics_log(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a metrics log, without those that are damaged, such as a last line that a crash cut short."""
    entries = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and "type" in entry:
            entries.append(entry)
    return entries
