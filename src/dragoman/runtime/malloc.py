"""What the C library keeps of freed memory: for the next step, or not at all. Only glibc can be told."""

from __future__ import annotations

import ctypes
import os

# Of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def tune_malloc() -> None:
    """Keep up to 128 MiB of freed memory for the next step; else every step has it faulted in anew, page by page.

    What the user set in the environment stands. Larger pieces than 32 MiB go back to the system as ever.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None and not any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        mallopt(M_MMAP_THRESHOLD, 2**25)
        mallopt(M_TRIM_THRESHOLD, 2**27)


def trim_malloc() -> None:
    """Keep nothing of what was freed until now: what was needed but once will not be needed again."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
