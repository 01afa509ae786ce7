"""Encoded corpus on disk: memory-mapped Arrow IPC files.

    train-00000.arrow, train-00001.arrow, …   the pairs, a million per file
    train.lengths.arrow                       the pairs by their lengths

A file of pairs has three columns. `source` and `target` are lists of ids, 16 bits each if the vocabulary allows. The source
has its end token if the model expects one; the target has none. `number` (int64) counts the pairs that were read, from 1.
The file of lengths has a row for each combination of lengths, with the columns `source`, `target` and `pairs`. The length of
the target includes its end token. `pairs` lists the indices of the pairs with these lengths.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dragoman.errors import DataError

Ids = npt.NDArray[np.integer]
Lengths = npt.NDArray[np.integer]

_ID_TYPES = (pa.uint16(), pa.int32())
_LENGTHS_SCHEMA = pa.schema([("source", pa.int32()), ("target", pa.int32()), ("pairs", pa.list_(pa.uint32()))])


def build_pair_schema(vocab_size: int) -> pa.Schema:
    ids = pa.list_(pa.uint16() if vocab_size <= 2**16 else pa.int32())
    return pa.schema([("source", ids), ("target", ids), ("number", pa.int64())])


def list_pair_files(folder: Path, name: str) -> list[Path]:
    """Return the files of pairs of the corpus `name`, in order."""
    return sorted(folder.glob(f"{name}-[0-9][0-9][0-9][0-9][0-9].arrow"))


def get_pair_file(folder: Path, name: str, part: int) -> Path:
    """Return the path of part `part` of the corpus `name`."""
    return folder / f"{name}-{part:05d}.arrow"


def get_lengths_file(folder: Path, name: str) -> Path:
    """Return the path of the lengths of the corpus `name`."""
    return folder / f"{name}.lengths.arrow"


class Corpus:
    """Encoded pairs by index. Pages of the files are read at first use."""

    def __init__(self, paths: Sequence[Path]) -> None:
        schemas = [build_pair_schema(2**id_type.bit_width) for id_type in _ID_TYPES]
        batches = [batch for path in paths for batch in read_batches(path, schemas, content="prepared corpus")]
        self._source, self._target = (ListColumn([batch.column(side) for batch in batches]) for side in (0, 1))
        self._pair_numbers = [batch.column(2).to_numpy() for batch in batches]

    def __len__(self) -> int:
        return len(self._source)

    def source(self, index: int) -> Ids:
        """Return the source ids of a pair."""
        return self._source[index]

    def target(self, index: int) -> Ids:
        """Return the target ids of a pair, without end token."""
        return self._target[index]

    def pair_number(self, index: int) -> int:
        """Return the number of this pair among all pairs that were read, from 1."""
        batch, row = self._source.locate(index)
        return int(self._pair_numbers[batch][row])

    def lengths(self) -> tuple[Lengths, Lengths]:
        """Return the number of tokens of each source, and of each target with its end token."""
        source, target = self._source.lengths(), self._target.lengths()
        target += 1
        return source, target


def read_batches(path: Path, schemas: Sequence[pa.Schema], *, content: str) -> list[pa.RecordBatch]:
    """Return the memory-mapped record batches of a prepared file. Raise DataError if it is damaged or has another schema.

    schemas: the schemas that it may have
    content: what the file should hold, for the error message
    """
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        if reader.schema in schemas:
            return [reader.get_batch(index) for index in range(reader.num_record_batches)]
        problem = f", but {reader.schema.names}"
    except (OSError, pa.ArrowInvalid) as error:
        problem = f": {error}"
    raise DataError(f"{path}: holds no {content}{problem}; prepare the data again", code="prepared-data-damaged")


class ListColumn:
    """Lists of ids by index, in one column of several record batches, without a copy."""

    def __init__(self, columns: Sequence[pa.ListArray]) -> None:
        self._parts: list[tuple[Lengths, Ids]] = [(column.offsets.to_numpy(), column.values.to_numpy()) for column in columns]
        self._ends = list(accumulate(map(len, columns)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def locate(self, index: int) -> tuple[int, int]:
        """Return the batch of a list, and its row there."""
        batch = bisect_right(self._ends, index)
        return batch, index - (self._ends[batch - 1] if batch else 0)

    def __getitem__(self, index: int) -> Ids:
        batch, row = self.locate(index)
        offsets, values = self._parts[batch]
        return values[offsets[row] : offsets[row + 1]]

    def lengths(self) -> Lengths:
        return np.concatenate([np.empty(0, np.int32), *(np.diff(offsets) for offsets, _ in self._parts)])


def build_pair_batch(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], pair_numbers: Sequence[int], schema: pa.Schema
) -> pa.RecordBatch:
    """Return encoded pairs as a record batch of a file of pairs."""
    columns = [
        _build_list_array(sources, schema.field(0).type),
        _build_list_array(targets, schema.field(1).type),
        pa.array(pair_numbers, pa.int64()),
    ]
    return pa.record_batch(columns, schema=schema)


def _build_list_array(rows: Sequence[Sequence[int]], list_type: pa.ListType) -> pa.ListArray:
    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(list(map(len, rows)), out=offsets[1:])
    values = np.fromiter(chain.from_iterable(rows), list_type.value_type.to_pandas_dtype(), int(offsets[-1]))
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), type=list_type)


def write_batches(path: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> int:
    """Write record batches and return the number of rows."""
    count = 0
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def write_lengths(path: Path, corpus: Corpus) -> None:
    """Write the pairs of a corpus grouped by their lengths. This takes about 20 bytes of memory per pair."""
    source, target = corpus.lengths()
    width = int(target.max(initial=0)) + 1
    key_dtype: np.dtype[Any] = np.dtype(np.int32 if (int(source.max(initial=0)) + 1) * width < 2**31 else np.int64)
    keys: Lengths = source.astype(key_dtype) * width + target
    del source, target
    order = np.argsort(keys, kind="stable").astype(np.uint32)
    unique_keys, counts = np.unique(keys, return_counts=True)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    rows = pa.ListArray.from_arrays(pa.array(offsets), pa.array(order))
    columns = [pa.array(lengths.astype(np.int32)) for lengths in np.divmod(unique_keys, width)]
    write_batches(path, [pa.record_batch([*columns, rows], schema=_LENGTHS_SCHEMA)], _LENGTHS_SCHEMA)


class LengthTable:
    """Pairs by their lengths: each row has a source length, a target length, and a slice of `pair_indices`."""

    def __init__(self, path: Path) -> None:
        [batch] = read_batches(path, [_LENGTHS_SCHEMA], content="lengths of a prepared corpus")
        self.source_lengths: Lengths = batch.column(0).to_numpy().astype(np.int64)
        self.target_lengths: Lengths = batch.column(1).to_numpy().astype(np.int64)
        self.starts: Lengths = batch.column(2).offsets.to_numpy().astype(np.int64)
        self.pair_indices: npt.NDArray[np.uint32] = batch.column(2).values.to_numpy()

    def __len__(self) -> int:
        return len(self.pair_indices)

    @property
    def counts(self) -> Lengths:
        return np.diff(self.starts)
