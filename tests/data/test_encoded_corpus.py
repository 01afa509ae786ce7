"""Encoded corpus on disk, and the padded batches of its pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dragoman.data.collate import collate, iter_batches_by_length
from dragoman.data.encoded_corpus import (
    Corpus,
    build_pair_batch,
    build_pair_schema,
    get_lengths_file,
    get_pair_file,
    list_pair_files,
    write_batches,
)
from dragoman.data.tokenization.special_tokens import BEGIN_ID
from expected_errors import error_message

# --- the encoded corpus -----------------------------------------------------------------------------------------------

Rows = list[tuple[list[int], list[int], int]]


def write_rows(path: Path, batches: Sequence[Rows], *, vocab_size: int = 100) -> int:
    """Write a file of encoded pairs (source, target, number) with one record batch per list."""
    schema = build_pair_schema(vocab_size)
    columns = (([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]) for rows in batches)
    return write_batches(path, (build_pair_batch(*sides, schema) for sides in columns), schema)


def pair_files(largest: int) -> st.SearchStrategy[list[list[Rows]]]:
    """Return a strategy of files of record batches of pairs with ids up to `largest`."""
    ids = st.lists(st.integers(0, largest), max_size=6)
    row = st.tuples(ids, ids, st.integers(0, 2**40))
    return st.lists(st.lists(st.lists(row, max_size=12), max_size=4), max_size=3)


@pytest.mark.parametrize("vocab_size", [2**16, 2**31])
@given(data=st.data())
def test_encoded_corpus_reads_back_unchanged(
    tmp_path_factory: pytest.TempPathFactory, vocab_size: int, data: st.DataObject
) -> None:
    """Cover any number of files and record batches, including empty ones."""
    files = data.draw(pair_files(vocab_size - 1))
    paths = [tmp_path_factory.getbasetemp() / f"round-trip-{number:05d}.arrow" for number in range(len(files))]
    for path, batches in zip(paths, files, strict=True):
        assert write_rows(path, batches, vocab_size=vocab_size) == sum(map(len, batches))
    rows = [row for batches in files for batch in batches for row in batch]
    corpus = Corpus(paths)
    assert len(corpus) == len(rows)
    assert [(corpus.source(i).tolist(), corpus.target(i).tolist(), corpus.pair_number(i)) for i in range(len(corpus))] == rows
    sources, targets = corpus.lengths()
    assert sources.tolist() == [len(source) for source, _, _ in rows]
    assert targets.tolist() == [len(target) + 1 for _, target, _ in rows]  # with the end token


def test_pair_files_are_found_by_name(tmp_path: Path) -> None:
    for name in ("train", "train.a", "train.a-00000", "train.lengths"):
        for part in (0, 1):
            get_pair_file(tmp_path, name, part).touch()
        get_lengths_file(tmp_path, name).touch()
    for name in ("train", "train.a", "train.a-00000", "train.lengths"):
        assert list_pair_files(tmp_path, name) == [tmp_path / f"{name}-00000.arrow", tmp_path / f"{name}-00001.arrow"]
    assert list_pair_files(tmp_path, "a") == []


def test_other_files_are_no_corpus(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"

    def open_error() -> str:
        message = error_message(lambda: Corpus([path]))
        assert message.startswith(f"{path}: ")
        return message

    open_error()
    path.mkdir()
    open_error()
    path.rmdir()
    for contents in (b"", b"plain text\n" * 99, b"ARROW1\x00\x00", b"ARROW1\x00\x00" + b"\xff" * 200 + b"ARROW1"):
        path.write_bytes(contents)
        open_error()
    write_rows(path, [[([5, 6, 3], [7, 8], number) for number in range(50)]])
    intact = path.read_bytes()
    for length in range(0, len(intact), 11):
        path.write_bytes(intact[:length])
        open_error()
    wrong_schema = pa.schema([("source", pa.list_(pa.int64())), ("target", pa.list_(pa.int32())), ("number", pa.int64())])
    for schema, columns in ((pa.schema([("a", pa.int32())]), [[1]]), (wrong_schema, [[[1]], [[1]], [1]])):
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.record_batch(columns, schema=schema))
        assert "holds no prepared corpus" in open_error()


# --- batches ----------------------------------------------------------------------------------------------------------


def test_decoder_input_is_shifted_target() -> None:
    batch = collate([[5, 6, 3], [7, 3]], [[8], [9, 10, 11]], start_id=BEGIN_ID)
    assert batch.source_BS.tolist() == [[5, 6, 3], [7, 3, 0]]
    assert batch.inputs_BT.tolist() == [[2, 8, 0, 0], [2, 9, 10, 11]]
    assert batch.targets_BT.tolist() == [[8, 3, 0, 0], [9, 10, 11, 3]]
    assert batch.num_target_tokens == 6
    assert batch.to(torch.device("cpu")).targets_BT.tolist() == batch.targets_BT.tolist()


LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=60)


@given(lengths=LENGTHS, batch_tokens=st.integers(1, 200))
def test_validation_batches_ascend_in_length(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[tuple[int, int]], batch_tokens: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "validation-00000.arrow"
    write_rows(path, [[([5] * source, [6] * target, 1) for source, target in lengths]])
    read_lengths: Counter[tuple[int, int]] = Counter()
    previous_longest = 0
    for batch in iter_batches_by_length(Corpus([path]), batch_tokens=batch_tokens, start_id=BEGIN_ID):
        rows = list(zip(batch.source_BS.count_nonzero(1).tolist(), batch.targets_BT.count_nonzero(1).tolist(), strict=True))
        longest = max(map(max, rows))
        assert longest * len(rows) <= batch_tokens or len(rows) == 1
        assert min(map(max, rows)) >= previous_longest
        previous_longest = longest
        read_lengths += Counter(rows)
    assert read_lengths == Counter((source, target + 1) for source, target in lengths)
