"""Scheduler: every layout of threads and processes gives the same results in the same order."""

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

import dragoman
import dragoman.inference.parallel.scheduler
import dragoman.runtime.autotuner
from dragoman.bundle import load_bundle
from dragoman.decoding.constraints import DecodingConstraints, SentenceConstraints
from dragoman.decoding.phrase import Phrase
from dragoman.errors import DeviceError
from dragoman.inference.backends.device import resolve_device, validate_count
from dragoman.inference.parallel.messages import encode_request, is_serializable, run_request
from dragoman.inference.parallel.scheduler import TRIALS, BatchScheduler, SharedQueue, WorkerLayout, list_worker_counts
from dragoman.inference.translator import Translator
from dragoman.runtime.autotuner import get_cache_path, get_machine_key, get_measurement, put_measurement
from dragoman.tasks.generation import BatchSearch, GenerationJob
from expected_errors import raises_code
from tiny_runs import WORDS


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return get_cache_path()


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (dragoman.runtime.autotuner, dragoman.inference.parallel.scheduler):
        monkeypatch.setattr(module, "get_num_threads", lambda: 4)


def test_native_layout_respects_cores_and_caller(four_cores: None, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert BatchScheduler(inter_threads, intra_threads, "native")._choose_native_layout(num_items) == layout


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


@pytest.mark.parametrize("answer", ["0 x 1", "1 x 0", "1 x 99999", "two", ""])
def test_invalid_cached_layout_is_ignored(answer: str, cache: Path) -> None:
    put_measurement("kind", answer)
    assert list(BatchScheduler(None, None, "kind").map(str, range(3))) == ["0", "1", "2"]


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


def test_fastest_layout_is_measured_and_cached(four_cores: None, cache: Path) -> None:
    # Four sleeping items in parallel take as long as one, so four workers with one thread must win.
    def work(number: int) -> int:
        time.sleep(0.1)
        return number

    assert list_worker_counts() == [1, 2, 4]
    items = range(TRIALS * 7 + 3)
    scheduler = BatchScheduler(None, None, "sleeping")
    assert list(scheduler.map(work, items)) == list(items)
    assert get_measurement("sleeping") == "4 x 1"
    assert json.loads(cache.read_text()) == {get_machine_key(): {"sleeping": "4 x 1"}}
    put_measurement("sleeping", "2 x 2")
    second = BatchScheduler(None, None, "sleeping")
    assert list(second.map(abs, items)) == list(items)
    assert second._layout == WorkerLayout(2, 2)


def test_short_job_is_not_measured(four_cores: None, cache: Path) -> None:
    scheduler = BatchScheduler(None, None, "few")
    assert list(scheduler.map(str, range(TRIALS * 7 - 1))) == [str(number) for number in range(TRIALS * 7 - 1)]
    assert not cache.exists()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 1}', "\x00", '{"KEY": []}', '{"KEY": {"key": 3}}'])
