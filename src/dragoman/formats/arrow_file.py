"""Arrow files that appear completely or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from dragoman.io.storage import commit_file


@contextmanager
def atomic_arrow_file(path: Path, schema: pa.Schema) -> Iterator[Any]:
    """Give the writer of an Arrow file, which appears at `path` when the context ends without an error. Raises OSError."""
    partial = path.with_name(f"{path.name}.partial")
    with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        yield writer
    commit_file(partial, path)
