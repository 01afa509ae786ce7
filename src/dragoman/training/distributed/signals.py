"""Signals that stop a run: a signal becomes a request, which the training loop checks between steps."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from dragoman.platform_features import SIGHUP, get_signals

# Signals that end a program unless it handles them. SIGUSR1 and SIGHUP are missing on Windows.
_END_SIGNALS = get_signals("SIGTERM", "SIGUSR1", "SIGHUP")


class StopRequest:
    """Request to stop by Ctrl-C, SIGTERM, SIGUSR1 or SIGHUP. A second Ctrl-C raises KeyboardInterrupt at once."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.reason is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.reason = signal.Signals(number).name
        if number == signal.SIGINT and sys.stderr.isatty() and os.environ.get("RANK", "0") == "0":
            print("stopping after this step or validation, with a checkpoint; Ctrl-C again stops at once", file=sys.stderr)


def is_hangup_ignored() -> bool:
    """Return whether SIGHUP is ignored, as under `nohup`."""
    return SIGHUP is not None and signal.getsignal(SIGHUP) == signal.SIG_IGN


@contextmanager
def _handle_signals(numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Install a handler if this is the main thread, and restore the previous handlers afterwards.

    A handler that other code has installed meanwhile stays.
    """
    previous_handlers = {}
    with suppress(ValueError):
        for number in numbers:
            if number != SIGHUP or not is_hangup_ignored():
                previous_handlers[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, previous_handler in previous_handlers.items():
            if signal.getsignal(number) is handler:
                signal.signal(number, previous_handler)


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt on a signal that stops a run, once. For use outside of training steps."""
    is_interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_interrupted
        if not is_interrupted:  # schedulers send a signal to every process, and launchers send it again
            is_interrupted = True
            raise KeyboardInterrupt

    with _handle_signals(_END_SIGNALS, interrupt):
        yield


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the signals that stop a run into a request."""
    request = StopRequest()
    with _handle_signals((signal.SIGINT, *_END_SIGNALS), request):
        yield request
