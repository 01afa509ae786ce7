"""The queue of requests: order, fairness, limits, deadlines, cancellation and errors."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from dragoman.serving.request_queue import DeadlineError, Job, QueueClosedError, RequestQueue, estimate_tokens


class Batches:
    """Translator that records its batches. gate: batches wait until it is set"""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = threading.Event()

    def __call__(self, key: str, lines: Sequence[str]) -> list[str]:
        self.gate.wait(60)
        self.batches.append(list(lines))
        if "bad" in lines:
            raise ValueError("a bad line")
        return [f"{key}:{line}" for line in lines]


def put(
    queue: RequestQueue[str, str], lines: Sequence[str], key: str = "m", seconds: float = 60.0
) -> tuple[Job[str, str], Future[list[str]]]:
    future: Future[list[str]] = Future()

    def on_done(results: list[str] | None, error: Exception | None) -> None:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(results or [])

    job = Job(key, lines, time.monotonic() + seconds, on_done)
    assert queue.try_put(job)
    return job, future


@pytest.fixture
def batches() -> Batches:
    return Batches()


@pytest.fixture
def queue(batches: Batches) -> RequestQueue[str, str]:
    return RequestQueue(batches, max_tokens=1000)


def block(queue: RequestQueue[str, str], batches: Batches) -> Future[list[str]]:
    """Put a job that the thread takes and then waits in, so that later jobs wait together."""
    _, future = put(queue, ["first"])
    while queue.num_tokens:
        time.sleep(0.001)
    return future


def test_results_come_in_order_and_lines_of_several_jobs_share_a_batch(batches: Batches, queue: RequestQueue[str, str]) -> None:
    block(queue, batches)
    futures = [put(queue, lines)[1] for lines in (["ccc", "a"], ["bb"])]
    batches.gate.set()
    assert [future.result(60) for future in futures] == [["m:ccc", "m:a"], ["m:bb"]]
    assert sorted(batches.batches[1]) == ["a", "bb", "ccc"]


def test_single_sentence_does_not_wait_for_a_large_job(batches: Batches, queue: RequestQueue[str, str]) -> None:
    block(queue, batches)
    put(queue, [f"line {number}" for number in range(180)])
    _, future = put(queue, ["short"])
    batches.gate.set()
    assert future.result(60) == ["m:short"]
    assert "short" in batches.batches[1]


def test_lines_of_other_models_have_batches_of_their_own(batches: Batches, queue: RequestQueue[str, str]) -> None:
    block(queue, batches)
    futures = [put(queue, ["a"], "x")[1], put(queue, ["b"], "y")[1], put(queue, ["c"], "x")[1]]
    batches.gate.set()
    assert [future.result(60) for future in futures] == [["x:a"], ["y:b"], ["x:c"]]
    assert [sorted(batch) for batch in batches.batches] == [["first"], ["a", "c"], ["b"]]


def test_full_queue_has_no_room_until_lines_leave_it(batches: Batches) -> None:
    queue = RequestQueue(batches, max_tokens=2 * estimate_tokens("line"))
    block(queue, batches)
    put(queue, ["line"])
    _, future = put(queue, ["line"])
    assert not queue.try_put(Job("m", ["line"], time.monotonic() + 60, lambda results, error: None))
    batches.gate.set()
    future.result(60)
    assert queue.num_tokens == 0
    put(queue, ["a line that is alone larger than the queue " * 20])[1].result(60)


def test_job_past_its_deadline_is_not_translated(batches: Batches, queue: RequestQueue[str, str]) -> None:
    block(queue, batches)
    _, future = put(queue, ["late"], seconds=0.0)
    batches.gate.set()
    with pytest.raises(DeadlineError):
        future.result(60)
    assert batches.batches == [["first"]]
    assert queue.num_tokens == queue.num_jobs == 0


def test_queue_that_waits_holds_no_finished_job(batches: Batches, queue: RequestQueue[str, str]) -> None:
    def put_watched(line: str, seconds: float) -> tuple[weakref.ref[Job[str, str]], Future[list[str]]]:
        job, future = put(queue, [line], seconds=seconds)
        return weakref.ref(job), future

    block(queue, batches)
    late, late_future = put_watched("late", 0.0)
    done, done_future = put_watched("done", 60.0)
    batches.gate.set()
    assert done_future.result(60) == ["m:done"]
    assert isinstance(late_future.exception(60), DeadlineError)
    end = time.monotonic() + 60
    while (late() or done()) and time.monotonic() < end:
        time.sleep(0.001)
        gc.collect()
    assert late() is None
    assert done() is None


def test_canceled_job_leaves_the_queue(batches: Batches, queue: RequestQueue[str, str]) -> None:
    block(queue, batches)
    job, future = put(queue, ["gone"])
    queue.cancel(job)
    _, last = put(queue, ["last"])
    batches.gate.set()
    assert last.result(60) == ["m:last"]
    assert not future.done()
    assert batches.batches == [["first"], ["last"]]


def test_error_reaches_its_own_job_only(batches: Batches, queue: RequestQueue[str, str]) -> None:
    block(queue, batches)
    futures = [put(queue, [line])[1] for line in ("good", "bad", "fine")]
    batches.gate.set()
    assert futures[0].result(60) == ["m:good"]
    assert futures[2].result(60) == ["m:fine"]
    with pytest.raises(ValueError, match="a bad line"):
        futures[1].result(60)


def test_closed_queue_finishes_its_jobs(batches: Batches, queue: RequestQueue[str, str]) -> None:
    first = block(queue, batches)
    _, future = put(queue, ["second"])
    queue.close()
    with pytest.raises(QueueClosedError):
        queue.try_put(Job("m", ["late"], time.monotonic() + 60, lambda results, error: None))
    batches.gate.set()
    assert queue.join(60)
    assert (first.result(0), future.result(0)) == (["m:first"], ["m:second"])


def test_results_of_a_batch_are_flushed_together(batches: Batches) -> None:
    finished: list[str] = []
    flushed: list[list[str]] = []

    def flush() -> None:
        flushed.append(finished.copy())
        finished.clear()

    queue: RequestQueue[str, str] = RequestQueue(batches, max_tokens=1000, flush=flush)
    block(queue, batches)
    for line in ("a", "b"):
        queue.try_put(Job("m", [line], time.monotonic() + 60, lambda results, error: finished.extend(results or [])))
    queue.try_put(Job("m", ["late"], time.monotonic(), lambda results, error: finished.append(type(error).__name__)))
    queue.close()
    batches.gate.set()
    assert queue.join(60)
    assert sorted(results for results in flushed if results) == [["DeadlineError"], ["m:a", "m:b"]]
