"""Windows of input lines: the lines that a command computes together.

A file gives full windows. A pipe gives the lines that have arrived, so that an answer does not wait for later input.
"""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

FILE_WINDOW = 2048
PIPE_WINDOW = 128


def is_interactive_input(source: Path | None) -> bool:
    """Return whether the input is typed at a terminal."""
    return source is None and sys.stdin.isatty()


def is_shown_as_it_comes(source: Path | None, output: Path | None) -> bool:
    """Return whether a terminal shows the input or the results, which a bar would disturb.

    output: file for the results, or None for standard output
    """
    return is_interactive_input(source) or (output is None and sys.stdout.isatty())


def is_live_input(source: Path | None) -> bool:
    """Return whether lines may arrive slowly: from a terminal or a pipe on standard input, but not from a file."""
    if source is not None:
        return False
    try:
        descriptor = sys.stdin.fileno()
    except (OSError, ValueError, AttributeError):  # no descriptor: the text is in memory
        return False
    return not _is_regular_file(descriptor)


def _is_regular_file(descriptor: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError:  # the caller has closed it
        return False


def read_windows(lines: Iterator[T], source: Path | None, window: int | None) -> Iterator[list[T]]:
    """Yield the lines in windows of at most `window` lines.

    For a live input, a window ends as soon as the next read would wait.
    """
    if not is_live_input(source):
        while batch := list(islice(lines, window or FILE_WINDOW)):
            yield batch
        return
    max_lines = window or (1 if is_interactive_input(source) else PIPE_WINDOW)
    for line in lines:
        batch = [line]
        while len(batch) < max_lines and _has_input():
            following = list(islice(lines, 1))
            if not following:
                break
            batch += following
        yield batch


def _has_input() -> bool:
    """Return whether standard input can be read without waiting. The end of the input counts as readable."""
    try:
        readable, _, _ = select.select([sys.stdin], [], [], 0)
    except (OSError, ValueError):  # a platform that cannot wait for this descriptor
        return True
    return bool(readable)
