"""Exit statuses of the command line. `dragoman --help` and the documentation print this table."""

from __future__ import annotations

SUCCESS = 0
FAILURE = 1
USAGE_ERROR = 2
INCOMPLETE_LINES = 3
REFUSED_FILES = 4
INTERRUPTED = 130

EXIT_STATUSES = {
    SUCCESS: "The command did its work.",
    FAILURE: "The data, a bundle, a run or the machine has a problem. Standard error names it in one line.",
    USAGE_ERROR: "An option, an argument, a recipe key or a device is wrong.",
    INCOMPLETE_LINES: "The output is complete, but some lines or texts were not translated or parsed in full, or need a check.",
    REFUSED_FILES: "A file was not translated, because it cannot be read or written. Standard error names it.",
    INTERRUPTED: "A signal interrupted the command. A training run can be resumed.",
}
