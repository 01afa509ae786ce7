"""Characters that a server has translated since its start for each key, over all its processes."""

from __future__ import annotations

from typing import Any

from dragoman.serving.clients import NAME_LENGTH

MAX_KEYS = 1024
"""Keys whose characters are counted each for itself. Those beyond share one count."""


class SharedCounts:
    """Counts of all processes, in memory that they share: names of the keys, and for each process a count for each name.

    context: context of `multiprocessing` that starts the processes
    """

    def __init__(self, context: Any, num_processes: int) -> None:
        self.counts = context.RawArray("q", num_processes * MAX_KEYS)
        self.names = context.RawArray("c", MAX_KEYS * NAME_LENGTH)
        self.lock = context.Lock()


class Usage:
    """Counter of one process.

    shared: counts of all processes; without them, there is one process
    index: place of this process in them; a process that takes the place of another one goes on with its counts
    """

    def __init__(self, shared: SharedCounts | None = None, index: int = 0) -> None:
        self._shared, self._index = shared, index
        self._own: dict[str, int] = {}
        self._places: dict[str, int] = {"": 0}

    def add(self, num_characters: int, owner: str = "") -> None:
        """Count characters. Only this process writes to its counts, so no lock is needed. owner: name of the key, or empty"""
        if self._shared is None:
            self._own[owner] = self._own.get(owner, 0) + num_characters
        else:
            self._shared.counts[self._index * MAX_KEYS + self._find_place(self._shared, owner)] += num_characters

    def count(self, owner: str = "") -> int:
        """Return the characters of all processes for a key, or without keys."""
        if self._shared is None:
            return self._own.get(owner, 0)
        return sum(self._shared.counts[self._find_place(self._shared, owner) :: MAX_KEYS])

    def _find_place(self, shared: SharedCounts, owner: str) -> int:
        """Return the place of a key, which it gets at its first use. Place 0 is for servers without keys."""
        if owner not in self._places:
            name = owner.encode()
            with shared.lock:
                place = 1
                while place < MAX_KEYS - 1:
                    start, end = place * NAME_LENGTH, (place + 1) * NAME_LENGTH
                    present = shared.names[start:end]
                    if present == name or not present.strip(b"\0"):
                        shared.names[start:end] = name
                        break
                    place += 1
            self._places[owner] = place
        return self._places[owner]
