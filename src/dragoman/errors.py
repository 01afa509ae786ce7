"""Every mistake that a user can make, as one tree.

DragomanError
├── RecipeError        a recipe that cannot be read, or that asks for the impossible
├── DataError          text that cannot be read: missing, unequal, not UTF-8, empty
├── BundleError        a model on disk that is missing, truncated or edited
├── RunError           a run folder that cannot be written, resumed or averaged
├── LostProcessError   a process that worked ahead was killed
├── OutputError        a result that cannot be written: it exists, or the disk is full
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


class RunError(DragomanError):
    """A run folder that cannot be written, resumed or averaged."""


class LostProcessError(DragomanError):
    """A process that worked ahead was killed."""


class OutputError(DragomanError):
    """A result that cannot be written."""


class MissingExtraError(DragomanError):
    """An optional library that is not installed; the message holds the install line."""

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {library}, which is not installed: pip install 'dragoman[{extra}]'")


class Interrupted(DragomanError):
    """The user stopped the work; the message names what was kept."""

    exit_code = 130
