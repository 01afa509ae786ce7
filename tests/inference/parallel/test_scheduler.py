"""Cores shared out between batches: the same results in the same order, however it is done."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import dragoman
from conftest import WORDS
from dragoman.bundle import load_bundle
from dragoman.decoding.constraints import DecodingConstraints, SentenceConstraints
from dragoman.errors import DeviceError
from dragoman.inference.backends.device import resolve_device, validate_count
from dragoman.inference.parallel.scheduler import TRIALS, BatchScheduler, SharedQueue, WorkerLayout, list_worker_counts
from dragoman.inference.parallel.worker import encode_request, is_serializable, run_request
from dragoman.inference.translator import Translator
from dragoman.runtime import autotune_cache as remembered
from dragoman.runtime.autotune_cache import get_cache_path, get_machine_key, get_measurement, put_measurement
from dragoman.tasks.generation import BatchSearch, GenerationJob


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return get_cache_path()


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("dragoman.runtime.autotune_cache", "dragoman.inference.parallel.scheduler"):
        monkeypatch.setattr(f"{module}.cores", lambda: 4)


def test_what_is_searched_in_one_call_takes_no_more_than_a_quota(four_cores: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two processors; unless the caller says what it is to take."""
    monkeypatch.setattr("dragoman.inference.parallel.scheduler.processors", lambda: 2)
    for count, threads, pieces, crew in (
        (None, None, 9, WorkerLayout(2, 1)),
        (None, None, 1, WorkerLayout(1, 2)),
        (1, None, 9, WorkerLayout(1, 2)),
        (3, None, 9, WorkerLayout(3, 1)),
        (None, 3, 9, WorkerLayout(3, 1)),
        (2, 4, 9, WorkerLayout(2, 4)),
    ):
        assert BatchScheduler(count, threads, "which")._choose_native_layout(pieces) == crew


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_results_come_in_order(replicas: int) -> None:
    def work(number: int) -> int:
        time.sleep(0.002 * (number % 3))
        return number * number

    assert list(WorkerLayout(replicas, 1).map(work, range(20))) == [number * number for number in range(20)]
    assert list(WorkerLayout(replicas, 1).map(work, [])) == []


def test_no_more_is_begun_than_is_done_and_waited_for() -> None:
    taken: list[int] = []

    def endless() -> Iterator[int]:
        number = 0
        while True:
            taken.append(number)
            yield number
            number += 1

    results = WorkerLayout(2, 1).map(lambda number: number, endless())
    assert [next(results) for _ in range(10)] == list(range(10))
    assert len(taken) <= 10 + 2 * 2


def test_each_replica_has_its_own_threads() -> None:
    before = torch.get_num_threads()
    seen = set(WorkerLayout(2, 1).map(lambda _: (torch.get_num_threads(), threading.current_thread().name), range(8)))
    assert {threads for threads, _ in seen} == {1}
    assert torch.get_num_threads() == before
    assert all(name.startswith("replica") for _, name in seen)


def test_threads_that_others_begin_later_compute_as_before() -> None:
    usual = torch.get_num_threads()
    seen: list[int] = []
    for threads in (usual + 1, 1):
        list(WorkerLayout(2, threads).map(str, range(4)))
        later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        later.start()
        later.join()
    assert seen == [usual, usual]


@pytest.mark.parametrize("answer", ["0 x 1", "1 x 0", "1 x 99999", "two", ""])
def test_an_answer_that_cannot_be_is_not_believed(answer: str, cache: Path) -> None:
    put_measurement("kind", answer)
    assert list(BatchScheduler(None, None, "kind").map(str, range(3))) == ["0", "1", "2"]


def test_a_mistake_in_one_piece_ends_all() -> None:
    done: list[int] = []

    def work(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        done.append(number)
        return number

    with pytest.raises(ValueError, match="three"):
        list(WorkerLayout(2, 1).map(work, range(1000)))
    assert len(done) < 10


def test_the_fastest_way_is_found_and_remembered(four_cores: None, cache: Path) -> None:
    # Pieces that sleep: four at once take as long as one, so four replicas of one thread must win.
    def work(number: int) -> int:
        time.sleep(0.01)
        return number

    assert list_worker_counts() == [1, 2, 4]
    pieces = range(TRIALS * 7 + 3)
    many = BatchScheduler(None, None, "sleeping")
    assert list(many.map(work, pieces)) == list(pieces)
    assert get_measurement("sleeping") == "4 x 1"
    assert json.loads(cache.read_text()) == {get_machine_key(): {"sleeping": "4 x 1"}}
    put_measurement("sleeping", "2 x 2")
    again = BatchScheduler(None, None, "sleeping")
    assert list(again.map(work, pieces)) == list(pieces)
    assert again._layout == WorkerLayout(2, 2)


def test_a_short_job_is_not_measured(four_cores: None, cache: Path) -> None:
    few = BatchScheduler(None, None, "few")
    assert list(few.map(str, range(TRIALS * 7 - 1))) == [str(number) for number in range(TRIALS * 7 - 1)]
    assert not cache.exists()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 1}', "\x00", '{"KEY": []}', '{"KEY": {"question": 3}}'])
