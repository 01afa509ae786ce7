"""Garbage collections while files are translated: none goes over all objects, because that holds the interpreter.

A file of 99,000 texts makes more than a million objects. A full collection over them takes 0.2 to 0.3 s. Collections of young
objects go on, and the oldest ones are collected when a file is complete.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

THRESHOLDS = (50_000, 5, 1_000_000_000)
"""New objects between two collections, collections between two of the middle generation, and of those between two full ones.

A collection of the middle generation then looks at 250,000 objects, which takes some 0.05 s. With fewer objects between two
collections, garbage of a file that is being read would reach the oldest generation.
"""
MIN_SECONDS = 10.0
"""Time between two full collections if no file is in work, so that a row of small files makes few of them."""
MAX_SECONDS = 600.0
"""The same if files overlap all the time."""


class FileGarbage:
    """Thresholds of the garbage collector for the files that a process translates at the same time. clock: seconds"""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._num_files = 0
        self._usual_thresholds = gc.get_threshold()
        self._collection_time = clock()

    @contextmanager
    def without_full_collections(self) -> Iterator[None]:
        """Make no full collection in this context. Make one at its end, if there was none for a while."""
        with self._lock:
            if not self._num_files:
                self._usual_thresholds = gc.get_threshold()
                gc.set_threshold(*THRESHOLDS)
            self._num_files += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_files -= 1
                seconds = self._clock() - self._collection_time
                is_due = seconds >= (MAX_SECONDS if self._num_files else MIN_SECONDS)
                if is_due:
                    self._collection_time += seconds
                if not self._num_files:
                    gc.set_threshold(*self._usual_thresholds)
            if is_due:
                gc.collect()