def test_unreadable_cache_is_measured_again(content: str, cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text(content.replace("KEY", get_machine_key()))
    assert get_measurement("key") is None
    put_measurement("key", "answer")
    assert get_measurement("key") == "answer"


def test_unwritable_cache_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    put_measurement("key", "answer")
    assert get_measurement("key") is None
    assert (tmp_path / "file").read_text() == "mine"


LINES = [f"{first} {second}" for first in list(WORDS)[:6] for second in list(WORDS)[:5]]


def test_parallel_batches_do_not_change_translations(bundle: Path) -> None:
    plain = dragoman.load(bundle, task="translation", device="cpu", precision="float32", intra_threads=1, inter_threads=1)
    parallel = Translator.from_bundles(
        [load_bundle(bundle)], device="cpu", precision="float32", intra_threads=1, inter_threads=3
    )
    assert parallel.translate(LINES, batch_tokens=60) == plain.translate(LINES, batch_tokens=60)
    assert list(parallel.stream(iter(LINES), window=7)) == list(plain.stream(iter(LINES), window=7))


@pytest.mark.parametrize(
    "decoding", [{"method": "greedy"}, {"method": "beam", "beam_size": 3, "nbest": 2}, {"method": "sample"}]
)
def test_encoded_request_gives_the_same_hypotheses(bundle: Path, decoding: dict[str, Any]) -> None:
    translator = dragoman.load(bundle, task="translation", device="cpu", precision="float32", inter_threads=1)
    sources = [translator.bundle.tokenizer.encode_source(line) for line in LINES]
    config, start_id = translator.resolve_decoding(decoding), 2
    decoding_constraints = DecodingConstraints(min_length=2, no_repeat_ngram_size=3, suppress_tokens=(7,), repetition_window=8)
    pieces = {5: b"a\xff", 6: b"b", 11: b"c"}
    excluded = (Phrase(b"a\xffb", (5, 6), pieces), Phrase(b"c", (11,), pieces))
    included = () if decoding["method"] != "beam" else ((Phrase(b"b", (6,), pieces, only_first=True),),)
    constraints = [SentenceConstraints((9, 8), included, excluded, allow_repetition=True)] * len(sources)
    search = BatchSearch(translator.inference_model, config, start_id, decoding_constraints, None, False)
    job = GenerationJob(search, sources, range(len(sources)), constraints)
    assert is_serializable(job)
    request = json.loads(json.dumps(encode_request(job, [3, 1, 4])))
    assert run_request(request, translator.inference_model) == job([3, 1, 4])
    automaton = replace(decoding_constraints, allowed_tokens_fn=lambda outputs, sentences: outputs)
    assert not is_serializable(replace(job, search=replace(job.search, decoding_constraints=automaton)))


def test_requeued_items_are_done_by_the_caller() -> None:
    queue = SharedQueue(lambda number: number * number, [3, 4, 5])
    assert [queue.take(), queue.take()] == [0, 1]
    threading.Timer(0.05, queue.requeue, [0]).start()
    queue.completed[1] = 16
    assert list(queue.results()) == [9, 16, 25]
    assert queue.take() is None


# Machine code searches greedily and with beams in threads. Python draws samples, so processes share this work.
SAMPLING: dict[str, Any] = {"method": "sample", "seed": 3}


@pytest.mark.slow
def test_killed_workers_do_not_change_translations(bundle: Path) -> None:
    plain = dragoman.load(bundle, task="translation", device="cpu", precision="float32", intra_threads=1, inter_threads=1)
    expected = plain.translate(LINES, batch_tokens=60, **SAMPLING)
    parallel = dragoman.load(bundle, task="translation", device="cpu", precision="float32", intra_threads=1, inter_threads=2)
    assert parallel.translate(LINES, batch_tokens=60, **SAMPLING) == expected
    (worker,) = parallel.scheduler._workers
    assert worker.process.poll() is None
    assert not worker.ended.is_set()
    worker.process.kill()
    assert parallel.translate(LINES, batch_tokens=60, **SAMPLING) == expected
    assert worker.ended.wait(60)
    parallel.scheduler.close()
    assert parallel.translate(LINES, batch_tokens=60, **SAMPLING) == expected
    (worker,) = parallel.scheduler._workers
    del parallel
    assert worker.process.poll() is None  # the worker object is still alive
    worker.terminate()
    assert worker.process.poll() is not None
    assert worker.ended.wait(60)  # its thread has ended, too


@pytest.mark.slow
def test_worker_with_changed_bundle_is_not_used(bundle: Path, tmp_path: Path) -> None:
    path = shutil.copytree(bundle, tmp_path / "bundle")
    parallel = dragoman.load(path, task="translation", device="cpu", precision="float32", intra_threads=1, inter_threads=2)
    assert parallel.scheduler.worker_spec is not None
    parallel.scheduler.worker_spec = replace(parallel.scheduler.worker_spec, checksums=("0" * 64,))
    plain = dragoman.load(bundle, task="translation", device="cpu", precision="float32", intra_threads=1, inter_threads=1)
    expected = plain.translate(LINES, batch_tokens=60, **SAMPLING)
    assert parallel.translate(LINES, batch_tokens=60, **SAMPLING) == expected
    assert parallel.scheduler._workers[0].ended.is_set()


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