def test_what_cannot_be_recalled_is_measured_again(content: str, cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text(content.replace("KEY", get_machine_key()))
    assert get_measurement("question") is None
    put_measurement("question", "answer")
    assert get_measurement("question") == "answer"


def test_a_cache_that_cannot_be_written_harms_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    put_measurement("question", "answer")
    assert get_measurement("question") is None
    assert (tmp_path / "file").read_text() == "mine"


LINES = [f"{one} {other}" for one in list(WORDS)[:6] for other in list(WORDS)[:5]]


def test_replicas_never_change_a_translation(bundle: Path) -> None:
    plain = dragoman.load(bundle, device="cpu", precision="float32", intra_threads=1, inter_threads=1)
    many = Translator([load_bundle(bundle)], device="cpu", precision="float32", intra_threads=1, inter_threads=3)
    assert many.translate(LINES, batch_tokens=60) == plain.translate(LINES, batch_tokens=60)
    assert list(many.stream(iter(LINES), window=7)) == list(plain.stream(iter(LINES), window=7))


@pytest.mark.parametrize(
    "decoding", [{"method": "greedy"}, {"method": "beam", "beam_size": 3, "nbest": 2}, {"method": "sample"}]
)
def test_a_batch_that_was_written_down_is_searched_alike(bundle: Path, decoding: dict[str, Any]) -> None:
    translator = dragoman.load(bundle, device="cpu", precision="float32", inter_threads=1)
    sources = [translator.bundle.tokeniser.encode_source(line) for line in LINES]
    config, start = translator.check(decoding), 2
    rules = DecodingConstraints(min_length=2, no_repeat_ngram_size=3, suppress_tokens=(7,), repetition_window=8)
    wishes = [SentenceConstraints(prefix=(9, 8), exclude=((5, 6), (11,)), allow_repetition=True)] * len(sources)
    work = GenerationJob(
        BatchSearch(translator.speaker, config, start, rules, None, False), sources, range(len(sources)), wishes
    )
    assert is_serializable(work)
    told = json.loads(json.dumps(encode_request(work, [3, 1, 4])))
    assert run_request(told, translator.speaker) == work([3, 1, 4])
    anything = replace(rules, allow=lambda outputs, sentences: outputs)
    assert not is_serializable(replace(work, search=replace(work.search, rules=anything)))


def test_what_others_give_back_is_done_here() -> None:
    job = SharedQueue(lambda number: number * number, [3, 4, 5])
    assert [job.take(), job.take()] == [0, 1]
    threading.Timer(0.05, job.requeue, [0]).start()
    job.completed[1] = 16
    assert list(job.results()) == [9, 16, 25]
    assert job.take() is None


@pytest.mark.slow
def test_processes_say_the_same_even_when_they_are_killed(bundle: Path) -> None:
    plain = dragoman.load(bundle, device="cpu", precision="float32", intra_threads=1, inter_threads=1)
    expected = plain.translate(LINES, batch_tokens=60)
    many = dragoman.load(bundle, device="cpu", precision="float32", intra_threads=1, inter_threads=2)
    assert many.translate(LINES, batch_tokens=60) == expected
    (worker,) = many.replicas._workers
    assert worker.process.poll() is None
    assert not worker.over.is_set()
    worker.process.kill()
    assert many.translate(LINES, batch_tokens=60) == expected
    assert worker.over.wait(10)
    many.replicas.close()
    assert many.translate(LINES, batch_tokens=60) == expected
    (worker,) = many.replicas._workers
    del many
    assert worker.process.poll() is None  # as long as it is held
    worker.end()
    assert worker.process.poll() is not None
    assert worker.over.wait(10)  # and whoever accompanied it has gone, too


@pytest.mark.slow
def test_a_bundle_that_became_another_is_not_read_by_a_second_process(bundle: Path, tmp_path: Path) -> None:
    there = shutil.copytree(bundle, tmp_path / "bundle")
    many = dragoman.load(there, device="cpu", precision="float32", intra_threads=1, inter_threads=2)
    assert many.replicas.opening is not None
    many.replicas.opening = replace(many.replicas.opening, seals=("0" * 64,))
    plain = dragoman.load(bundle, device="cpu", precision="float32", intra_threads=1, inter_threads=1)
    expected = plain.translate(LINES, batch_tokens=60)
    assert many.translate(LINES, batch_tokens=60) == expected
    assert many.replicas._workers[0].over.is_set()


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
        resolve_device(device, precision)
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize("count", [0, -1, 1025, 2.5, True, "2"])
def test_impossible_counts(count: Any) -> None:
    with pytest.raises(DeviceError, match=f"threads = {count!r}: a whole number from 1 to 1024"):
        validate_count("threads", count)


def test_processors_are_told_apart() -> None:
    assert torch.__version__ in get_machine_key()
    assert f"{remembered.count_threads()} cores" in get_machine_key()
