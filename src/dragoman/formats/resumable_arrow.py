"""Arrow file that is written batch by batch, and continues after the last complete batch when it was interrupted.

    NAME.partial      bytes written so far: an Arrow file without its end
    NAME.batches      a line for each batch: its SHA-256 and a summary, as JSON
    NAME.interrupted  partial file of an earlier process while its batches are copied
    NAME              finished file

An Arrow file is a stream of batches behind eight bytes, so its beginning can be read before the end is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from dragoman.io.storage import commit_file, write_lines

_MAGIC_BYTES = 8


class ResumableArrowFile:
    """Unfinished Arrow file. summaries: those of its batches, in order, the ones of an earlier process included"""

    def __init__(self, writer: Any, lines: IO[str], summaries: list[Any]) -> None:
        self._writer = writer
        self._lines = lines
        self.summaries = summaries

    def append(self, batch: pa.RecordBatch, summary: Any) -> None:
        """Write a batch and record it. summary: JSON values"""
        self._writer.write_batch(batch)
        self._lines.write(_format_line(batch, summary))
        self._lines.flush()
        self.summaries.append(summary)


@contextmanager
def resumable_arrow_file(path: Path, schema: pa.Schema) -> Iterator[ResumableArrowFile]:
    """Open a resumable Arrow file. It appears at `path` when the context ends without an error; otherwise its parts stay.

    Raises OSError.
    """
    partial, former, record = (path.with_name(path.name + suffix) for suffix in (".partial", ".interrupted", ".batches"))
    if not former.exists() and partial.exists():
        partial.rename(former)
    with ExitStack() as stack:
        sink = stack.enter_context(pa.OSFile(str(partial), "wb"))
        writer = stack.enter_context(pa.ipc.new_file(sink, schema))
        lines = []
        for batch, line in _read_complete(former, record, schema):
            writer.write_batch(batch)
            lines.append(line)
        write_lines(record, lines, overwrite=True)
        former.unlink(missing_ok=True)
        stream = stack.enter_context(record.open("a", encoding="utf-8"))
        yield ResumableArrowFile(writer, stream, [json.loads(line)["summary"] for line in lines])
    commit_file(partial, path)
    record.unlink()


def _format_line(batch: pa.RecordBatch, summary: Any) -> str:
    return json.dumps({"sha256": sha256(batch.serialize()).hexdigest(), "summary": summary}) + "\n"


def _read_complete(partial: Path, record: Path, schema: pa.Schema) -> Iterator[tuple[pa.RecordBatch, str]]:
    """Yield the batches of an interrupted file that were recorded and are undamaged, each with its line."""
    try:
        lines = record.read_text(encoding="utf-8").splitlines()
        stream = partial.open("rb")
    except FileNotFoundError:
        return
    with stream:
        stream.seek(_MAGIC_BYTES)
        try:
            reader = pa.ipc.open_stream(stream)
            if reader.schema != schema:
                return
            for batch, line in zip(islice(reader, len(lines)), lines, strict=False):
                if line + "\n" != _format_line(batch, json.loads(line)["summary"]):
                    return
                yield batch, line
        except (OSError, ValueError, TypeError, KeyError):  # the last batch or the last line is incomplete
            return
