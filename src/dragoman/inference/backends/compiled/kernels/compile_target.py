"""Instruction set that Numba compiles the kernels for. This module must be imported before Numba compiles anything."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
from numba import config

from dragoman.inference.backends.compiled.kernels.cpu_features import AVX2, NEON, get_instruction_set, is_restricted

_settings: Any = config
# Whether Numba compiles, and for this processor, by the user's settings.
IS_HOST_TARGET = not (
    _settings.DISABLE_JIT or not _settings.ENABLE_AVX or _settings.CPU_NAME or _settings.CPU_FEATURES is not None
)
# Nothing is compiled on a processor that has none of the sets.
INSTRUCTION_SET = get_instruction_set() or AVX2

if IS_HOST_TARGET and INSTRUCTION_SET is NEON:  # LLVM does not detect the dot product on all systems
    _settings.CPU_FEATURES = f"{llvm.get_host_cpu_features().flatten()},+dotprod"
elif IS_HOST_TARGET and is_restricted():
    _settings.CPU_NAME, _settings.CPU_FEATURES = INSTRUCTION_SET.cpu_name, ""
