"""Cores shared out between batches: the same results in the same order, however it is done."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import dragoman
from conftest import WORDS
from dragoman.engine import remembered
from dragoman.engine.placement import checked_count, place
from dragoman.engine.remembered import cache_file, machine_key, recall, remember
from dragoman.engine.replicas import TRIED, Crew, Replicas, ways
from dragoman.errors import DeviceError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_file()


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for room in ("remembered", "replicas"):
        monkeypatch.setattr(f"dragoman.engine.{room}.cores", lambda: 4)


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_results_come_in_order(replicas: int) -> None:
    def work(number: int) -> int:
        time.sleep(0.002 * (number % 3))
        return number * number

    assert list(Crew(replicas, 1).map(work, range(20))) == [number * number for number in range(20)]
    assert list(Crew(replicas, 1).map(work, [])) == []


def test_no_more_is_begun_than_is_done_and_waited_for() -> None:
    taken: list[int] = []

    def endless() -> Iterator[int]:
        number = 0
        while True:
            taken.append(number)
            yield number
            number += 1

    results = Crew(2, 1).map(lambda number: number, endless())
    assert [next(results) for _ in range(10)] == list(range(10))
    assert len(taken) <= 10 + 2 * 2


def test_each_replica_has_its_own_threads() -> None:
    before = torch.get_num_threads()
    seen = set(Crew(2, 1).map(lambda _: (torch.get_num_threads(), threading.current_thread().name), range(8)))
    assert {threads for threads, _ in seen} == {1}
    assert torch.get_num_threads() == before
    assert all(name.startswith("replica") for _, name in seen)


def test_threads_that_others_begin_later_compute_as_before() -> None:
    usual = torch.get_num_threads()
    seen: list[int] = []
    for threads in (usual + 1, 1):
        list(Crew(2, threads).map(str, range(4)))
        later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        later.start()
        later.join()
    assert seen == [usual, usual]


@pytest.mark.parametrize("answer", ["0 x 1", "1 x 0", "1 x 99999", "two", ""])
def test_an_answer_that_cannot_be_is_not_believed(answer: str, cache: Path) -> None:
    remember("kind", answer)
    assert list(Replicas(None, None, "kind").map(str, range(3))) == ["0", "1", "2"]


def test_a_mistake_in_one_piece_ends_all() -> None:
    done: list[int] = []

    def work(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        done.append(number)
        return number

    with pytest.raises(ValueError, match="three"):
        list(Crew(2, 1).map(work, range(1000)))
    assert len(done) < 10


def test_the_fastest_way_is_found_and_remembered(four_cores: None, cache: Path) -> None:
    # Pieces that sleep: four at once take as long as one, so four replicas of one thread must win.
    def work(number: int) -> int:
        time.sleep(0.01)
        return number

    assert ways() == [1, 2, 4]
    pieces = range(TRIED * 7 + 3)
    many = Replicas(None, None, "sleeping")
    assert list(many.map(work, pieces)) == list(pieces)
    assert recall("sleeping") == "4 x 1"
    assert json.loads(cache.read_text()) == {machine_key(): {"sleeping": "4 x 1"}}
    remember("sleeping", "2 x 2")
    again = Replicas(None, None, "sleeping")
    assert list(again.map(work, pieces)) == list(pieces)
    assert again._crew == Crew(2, 2)


def test_a_short_job_is_not_measured(four_cores: None, cache: Path) -> None:
    few = Replicas(None, None, "few")
    assert list(few.map(str, range(TRIED * 7 - 1))) == [str(number) for number in range(TRIED * 7 - 1)]
    assert not cache.exists()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 1}', "\x00", '{"KEY": []}', '{"KEY": {"question": 3}}'])
def test_what_cannot_be_recalled_is_measured_again(content: str, cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text(content.replace("KEY", machine_key()))
    assert recall("question") is None
    remember("question", "answer")
    assert recall("question") == "answer"


def test_a_cache_that_cannot_be_written_harms_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    remember("question", "answer")
    assert recall("question") is None
    assert (tmp_path / "file").read_text() == "mine"


def test_replicas_never_change_a_translation(bundle: Path) -> None:
    lines = [f"{one} {other}" for one in list(WORDS)[:6] for other in list(WORDS)[:5]]
    plain = dragoman.load(bundle, device="cpu", precision="float32", threads=1, replicas=1)
    many = dragoman.load(bundle, device="cpu", precision="float32", threads=1, replicas=3)
    assert many.translate(lines, batch_tokens=60) == plain.translate(lines, batch_tokens=60)
    assert list(many.stream(iter(lines), window=7)) == list(plain.stream(iter(lines), window=7))


@pytest.mark.parametrize(
    ("device", "precision", "says"),
    [
        ("gpu", "auto", "device = 'gpu': auto, cpu, cuda and cuda:0, cuda:1, … are allowed"),
        ("cuda:x", "auto", "device = 'cuda:x'"),
        ("cpu:1", "auto", "device = 'cpu:1'"),
        ("cpu:", "auto", "device = 'cpu:'"),
        ("cuda:99", "auto", "device = 'cuda:99': the number of GPUs here is "),
        ("cpu", "int4", "precision = 'int4': auto, float32, bfloat16, int8 are allowed"),
    ],
)
def test_a_place_that_is_not_here(device: str, precision: str, says: str) -> None:
    with pytest.raises(DeviceError) as caught:
        place(device, precision)
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize("count", [0, -1, 1025, 2.5, True, "2"])
def test_impossible_counts(count: Any) -> None:
    with pytest.raises(DeviceError, match=f"threads = {count!r}: a whole number from 1 to 1024"):
        checked_count("threads", count)


def test_processors_are_told_apart() -> None:
    assert torch.__version__ in machine_key()
    assert f"{remembered.cores()} cores" in machine_key()
