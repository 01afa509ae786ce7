"""Output file that is written in pieces over hours and continues after an interruption.

    OUT.part/    unfinished
      content        bytes written so far
      progress.json  request, amount of input read, bytes of `content` for it, and a summary
    OUT          finished

After a piece is on the disk, `progress.json` is replaced atomically. A restart cuts off bytes beyond the last recorded piece,
so no line is repeated or missing.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from dragoman.errors import OutputError
from dragoman.io.storage import check_path_is_free, commit_file, lock_dir, make_dirs, sync_dir, to_write_error, write_json

CONTENT_FILE, PROGRESS_FILE = "content", "progress.json"


class ResumableFile:
    """Unfinished output file.

    num_read: amount of input that is processed
    summary: JSON object of the caller for this input, such as the number of lines by status; empty at first
    """

    def __init__(
        self, folder: Path, request: Mapping[str, Any], stream: IO[bytes], num_read: int, summary: Mapping[str, Any]
    ) -> None:
        self.folder = folder
        self.request = request
        self.stream = stream
        self.num_read = num_read
        self.summary = summary

    def append(self, text: str, *, num_read: int, summary: Mapping[str, Any]) -> None:
        """Write the output of `num_read` further inputs, and record it durably. summary: that of all input so far"""
        self.stream.write(text.encode())
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.num_read += num_read
        self.summary = summary
        document = {
            "request": self.request,
            "num_read": self.num_read,
            "num_bytes": self.stream.tell(),
            "summary": summary,
        }
        write_json(self.folder / PROGRESS_FILE, document, overwrite=True)


@contextmanager
def resumable_file(path: Path, request: Mapping[str, Any], *, overwrite: bool = False) -> Iterator[ResumableFile]:
    """Open a resumable file. It appears at `path` when the context ends without an error; otherwise its parts stay.

    request: description of the work as JSON values; parts of another request are an error
    overwrite: whether to replace `path`, and to discard parts of another request

    Raises OutputError if `path` exists, if another process writes it, if its parts belong to another request, or if it cannot
    be written.
    """
    if not overwrite:
        check_path_is_free(path)
    if not path.name or path.is_dir():
        raise OutputError(f"{path}: is a folder; give a file name")
    folder = path.with_name(f"{path.name}.part")
    json_request = json.loads(json.dumps(request))
    try:
        make_dirs(folder)
        with lock_dir(folder):
            size, num_read, summary = _load_progress(folder, json_request, overwrite=overwrite)
            with (folder / CONTENT_FILE).open("ab") as stream:
                stream.truncate(size)
                stream.seek(size)
                yield ResumableFile(folder, json_request, stream, num_read, summary)
            if not overwrite:
                check_path_is_free(path)
            commit_file(folder / CONTENT_FILE, path)
            sync_dir(path.parent)
            shutil.rmtree(folder)
    except OSError as error:
        raise to_write_error(path, error) from None


def _load_progress(folder: Path, request: Mapping[str, Any], *, overwrite: bool) -> tuple[int, int, dict[str, Any]]:
    """Return the bytes written, the amount of input read, and the summary. Parts to be overwritten count as zero."""
    if unknown_files := sorted(
        {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")} - {CONTENT_FILE, PROGRESS_FILE}
    ):
        raise OutputError(
            f"{folder}: holds {unknown_files[0]!r}, which dragoman did not write; give another file name",
            code="not-replaceable",
        )
    try:
        document = json.loads((folder / PROGRESS_FILE).read_bytes())
        size, num_read, summary, old_request = (document[key] for key in ("num_bytes", "num_read", "summary", "request"))
        is_intact = (folder / CONTENT_FILE).stat().st_size >= size
    except FileNotFoundError:
        return 0, 0, {}
    except (ValueError, TypeError, KeyError, RecursionError):
        is_intact, old_request = False, None
    if overwrite and (not is_intact or old_request != request):
        return 0, 0, {}
    if not is_intact:
        raise OutputError(f"{folder}: is damaged; start again with --overwrite", code="output-damaged")
    if old_request != request:
        difference = _describe_difference(old_request, request)
        raise OutputError(
            f"{folder}: was started with {difference}; give another file name, or start again with --overwrite",
            code="output-mismatch",
        )
    return size, num_read, summary


def _describe_difference(old_request: Any, request: Mapping[str, Any]) -> str:
    """Return the first difference between two requests."""
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
