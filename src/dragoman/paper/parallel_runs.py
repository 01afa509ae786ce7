"""Several runs at the same time, each in its own process with a share of the threads.

A run at the smallest scale of Table 3 is mostly Python. A second process makes it faster, a second thread does not.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from dragoman.config import Recipe, recipe_from_dict
from dragoman.errors import DragomanError, InterruptedRun, RunError, WorkerLostError
from dragoman.platform_features import start_own_process_group
from dragoman.runtime.processes import block_signals, count_cores, exit_with_parent, unblock_signals
from dragoman.training.run import train


@dataclass(frozen=True)
class _RunProcess:
    name: str
    process: SpawnProcess
    connection: Connection

    def raise_on_failure(self) -> None:
        """Raise RunError or WorkerLostError if the process has failed."""
        self.process.join()
        with suppress(EOFError):  # the process sent no error
            raise RunError(f"{self.name}: {self.connection.recv()}")
        exit_code = self.process.exitcode or 0
        if exit_code > 0:
            raise RunError(
                f"{self.name}: stopped with the error printed above; run the same command to resume after the last checkpoint"
            )
        if exit_code < 0:
            raise WorkerLostError(
                f"{self.name}: its process was killed, perhaps because memory was short; run the same command to resume, with "
                "fewer --processes"
            )


def train_parallel(
    runs: Sequence[tuple[str, Recipe]], *, processes: int, on_start: Callable[[str], None], reuse_plan: Mapping[str, str]
) -> None:
    """Train the runs in order, `processes` at the same time.

    on_start: called with the name of each run when it starts
    reuse_plan: compute plan of all runs, from `ComputePlan.to_dict`

    Raises RunError or WorkerLostError if a run fails, and InterruptedRun. The other runs then save a checkpoint and stop.
    """
    pending, running = deque(runs), list[_RunProcess]()
    threads_per_run = max(count_cores() // processes, 1)
    try:
        with _treat_sigterm_as_interrupt():
            while pending or running:
                while pending and len(running) < processes:
                    name, recipe = pending.popleft()
                    on_start(name)
                    running.append(_start_run(name, recipe.model_dump(), threads_per_run, reuse_plan))
                finished_sentinels = wait([run.process.sentinel for run in running])
                for run in [run for run in running if run.process.sentinel in finished_sentinels]:
                    running.remove(run)
                    run.raise_on_failure()
    except KeyboardInterrupt:
        raise InterruptedRun("interrupted: the checkpoints of all rows are kept; run the same command to resume") from None
    finally:
        for run in running:
            if run.process.pid is not None and run.process.is_alive():
                os.kill(run.process.pid, signal.SIGINT)
        for run in running:
            run.process.join()


@contextmanager
def _treat_sigterm_as_interrupt() -> Iterator[None]:
    """Make SIGTERM act like Ctrl-C, if this is the main thread, which alone may set a handler."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous_handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


def _start_run(name: str, recipe: Mapping[str, Any], threads: int, reuse_plan: Mapping[str, str]) -> _RunProcess:
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads can hang
    parent_connection, child_connection = context.Pipe(duplex=False)
    process = context.Process(target=_train_in_child, args=(recipe, threads, reuse_plan, child_connection), name=name)
    with block_signals(signal.SIGINT):
        process.start()
    child_connection.close()
    return _RunProcess(name, process, parent_connection)


def _train_in_child(recipe: Mapping[str, Any], threads: int, reuse_plan: Mapping[str, str], connection: Connection) -> None:
    """Train one run in this child process. Ctrl-C reaches only the parent process, which sends each child one SIGINT."""
    start_own_process_group()
    exit_with_parent()
    try:
        unblock_signals(signal.SIGINT)
        torch.set_num_threads(threads)
        train(recipe_from_dict(recipe, where="the recipe"), reuse_plan=reuse_plan)
    except (InterruptedRun, KeyboardInterrupt):
        raise SystemExit(InterruptedRun.exit_code) from None
    except DragomanError as error:
        connection.send(str(error))
