"""Exit status of a rank, in a file for its launcher and for ranks that are started again."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from dragoman.errors import DragomanError, RankZeroError, WorkerLostError
from dragoman.platform_features import get_c_function

# Path of the file with the exit status of a rank that raised an error.
EXIT_STATUS_FILE_VARIABLE = "DRAGOMAN_EXIT_STATUS_FILE"
LAUNCHER_PID_VARIABLE = "DRAGOMAN_LAUNCHER_PID"
# Option of Linux's prctl.h: the signal that a process receives when its parent ends.
PR_SET_PDEATHSIG = 1


def exit_with_launcher() -> None:
    """Let a rank that `launch` started end with its launcher. Raise RankZeroError if another rank has left an exit status."""
    if EXIT_STATUS_FILE_VARIABLE not in os.environ:
        return
    status_file = Path(os.environ[EXIT_STATUS_FILE_VARIABLE])
    if status_file.exists():
        raise RankZeroError(int(status_file.read_text()))
    prctl = get_c_function("prctl")
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        parent_pid = str(os.getppid())
        if os.environ.get(LAUNCHER_PID_VARIABLE, parent_pid) != parent_pid:  # the launcher has ended before prctl
            raise RankZeroError(WorkerLostError.exit_code)


def write_exit_status(error: DragomanError) -> None:
    """Write the exit status, so that the rank is not started again. After the loss of another rank nothing is written."""
    if EXIT_STATUS_FILE_VARIABLE in os.environ and not isinstance(error, WorkerLostError | RankZeroError):
        # Mode "x": of several ranks, the first one writes.
        with suppress(OSError), Path(os.environ[EXIT_STATUS_FILE_VARIABLE]).open("x") as status_file:
            status_file.write(str(error.exit_code))
