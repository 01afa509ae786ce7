"""Lines of progress, which a command writes to standard error every 20 seconds, so only a slow machine writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable

PROGRESS_LINE = re.compile(r"[^:]+: .*\b(?:so far|left|of the budget)")


def drop_progress(lines: Iterable[str]) -> list[str]:
    """Return the lines that are no progress."""
    return [line for line in lines if not PROGRESS_LINE.fullmatch(line)]
