from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from dragoman.formats.resumable_arrow import resumable_arrow_file

SCHEMA = pa.schema([("text", pa.large_string()), ("ids", pa.list_(pa.int32()))])
BATCHES = [
    pa.record_batch([pa.array([f"{number}\u2028", ""], pa.large_string()), pa.array([[number] * 9, []])], schema=SCHEMA)
    for number in range(5)
]


def write(path: Path, *, num_batches: int = len(BATCHES)) -> int:
    """Write the batches that are missing, and fail after some of them. Return the number of those that were there."""
    with resumable_arrow_file(path, SCHEMA) as file:
        num_kept = len(file.summaries)
        for number in range(num_kept, num_batches):
            file.append(BATCHES[number], {"number": number})
        assert file.summaries == [{"number": number} for number in range(num_batches)]
        if num_batches < len(BATCHES):
            raise KeyboardInterrupt
    return num_kept


@pytest.fixture
def expected(tmp_path: Path) -> bytes:
    write(tmp_path / "expected.arrow")
    return (tmp_path / "expected.arrow").read_bytes()


def test_file_is_that_of_an_undisturbed_process(tmp_path: Path, expected: bytes) -> None:
    path = tmp_path / "a.arrow"
    for num_batches in (2, 3):
        with pytest.raises(KeyboardInterrupt):
            write(path, num_batches=num_batches)
        assert not path.exists()
    assert write(path) == 3
    assert path.read_bytes() == expected
    assert pa.ipc.open_file(pa.memory_map(str(path))).num_record_batches == len(BATCHES)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.arrow", "expected.arrow"]


def test_lost_ends_of_the_parts_cost_their_batches_alone(tmp_path: Path, expected: bytes) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "a.arrow", num_batches=4)
    partial, record = ((tmp_path / f"a.arrow{suffix}").read_bytes() for suffix in (".partial", ".batches"))
    numbers_kept = set()
    for cut in range(0, len(partial), 41):
        path = tmp_path / f"{cut}.arrow"
        path.with_name(f"{cut}.arrow.partial").write_bytes(partial[:cut])
        path.with_name(f"{cut}.arrow.batches").write_bytes(record[: len(record) - cut % 7 * 20])
        numbers_kept.add(write(path))
        assert path.read_bytes() == expected
    assert numbers_kept == {0, 1, 2, 3, 4}


def test_batch_whose_bytes_have_changed_is_written_again(tmp_path: Path, expected: bytes) -> None:
    path = tmp_path / "a.arrow"
    with pytest.raises(KeyboardInterrupt):
        write(path, num_batches=4)
    partial = path.with_name("a.arrow.partial")
    partial.write_bytes(partial.read_bytes().replace("2\u2028".encode(), "7\u2028".encode()))
    assert write(path) == 2
    assert path.read_bytes() == expected


def test_interruption_while_batches_are_copied_loses_none(tmp_path: Path, expected: bytes) -> None:
    path = tmp_path / "a.arrow"
    with pytest.raises(KeyboardInterrupt):
        write(path, num_batches=4)
    partial = path.with_name("a.arrow.partial")
    partial.rename(path.with_name("a.arrow.interrupted"))
    partial.write_bytes(b"ARROW1\0\0")  # the next process was killed as it began to copy
    assert write(path) == 4
    assert path.read_bytes() == expected


def test_parts_of_another_schema_do_not_count(tmp_path: Path, expected: bytes) -> None:
    path, batch = tmp_path / "a.arrow", pa.record_batch({"x": pa.array([1], pa.int8())})
    with suppress(KeyboardInterrupt), resumable_arrow_file(path, batch.schema) as file:
        file.append(batch, {"number": 0})
        raise KeyboardInterrupt
    assert write(path) == 0
    assert path.read_bytes() == expected
