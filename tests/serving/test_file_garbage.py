"""Garbage collector while files are translated."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from dragoman.documents.file_garbage import THRESHOLDS, FileGarbage
from dragoman.serving.freed_memory import MIN_PEAK_BYTES, OLDEST, FreedMemory


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
