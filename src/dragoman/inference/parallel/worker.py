"""Client of a worker process, which has the same bundles open and searches batches in parallel.

Python threads wait for the interpreter lock at each operation of a step; processes do not. A worker copies the files that it
opens, and is not used if they are others than those of the client. The child process runs `worker_main`. The client starts it
with a command, because `multiprocessing` would import the caller's main module again. The child process ends with the client.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, Self

from dragoman.inference.parallel.messages import SearchResults, WorkerSpec, compute_checksums, decode_results
from dragoman.platform_features import PROCESS_GROUP_OPTIONS

if TYPE_CHECKING:
    import subprocess

WORKER_MODULE = "dragoman.inference.parallel.worker_main"


def build_worker_spec(bundle_paths: Sequence[Path], shortlist: str | Path | None) -> WorkerSpec | None:
    """Return the files that a worker process opens, without their precision; None if they are not on disk."""
    try:
        checksums = compute_checksums([*bundle_paths, *([shortlist] if shortlist is not None else [])])
    except OSError:
        return None
    bundles = tuple(str(bundle_path.absolute()) for bundle_path in bundle_paths)
    shortlist_path = None if shortlist is None else str(Path(shortlist).absolute())
    return WorkerSpec(bundles, "", shortlist_path, checksums) if bundles else None


class WorkQueue(Protocol):
    """Queue of batches that several workers take from."""

    def take(self) -> int | None:
        """Return the index of a batch that no worker has taken; None if there is none."""
        ...

    def build_request(self, index: int) -> dict[str, Any]:
        """Return the message for this batch."""
        ...

    def complete(self, index: int, results: SearchResults) -> None:
        """Store the results of this batch."""
        ...

    def requeue(self, index: int) -> None:
        """Put this batch back, so that another worker searches it."""
        ...


class Worker:
    """Client of a worker process. It takes batches from each submitted queue, and requeues a failed batch."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.ready = threading.Event()
        self.ended = threading.Event()
        self._queues: SimpleQueue[WorkQueue | None] = SimpleQueue()
        self.terminate = weakref.finalize(self, _terminate, process, self._queues)

    @classmethod
    def start(cls, spec: WorkerSpec, threads: int) -> Self:
        """Start a process, and a thread that serves it. Raises OSError if the system starts none."""
        paths = os.pathsep.join(path for path in sys.path if path)
        import subprocess  # most translations start no process

        process = subprocess.Popen(
            [sys.executable, "-m", WORKER_MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": str(threads)},
            **PROCESS_GROUP_OPTIONS,  # Ctrl-C reaches the client only, which ends its workers
        )
        worker = cls(process)
        # The thread has no reference to the worker, so that deleting the worker ends the process.
        arguments = (process, worker._queues, {**vars(spec), "threads": threads}, worker.ready, worker.ended)
        threading.Thread(target=_serve_queues, args=arguments, name="worker", daemon=True).start()
        return worker

    def submit(self, queue: WorkQueue) -> None:
        """Take batches from this queue as soon as the process is ready and idle."""
        self._queues.put(queue)


def _terminate(process: subprocess.Popen[bytes], queues: SimpleQueue[WorkQueue | None]) -> None:
    queues.put(None)
    process.kill()
    process.wait()


def _serve_queues(
    process: subprocess.Popen[bytes],
    queues: SimpleQueue[WorkQueue | None],
    settings: Mapping[str, Any],
    ready: threading.Event,
    ended: threading.Event,
) -> None:
    """Send the process one batch at a time until it ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with process.stdin, process.stdout:
            if _send_request(process, settings).get("checksums") == list(settings["checksums"]):
                ready.set()
                while (queue := queues.get()) is not None:
                    _process_queue(process, queue)
    except (OSError, ValueError):
        pass  # the process has ended, so the client searches its batches; the rest of a request cannot be written, either
    finally:
        ended.set()
        ready.set()


def _process_queue(process: subprocess.Popen[bytes], queue: WorkQueue) -> None:
    while (index := queue.take()) is not None:
        results: SearchResults | None = None
        try:
            answer = _send_request(process, queue.build_request(index))
            if "results" in answer:
                results = decode_results(answer["results"])
        finally:
            if results is None:
                queue.requeue(index)
        if results is None:
            return
        queue.complete(index, results)


def _send_request(process: subprocess.Popen[bytes], request: Mapping[str, Any]) -> dict[str, Any]:
    """Send a message and return its answer. Raises OSError, or ValueError if there is no answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer
