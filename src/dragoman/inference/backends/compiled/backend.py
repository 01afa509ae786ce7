"""Requests that the compiled back end runs: int8 and float32 on processors with AVX2 or NEON, if Numba works."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from dragoman.inference.backends.protocol import (
    SUPPORTED,
    UNUSUAL_LAYERS,
    BackendRequest,
    Support,
    fall_back,
    refuse_instruction_set,
)
from dragoman.inference.backends.shared import Precision


class CompiledBackend:
    """Machine code that Numba compiles, which runs whole searches without Python."""

    name = "compiled"

    def supports(self, request: BackendRequest) -> Support:
        if request.device_type != "cpu":
            return fall_back("the kernels are for processors")
        if request.precision == "bfloat16":
            return fall_back("the kernels multiply int8 and float32")
        return UNUSUAL_LAYERS if request.traits.has_unusual_layers else SUPPORTED

    def check_machine(self, precision: Precision) -> Support:
        """Return whether Numba works here and the kernels have an instruction set of this processor."""
        if find_spec("numba") is None:
            return fall_back("Numba is not installed")
        try:
            # Numba is an optional dependency and slow to import.
            from dragoman.inference.backends.compiled.jit_cache import can_run_kernels
            from dragoman.inference.backends.compiled.kernels import cpu_features

            try:
                instruction_set = cpu_features.get_instruction_set()
            except cpu_features.InstructionSetError as error:
                return refuse_instruction_set(str(error))
            if instruction_set is None:
                return fall_back("the processor has neither AVX2 nor NEON with dot products")
            import_module("dragoman.inference.backends.compiled.pack")
            return SUPPORTED if can_run_kernels() else fall_back("Numba compiles for another processor")
        except Exception as error:  # any exception of a Numba that does not fit the other installed packages
            return fall_back(f"Numba fails: {error}")
