"""Compilation of kernels in a process of its own, which does not hold Python's lock and which Ctrl-C does not reach.

At most one such process runs for this process. Its priority is low for a session that answers with the packed back end in the
meantime. A thread waits for the end of the child process. If this process ends first, the child process compiles the remaining
kernels, so that the next command finds them, and then ends by itself.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dragoman.errors import DeviceError
from dragoman.platform_features import BACKGROUND_PROCESS_OPTIONS, PROCESS_GROUP_OPTIONS

COMPILE_VARIABLE = "DRAGOMAN_COMPILE"
COMPILE_MODULE = "dragoman.inference.backends.compiled.compile_main"
BACKGROUND_NICENESS = 5
"""Niceness of the child process. It then gets a quarter of a core on which a search computes without a pause."""

_log = logging.getLogger(__name__)


class CompilationError(Exception):
    """Error of a child process that compiles; the message gives the reason."""


@dataclass(frozen=True)
class CompiledKernel:
    """Kernel that a child process has compiled. seconds: 0 if the cache held it"""

    name: str
    seconds: float
    num_bytes: int


def compiles_in_background(default: bool) -> bool:
    """Return whether missing kernels are compiled in the background. `DRAGOMAN_COMPILE` takes precedence over the default.

    Raises DeviceError for a wrong value of the variable.
    """
    value = os.environ.get(COMPILE_VARIABLE, "")
    if value not in ("", "wait", "background"):
        raise DeviceError(
            f"{COMPILE_VARIABLE}={value}: is not known; choose wait or background, or leave the variable out",
            code="invalid-compile-mode",
        )
    return value == "background" if value else default


def list_missing_kernels() -> list[str]:
    """Return the names of the kernels that a first use would compile."""
    from dragoman.inference.backends.compiled.jit_cache import list_missing  # needs llvmlite, which comes with Numba

    return list_missing()


def compile_in_child(names: Sequence[str], *, niceness: int = 0) -> Iterator[CompiledKernel]:
    """Compile kernels in a child process, keep their machine code in this process, and yield each kernel when it is ready.

    The child process is killed if the caller stops early. Raises CompilationError, and OSError if no process starts.
    """
    process = _start_child(names, niceness)
    try:
        yield from _receive_kernels(process, names)
    finally:
        process.kill()
        _close(process)


def _start_child(names: Sequence[str], niceness: int) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        [sys.executable, "-m", COMPILE_MODULE, str(niceness), *names],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": paths},
        **(BACKGROUND_PROCESS_OPTIONS if niceness else PROCESS_GROUP_OPTIONS),
    )


def _receive_kernels(process: subprocess.Popen[bytes], names: Sequence[str]) -> Iterator[CompiledKernel]:
    from dragoman.inference.backends.compiled.jit_cache import ENTRY_POINTS  # needs llvmlite, which comes with Numba

    entries = {entry.name: entry for entry in ENTRY_POINTS}
    assert process.stdout is not None
    for name in names:
        line = process.stdout.readline()
        if not line:
            raise CompilationError(f"{name}: the process that compiles it has ended with exit code {process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise CompilationError(f"{name}: {answer['error']}")
        code = process.stdout.read(answer["bytes"])
        if len(code) < answer["bytes"]:
            raise CompilationError(f"{name}: the process that compiles it has ended")
        entries[name].receive(answer["symbol"], code)
        yield CompiledKernel(name, answer["seconds"], len(code))


def _close(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a child process, which leaves no zombie, and close its pipe."""
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


class BackgroundCompilation:
    """Thread that receives the kernels of a child process of low priority.

    error: reason of a failure; None before the end and after a success
    """

    def __init__(self, names: Sequence[str]) -> None:
        """Start the child process. Raises OSError if the system starts none."""
        self.error: str | None = None
        self._done = threading.Event()
        self._process = _start_child(names, BACKGROUND_NICENESS)
        threading.Thread(target=self._receive, args=(names,), name="compilation", daemon=True).start()

    @property
    def is_running(self) -> bool:
        return not self._done.is_set()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait for the last kernel, and return whether the compilation has ended."""
        return self._done.wait(timeout_seconds)

    def _receive(self, names: Sequence[str]) -> None:
        try:
            for _ in _receive_kernels(self._process, names):
                pass
        except (CompilationError, OSError, ValueError) as error:
            self.error = str(error)
            self._process.kill()
            _log.warning("the kernels cannot be compiled, so models stay packed: %s", error)
        else:
            _log.info("the kernels are compiled; the next call uses them")
        finally:
            _close(self._process)
            self._done.set()


_lock = threading.Lock()
_compilation: BackgroundCompilation | None = None


def _reset_after_fork() -> None:
    """Drop the parent's compilation in a forked process, which is not the parent of the child process."""
    global _lock, _compilation
    _lock, _compilation = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def start_compilation() -> BackgroundCompilation | None:
    """Return the compilation of this process, and start it if kernels are missing. Return None if no kernel is missing.

    Raises OSError if the system starts no process.
    """
    global _compilation
    with _lock:
        if _compilation is None or not (_compilation.is_running or _compilation.error):
            names = list_missing_kernels()
            if not names:
                return None
            _log.info("compiling %d kernels in the background; until then, the packed back end answers", len(names))
            _compilation = BackgroundCompilation(names)
        return _compilation
