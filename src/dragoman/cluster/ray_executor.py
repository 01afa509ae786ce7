"""Workers of a Ray cluster: a running one, or one that is started for the command.

Ray's core tasks do the work. Ray Data returns results in any order, and so leaves no point from which a command can resume.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

from dragoman.cluster.interruption import remember_interrupts
from dragoman.errors import ClusterError, MissingDependencyError, WorkerLostError
from dragoman.formats.text import format_reason
from dragoman.runtime.processes import count_cores

CONNECT_SECONDS = 5.0
_OBJECT_STORE_BYTES = 2**28
_functions: dict[str, Callable[[Any], Any]] = {}


@contextmanager
def connect(address: str) -> Iterator[RayExecutor]:
    """Connect to a cluster, and disconnect when the context ends.

    address: HOST:PORT or ray://HOST:PORT of a running cluster. `local` starts a Ray on this machine, which ends with the
        context. `auto` takes the cluster that RAY_ADDRESS names, and without one does the same as `local`.

    Raises MissingDependencyError, and ClusterError if the cluster does not answer or has another version of Ray or Python.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or "local"
    if address != "local":
        _check_address_answers(address)
    # Ray reads its environment when it is imported.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    try:
        import ray
    except ImportError:
        raise MissingDependencyError("ray", "ray", "--cluster") from None
    folder = tempfile.mkdtemp(prefix="dragoman-") if address == "local" else None
    try:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if folder is None:
            options |= {"address": address}
        else:
            options |= {
                "address": "local",
                "num_cpus": count_cores(),
                "include_dashboard": False,
                "object_store_memory": _OBJECT_STORE_BYTES,
                "_temp_dir": folder,
            }
        try:
            ray.init(**options)
        except Exception as error:
            raise _to_cluster_error(address, error) from None
        with remember_interrupts() as check_interrupt:
            yield RayExecutor(ray, check_interrupt)
            check_interrupt()
    finally:
        with suppress(Exception):
            ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _check_address_answers(address: str) -> None:
    match = re.fullmatch(r"(?:ray://)?\[?([^/\[\]]+?)\]?:(\d{1,5})", address)
    if match is None or int(match[2]) > 65535:
        raise ClusterError(f"--cluster {address}: is not an address; give auto, local, HOST:PORT or ray://HOST:PORT")
    try:
        socket.create_connection((match[1], int(match[2])), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ClusterError(f"--cluster {address}: does not answer ({reason}); check the address, or start Ray there") from None


def _to_cluster_error(address: str, error: Exception) -> ClusterError:
    message = format_reason(str(error)) or type(error).__name__
    if "ersion mismatch" in str(error):
        return ClusterError(
            f"--cluster {address}: {message}; install one version of Ray and Python on all machines", code="cluster-mismatch"
        )
    return ClusterError(f"--cluster {address}: Ray cannot be started or reached: {message}; see `ray status`")


class RayExecutor:
    """Executor whose workers are processes of a Ray cluster. A worker has one core."""

    def __init__(self, ray: Any, check_interrupt: Callable[[], None]) -> None:
        self._ray = ray
        self._check_interrupt = check_interrupt
        self._call = ray.remote(num_cpus=1, max_retries=0)(call_function)
        self._references: dict[int, tuple[Any, str, Any]] = {}

    def count_workers(self) -> int:
        """Return the number of cores in the cluster now."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def submit(self, function: Callable[[Any], Any], item: Any) -> Any:
        """Start to process an item. The function is sent once to each worker."""
        if id(function) not in self._references:
            self._references[id(function)] = function, uuid4().hex, self._ray.put(function)
        _, key, reference = self._references[id(function)]
        return self._call.remote(key, [reference], item)  # a reference in a list is not replaced by its value

    def wait(self, handle: Any) -> bool:
        """Return whether the item of a handle has ended; False if it has not after a second."""
        self._check_interrupt()
        return bool(self._ray.wait([handle], timeout=1.0)[0])

    def get_result(self, handle: Any) -> Any:
        """Return the result. Raises WorkerLostError if the worker has died, or the error of the function."""
        try:
            return self._ray.get(handle)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ModuleNotFoundError):
                raise ClusterError(
                    f"a worker has no {error.cause.name}; install one version of dragoman on all machines",
                    code="cluster-mismatch",
                ) from None
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            raise WorkerLostError(f"a worker was lost: {format_reason(str(error))}") from None


def call_function(key: str, references: list[Any], item: Any) -> Any:
    """Call a function in a worker. The worker keeps the last function, with the model or the filters that it has loaded."""
    import ray

    if key not in _functions:
        _functions.clear()
        _functions[key] = ray.get(references[0])
    return _functions[key](item)
