"""Asked to stop: a signal becomes a request that the loop looks at between steps."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class StopRequest:
    """Set by Ctrl-C, SIGTERM, SIGUSR1 or SIGHUP, and looked at between steps; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.reason is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.reason = signal.Signals(number).name


def is_hangup_ignored() -> bool:
    """Whether a hang-up was ignored from the start, as `nohup` has it."""
    return signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@contextmanager
def _handle_signals(numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """By this handler, where this is the thread that may; as before afterwards, unless somebody decided otherwise meanwhile."""
    previous_handlers = {}
    with suppress(ValueError):
        for number in numbers:
            if number != signal.SIGHUP or not is_hangup_ignored():
                previous_handlers[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, previous_handler in previous_handlers.items():
            if signal.getsignal(number) is handler:
                signal.signal(number, previous_handler)


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """What asks a run to stop raises KeyboardInterrupt, once: for the time that no step is taken."""
    is_interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_interrupted
        if not is_interrupted:  # schedulers send it to every process, and launchers pass it on as well
            is_interrupted = True
            raise KeyboardInterrupt

    with _handle_signals((signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP), interrupt):
        yield


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the signals that ask a run to stop into a request."""
    request = StopRequest()
    with _handle_signals((signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP), request):
        yield request
