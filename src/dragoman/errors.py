"""Exceptions for mistakes that a user can correct.

    DragomanError
    ├── RecipeError             the recipe, a setting or an option cannot be read, or asks for the impossible
    ├── DataError               text or an argument cannot be used: missing, unequal in length, not UTF-8, empty
    ├── BundleError             a model on disk is missing, damaged, or of another task
    ├── DeviceError             this machine does not have the device, the precision or the number of threads
    ├── RunError                a run folder cannot be resumed, averaged or reported, or the run diverged
    │   └── RankError           one of several ranks differs from rank 0
    ├── WorkerLostError         the system killed a worker process
    ├── ClusterError            a cluster does not answer, has other versions, or lost workers repeatedly
    ├── OutOfMemoryError        the memory does not hold a step
    ├── OutputError             a result cannot be written: its path is taken or in use
    │   └── WriteError          the system refused to write: a full disk, a read-only folder, a device that fails
    ├── HookError               an entry of an installed package cannot be loaded
    ├── MissingDependencyError  an optional library is not installed
    ├── ServerError             a server refused the request of a client, or cannot be reached
    ├── RankZeroError           rank 0 has already reported why all ranks end
    └── InterruptedRun          the user stopped the work

Each message is one line: `<what>: <problem>; <what to do>`. The command line prints it and exits with `exit_code`.
Each error also has a stable `code`, which programs and tests match. `ERROR_CODES` lists them all, and
`python -m dragoman.errors` prints them as a table. Any exception outside this tree is a bug and shows its traceback.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn


class DragomanError(Exception):
    """Mistake of a user, with a message of one line.

    Args:
        message: the problem and what to do about it, in one line
        code: a code of `ERROR_CODES` that is more precise than the default of the class
    """

    code: str = "error"
    exit_code: int = 1

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class RecipeError(DragomanError):
    """Recipe, setting or option that cannot be read or that asks for the impossible."""

    code = "invalid-recipe"
    exit_code = 2


class DataError(DragomanError):
    """Text or argument that cannot be used: missing, unequal in length, not UTF-8, empty."""

    code = "invalid-data"


class BundleError(DragomanError):
    """Model on disk that is missing, damaged, or of another task."""

    code = "invalid-bundle"


class DeviceError(DragomanError):
    """Device, precision or number of threads that this machine does not have."""

    code = "device-unavailable"
    exit_code = 2


class RunError(DragomanError):
    """Run folder that cannot be resumed, averaged or reported, or a run that diverged."""

    code = "invalid-run"


class RankError(RunError):
    """Difference between one rank and rank 0; the message names the rank."""

    code = "rank-mismatch"


class WorkerLostError(DragomanError):
    """Worker process that the system killed."""

    code = "worker-lost"


class ClusterError(DragomanError):
    """Cluster that does not answer, has other versions, or lost workers repeatedly."""

    code = "cluster-unavailable"


class OutOfMemoryError(DragomanError):
    """Step that the memory does not hold; the message names what to lower."""

    code = "out-of-memory"


class OutputError(DragomanError):
    """Result that cannot be written because its path is taken or in use."""

    code = "invalid-output"


class WriteError(OutputError):
    """Refusal of the system to write: a full disk, a read-only folder, a device that fails.

    Args:
        message: the problem and what to do about it, in one line
        code: a code of `ERROR_CODES` that is more precise than the default of the class
        needed_bytes: size of the result, if it is known and the disk is full
        available_bytes: free space of the file system, if it is known and the disk is full
    """

    code = "write-failed"

    def __init__(
        self, message: str, *, code: str | None = None, needed_bytes: int | None = None, available_bytes: int | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class HookError(DragomanError):
    """Entry of a hook, of an installed package, that cannot be loaded."""

    code = "hook-failed"


TRAINING_LIBRARIES = {"torch": ("PyTorch", "train"), "pyarrow": ("pyarrow", "train"), "sacrebleu": ("sacreBLEU", "evaluate")}
"""Names of the modules of the extra `train`, and for each the extra that a user needs. What only translates imports none."""


class MissingDependencyError(DragomanError):
    """Optional library that is not installed; the message holds the command that installs it.

    Args:
        library: the name of the library
        extra: the extra of dragoman that installs it
        purpose: the feature that needs it
    """

    code = "missing-dependency"

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {library}, which is not installed: pip install 'dragoman[{extra}]'")
        self._arguments = (library, extra, purpose)

    @classmethod
    def from_import(cls, error: ModuleNotFoundError, purpose: str) -> MissingDependencyError | None:
        """Return the error for a module of the extra `train` that is not installed; None for another module."""
        library = TRAINING_LIBRARIES.get((error.name or "").partition(".")[0])
        return None if library is None else cls(*library, purpose)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the arguments of the constructor, so that a worker process can send the error."""
        return type(self), self._arguments


