"""Instruction sets that the kernels are compiled for, and the one that this process uses.

`DRAGOMAN_CPU_ISA` names another set that the processor has, for comparisons and tests. Without it, the first set of
`INSTRUCTION_SETS` whose features the processor has is used.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import lru_cache
from typing import Literal, NamedTuple

import llvmlite.binding as llvm
import numpy as np

from dragoman.inference.backends.compiled.kernels.structs import BYTE_OFFSET, MAX_LANE_WEIGHTS, TILE_ROWS, VECTOR_BYTES

ISA_VARIABLE = "DRAGOMAN_CPU_ISA"
# Key of the features in Linux's auxiliary vector, and bits of ARM's features (asm/hwcap.h).
AT_HWCAP, HWCAP_ASIMD, HWCAP_ASIMDDP = 16, 1 << 1, 1 << 20


class InstructionSet(NamedTuple):
    """Instructions for products of bytes, and how the kernels use them.

    name: value of `DRAGOMAN_CPU_ISA`
    features: features that the processor needs, by LLVM's names
    cpu_name: processor that the kernels are compiled for if the user names the set. "" stands for this processor.
    dot_inputs: inputs that the product takes: unsigned or signed bytes
    rows_at_once: rows of inputs whose sums fit into the registers
    max_lane_weights: limit of the weights whose products are added in the same 16 bits (`simd.dot_accumulate_two`). Neither the
        positive ones nor the negative ones may exceed it in sum. None if all products are added in 32 bits.
    """

    name: str
    features: frozenset[str]
    cpu_name: str
    dot_inputs: Literal["unsigned", "signed"]
    rows_at_once: int
    max_lane_weights: int | None = None

    def get_input_offset(self, nonnegative: bool) -> int:
        """Return the offset of quantized inputs, which turns 0 … 255 or -127 … 127 into bytes that the product takes."""
        if self.dot_inputs == "unsigned":
            return 0 if nonnegative else BYTE_OFFSET
        return -BYTE_OFFSET if nonnegative else 0


AVX512_VNNI = InstructionSet("avx512_vnni", frozenset({"avx512vnni", "avx512bw"}), "", "unsigned", 4)
AVX_VNNI = InstructionSet("avx_vnni", frozenset({"avxvnni", "avx2", "fma", "f16c"}), "alderlake", "unsigned", 2)
AVX2 = InstructionSet("avx2", frozenset({"avx2", "fma", "f16c"}), "haswell", "unsigned", 1, MAX_LANE_WEIGHTS)
NEON = InstructionSet("neon", frozenset({"neon", "dotprod"}), "", "signed", 2)
# The fastest one first.
INSTRUCTION_SETS = (AVX512_VNNI, AVX_VNNI, AVX2, NEON)


class InstructionSetError(ValueError):
    """`DRAGOMAN_CPU_ISA` names a set that does not exist or that this processor lacks."""


@lru_cache(maxsize=1)
def get_instruction_set() -> InstructionSet | None:
    """Return the instruction set of the kernels in this process, or None if the processor has none of them.

    Raises InstructionSetError for a wrong value of `DRAGOMAN_CPU_ISA`.
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


def is_restricted() -> bool:
    """Return whether the user names an instruction set for a processor that has a better one."""
    instruction_set = get_instruction_set()
    return bool(os.environ.get(ISA_VARIABLE)) and instruction_set is not None and bool(instruction_set.cpu_name)


def build_tile_config() -> np.ndarray:
    """Return the processor's description of eight full tiles."""
    tile_config = np.zeros(VECTOR_BYTES, np.uint8)
    tile_config[0] = 1
    tile_config[16:32:2] = VECTOR_BYTES
    tile_config[48:56] = TILE_ROWS
    return tile_config


@lru_cache(maxsize=1)
def can_use_amx() -> bool:
    """Return whether the processor has tiles of bytes, and Linux lets this process use them."""
    if not (has_amx_int8() and sys.platform == "linux"):
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return int(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data)) == 0


@lru_cache(maxsize=1)
def has_amx_int8() -> bool:
    """Return whether the kernels may use tiles of bytes. A virtual machine may hide these instructions."""
    return get_instruction_set() is AVX512_VNNI and "amx-int8" in get_cpu_features()


@lru_cache(maxsize=1)
def get_cpu_features() -> frozenset[str]:
    """Return the processor's features by LLVM's names."""
    features = {name for name, is_present in llvm.get_host_cpu_features().items() if is_present}
    if llvm.get_default_triple().startswith(("aarch64", "arm64")):
        features |= _detect_arm_features()
    return frozenset(features)


def _detect_arm_features() -> set[str]:
    """Return features of ARM processors that LLVM does not detect. Every Apple processor of 64 bits for macOS has them.

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
