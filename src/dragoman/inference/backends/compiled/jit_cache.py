"""The functions by which Python enters what is compiled, kept as machine code from one run to the next.

Who finds them kept needs no Numba, which takes its time to come, but LLVM's linker alone. What is kept lies under a digest of
all that is compiled, of what compiles it, and for which processor; each file begins with its own, so that one that is cut or
changed is made anew. It is the program, as Python's own `__pycache__` is. A call has left Python's lock.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import struct
import sys
from array import array
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Lock
from typing import Any

import llvmlite.binding as llvm

from dragoman.inference.backends.compiled.cpu_features import features
from dragoman.runtime.autotune_cache import cache_file

# The files that hold what is compiled, and what makes machine code of it.
SOURCES = (
    "kernels/structs.py",
    "kernels/simd.py",
    "kernels/memory.py",
    "kernels/amx.py",
    "kernels/barrier.py",
    "kernels/quantize.py",
    "kernels/gemm.py",
    "kernels/transformer.py",
    "kernels/logits.py",
    "kernels/candidates.py",
    "kernels/search.py",
    "jit.py",
)
# What Numba's code would call in a failure, of which there is none: they need only be there.
NEVER_CALLED = (
    "NRT_Free",
    "numba_do_raise",
    "numba_gil_ensure",
    "numba_gil_release",
    "numba_runtime_build_excinfo_struct",
    "numba_unpickle",
)

_log = logging.getLogger(__name__)


class Entry:
    """One function, linked when it is first called. It takes numbers and the tuples of `layout`, and returns a whole number."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name
        self._function: Callable[[int], int] | None = None
        self._lock = Lock()

    def __call__(self, *given: Any) -> int:
        numbers = array("q")
        _flatten(given, numbers)
        return self.linked()(numbers.buffer_info()[0])

    def linked(self) -> Callable[[int], int]:
        """Ready to be called, which takes its time once: some seconds where it has to be compiled."""
        if self._function is None:
            with self._lock:
                self._function = self._function or _link(*(self._kept() or self._made()))
        return self._function

    def is_kept(self) -> bool:
        """Whether it need not be compiled."""
        return self._function is not None or self._kept() is not None

    def _kept(self) -> tuple[str, bytes] | None:
        folder = _folder()
        if folder is None:
            return None
        try:
            digest, _, rest = (folder / self.name).read_bytes().partition(b"\n")
        except OSError:
            return None
        if hashlib.sha256(rest).hexdigest().encode() != digest:
            return None
        symbol, _, code = rest.partition(b"\n")
        return symbol.decode(), code

    def _made(self) -> tuple[str, bytes]:
        from dragoman.inference.backends.compiled.jit import assemble  # only here, since Numba takes its time to come

        _log.info("compiling %s for this processor, once: it takes some seconds", self.name)
        symbol, code = assemble(self.module, self.name)
        rest = symbol.encode() + b"\n" + code
        if (folder := _folder()) is not None:
            _keep(folder / self.name, hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)
        return symbol, code


put_in_order = Entry("quantize", "put_in_order")
encode, step = Entry("transformer", "encode"), Entry("transformer", "step")
greedy, beam = Entry("search", "greedy"), Entry("search", "beam")
log_sums, best = Entry("logits", "log_sums"), Entry("logits", "best")


def can_enter() -> bool:
    """Whether Numba works here, as it did where what comes first is kept. Raises whatever one raises that does not."""
    if encode.is_kept():
        return True
    from dragoman.inference.backends.compiled.jit import is_for_this_processor

    return is_for_this_processor()


def _keep(path: Path, held: bytes) -> None:
    """Whole or not at all."""
    with suppress(OSError), NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(held)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _flatten(given: Any, numbers: array[int]) -> None:
    for one in given:
        if isinstance(one, tuple):
            _flatten(one, numbers)
        elif isinstance(one, float):
            numbers.frombytes(struct.pack("d", one))
        else:
            numbers.append(one)


_engines: list[llvm.ExecutionEngine] = []
_linking = Lock()


def _link(symbol: str, code: bytes) -> Callable[[int], int]:
    """The function, in memory until the process ends."""
    with _linking:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        for name in NEVER_CALLED:
            if llvm.address_of_symbol(name) is None:
                llvm.add_symbol(name, ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value)
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        _engines.append(engine)
        prototype = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
        function: Callable[[int], int] = prototype(engine.get_function_address(symbol))
        return function


@lru_cache(maxsize=1)
def _folder() -> Path | None:
    """None where nothing can be written."""
    said = [Path(__file__).parent.joinpath(name).read_bytes() for name in SOURCES]
    made_by = sys.version, version("numba"), version("llvmlite"), llvm.get_host_cpu_name(), *sorted(features())
    try:
        digest = hashlib.sha256(b"\0".join([*said, "\0".join(made_by).encode()])).hexdigest()[:16]
        folder = cache_file().parent / "kernels" / digest
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    except (OSError, RuntimeError):
        return None
