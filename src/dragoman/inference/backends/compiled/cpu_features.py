"""Features of this processor, and the instruction set that the kernels use in this process.

`DRAGOMAN_CPU_ISA` names another set that the processor has, for comparisons and tests. Without it, the first set of
`INSTRUCTION_SETS` whose features the processor has is used.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from functools import lru_cache

import numpy as np

from dragoman.inference.backends.compiled.kernel_files import has_kernels, load_library
from dragoman.inference.backends.compiled.kernels.instruction_sets import AVX512_VNNI, INSTRUCTION_SETS, InstructionSet
from dragoman.inference.backends.compiled.kernels.structs import TILE_ROWS, VECTOR_BYTES

ISA_VARIABLE = "DRAGOMAN_CPU_ISA"
# Key of the features in Linux's auxiliary vector, and bits of ARM's features (asm/hwcap.h).
AT_HWCAP, HWCAP_ASIMD, HWCAP_ASIMDDP = 16, 1 << 1, 1 << 20
# Registers of a leaf of `cpuid`, and the bits of the features in them (Intel's manual, volume 2A, CPUID).
EAX, EBX, ECX, EDX = range(4)
CPUID_BITS = {
    (1, 0, ECX): {"fma": 12, "movbe": 22, "avx": 28, "f16c": 29},
    (7, 0, EBX): {
        "bmi": 3,
        "avx2": 5,
        "bmi2": 8,
        "avx512f": 16,
        "avx512dq": 17,
        "avx512cd": 28,
        "avx512bw": 30,
        "avx512vl": 31,
    },
    (7, 0, ECX): {"avx512vnni": 11},
    (7, 0, EDX): {"amx-tile": 24, "amx-int8": 25},
    (7, 1, EAX): {"avxvnni": 4},
    (0x80000001, 0, ECX): {"lzcnt": 5},
}
OSXSAVE = 27
# Registers that the system saves for each thread, by bits of XCR0 (Intel's manual, volume 1, section 13.3).
AVX_STATE, AVX512_STATE, TILE_STATE = 0b110, 0b1110_0110, 0b11 << 17


class InstructionSetError(ValueError):
    """`DRAGOMAN_CPU_ISA` names a set that does not exist or that this processor lacks."""


@lru_cache(maxsize=1)
def get_instruction_set() -> InstructionSet | None:
    """Return the instruction set of the kernels in this process, or None if the processor has none of them.

    Raises InstructionSetError for a wrong value of `DRAGOMAN_CPU_ISA`, and KernelFileError if the kernels are not usable.
    """
    features = get_cpu_features()
    available = [instruction_set for instruction_set in INSTRUCTION_SETS if instruction_set.features <= features]
    name = os.environ.get(ISA_VARIABLE, "")
    if not name:
        return available[0] if available else None
    for instruction_set in available:
        if instruction_set.name == name:
            return instruction_set
    names = ", ".join(instruction_set.name for instruction_set in available) or "none"
    raise InstructionSetError(f"{ISA_VARIABLE}={name}: this processor has {names}")


def build_tile_config() -> np.ndarray:
    """Return the processor's description of eight full tiles."""
    tile_config = np.zeros(VECTOR_BYTES, np.uint8)
    tile_config[0] = 1
    tile_config[16:32:2] = VECTOR_BYTES
    tile_config[48:56] = TILE_ROWS
    return tile_config


@lru_cache(maxsize=1)
def can_use_amx() -> bool:
    """Return whether the processor has tiles of bytes, and Linux lets this process use them.

    A virtual machine may hide these instructions.
    """
    if sys.platform != "linux" or get_instruction_set() is not AVX512_VNNI or "amx-int8" not in get_cpu_features():
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return int(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data)) == 0


@lru_cache(maxsize=1)
def get_cpu_features() -> frozenset[str]:
    """Return the features of this processor that kernels use, by LLVM's names."""
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64") and has_kernels():
        return frozenset(_detect_x86_features())
    if machine in ("aarch64", "arm64"):
        return frozenset(_detect_arm_features())
    return frozenset()


def _detect_x86_features() -> set[str]:
    """Return the features that the processor has and the system supports.

    The instruction `cpuid` answers. An emulator may show its host's features in /proc/cpuinfo.
    """
    library = load_library("cpuid")
    library.xgetbv.restype = ctypes.c_uint64
    max_leaf, max_extended_leaf = (_read_cpuid(library, leaf, 0)[EAX] for leaf in (0, 0x80000000))
    features = set()
    for (leaf, subleaf, register), bits in CPUID_BITS.items():
        if leaf <= (max_leaf if leaf < 0x80000000 else max_extended_leaf):
            word = _read_cpuid(library, leaf, subleaf)[register]
            features |= {name for name, bit in bits.items() if word >> bit & 1}
    saved = library.xgetbv() if _read_cpuid(library, 1, 0)[ECX] >> OSXSAVE & 1 else 0
    for prefixes, state in ((("avx", "fma", "f16c"), AVX_STATE), (("avx512",), AVX512_STATE), (("amx",), TILE_STATE)):
        if saved & state != state:
            features = {name for name in features if not name.startswith(prefixes)}
    return features


def _read_cpuid(library: ctypes.CDLL, leaf: int, subleaf: int) -> list[int]:
    """Return the registers that `cpuid` writes."""
    registers = (ctypes.c_uint32 * 4)()
    library.cpuid(ctypes.c_uint32(leaf), ctypes.c_uint32(subleaf), registers)
    return list(registers)


def _detect_arm_features() -> set[str]:
    """Return features of ARM processors. Every Apple processor of 64 bits for macOS has them.

    Linux passes the features to each process, in the auxiliary vector. An emulator may show its host's /proc/cpuinfo.
    """
    if sys.platform == "darwin":
        return {"neon", "dotprod"}
    if sys.platform != "linux":
        return set()
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.restype, getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    hardware_capabilities = getauxval(AT_HWCAP)
    return {name for name, bit in (("neon", HWCAP_ASIMD), ("dotprod", HWCAP_ASIMDDP)) if hardware_capabilities & bit}
