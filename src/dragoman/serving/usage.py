"""Characters that a server has translated since its start, over all its processes."""

from __future__ import annotations

from collections.abc import MutableSequence


class Usage:
    """Counter of one process.

    counts: characters of each process, in memory that all processes share; without it, there is one process
    index: place of this process in it; a process that takes the place of another one goes on with its count
    """

    def __init__(self, counts: MutableSequence[int] | None = None, index: int = 0) -> None:
        self._counts: MutableSequence[int] = [0] if counts is None else counts
        self._index = index

    def add(self, num_characters: int) -> None:
        """Count characters. Only this process writes to its place, so no lock is needed."""
        self._counts[self._index] += num_characters

    @property
    def num_characters(self) -> int:
        """Characters of all processes."""
        return sum(self._counts)