@contextmanager
def naming_missing_library(purpose: str) -> Iterator[None]:
    """Raise MissingDependencyError for a module of the extra `train` that the code inside imports and that is not installed.

    purpose: what needs the module, as the subject of a sentence
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = MissingDependencyError.from_import(error, purpose)
        if missing is None:
            raise
        raise missing from None


class ServerError(DragomanError):
    """Answer of a server other than success, or a server that cannot be reached.

    Args:
        message: the message of the server
        status: HTTP status; 0 if there is no answer
        server_code: name of the problem, as the server gives it
    """

    code = "server-error"

    def __init__(self, message: str, *, status: int = 0, server_code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.server_code = server_code


class RankZeroError(DragomanError):
    """End of a rank after rank 0 has reported the reason; the exit status is that of rank 0."""

    code = "rank-zero-failed"

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"rank 0: has ended with exit status {exit_code}; see its message")
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the arguments of the constructor, so that a worker process can send the error."""
        return type(self), (self.exit_code,)


class InterruptedRun(DragomanError):
    """Stop by the user; the message names what is kept."""

    code = "interrupted"
    exit_code = 130


@dataclass(frozen=True)
class ErrorCode:
    """One row of the table of error codes.

    Attributes:
        code: the stable code in kebab case
        error: the exception that carries it
        meaning: the reason for the error, in one sentence
    """

    code: str
    error: type[DragomanError]
    meaning: str

    @property
    def exit_status(self) -> int:
        """Return the exit status of the command line after this error."""
        return self.error.exit_code


