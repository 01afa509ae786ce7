"""Executor in this process, for tests without Ray."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from dragoman.errors import WorkerLostError


class SerialExecutor:
    """Executor that processes an item when its result is asked for, and loses the workers that a test names.

    lost: numbers of the submissions, from 0, whose worker is lost after it has done its work
    """

    def __init__(self, lost: set[int] | None = None, *, num_workers: int = 2) -> None:
        self.lost = lost or set()
        self.num_workers = num_workers
        self.num_submitted = 0
        self.max_pending = 0
        self.jobs: dict[int, tuple[Callable[[Any], Any], Any]] = {}

    def count_workers(self) -> int:
        return self.num_workers

    def submit(self, function: Callable[[Any], Any], item: Any) -> int:
        handle = self.num_submitted
        self.num_submitted += 1
        self.jobs[handle] = pickle.loads(pickle.dumps((function, item)))  # a worker gets a copy
        self.max_pending = max(self.max_pending, len(self.jobs))
        return handle

    def wait(self, handle: int) -> bool:
        return handle in self.jobs

    def get_result(self, handle: int) -> Any:
        function, item = self.jobs.pop(handle)
        result = function(item)
        if handle in self.lost:
            raise WorkerLostError("a worker was lost")
        return result
