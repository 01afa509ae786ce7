"""Instruction sets that the kernels are compiled for. The build reads them, and so does the choice of a set at run time."""

from __future__ import annotations

from typing import Literal, NamedTuple

from dragoman.inference.backends.compiled.kernels.structs import BYTE_OFFSET, MAX_LANE_WEIGHTS

# Environment variable with the name of the set that a process compiles for.
TARGET_VARIABLE = "DRAGOMAN_KERNEL_TARGET"


class InstructionSet(NamedTuple):
    """Instructions for products of bytes, and how the kernels use them.

    name: value of `DRAGOMAN_CPU_ISA`
    architecture: processors that have the set, by their names in LLVM's triples
    features: features that the processor needs, by LLVM's names
    cpu_name, added_features: what LLVM compiles for: a processor of its list, and features that this one may lack.
        Kernels use added features only where the processor is asked first, or where `features` has them.
    dot_inputs: inputs that the product takes: unsigned or signed bytes
    rows_at_once: rows of inputs whose sums fit into the registers
    max_lane_weights: limit of the weights whose products are added in the same 16 bits (`simd.dot_accumulate_two`). Neither the
        positive ones nor the negative ones may exceed it in sum. None if all products are added in 32 bits.
    """

    name: str
    architecture: Literal["x86_64", "aarch64"]
    features: frozenset[str]
    cpu_name: str
    added_features: str
    dot_inputs: Literal["unsigned", "signed"]
    rows_at_once: int
    max_lane_weights: int | None = None

    def get_input_offset(self, nonnegative: bool) -> int:
        """Return the offset of quantized inputs, which turns 0 … 255 or -127 … 127 into bytes that the product takes."""
        if self.dot_inputs == "unsigned":
            return 0 if nonnegative else BYTE_OFFSET
        return -BYTE_OFFSET if nonnegative else 0


X86_64_V3 = frozenset({"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"})
X86_64_V4 = X86_64_V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
# Not every processor with VNNI has tiles: `Workspace.tile_config` tells the kernels.
AVX512_VNNI = InstructionSet(
    "avx512_vnni", "x86_64", X86_64_V4 | {"avx512vnni"}, "x86-64-v4", "+avx512vnni,+amx-tile,+amx-int8", "unsigned", 6
)
AVX_VNNI = InstructionSet("avx_vnni", "x86_64", X86_64_V3 | {"avxvnni"}, "x86-64-v3", "+avxvnni", "unsigned", 2)
AVX2 = InstructionSet("avx2", "x86_64", X86_64_V3, "x86-64-v3", "", "unsigned", 1, MAX_LANE_WEIGHTS)
NEON = InstructionSet("neon", "aarch64", frozenset({"neon", "dotprod"}), "generic", "+neon,+dotprod", "signed", 2)
# The fastest one first.
INSTRUCTION_SETS = (AVX512_VNNI, AVX_VNNI, AVX2, NEON)
