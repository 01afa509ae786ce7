"""Asked to stop: a signal becomes a request that the loop looks at between steps."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Set by Ctrl-C, SIGTERM, SIGUSR1 or SIGHUP, and looked at between steps; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.reason is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.reason = signal.Signals(number).name


def outlives_its_terminal() -> bool:
    """Whether a hang-up was ignored from the start, as `nohup` has it."""
    return signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """What asks a run to stop raises KeyboardInterrupt, once: for the time that no step is taken, where this is the thread that
    may.
    """
    heard, before = False, {}

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        if not heard:  # schedulers send it to every process, and launchers pass it on as well
            heard = True
            raise KeyboardInterrupt

    try:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            if number == signal.SIGHUP and outlives_its_terminal():
                continue
            before[number] = signal.signal(number, interrupt)
    except ValueError:
        pass
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the signals that ask a run to stop into a request, where this is the thread that may."""
    request = StopRequest()
    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            if number == signal.SIGHUP and outlives_its_terminal():
                continue
            before[number] = signal.signal(number, request)
    except ValueError:
        pass
    try:
        yield request
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is request:  # and nobody has decided otherwise meanwhile
                signal.signal(number, handler)
