"""Settings of glibc's malloc: keep freed memory for the next step, or return it. Other C libraries ignore them."""

from __future__ import annotations

import os
from typing import Any

from dragoman.platform_features import get_c_function

# Constants of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BLOCK_BYTES = 2**25
"""Size of a block from which its memory returns to the system when it is freed."""


def tune_malloc() -> None:
    """Keep up to 128 MiB of freed memory, so that the next step does not fault every page in again.

    Blocks above 32 MiB still return to the system. Settings of the user in the environment take precedence.
    """
    if (mallopt := _get_mallopt()) is not None:
        mallopt(M_MMAP_THRESHOLD, KEPT_BLOCK_BYTES)
        mallopt(M_TRIM_THRESHOLD, 2**27)


def _get_mallopt() -> Any:
    """Return the function that sets options, or None without it or if the user has set options."""
    is_set = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    return None if is_set else get_c_function("mallopt")


def trim_malloc() -> None:
    """Return all freed memory to the system, after work that needs memory only once."""
    trim = get_c_function("malloc_trim")
    if trim is not None:
        trim(0)
