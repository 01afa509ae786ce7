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
from dragoman.io.storage import check_path_is_free, commit_file, describe_write_error, lock_dir, make_dirs, sync_dir, write_json

CONTENT_FILE, PROGRESS_FILE = "content", "progress.json"


class ResumableFile:
    """Where it stands: `read` says how much of what is asked for was read, `tally` what came of it."""

    def __init__(
        self, folder: Path, request: Mapping[str, Any], stream: IO[bytes], num_read: int, counts: Mapping[str, int]
    ) -> None:
        self.folder = folder
        self.request = request
        self.stream = stream
        self.num_read = num_read
        self.counts = Counter(counts)

    def append(self, text: str, *, num_read: int, counts: Mapping[str, int]) -> None:
        """Write what came of so much more that was read, and make it last."""
        self.stream.write(text.encode())
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.num_read += num_read
        self.counts.update(counts)
        document = {"request": self.request, "read": self.num_read, "bytes": self.stream.tell(), "tally": dict(self.counts)}
        write_json(self.folder / PROGRESS_FILE, document, overwrite=True)


@contextmanager
def resumable_file(path: Path, request: Mapping[str, Any], *, overwrite: bool = False) -> Iterator[ResumableFile]:
    """A file that appears at `path` once this is left without an error; else what there is of it is kept and gone on with.

    request: what is asked for, as JSON holds it; what was begun for another request is not gone on with

    Raises OutputError where `path` stands already, where another process is at work on it or has begun something else, or
    where it cannot be written.
    """
    if not overwrite:
        check_path_is_free(path)
    if not path.name or path.is_dir():
        raise OutputError(f"{path}: is a folder; give the name of a file")
    folder = path.with_name(f"{path.name}.part")
    json_request = json.loads(json.dumps(request))
    try:
        make_dirs(folder)
        with lock_dir(folder):
            size, num_read, counts = _load_progress(folder, json_request, overwrite=overwrite)
            with (folder / CONTENT_FILE).open("ab") as stream:
                stream.truncate(size)
                stream.seek(size)
                yield ResumableFile(folder, json_request, stream, num_read, counts)
            if not overwrite:
                check_path_is_free(path)
            commit_file(folder / CONTENT_FILE, path)
            sync_dir(path.parent)
            shutil.rmtree(folder)
    except OSError as error:
        raise OutputError(describe_write_error(path, error)) from None


def _load_progress(folder: Path, request: Mapping[str, Any], *, overwrite: bool) -> tuple[int, int, dict[str, int]]:
    """Bytes written, how much was read for them, and what was counted; of what was begun for another request, nothing."""
    if unknown_files := sorted(
        {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")} - {CONTENT_FILE, PROGRESS_FILE}
    ):
        raise OutputError(f"{folder}: holds {unknown_files[0]!r}, which dragoman did not write; give another name")
    try:
        document = json.loads((folder / PROGRESS_FILE).read_bytes())
        size, num_read, counts, old_request = (document[key] for key in ("bytes", "read", "tally", "request"))
        is_intact = (folder / CONTENT_FILE).stat().st_size >= size
    except FileNotFoundError:
        return 0, 0, {}
    except (ValueError, TypeError, KeyError, RecursionError):
        is_intact, old_request = False, None
    if overwrite and (not is_intact or old_request != request):
        return 0, 0, {}
    if not is_intact:
        raise OutputError(f"{folder}: is damaged; --overwrite begins anew")
    if old_request != request:
        difference = _describe_difference(old_request, request)
        raise OutputError(f"{folder}: was begun with {difference}; give another name, or --overwrite to begin anew")
    return size, num_read, counts


def _describe_difference(old_request: Any, request: Mapping[str, Any]) -> str:
    """The first thing that is not as it was."""
    for key, new_value in request.items():
        old_value = old_request.get(key) if isinstance(old_request, Mapping) else None
        if old_value != new_value and isinstance(new_value, Mapping) and isinstance(old_value, Mapping):
            changed_key = (
                next(name for name in new_value if old_value.get(name) != new_value[name])
                if new_value.keys() == old_value.keys()
                else None
            )
            return (
                f"another {key}"
                if changed_key is None
                else f"{key}.{changed_key} = {old_value[changed_key]!r}, not {new_value[changed_key]!r}"
            )
        if old_value != new_value:
            return f"another {key}"
    return "another request"
