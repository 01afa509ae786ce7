"""Functions of the operating system that not every platform has, detected in this module alone.

A feature that is missing is None, empty or False in this module, and its users fall back. The page "Platforms" of the
reference lists each fallback.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal


def _import_or_none(name: str) -> Any:
    """Return a module of the standard library, or None if the platform does not have it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def get_signals(*names: str) -> tuple[signal.Signals, ...]:
    """Return the signals with these names that the platform has, in this order. Windows has no SIGHUP and no SIGUSR1."""
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


@lru_cache(maxsize=1)
def _get_c_library() -> Any:
    """Return the C library of this process, or None if the platform gives no access to it by this way, as Windows does."""
    if os.name == "posix":
        with suppress(OSError, TypeError):
            return ctypes.CDLL(None)
    return None


def get_c_function(name: str) -> Any:
    """Return a function of the C library of this process, or None if it has no such function."""
    return getattr(_get_c_library(), name, None)


def count_allowed_cores() -> int:
    """Return the number of processors that this process may use, or of all processors if the platform has no such limit."""
    get_affinity = getattr(os, "sched_getaffinity", None)
    return len(get_affinity(0)) if get_affinity is not None else os.cpu_count() or 1


def count_physical_cores() -> int:
    """Return the number of cores that this process may use. On Linux, the processors that share a core count once."""
    get_affinity = getattr(os, "sched_getaffinity", None)
    cores = set()
    with suppress(OSError):
        for processor in get_affinity(0) if get_affinity is not None else ():
            path = f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
            cores.add(Path(path).read_text(encoding="ascii"))
        return len(cores) or count_allowed_cores()
    return count_allowed_cores()


@lru_cache(maxsize=1)
def has_nvidia_driver() -> bool:
    """Return whether the system has the library of NVIDIA's driver, without which no program finds a GPU."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def has_terminal() -> bool:
    """Return whether a terminal controls this process. It does so no longer when its window is closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY))
    except OSError:
        return False
    return True


def start_own_process_group() -> None:
    """Move this process into a process group of its own, if the platform has them."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)


fcntl = _import_or_none("fcntl")
"""Module with file locks, or None."""
resource = _import_or_none("resource")
"""Module with the peak memory of this process, or None."""

SIGHUP: signal.Signals | None = getattr(signal, "SIGHUP", None)
"""Signal that a closed terminal sends, or None."""

CAN_OPEN_FOLDERS = hasattr(os, "O_DIRECTORY")
"""Whether a folder can be opened and synced. Windows can do neither."""
SYNC_MODE: Literal["rb", "r+b"] = "rb" if CAN_OPEN_FOLDERS else "r+b"
"""Mode of a file that is opened to be synced. Windows syncs files that are open for writing only."""
