"""Entry points of the compiled kernels, cached on disk as machine code.

A cached kernel needs only LLVM's linker and not Numba, whose import is slow. The folder's name is a digest of the kernels'
sources, the compiler's version, the processor and the instruction set. Each file begins with a digest of its content, so a
damaged file is compiled again. The cache is part of the program, as Python's `__pycache__` is. Calls run without Python's lock.
Of several processes, one compiles at a time, and the others use its result.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import struct
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Lock
from typing import Any, get_type_hints

import llvmlite.binding as llvm

from dragoman.inference.backends.compiled.kernels.cpu_features import get_cpu_features, get_instruction_set, is_restricted
from dragoman.platform_features import CAN_OPEN_FOLDERS, fcntl
from dragoman.runtime.cache_folder import get_cache_folder

# Source files of the kernels and of the compilation.
KERNEL_SOURCES = (
    "kernels/cpu_features.py",
    "kernels/compile_target.py",
    "kernels/structs.py",
    "kernels/simd.py",
    "kernels/memory.py",
    "kernels/amx.py",
    "kernels/barrier.py",
    "kernels/quantize.py",
    "kernels/epilogue.py",
    "kernels/gemm_avx2.py",
    "kernels/gemm_f32.py",
    "kernels/gemm.py",
    "kernels/encoder_decoder.py",
    "kernels/logits.py",
    "kernels/candidates.py",
    "kernels/search_loop.py",
    "jit.py",
)
# Symbols that Numba's code refers to for failures. Kernels never fail, so the symbols need only exist.
UNUSED_SYMBOLS = (
    "NRT_Free",
    "numba_do_raise",
    "numba_gil_ensure",
    "numba_gil_release",
    "numba_runtime_build_excinfo_struct",
    "numba_unpickle",
)

_log = logging.getLogger(__name__)


class EntryPoint:
    """One exported kernel, linked by its first call.

    It takes numbers, the tuples of `structs` and words of `flatten`, and returns an integer.
    """

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name
        self._function: Callable[[int], int] | None = None
        self._received: tuple[str, bytes] | None = None
        self._lock = Lock()

    def __call__(self, *arguments: Any) -> int:
        words = flatten(arguments)  # the variable keeps the words alive during the call
        return self.load()(words.buffer_info()[0])

    def load(self) -> Callable[[int], int]:
        """Return the linked function. The first call compiles it, for some seconds, unless it is cached."""
        if self._function is None:
            with self._lock:
                self._function = self._function or _link(*(self._received or self._read_cached() or self._compile()))
        return self._function

    def is_cached(self) -> bool:
        """Return whether the kernel is linked, received or cached."""
        return self._function is not None or self._received is not None or self._read_cached() is not None

    def is_on_disk(self) -> bool:
        """Return whether the cache folder holds the kernel."""
        return self._read_cached() is not None

    def receive(self, symbol: str, code: bytes) -> None:
        """Keep the object file that another process has compiled, because the cache folder may be read-only."""
        self._received = symbol, code

    def compile(self) -> tuple[str, bytes]:
        """Return the symbol and the object file, from the cache or compiled. The kernel is not linked."""
        return self._read_cached() or self._compile()

    def _read_cached(self) -> tuple[str, bytes] | None:
        cache_dir = _get_cache_dir()
        if cache_dir is None:
            return None
        try:
            digest, _, payload = (cache_dir / self.name).read_bytes().partition(b"\n")
        except OSError:
            return None
        if hashlib.sha256(payload).hexdigest().encode() != digest:
            return None
        symbol, _, code = payload.partition(b"\n")
        return symbol.decode(), code

    def _compile(self) -> tuple[str, bytes]:
        cache_dir = _get_cache_dir()
        with _lock_dir(cache_dir):
            if (cached := self._read_cached()) is not None:  # another process has compiled it in the meantime
                return cached
            from dragoman.inference.backends.compiled.jit import compile_object  # Numba is slow to import

            _log.info("compiling the kernel %s for this processor: it takes some seconds, once", self.name)
            symbol, code = compile_object(self.module, self.name)
            payload = symbol.encode() + b"\n" + code
            if cache_dir is not None:
                _write_atomically(cache_dir / self.name, hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)
        return symbol, code


pack_weights = EntryPoint("quantize", "pack_weights")
encode, step = EntryPoint("encoder_decoder", "encode"), EntryPoint("encoder_decoder", "step")
greedy_search, beam_search = EntryPoint("search_loop", "greedy_search"), EntryPoint("search_loop", "beam_search")
logsumexp, topk = EntryPoint("logits", "logsumexp"), EntryPoint("logits", "topk")
# All kernels. The first three translate greedily.
ENTRY_POINTS = (pack_weights, encode, greedy_search, beam_search, step, logsumexp, topk)


def can_run_kernels() -> bool:
    """Return whether kernels run here. Raises any exception of a Numba that does not work.

    A cached kernel shows that Numba has worked before.
    """
    if encode.is_cached():
        return True
    from dragoman.inference.backends.compiled.kernels.compile_target import IS_HOST_TARGET  # Numba is slow to import

    return IS_HOST_TARGET


def get_cache_dir() -> Path | None:
    """Return the folder of this processor's kernels, or None if it cannot be made."""
    return _get_cache_dir()


