"""Several runs at a time, each in a process and with a share of the threads of its own.

A run of Table 3's smallest scale is mostly Python, which a second thread does not make faster; a second process does.
"""

from __future__ import annotations

import json
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

import torch

from dragoman.config import Recipe, recipe_from_dict
from dragoman.errors import DragomanError, Interrupted, LostProcessError, RunError
from dragoman.runtime.processes import cores, end_with_parent, starting_deaf
from dragoman.training.run import train


@dataclass(frozen=True)
class _Running:
    name: str
    process: SpawnProcess
    answer: Connection

    def ended(self) -> None:
        """Raise what it ended with, if that was not its end."""
        self.process.join()
        with suppress(EOFError):  # it had nothing to say
            raise RunError(f"{self.name}: {self.answer.recv()}")
        if self.process.exitcode != 0:
            raise LostProcessError(
                f"{self.name}: its process was killed, for want of memory perhaps; the same command goes on, and fewer "
                "--processes need less"
            )


def train_beside(
    runs: Sequence[tuple[str, Recipe]], *, processes: int, told: Callable[[str], None], like: Mapping[str, str]
) -> None:
    """Train these runs, so many at a time, begun in order.

    Raises RunError or LostProcessError where one fails, and Interrupted; the others then keep a checkpoint first and stop.

    told: hears of each as it begins
    like: in which ways to compute them, as `Machine.memory` tells them
    """
    waiting, running = deque(runs), list[_Running]()
    threads = max(cores() // processes, 1)
    try:
        with _terminated_as_interrupted():
            while waiting or running:
                while waiting and len(running) < processes:
                    name, recipe = waiting.popleft()
                    told(name)
                    running.append(_begun(name, recipe, threads, like))
                ended = wait([one.process.sentinel for one in running])
                for one in [one for one in running if one.process.sentinel in ended]:
                    running.remove(one)
                    one.ended()
    except KeyboardInterrupt:
        raise Interrupted("interrupted; every row's checkpoints are kept, and the same command goes on") from None
    finally:
        for one in running:
            if one.process.pid is not None and one.process.is_alive():
                os.kill(one.process.pid, signal.SIGINT)
        for one in running:
            one.process.join()


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM, which schedulers send, does what Ctrl-C does, where this is the thread that may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _begun(name: str, recipe: Recipe, threads: int, like: Mapping[str, str]) -> _Running:
    context = multiprocessing.get_context("spawn")  # a fork of a process that has threads may hang
    answer, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(recipe.model_dump_json(), threads, like, theirs), name=name)
    with starting_deaf(signal.SIGINT):
        process.start()
    theirs.close()
    return _Running(name, process, answer)


def _run(document: str, threads: int, like: Mapping[str, str], answer: Connection) -> None:
    """One run in a process of its own. Ctrl-C goes to the first process alone, which asks each of the others once to stop."""
    os.setpgid(0, 0)
    end_with_parent()
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        torch.set_num_threads(threads)
        train(recipe_from_dict(json.loads(document), where="Table 3"), like=like)
    except (Interrupted, KeyboardInterrupt):
        raise SystemExit(Interrupted.exit_code) from None
    except DragomanError as error:
        answer.send(str(error))