ERROR_CODES: tuple[ErrorCode, ...] = (
    ErrorCode("error", DragomanError, "An error of no particular kind."),
    # The recipe, settings and options
    ErrorCode("invalid-recipe", RecipeError, "The recipe, a setting or an option has a value that is not allowed."),
    ErrorCode("recipe-not-found", RecipeError, "The recipe file does not exist or cannot be read."),
    ErrorCode("recipe-syntax", RecipeError, "The recipe is not valid TOML or JSON, or a setting is not `key=value`."),
    ErrorCode("unknown-key", RecipeError, "The recipe or a setting names a key that does not exist."),
    ErrorCode("missing-key", RecipeError, "A key is not set, and the command needs it."),
    ErrorCode("key-conflict", RecipeError, "Two keys or options exclude each other, or one requires the other."),
    ErrorCode("invalid-option", RecipeError, "An option or argument has a value that is not allowed."),
    ErrorCode("unknown-metric", RecipeError, "The metric or its tokenizer is not known or cannot run on this machine."),
    ErrorCode("format-mismatch", RecipeError, "The format of a file does not fit the task."),
    ErrorCode("unsupported-pair", RecipeError, "The model was not trained on the pair of languages."),
    ErrorCode("tokenizer-mismatch", RecipeError, "The tokenizer that the recipe names does not support its settings."),
    # Text and arguments
    ErrorCode("invalid-data", DataError, "A file or an argument cannot be used."),
    ErrorCode("file-not-found", DataError, "An input file does not exist."),
    ErrorCode("file-unreadable", DataError, "The system refused to read an input file."),
    ErrorCode("unknown-format", DataError, "The format of a file is not known or cannot be read from this source."),
    ErrorCode("invalid-format", DataError, "A file does not follow its format."),
    ErrorCode("invalid-encoding", DataError, "Text is not UTF-8 or holds half of a surrogate pair."),
    ErrorCode("unknown-column", DataError, "A file does not have the column, key or language."),
    ErrorCode("empty-data", DataError, "A file, a corpus or a sentence holds no text."),
    ErrorCode("length-mismatch", DataError, "Two files or lists that belong together have different lengths."),
    ErrorCode("input-too-long", DataError, "A sentence or a line is longer than the limit."),
    ErrorCode("invalid-tree", DataError, "A tree in brackets is not well formed, or a word has no tag."),
    ErrorCode("invalid-tags", DataError, "The part-of-speech tags do not fit the words."),
    ErrorCode("invalid-alignment", DataError, "A line of alignment links does not fit its pair."),
    ErrorCode("invalid-constraints", DataError, "The constraints of a translation cannot be read or satisfied."),
    ErrorCode("invalid-glossary", DataError, "A term of a glossary is empty, too long or contradicts another one."),
    ErrorCode("invalid-argument", DataError, "An argument of the Python API has a value that is not allowed."),
    ErrorCode("unsupported-language", DataError, "There are no data or rules for the language."),
    ErrorCode("source-damaged", DataError, "A file of a model to convert is missing, damaged or cut short."),
    ErrorCode("checkpoint-unsafe", DataError, "A checkpoint holds something else than tensors and plain containers."),
    ErrorCode("hub-unavailable", DataError, "The model cannot be fetched from the hub."),
    ErrorCode("model-unavailable", DataError, "A model or an index of models cannot be fetched."),
    ErrorCode("prepared-data-damaged", DataError, "A file of the prepared corpus is damaged."),
    # Bundles
    ErrorCode("invalid-bundle", BundleError, "The model on disk cannot be used."),
    ErrorCode("bundle-not-found", BundleError, "There is no bundle in the folder."),
    ErrorCode("bundle-unfinished", BundleError, "The training of the run has not written its bundle yet."),
    ErrorCode("bundle-damaged", BundleError, "A file of the bundle is missing, was changed or was cut short."),
    ErrorCode("bundle-mismatch", BundleError, "The files of the bundle do not describe one model."),
    ErrorCode("wrong-task", BundleError, "The bundle is of another task than the command needs."),
    ErrorCode("ensemble-mismatch", BundleError, "The tasks or the vocabularies of the bundles of an ensemble differ."),
    ErrorCode("shortlist-mismatch", BundleError, "The shortlist belongs to another tokenizer."),
    ErrorCode("adapter-mismatch", BundleError, "The adapter belongs to another bundle."),
    ErrorCode("structure-mismatch", BundleError, "Bundles to interpolate differ in their model section or tokenizer."),
    ErrorCode("tokenizer-damaged", BundleError, "A tokenizer file is damaged or of another kind."),
    ErrorCode("calibration-missing", BundleError, "The bundle has no calibration of the confidence."),
    ErrorCode("export-unsupported", BundleError, "The other engine cannot run this model."),
    ErrorCode("no-self-attention", BundleError, "The encoder of the model has no self-attention."),
    ErrorCode("no-cross-attention", BundleError, "The decoder of the model has no attention to the source."),
    ErrorCode("not-autoregressive", BundleError, "The model predicts all tokens at once, so it cannot do this."),
    ErrorCode("conversion-unsupported", BundleError, "A model of another toolkit has a feature that dragoman does not have."),
    # Devices
    ErrorCode("device-unavailable", DeviceError, "The device is not known or not available on this machine."),
    ErrorCode("cpu-isa-unsupported", DeviceError, "The processor lacks the instruction set that `DRAGOMAN_CPU_ISA` names."),
    ErrorCode("kernels-unusable", DeviceError, "The kernels are missing, damaged, or for another platform."),
    ErrorCode("precision-unsupported", DeviceError, "The device does not compute in the precision."),
    ErrorCode("frontend-unsupported", DeviceError, "The device or PyTorch does not read the input of the model."),
    ErrorCode("invalid-thread-count", DeviceError, "The number of workers or threads is out of range."),
    ErrorCode("shortlist-unsupported", DeviceError, "The device or the task does not use a shortlist."),
    # Runs
    ErrorCode("invalid-run", RunError, "The run folder cannot be used."),
    ErrorCode("run-not-found", RunError, "The folder holds no run."),
    ErrorCode("run-unfinished", RunError, "The run has not finished, so it has no bundle or report."),
    ErrorCode("run-damaged", RunError, "A file of the run is damaged or unreadable."),
    ErrorCode("checkpoint-not-found", RunError, "The run has no checkpoint, or fewer than the command needs."),
    ErrorCode("checkpoint-damaged", RunError, "A checkpoint was changed or cut short, or has an unknown format."),
    ErrorCode("recipe-changed", RunError, "The run was started with another recipe."),
    ErrorCode("data-changed", RunError, "The run was started with another corpus."),
    ErrorCode("run-diverged", RunError, "The loss, a gradient or a weight is not finite, or the loss is far too high."),
    ErrorCode("distributed-setup", RunError, "The environment of the ranks is incomplete or contradictory."),
    ErrorCode("rank-mismatch", RankError, "One rank differs from rank 0 in its recipe, data or device."),
    # Processes and memory
    ErrorCode("worker-lost", WorkerLostError, "The system killed a worker process, or the connection to a rank broke."),
    ErrorCode("cluster-unavailable", ClusterError, "The cluster does not answer at its address, or cannot be started."),
    ErrorCode("cluster-mismatch", ClusterError, "A worker of the cluster has another version than the command."),
    ErrorCode("out-of-memory", OutOfMemoryError, "The memory does not hold a step."),
    # Output
    ErrorCode("invalid-output", OutputError, "The result cannot be written to this path."),
    ErrorCode("output-exists", OutputError, "The output path exists already."),
    ErrorCode("output-is-input", OutputError, "The output path is a file that the command reads."),
    ErrorCode("output-mismatch", OutputError, "The unfinished output belongs to another request."),
    ErrorCode("output-damaged", OutputError, "The unfinished output is damaged."),
    ErrorCode("not-replaceable", OutputError, "The path holds files that dragoman did not write."),
    ErrorCode("folder-locked", OutputError, "Another process is at work in the folder."),
    ErrorCode("write-failed", WriteError, "The system refused to write."),
    ErrorCode("disk-full", OutputError, "The disk is full."),
    # Everything else
    ErrorCode("hook-failed", HookError, "An entry of an installed package cannot be loaded."),
    ErrorCode("missing-dependency", MissingDependencyError, "An optional library is not installed."),
    ErrorCode("server-error", ServerError, "A server refused a request of the client, or cannot be reached."),
    ErrorCode("rank-zero-failed", RankZeroError, "Rank 0 has reported the reason; the exit status is that of rank 0."),
    ErrorCode("interrupted", InterruptedRun, "The user stopped the work."),
)


_OUT_OF_MEMORY_PHRASES = ("not enough memory", "can't allocate memory", "out of memory", "alloc_failed", "bad_alloc")


def refuse_steps(feature: str) -> NoReturn:
    """Raise BundleError for a feature that needs a prediction token by token."""
    raise BundleError(
        f"{feature}: needs a model that predicts token by token, but this one predicts all tokens at once; use another model",
        code="not-autoregressive",
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether Python, torch or a GPU library ran out of memory.

    The type is compared by name, because torch may not be imported. An error of dragoman never counts.
    """
    if isinstance(error, DragomanError):
        return False
    message = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or any(phrase in message for phrase in _OUT_OF_MEMORY_PHRASES)
    )


def format_code_table() -> str:
    """Return the table of all error codes in Markdown."""
    lines = ["| code | exception | exit status | meaning |", "| --- | --- | --- | --- |"]
    lines += [f"| `{row.code}` | `{row.error.__name__}` | {row.exit_status} | {row.meaning} |" for row in ERROR_CODES]
    return "\n".join(lines)


if __name__ == "__main__":
    print(format_code_table())
