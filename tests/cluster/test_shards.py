import errno
import json
import signal
from pathlib import Path
from typing import Any

import pytest

import dragoman.formats.object_store
from dragoman.cluster import shards as shards_module
from dragoman.cluster.shards import (
    MAX_ATTEMPTS,
    ShardTask,
    open_request,
    read_output,
    run_shards,
    split_lines,
)
from dragoman.cluster.versions import get_versions
from dragoman.errors import ClusterError, DataError, OutputError
from dragoman.formats.object_store import StoreFolder
from dragoman.io import storage
from serial_executor import SerialExecutor

LINES = [f"line {number}" for number in range(10)]


def upper(payload: tuple[int, list[str]]) -> tuple[dict[str, bytes], Any]:
    start, lines = payload
    return {"txt": "".join(line.upper() + "\n" for line in lines).encode()}, {"start": start}


def fail_on_third_shard(payload: tuple[int, list[str]]) -> tuple[dict[str, bytes], Any]:
    if payload[0] == 6:
        raise DataError("line 7: cannot be used")
    return upper(payload)


def run(folder: StoreFolder, executor: SerialExecutor, lines: list[str] = LINES, function: Any = upper) -> bytes:
    records = run_shards(function, split_lines(lines, lines_per_shard=3), folder, executor)
    return b"".join(read_output(folder, record, "txt") for record in records)


EXPECTED = "".join(line.upper() + "\n" for line in LINES).encode()
DIGEST_IN = "4c0bb22ebf0f1e84d0a94de19880c1eadd3a47739c18e852d7f11df9e92d5f49"
DIGEST_OUT = "17c994099b8e30ec0ae3fe9af851bf19b5080e5d8a41bd713e0a39230360cde9"


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> StoreFolder:
    return StoreFolder(str(tmp_path / "shards") if request.param == "local" else f"memory://{tmp_path.name}/shards")


def test_shards_end_in_any_order_and_are_read_in_theirs(folder: StoreFolder) -> None:
    executor = SerialExecutor(num_workers=1)
    assert run(folder, executor) == EXPECTED
    assert executor.num_submitted == 4  # 3 + 3 + 3 + 1 lines
    assert executor.max_pending == 2  # two for each worker


def test_repeated_command_processes_only_shards_that_are_new_changed_or_damaged(folder: StoreFolder) -> None:
    run(folder, SerialExecutor())
    executor = SerialExecutor()
    assert run(folder, executor) == EXPECTED
    assert executor.num_submitted == 0
    folder.write("lines-0000001.txt", b"cut")  # damaged output
    folder.write("lines-0000002.json", b"{")  # damaged record
    changed = [*LINES[:-1], "another end"]
    assert run(folder, executor, changed) == "".join(line.upper() + "\n" for line in changed).encode()
    assert executor.num_submitted == 3


def test_shard_of_a_lost_worker_is_done_again_and_counts_once(folder: StoreFolder) -> None:
    done: list[int] = []
    records = run_shards(
        upper, split_lines(LINES, lines_per_shard=3), folder, SerialExecutor({0, 3, 5}), on_progress=done.append
    )
    assert b"".join(read_output(folder, record, "txt") for record in records) == EXPECTED
    assert done == sorted(done)
    assert done[-1] == len(LINES)


def test_shard_that_always_fails_is_named_and_the_others_are_kept(folder: StoreFolder) -> None:
    executor = SerialExecutor()
    with pytest.raises(
        ClusterError, match=r"shard lines-0000002: failed 4 times: line 7: cannot be used; 3 finished"
    ) as failure:
        run(folder, executor, function=fail_on_third_shard)
    assert failure.value.code == "shards-failed"
    assert executor.num_submitted == 3 + MAX_ATTEMPTS
    executor = SerialExecutor()
    assert run(folder, executor) == EXPECTED
    assert executor.num_submitted == 1


def test_work_ends_early_if_every_shard_fails(folder: StoreFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards_module, "MAX_FAILED_SHARDS", 2)

    lines = [str(number) for number in range(300)]
    executor = SerialExecutor(num_workers=1)
    with pytest.raises(ClusterError):
        run(folder, executor, lines, function=always_fail)
    assert executor.num_submitted <= 4 * MAX_ATTEMPTS  # 2 failed shards, and at most 2 that are pending


def always_fail(_: Any) -> Any:
    raise ValueError("a library's\nmessage")


def test_error_of_a_library_becomes_one_line(folder: StoreFolder) -> None:
    with pytest.raises(ClusterError, match="ValueError: a library's message") as failure:
        run(folder, SerialExecutor(), ["a"], function=always_fail)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("library", ["dragoman", "torch"])
def test_worker_with_another_version_refuses_to_work(tmp_path: Path, library: str) -> None:
    shard = next(split_lines(LINES, lines_per_shard=3))
    task = ShardTask(upper, StoreFolder(str(tmp_path)), {**get_versions(), library: "0.0.1"})
    with pytest.raises(ClusterError, match=rf"has {library} .*, but the command has 0\.0\.1; install") as failure:
        task(shard)
    assert failure.value.code == "cluster-mismatch"
    assert not list(tmp_path.iterdir())


def test_full_disk_of_a_worker_is_named_and_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(partial: Path, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(dragoman.formats.object_store, "commit_file", fill)
    with pytest.raises(ClusterError, match="the disk is full"):
        run(StoreFolder(str(tmp_path)), SerialExecutor())
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(dragoman.formats.object_store, "commit_file", storage.commit_file)
    assert run(StoreFolder(str(tmp_path)), SerialExecutor()) == EXPECTED


def test_folder_of_another_request_is_refused_unless_it_is_overwritten(folder: StoreFolder) -> None:
    open_request(folder, {"window": 3}, overwrite=False)
    open_request(folder, {"window": 3}, overwrite=False)
    run(folder, SerialExecutor())
    with pytest.raises(OutputError, match="another request") as failure:
        open_request(folder, {"window": 4}, overwrite=False)
    assert failure.value.code == "output-mismatch"
    open_request(folder, {"window": 4}, overwrite=True)
    assert folder.read_if_exists("lines-0000000.json") is None


def test_output_that_is_missing_or_changed_is_not_merged(folder: StoreFolder) -> None:
    records = run_shards(upper, split_lines(LINES, lines_per_shard=3), folder, SerialExecutor())
    folder.write("lines-0000001.txt", b"LINE 3\n")
    with pytest.raises(OutputError, match="was changed after it was written"):
        read_output(folder, records[1], "txt")
    folder.delete()
    with pytest.raises(OutputError, match="give a folder that all machines share"):
        read_output(folder, records[0], "txt")


def test_record_has_the_digests_of_input_and_output(folder: StoreFolder) -> None:
    run(folder, SerialExecutor())
    record = json.loads(folder.read("lines-0000003.json"))
    # printf 'line 9' | sha256sum, and printf 'LINE 9\n' | sha256sum
    assert record["digest"] == DIGEST_IN
    assert record["files"] == {"txt": DIGEST_OUT}
    assert record["num_units"] == 1


class InterruptingReference:
    """Object whose destructor receives Ctrl-C. Python drops the exception there."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupt_in_a_destructor_stops_the_work(folder: StoreFolder) -> None:
    def interrupt(num_done: int) -> None:
        reference = InterruptingReference()
        del reference

    executor, handler = SerialExecutor(num_workers=1), signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_shards(upper, split_lines(LINES, lines_per_shard=3), folder, executor, on_progress=interrupt)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)
    assert executor.num_submitted < 4
    assert run(folder, SerialExecutor()) == EXPECTED
