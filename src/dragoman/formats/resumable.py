"""A file that is made piece by piece over hours, and goes on where it stopped.

    OUT.part/    while it grows
      content        what is written so far
      progress.json  what was asked, how much was read, how many bytes of `content` belong to that, and what was counted
    OUT          once it is whole

A piece counts once `progress.json` tells of it, which is replaced whole after the piece is on the disk; what a killed process
wrote beyond is cut off. So no line is there twice, and none is missing.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from dragoman.errors import OutputError
from dragoman.io.storage import alone_in, cannot_write, make_folder, put_in_place, refuse_existing, sync_folder, write_json

CONTENT, PROGRESS = "content", "progress.json"


class GrowingFile:
    """Where it stands: `read` says how much of what is asked for was read, `tally` what came of it."""

    def __init__(
        self, folder: Path, request: Mapping[str, Any], stream: IO[bytes], read: int, tally: Mapping[str, int]
    ) -> None:
        self.folder = folder
        self.request = request
        self.stream = stream
        self.read = read
        self.tally = Counter(tally)

    def add(self, text: str, *, read: int, tally: Mapping[str, int]) -> None:
        """Write what came of so much more that was read, and make it last."""
        self.stream.write(text.encode())
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.read += read
        self.tally.update(tally)
        document = {"request": self.request, "read": self.read, "bytes": self.stream.tell(), "tally": dict(self.tally)}
        write_json(self.folder / PROGRESS, document, overwrite=True)


@contextmanager
def growing_file(path: Path, request: Mapping[str, Any], *, overwrite: bool = False) -> Iterator[GrowingFile]:
    """A file that appears at `path` once this is left without an error; else what there is of it is kept and gone on with.

    request: what is asked for, as JSON holds it; what was begun for another request is not gone on with

    Raises OutputError where `path` stands already, where another process is at work on it or has begun something else, or
    where it cannot be written.
    """
    if not overwrite:
        refuse_existing(path)
    if not path.name or path.is_dir():
        raise OutputError(f"{path}: is a folder; give the name of a file")
    folder = path.with_name(f"{path.name}.part")
    asked = json.loads(json.dumps(request))
    try:
        make_folder(folder)
        with alone_in(folder):
            size, read, tally = _begun(folder, asked, overwrite=overwrite)
            with (folder / CONTENT).open("ab") as stream:
                stream.truncate(size)
                stream.seek(size)
                yield GrowingFile(folder, asked, stream, read, tally)
            if not overwrite:
                refuse_existing(path)
            put_in_place(folder / CONTENT, path)
            sync_folder(path.parent)
            shutil.rmtree(folder)
    except OSError as error:
        raise OutputError(cannot_write(path, error)) from None


def _begun(folder: Path, request: Mapping[str, Any], *, overwrite: bool) -> tuple[int, int, dict[str, int]]:
    """Bytes written, how much was read for them, and what was counted; of what was begun for another request, nothing."""
    if strange := sorted({entry.name for entry in folder.iterdir() if not entry.name.startswith(".")} - {CONTENT, PROGRESS}):
        raise OutputError(f"{folder}: holds {strange[0]!r}, which dragoman did not write; give another name")
    try:
        document = json.loads((folder / PROGRESS).read_bytes())
        size, read, tally, before = (document[key] for key in ("bytes", "read", "tally", "request"))
        whole = (folder / CONTENT).stat().st_size >= size
    except FileNotFoundError:
        return 0, 0, {}
    except (ValueError, TypeError, KeyError, RecursionError):
        whole, before = False, None
    if overwrite and (not whole or before != request):
        return 0, 0, {}
    if not whole:
        raise OutputError(f"{folder}: is damaged; --overwrite begins anew")
    if before != request:
        told = _difference(before, request)
        raise OutputError(f"{folder}: was begun with {told}; give another name, or --overwrite to begin anew")
    return size, read, tally


def _difference(before: Any, request: Mapping[str, Any]) -> str:
    """The first thing that is not as it was."""
    for key, now in request.items():
        then = before.get(key) if isinstance(before, Mapping) else None
        if then != now and isinstance(now, Mapping) and isinstance(then, Mapping):
            inner = next(name for name in now if then.get(name) != now[name]) if now.keys() == then.keys() else None
            return f"another {key}" if inner is None else f"{key}.{inner} = {then[inner]!r}, not {now[inner]!r}"
        if then != now:
            return f"another {key}"
    return "another request"
