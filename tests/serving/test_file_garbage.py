"""Garbage collector while files are translated."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from dragoman.documents.file_garbage import MAX_SECONDS, MIN_SECONDS, THRESHOLDS, FileGarbage
from dragoman.serving.freed_memory import MIN_PEAK_BYTES, OLDEST, FreedMemory


class Cycle:
    """Object that names itself, so that only a collection can free it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(600, 9, 8)
    yield
    gc.set_threshold(*before)


def test_thresholds_are_usual_again_when_the_last_file_ends() -> None:
    garbage = FileGarbage()
    with garbage.without_full_collections():
        with garbage.without_full_collections():
            assert gc.get_threshold() == THRESHOLDS
        assert gc.get_threshold() == THRESHOLDS
    assert gc.get_threshold() == (600, 9, 8)


def test_old_garbage_leaves_memory_when_a_file_ends_and_no_collection_was_lately() -> None:
    now = last = 100.0
    garbage = FileGarbage(lambda: now)
    for seconds, is_other_in_work, is_collected in [
        (MIN_SECONDS - 1, False, False),
        (MIN_SECONDS, False, True),
        (MAX_SECONDS - 1, True, False),
        (MAX_SECONDS, True, True),
    ]:
        with garbage.without_full_collections() if is_other_in_work else nullcontext():
            with garbage.without_full_collections():
                cycle = Cycle()
                gc.collect(1)  # it lives, so it becomes one of the oldest objects
                reference = weakref.ref(cycle)
                del cycle
                now = last + seconds
            assert (reference() is None) == is_collected, (seconds, is_other_in_work)
        last = now if is_collected or is_other_in_work else last
        gc.collect()


def test_memory_of_requests_is_freed_without_a_full_collection_while_a_file_is_in_work() -> None:
    generations: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations.append(info["generation"])

    async def release() -> None:
        memory = FreedMemory()
        memory.follow(MIN_PEAK_BYTES)
        memory.follow(0)
        memory._release()
        await asyncio.get_running_loop().shutdown_default_executor()

    gc.callbacks.append(note)
    try:
        with FileGarbage().without_full_collections():
            asyncio.run(release())
            assert OLDEST not in generations
        asyncio.run(release())
        assert OLDEST in generations
    finally:
        gc.callbacks.remove(note)
