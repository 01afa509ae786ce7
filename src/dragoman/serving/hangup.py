"""Meaning of SIGHUP for a server: read the models again, or stop because the window of its terminal was closed."""

from __future__ import annotations

import signal

from dragoman.platform_features import SIGHUP, has_terminal


class Hangup:
    """State of the terminal when a server starts. `nohup` makes a process ignore SIGHUP before it starts."""

    def __init__(self) -> None:
        self._depends_on_terminal = SIGHUP is not None and signal.getsignal(SIGHUP) != signal.SIG_IGN and has_terminal()

    def means_stop(self) -> bool:
        """Return whether the terminal that the server was started in is gone."""
        return self._depends_on_terminal and not has_terminal()
