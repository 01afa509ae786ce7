"""Numba's compiler with the settings of the build, for tests that compile kernels of their own.

A test module imports it before it imports a kernel. The tests of the module are skipped if this processor has no kernels.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numba
import pytest

from dragoman.inference.backends.compiled.cpu_features import get_instruction_set
from dragoman.inference.backends.compiled.kernels.instruction_sets import TARGET_VARIABLE, InstructionSet

if (_available := get_instruction_set()) is None:
    pytest.skip("the kernels have no instruction set of this processor", allow_module_level=True)
instruction_set: InstructionSet = _available

settings: Any = numba.config
settings.CPU_NAME, settings.CPU_FEATURES = instruction_set.cpu_name, instruction_set.added_features
os.environ[TARGET_VARIABLE] = instruction_set.name

njit: Callable[[Any], Any] = numba.njit
