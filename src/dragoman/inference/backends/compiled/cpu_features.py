"""What this processor has for compiled functions: vectors of 512 bits that multiply bytes, and tiles (AMX)."""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache

import llvmlite.binding as llvm
import numpy as np

from dragoman.inference.backends.compiled.kernels.structs import TILE_ROWS, VECTOR_BYTES

REQUIRED_FEATURES = {"avx512vnni", "avx512bw"}


def build_tile_config() -> np.ndarray:
    """Eight whole tiles, as the processor wants it described."""
    tile_config = np.zeros(VECTOR_BYTES, np.uint8)
    tile_config[0] = 1
    tile_config[16:32:2] = VECTOR_BYTES
    tile_config[48:56] = TILE_ROWS
    return tile_config


@lru_cache(maxsize=1)
def has_avx512_vnni() -> bool:
    """Whether it multiplies bytes in vectors of 512 bits (AVX-512 with VNNI)."""
    return get_cpu_features() >= REQUIRED_FEATURES


@lru_cache(maxsize=1)
def can_use_amx() -> bool:
    """Whether it has tiles for bytes, and the kernel (Linux) lets this process use them."""
    if not (has_avx512_vnni() and has_amx_int8() and sys.platform == "linux"):
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return int(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data)) == 0


def has_amx_int8() -> bool:
    """Whether it has instructions for tiles of bytes. A virtual machine may hide those of its processor."""
    return "amx-int8" in get_cpu_features()


@lru_cache(maxsize=1)
def get_cpu_features() -> set[str]:
    """As LLVM names them."""
    return {name for name, is_present in llvm.get_host_cpu_features().items() if is_present}
