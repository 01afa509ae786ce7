"""What this processor has for compiled functions: vectors of 512 bits that multiply bytes, and tiles (AMX)."""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache

import llvmlite.binding as llvm
import numpy as np

from dragoman.inference.backends.compiled.kernels.structs import BYTES, TILE_ROWS

NEEDED = {"avx512vnni", "avx512bw"}


def tile_description() -> np.ndarray:
    """Eight whole tiles, as the processor wants it described."""
    description = np.zeros(BYTES, np.uint8)
    description[0] = 1
    description[16:32:2] = BYTES
    description[48:56] = TILE_ROWS
    return description


@lru_cache(maxsize=1)
def has_vectors() -> bool:
    """Whether it multiplies bytes in vectors of 512 bits (AVX-512 with VNNI)."""
    return features() >= NEEDED


@lru_cache(maxsize=1)
def has_tiles() -> bool:
    """Whether it has tiles for bytes, and the kernel (Linux) lets this process use them."""
    if not (has_vectors() and knows_tiles() and sys.platform == "linux"):
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return int(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data)) == 0


def knows_tiles() -> bool:
    """Whether it has instructions for tiles of bytes. A virtual machine may hide those of its processor."""
    return "amx-int8" in features()


@lru_cache(maxsize=1)
def features() -> set[str]:
    """As LLVM names them."""
    return {name for name, there in llvm.get_host_cpu_features().items() if there}
