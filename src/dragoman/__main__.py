"""Entry point of the command `dragoman` and of `python -m dragoman`."""

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command line. An interrupt during its import ends the process with one line."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_interrupted)
    from dragoman.cli.main import main as run_command

    signal.signal(signal.SIGINT, handler)
    run_command()


def _end_interrupted(number: int, frame: FrameType | None) -> None:
    """End the process with the exit status of `InterruptedRun`, whose module may not be imported yet."""
    if sys.stderr is not None:
        sys.stderr.write("dragoman: interrupted\n")
        sys.stderr.flush()
    os._exit(130)


if __name__ == "__main__":
    try:
        main()
    finally:
        from collections import namedtuple

        # Python replaces the exit status if an interrupt ended an evaluation inside of a library, such as the import of torch.
        # A further evaluation resets this, and the making of a named tuple is one.
        namedtuple("Reset", ())
