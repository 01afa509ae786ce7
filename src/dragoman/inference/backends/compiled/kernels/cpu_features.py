"""Instructions of this processor that the kernels use: AVX-512 VNNI, and tiles (AMX).

If NUMBA_CPU_NAME names another processor, this one counts as having none of them.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import lru_cache

import llvmlite.binding as llvm
import numpy as np

from dragoman.inference.backends.compiled.kernels.structs import TILE_ROWS, VECTOR_BYTES

REQUIRED_FEATURES = {"avx512vnni", "avx512bw"}


def build_tile_config() -> np.ndarray:
    """Return the processor's description of eight full tiles."""
    tile_config = np.zeros(VECTOR_BYTES, np.uint8)
    tile_config[0] = 1
    tile_config[16:32:2] = VECTOR_BYTES
    tile_config[48:56] = TILE_ROWS
    return tile_config


@lru_cache(maxsize=1)
def has_avx512_vnni() -> bool:
    """Return whether the processor multiplies bytes in vectors of 512 bits (AVX-512 with VNNI)."""
    return get_cpu_features() >= REQUIRED_FEATURES


@lru_cache(maxsize=1)
def can_use_amx() -> bool:
    """Return whether the processor has tiles of bytes, and Linux lets this process use them."""
    if not (has_avx512_vnni() and has_amx_int8() and sys.platform == "linux"):
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return int(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data)) == 0


def has_amx_int8() -> bool:
    """Return whether the processor has instructions for tiles of bytes. A virtual machine may hide them."""
    return "amx-int8" in get_cpu_features()


@lru_cache(maxsize=1)
def get_cpu_features() -> set[str]:
    """Return the processor's features by LLVM's names."""
    if os.environ.get("NUMBA_CPU_NAME", "host") not in ("", "host"):
        return set()
    return {name for name, is_present in llvm.get_host_cpu_features().items() if is_present}
