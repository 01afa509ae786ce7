"""Interruption of a command on a cluster, also where Python drops the exception of a signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from dragoman.platform_features import get_signals


@contextmanager
def remember_interrupts() -> Iterator[Callable[[], None]]:
    """Yield a function that raises KeyboardInterrupt if a signal has asked for it.

    A signal may arrive while Python runs a destructor, of a reference of Ray for example. Python drops the exception there, and
    the command would go on. Signals that do not act like Ctrl-C keep their handlers.
    """
    has_arrived = False

    def check() -> None:
        if has_arrived:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield check
        return

    def handle(signal_number: int, frame: FrameType | None) -> None:
        nonlocal has_arrived
        has_arrived = True
        signal.default_int_handler(signal_number, frame)

    stop_signals = get_signals("SIGINT", "SIGTERM", "SIGHUP")
    watched = [number for number in stop_signals if signal.getsignal(number) is signal.default_int_handler]
    for signal_number in watched:
        signal.signal(signal_number, handle)
    try:
        yield check
    finally:
        for signal_number in watched:
            signal.signal(signal_number, signal.default_int_handler)
