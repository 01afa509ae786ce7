"""Requests that the compiled back end runs: int8 on processors with AVX-512 VNNI, if Numba is installed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from dragoman.inference.backends.compiled.kernels.structs import LANES, MAX_HEADS
from dragoman.inference.backends.protocol import SUPPORTED, BackendRequest, Support, fall_back
from dragoman.inference.backends.shared import Precision


class CompiledBackend:
    """Machine code that Numba compiles, which runs whole searches without Python."""

    name = "compiled"

    def supports(self, request: BackendRequest) -> Support:
        traits = request.traits
        if request.device_type != "cpu":
            return fall_back("the kernels are for processors")
        if request.precision != "int8":
            return fall_back("the kernels multiply int8 only")
        if traits.has_pointer:
            return fall_back("the kernels have no pointer")
        if traits.has_window:
            return fall_back("the kernels have no attention window")
        if traits.num_heads > MAX_HEADS:
            return fall_back(f"the kernels have at most {MAX_HEADS} heads")
        if any(width % LANES for width in traits.widths):
            return fall_back(f"the kernels need widths that are multiples of {LANES}")
        return SUPPORTED

    def check_machine(self, precision: Precision) -> Support:
        """Return whether Numba works here and the processor multiplies bytes in vectors of 512 bits."""
        if find_spec("numba") is None:
            return fall_back("Numba is not installed")
        try:
            # Numba is an optional dependency and slow to import.
            from dragoman.inference.backends.compiled.jit_cache import can_run_kernels
            from dragoman.inference.backends.compiled.kernels.cpu_features import has_avx512_vnni

            import_module("dragoman.inference.backends.compiled.pack")
            if not has_avx512_vnni():
                return fall_back("the processor has no AVX-512 VNNI, or NUMBA_CPU_NAME names another processor")
            return SUPPORTED if can_run_kernels() else fall_back("Numba compiles for another processor")
        except Exception as error:  # any exception of a Numba that does not fit the other installed packages
            return fall_back(f"Numba fails: {error}")
