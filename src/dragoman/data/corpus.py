"""An encoded corpus on disk: Arrow IPC files, memory-mapped, that any Arrow reader opens.

Columns: `source` and `target` (lists of int32 ids as encoder and loss see them: the source with its end token if the model
wants one, the target without) and `line` (int64, the line of the text that the pair came from).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dragoman.errors import DataError

ROWS = 65_536
SCHEMA = pa.schema([("source", pa.list_(pa.int32())), ("target", pa.list_(pa.int32())), ("line", pa.int64())])

Ids = npt.NDArray[np.int32]
EncodedPair = tuple[list[int], list[int], int]


class Corpus:
    """Encoded pairs by number; nothing is read before it is asked for."""

    def __init__(self, path: Path) -> None:
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            if reader.schema != SCHEMA:
                raise DataError(f"{path}: its columns are {reader.schema.names}; not a prepared corpus")
            batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
            if any(batch.num_rows != ROWS for batch in batches[:-1]):
                raise DataError(f"{path}: its record batches do not hold {ROWS} pairs each; not a prepared corpus")
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(f"{path}: not a prepared corpus: {error}") from None
        self._sides = [[_List(batch.column(side)) for batch in batches] for side in (0, 1)]
        self._lines = [batch.column(2).to_numpy() for batch in batches]

    def __len__(self) -> int:
        return sum(len(lines) for lines in self._lines)

    def source(self, index: int) -> Ids:
        return self._sides[0][index // ROWS][index % ROWS]

    def target(self, index: int) -> Ids:
        return self._sides[1][index // ROWS][index % ROWS]

    def line(self, index: int) -> int:
        return int(self._lines[index // ROWS][index % ROWS])

    def lengths(self) -> tuple[Ids, Ids]:
        """Tokens of each source, and of each target with its end token."""
        source, target = (
            np.concatenate([part.lengths() for part in side]) if side else np.empty(0, np.int32) for side in self._sides
        )
        return source, target + np.int32(1)


class _List:
    """One column of one record batch: offsets and values, without a copy."""

    def __init__(self, column: pa.ListArray) -> None:
        self.offsets: Ids = column.offsets.to_numpy()
        self.values: Ids = column.values.to_numpy()

    def __getitem__(self, index: int) -> Ids:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def lengths(self) -> Ids:
        return np.diff(self.offsets)


def write_corpus(path: Path, pairs: Iterable[EncodedPair]) -> int:
    """Write pairs as they come, in memory that does not grow with them; return how many."""
    count = 0
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        for rows in _chunks(pairs):
            sources, targets, lines = zip(*rows, strict=True)
            columns = [pa.array(column, field.type) for column, field in zip((sources, targets, lines), SCHEMA, strict=True)]
            writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
            count += len(rows)
    return count


def _chunks(pairs: Iterable[EncodedPair]) -> Iterator[list[EncodedPair]]:
    iterator = iter(pairs)
    while rows := list(islice(iterator, ROWS)):
        yield rows
