"""Number of threads of a search, unless its caller sets one. PyTorch has the same default."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from dragoman.platform_features import count_physical_cores
from dragoman.runtime.counts import format_count

LOAD_TOLERANCE = 0.5
"""Other programs must keep more cores busy than this one leaves free, by this number."""

_num_threads: int | None = None


def get_num_threads() -> int:
    """Return the number that `set_num_threads` has set, else OMP_NUM_THREADS, else the number of cores."""
    return _num_threads or _get_default()


def set_num_threads(num_threads: int | None) -> None:
    """Set the number of threads of this process; None restores the default."""
    global _num_threads
    _num_threads = num_threads


@lru_cache(maxsize=1)
def _get_default() -> int:
    """Return the default of this process, which reads several files."""
    setting = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(setting) if setting.isdecimal() and int(setting) else count_physical_cores()


def describe_load(num_own_threads: int = 0) -> str:
    """Return the load if other programs use cores that the threads of this process need; empty otherwise.

    num_own_threads: busy threads of this process, which the load counts as well
    """
    load, num_cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    is_busy = load - num_own_threads + get_num_threads() > num_cores + LOAD_TOLERANCE
    return f"load {load:.1f} on {format_count(num_cores, 'core')}" if is_busy else ""


def set_torch_threads(num_threads: int) -> None:
    """Set the number of PyTorch's threads, if PyTorch has been imported."""
    if (torch := _get_torch()) is not None:
        torch.set_num_threads(num_threads)


@contextmanager
def preserve_torch_threads() -> Iterator[None]:
    """Restore PyTorch's number of threads afterwards, because threads that start later use the number that was set last."""
    torch = _get_torch()
    num_threads = 0 if torch is None else torch.get_num_threads()
    try:
        yield
    finally:
        if num_threads:
            set_torch_threads(num_threads)


def _get_torch() -> Any:
    return sys.modules.get("torch")