def list_missing() -> list[str]:
    """Return the names of the kernels that a first use would compile."""
    return [entry.name for entry in ENTRY_POINTS if not entry.is_cached()]


@contextmanager
def _lock_dir(folder: Path | None) -> Iterator[None]:
    """Wait until no other process compiles into the folder. A system without such locks does not wait."""
    if folder is None or fcntl is None or not CAN_OPEN_FOLDERS:
        yield
        return
    descriptor = None
    try:
        with suppress(OSError):  # the folder is removed, or the file system has no locks
            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _write_atomically(path: Path, content: bytes) -> None:
    """Write the whole file or none of it."""
    with suppress(OSError), NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(content)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def flatten(values: Any) -> array[int]:
    """Return the 64-bit words in which kernels read arguments: numbers, tuples of them, and words of this function."""
    words = array("q")
    _append_words(values, words)
    return words


def _append_words(values: Any, words: array[int]) -> None:
    for value in values:
        if type(value) is int:  # nearly all are addresses, and this test is the cheapest
            words.append(value)
        elif type(value) is array:
            words.extend(value)
        elif isinstance(value, tuple):
            if _holds_only_integers(type(value)):
                words.extend(value)
            else:
                _append_words(value, words)
        elif isinstance(value, float):
            words.frombytes(struct.pack("d", value))
        else:
            words.append(value)


@cache
def _holds_only_integers(tuple_type: type[tuple[Any, ...]]) -> bool:
    """Return whether all fields of a named tuple are integers, addresses or booleans."""
    hints = get_type_hints(tuple_type)
    return bool(hints) and all(isinstance(kind, type) and issubclass(kind, int) for kind in hints.values())


_engines: list[llvm.ExecutionEngine] = []
_link_lock = Lock()


def _link(symbol: str, code: bytes) -> Callable[[int], int]:
    """Return the function of an object file, which stays in memory until the process ends."""
    with _link_lock:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        for name in UNUSED_SYMBOLS:
            if llvm.address_of_symbol(name) is None:
                llvm.add_symbol(name, ctypes.cast(ctypes.pythonapi.Py_FatalError, ctypes.c_void_p).value)
        target_machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        _engines.append(engine)
        prototype = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
        function: Callable[[int], int] = prototype(engine.get_function_address(symbol))
        return function


def _describe_target() -> list[str]:
    """Return the names of the processor and of the instructions that kernels are compiled for."""
    instruction_set = get_instruction_set()
    if instruction_set is not None and is_restricted():
        return [instruction_set.name, instruction_set.cpu_name]
    return [llvm.get_host_cpu_name(), *sorted(get_cpu_features())]


@lru_cache(maxsize=1)
def _get_cache_dir() -> Path | None:
    """Return the folder of this processor's kernels, or None if it cannot be written."""
    sources = [Path(__file__).parent.joinpath(name).read_bytes() for name in KERNEL_SOURCES]
    toolchain = sys.version, version("numba"), version("llvmlite"), *_describe_target()
    try:
        digest = hashlib.sha256(b"\0".join([*sources, "\0".join(toolchain).encode()])).hexdigest()[:16]
        cache_dir = get_cache_folder() / "kernels" / digest
        cache_dir.mkdir(parents=True, exist_ok=True)
        return cache_dir
    except (OSError, RuntimeError):
        return None
