"""Instruction set of a benchmark: that of the processor, or AVX2 for all systems."""

from __future__ import annotations

import os
import sys

AVX2_ENVIRONMENT = {
    "DRAGOMAN_CPU_ISA": "avx2",
    "CT2_FORCE_CPU_ISA": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
}
"""Variables that limit dragoman's kernels, CTranslate2, oneDNN, MKL and PyTorch's own kernels."""


def is_limited() -> bool:
    """Return whether this process is limited to AVX2."""
    return all(os.environ.get(name) == value for name, value in AVX2_ENVIRONMENT.items())


def limit_to(instruction_set: str | None) -> None:
    """Start this program again with the variables that limit all systems, if they are not set. None leaves the processor's own.

    Libraries read the variables when they are loaded, so a change in a running process would come too late.
    """
    if instruction_set == "avx2" and not is_limited():
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **AVX2_ENVIRONMENT})


def describe_instruction_set() -> str:
    """Return the instruction sets that dragoman's kernels and PyTorch use, in one line."""
    import torch

    try:
        from dragoman.inference.backends.compiled.cpu_features import get_instruction_set

        kernels = get_instruction_set()
    except ImportError:  # without Numba, llvmlite is missing
        kernels = None
    name = "none" if kernels is None else kernels.name
    limit = ", all systems limited to AVX2" if is_limited() else ""
    return f"instruction set of dragoman's kernels: {name}; of PyTorch: {torch.backends.cpu.get_cpu_capability()}{limit}"


def has_avx512() -> bool:
    """Return whether PyTorch uses AVX-512 in this process, on this processor and within the limit."""
    import torch

    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")
