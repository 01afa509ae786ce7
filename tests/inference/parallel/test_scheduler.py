"""Scheduler: every layout of threads gives the same results in the same order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dragoman
import dragoman.inference.parallel.scheduler
from dragoman.bundle import load_bundle
from dragoman.errors import DeviceError
from dragoman.inference.backends.device import resolve_device, validate_count
from dragoman.inference.parallel.scheduler import BatchScheduler, WorkerLayout
from dragoman.inference.translator import Translator
from expected_errors import raises_code
from tiny_runs import WORDS


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dragoman.inference.parallel.scheduler, "get_num_threads", lambda: 4)


def test_layout_respects_cores_and_caller(four_cores: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine has two cores; the caller may ask for more."""
    monkeypatch.setattr(dragoman.inference.parallel.scheduler, "count_cores", lambda: 2)
    for inter_threads, intra_threads, num_items, layout in (
        (None, None, 9, WorkerLayout(2, 1)),
        (None, None, 1, WorkerLayout(1, 2)),
        (1, None, 9, WorkerLayout(1, 2)),
        (3, None, 9, WorkerLayout(3, 1)),
        (None, 3, 9, WorkerLayout(3, 1)),
        (2, 4, 9, WorkerLayout(2, 4)),
    ):
        assert BatchScheduler(inter_threads, intra_threads).choose_layout(num_items) == layout


@pytest.mark.parametrize("inter_threads", [1, 2, 5])
def test_results_come_in_order(inter_threads: int) -> None:
    def work(number: int) -> int:
        time.sleep(0.002 * (number % 3))
        return number * number

    assert list(WorkerLayout(inter_threads, 1).map(work, range(20))) == [number * number for number in range(20)]
    assert list(WorkerLayout(inter_threads, 1).map(work, [])) == []


def test_map_starts_few_items_ahead() -> None:
    started: list[int] = []

    def endless() -> Iterator[int]:
        number = 0
        while True:
            started.append(number)
            yield number
            number += 1

    results = WorkerLayout(2, 1).map(lambda number: number, endless())
    assert [next(results) for _ in range(10)] == list(range(10))
    assert len(started) <= 10 + 2 * 2


def test_later_threads_keep_the_number_of_threads() -> None:
    torch = pytest.importorskip("torch")
    num_threads = torch.get_num_threads()
    results: list[int] = []
    for threads in (num_threads + 1, 1):
        list(WorkerLayout(2, threads).map(str, range(4)))
        later = threading.Thread(target=lambda: results.append(torch.get_num_threads()))
        later.start()
        later.join()
    assert results == [num_threads, num_threads]


def test_error_of_one_item_ends_the_map() -> None:
    done: list[int] = []

    def work(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        done.append(number)
        return number

    with pytest.raises(ValueError, match="three"):
        list(WorkerLayout(2, 1).map(work, range(1000)))
    assert len(done) < 10


LINES = [f"{first} {second}" for first in list(WORDS)[:6] for second in list(WORDS)[:5]]


def test_parallel_batches_do_not_change_translations(bundle: Path) -> None:
    plain = dragoman.load(bundle, task="translation", device="cpu", precision="float32", intra_threads=1, inter_threads=1)
    parallel = Translator.from_bundles(
        [load_bundle(bundle)], device="cpu", precision="float32", intra_threads=1, inter_threads=3
    )
    sampling: dict[str, Any] = {"method": "sample", "seed": 3}  # in Python, and the other search in machine code
    for decoding in ({}, sampling):
        assert parallel.translate(LINES, batch_tokens=60, **decoding) == plain.translate(LINES, batch_tokens=60, **decoding)
    assert list(parallel.stream(iter(LINES), window=7)) == list(plain.stream(iter(LINES), window=7))


@pytest.mark.parametrize(
    ("device", "precision", "message"),
    [
        ("gpu", "auto", "device: 'gpu' is not known; choose auto, cpu, cuda"),
        ("cuda:x", "auto", "device: 'cuda:x'"),
        ("cpu:1", "auto", "device: 'cpu:1'"),
        ("cpu:", "auto", "device: 'cpu:'"),
        ("cuda:99", "auto", "device: 'cuda:99' does not exist, the number of GPUs is "),
        ("cpu", "int4", "precision: 'int4' is not known; choose auto, float32, bfloat16, int8"),
    ],
)
def test_unavailable_device_raises_error(device: str, precision: str, message: str) -> None:
    with pytest.raises(DeviceError) as error:
        resolve_device(device, precision)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("count", [0, -1, 1025, 2.5, True, "2"])
def test_validate_count_rejects_impossible_counts(count: Any) -> None:
    with raises_code("invalid-thread-count", f"intra_threads: {count!r}", "from 1 to 1024"):
        validate_count("intra_threads", count)
