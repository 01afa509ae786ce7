"""`metrics.jsonl`: one JSON object a line, appended as the run goes.

`kind` is "run" (a stretch of the run begins), "train", "valid", "samples" or "event"; each line has its `step`. A number that
is not finite stands as null.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.errors import OutputError
from dragoman.io.storage import describe_write_error, write_lines
from dragoman.training.monitoring.callbacks import EventKind, RunInfo

if TYPE_CHECKING:
    from dragoman.training.validation import Sample

# Lines kept for when there is room again; older ones are lost then.
_MAX_UNWRITTEN_LINES = 10_000


class MetricsLog:
    """Appends to the run's journal."""

    def __init__(self, path: Path, *, step: int, on_error: Callable[[str], None] | None = None) -> None:
        """Go on after `step`: lines of later steps, which a resumed run makes anew, are taken out.

        trouble: hears of a line that cannot be written, once until one can; without it, OutputError is raised
        """
        self.path = path
        self._on_error = on_error
        self._unwritten_lines: list[str] = []
        if path.exists():
            kept_lines = [json.dumps(entry) for entry in read_metrics_log(path) if entry.get("step", 0) <= step]
            write_lines(path, kept_lines, overwrite=True)

    def begin(self, run_info: RunInfo) -> None:
        """The run begins or goes on. The recipe has a file of its own."""
        self.write("run", **{name: value for name, value in vars(run_info).items() if name != "recipe"})

    def event(self, kind: EventKind, step: int, text: str) -> None:
        self.write("event", step=step, event=kind, text=text)

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Translations of the same few sentences at each validation."""
        self.write("samples", step=step, samples=[vars(sample) for sample in samples])

    def write(self, entry_type: str, **values: Any) -> None:
        """Append a line. Where that fails it goes with the next that does not."""
        is_first_failure = not self._unwritten_lines
        self._unwritten_lines = [
            *self._unwritten_lines[1 - _MAX_UNWRITTEN_LINES :],
            json.dumps({"type": entry_type, **_replace_nonfinite(values)}) + "\n",
        ]
        try:
            _append_bytes(self.path, "".join(self._unwritten_lines).encode())
        except OSError as error:
            message = describe_write_error(self.path, error)
            if self._on_error is None:
                raise OutputError(message) from None
            if is_first_failure:
                self._on_error(f"{message}; training goes on, and what is not journaled waits until it can be")
            return
        self._unwritten_lines = []


def _replace_nonfinite(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON knows no infinity."""
    return {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()}


def _append_bytes(path: Path, data: bytes) -> None:
    """All of it or nothing: half a line would spoil the next one."""
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
    """The entries of a journal; a last line that a crash cut short is left out."""
    entries = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and "type" in entry:
            entries.append(entry)
    return entries
