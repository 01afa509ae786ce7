"""What a process that was started with others ended with, for its launcher and for those that would be started again."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path

from dragoman.errors import DragomanError, RankZeroError, WorkerLostError

# Names the file in which a process leaves the code that it ended with of its own accord.
EXIT_STATUS_FILE_VARIABLE = "DRAGOMAN_VERDICT"
# The launcher's process.
LAUNCHER_PID_VARIABLE = "DRAGOMAN_LAUNCHER"
# Of Linux's prctl.h: the signal that a process gets when its parent ends.
PR_SET_PDEATHSIG = 1


def exit_with_launcher() -> None:
    """In a process that `launch` started: end at once where another has ended of its own accord, and with the launcher."""
    if EXIT_STATUS_FILE_VARIABLE not in os.environ:
        return
    status_file = Path(os.environ[EXIT_STATUS_FILE_VARIABLE])
    if status_file.exists():
        raise RankZeroError(int(status_file.read_text()))
    prctl = getattr(ctypes.CDLL(None), "prctl", None) if os.name == "posix" else None
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.environ.get(LAUNCHER_PID_VARIABLE, str(os.getppid())) != str(
            os.getppid()
        ):  # it has gone already, and nothing will come
            raise RankZeroError(WorkerLostError.exit_code)


def write_exit_status(error: DragomanError) -> None:
    """Say that it would be no use to start again. Not so where another process was lost."""
    if EXIT_STATUS_FILE_VARIABLE in os.environ and not isinstance(error, WorkerLostError | RankZeroError):
        with (
            suppress(OSError),
            Path(os.environ[EXIT_STATUS_FILE_VARIABLE]).open("x") as status_file,
        ):  # of several ranks, the first
            status_file.write(str(error.exit_code))
