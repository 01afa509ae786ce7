"""What a process that was started with others ended with, for its launcher and for those that would be started again."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path

from dragoman.errors import DragomanError, FollowedError, LostProcessError

# Names the file in which a process leaves the code that it ended with of its own accord.
VERDICT = "DRAGOMAN_VERDICT"
# The launcher's process.
LAUNCHER = "DRAGOMAN_LAUNCHER"
# Of Linux's prctl.h: the signal that a process gets when its parent ends.
PR_SET_PDEATHSIG = 1


def end_with_launcher() -> None:
    """In a process that `launch` started: end at once where another has ended of its own accord, and with the launcher."""
    if VERDICT not in os.environ:
        return
    verdict = Path(os.environ[VERDICT])
    if verdict.exists():
        raise FollowedError(int(verdict.read_text()))
    prctl = getattr(ctypes.CDLL(None), "prctl", None) if os.name == "posix" else None
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.environ.get(LAUNCHER, str(os.getppid())) != str(os.getppid()):  # it has gone already, and nothing will come
            raise FollowedError(LostProcessError.exit_code)


def leave_verdict(error: DragomanError) -> None:
    """Say that it would be no use to start again. Not so where another process was lost."""
    if VERDICT in os.environ and not isinstance(error, LostProcessError | FollowedError):
        with suppress(OSError), Path(os.environ[VERDICT]).open("x") as verdict:  # of several ranks, the first
            verdict.write(str(error.exit_code))
