"""Map over the workers of a cluster, in the place of processes of this machine. The command alone reads and writes files."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, TypeVar

from dragoman.cleaning.cleaned_corpus import BatchReference
from dragoman.cluster.versions import check_versions, get_versions
from dragoman.errors import ClusterError, WorkerLostError

MAX_ATTEMPTS = 4
"""Number of times that an item is tried if its worker is lost."""
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class Executor(Protocol):
    """Workers that process items. A handle stands for an item that is being processed."""

    def count_workers(self) -> int:
        """Return the number of items that can be processed at once."""

    def submit(self, function: Callable[[Any], Any], item: Any) -> Any:
        """Start to process an item, and return its handle."""

    def wait(self, handle: Any) -> bool:
        """Return whether the item of a handle has ended; False if it has not after a second."""

    def get_result(self, handle: Any) -> Any:
        """Return the result. Raises WorkerLostError, or the error of the function."""


@dataclass(frozen=True)
class ClusterMap:
    """Map over the workers of a cluster, in the place of `dragoman.runtime.processes.map_in_processes`.

    The results stay in memory until they are yielded, so the caller writes and records them. Workers get rows instead of
    references to batches, so they need no folder of the command's machine.
    """

    executor: Executor

    def __call__(
        self, function: Callable[[ItemT], ResultT], items: Iterable[ItemT], *, num_processes: int = 0
    ) -> Iterator[ResultT]:
        """Yield `function(item)` for each item, in order. An item whose worker is lost is processed again.

        At most two items for each worker are in memory.

        num_processes: ignored, because the cluster has its own number of workers

        Raises ClusterError if a worker has another version or is lost repeatedly, and the errors of `function`.
        """
        task = VersionedCall(function)
        pending: deque[tuple[Any, ItemT, int]] = deque()
        iterator = iter(items)
        while True:
            for item in islice(iterator, 2 * max(1, self.executor.count_workers()) - len(pending)):
                item = item.read() if isinstance(item, BatchReference) else item
                pending.append((self.executor.submit(task, item), item, 1))
            if not pending:
                return
            handle, item, attempt = pending.popleft()
            while not self.executor.wait(handle):
                pass
            try:
                result = self.executor.get_result(handle)
            except WorkerLostError as error:
                if attempt == MAX_ATTEMPTS:
                    raise ClusterError(f"{error}, {MAX_ATTEMPTS} times for one part; run the same command again") from None
                pending.appendleft((self.executor.submit(task, item), item, attempt + 1))
                continue
            yield result


@dataclass(frozen=True)
class VersionedCall:
    """Function of a worker that refuses to work with other versions than those of the command."""

    function: Callable[[Any], Any]
    versions: Mapping[str, str] = field(default_factory=get_versions)

    def __call__(self, item: Any) -> Any:
        """Return the function's result. Raises ClusterError for other versions."""
        check_versions(self.versions)
        return self.function(item)
