"""`metrics.jsonl`: one JSON object a line, appended as the run goes; `kind` is "train" or "valid"."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dragoman.errors import OutputError
from dragoman.storage import cannot_write, write_lines


class Journal:
    """Appends to the run's journal. Raises OutputError where the disk is full."""

    def __init__(self, path: Path, *, step: int) -> None:
        """Go on after `step`: lines of later steps, which a resumed run makes anew, are taken out."""
        self.path = path
        if path.exists():
            kept = [json.dumps(entry) for entry in read_journal(path) if entry.get("step", 0) <= step]
            write_lines(path, kept, overwrite=True)

    def write(self, kind: str, **values: Any) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({"kind": kind, **values}) + "\n")
        except OSError as error:
            raise OutputError(cannot_write(self.path, error)) from None


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The entries of a journal; a last line that a crash cut short is left out."""
    entries = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entries.append(json.loads(line))
        except ValueError:
            continue
    return entries
