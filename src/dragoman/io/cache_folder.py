"""Folder of what a machine keeps between runs, such as fetched models. It may be missing or read-only."""

from __future__ import annotations

import os
from pathlib import Path


def get_cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/dragoman`, with ~/.cache if the variable is not set. Raises RuntimeError without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dragoman"
