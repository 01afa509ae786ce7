"""Every mistake that a user can make, as one tree.

DragomanError
├── RecipeError        a recipe that cannot be read, or that asks for the impossible
├── DataError          text that cannot be read: missing, unequal, not UTF-8, empty
├── BundleError        a model on disk that is missing, truncated or edited
├── DeviceError        a device, precision or number of threads that is not to be had here
├── RunError           a run folder that cannot be written, resumed or averaged
│   └── RankError      of several ranks, something that is wrong with one alone
├── LostProcessError   a process that worked ahead or beside was killed
├── MemoryShortError   a step that memory cannot hold
├── OutputError        a result that cannot be written: it exists, or is in use
│   └── WriteError     the system would not write it: a full disk, a read-only folder, a device that fails
├── FollowedError      rank 0 has told why all ranks end
├── MissingExtraError  an optional library that is not installed
└── Interrupted        the user stopped the work; what was kept is named

Each message says what was given, what is allowed, where it stands and what to do, in one line. The command line prints
that line and exits with `exit_code`; anything outside this tree is a bug of ours and shows its traceback.
"""

from __future__ import annotations


class DragomanError(Exception):
    """A mistake with a one-line answer."""

    exit_code = 1


class RecipeError(DragomanError):
    """A recipe that cannot be read, or that asks for the impossible."""

    exit_code = 2


class DataError(DragomanError):
    """Text that cannot be read: missing, unequal in length, not UTF-8, empty."""


class BundleError(DragomanError):
    """A model on disk that is missing, truncated or edited."""


class DeviceError(DragomanError):
    """A device, a precision or a number of threads that is not to be had here."""

    exit_code = 2


class RunError(DragomanError):
    """A run folder that cannot be written, resumed or averaged."""


class RankError(RunError):
    """Of several ranks, something that is wrong with one alone; the message names it."""


class WorkerLostError(DragomanError):
    """A process that worked ahead or beside was killed."""


class OutOfMemoryError(DragomanError):
    """A step that memory cannot hold; the message names what to lower."""


class OutputError(DragomanError):
    """A result that cannot be written."""


class WriteError(OutputError):
    """The system would not write something: a full disk, a read-only folder, a device that fails.

    needed, available: bytes, as far as they are known, where the disk is full
    """

    def __init__(self, message: str, *, needed_bytes: int | None = None, available_bytes: int | None = None) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class MissingDependencyError(DragomanError):
    """An optional library that is not installed; the message holds the install line."""

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {library}, which is not installed: pip install 'dragoman[{extra}]'")


class RankZeroError(DragomanError):
    """Rank 0 has told why all ranks end; this one ends with the same code and adds nothing."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("rank 0 has ended")
        self.exit_code = exit_code


class InterruptedRun(DragomanError):
    """The user stopped the work; the message names what was kept."""

    exit_code = 130


_OUT_OF_MEMORY_PHRASES = ("not enough memory", "can't allocate memory", "out of memory", "alloc_failed", "bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is Python's, torch's or a GPU's way to say so; asked by name, since torch may not be there."""
    message = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or (type(error).__name__ == "OutOfMemoryError")
        or any(phrase in message for phrase in _OUT_OF_MEMORY_PHRASES)
    )
