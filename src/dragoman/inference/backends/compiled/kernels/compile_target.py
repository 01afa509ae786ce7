"""Instruction set that the kernels of this process are compiled for. The build names it before it imports the kernels."""

from __future__ import annotations

import os

from dragoman.inference.backends.compiled.kernels.instruction_sets import AVX2, INSTRUCTION_SETS, TARGET_VARIABLE

_NAME = os.environ.get(TARGET_VARIABLE, AVX2.name)
INSTRUCTION_SET = next(instruction_set for instruction_set in INSTRUCTION_SETS if instruction_set.name == _NAME)
