"""Word alignment of an encoded corpus on disk.

    train.links.arrow   a row for each pair, in order: links, a list of source word, target word, source word, …

Words are separated by spaces and counted from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dragoman.data.encoded_corpus import ListColumn, read_batches, write_batches
from dragoman.word_aligner import Link

_SCHEMA = pa.schema([("links", pa.list_(pa.int32()))])
_ROWS_PER_BATCH = 16_384


def get_links_file(folder: Path, name: str) -> Path:
    """Return the path of the links of the corpus `name`."""
    return folder / f"{name}.links.arrow"


def write_links(path: Path, links: Iterable[Sequence[Link]]) -> None:
    write_batches(path, _build_record_batches(iter(links)), _SCHEMA)


def _build_record_batches(links: Iterator[Sequence[Link]]) -> Iterator[pa.RecordBatch]:
    while rows := list(islice(links, _ROWS_PER_BATCH)):
        flat = [[word for link in row for word in link] for row in rows]
        yield pa.record_batch([pa.array(flat, _SCHEMA.field(0).type)], schema=_SCHEMA)


class LinkTable:
    """Links of encoded pairs by index. Pages of the file are read at first use."""

    def __init__(self, path: Path) -> None:
        batches = read_batches(path, [_SCHEMA], content="links of a prepared corpus")
        self._column = ListColumn([batch.column(0) for batch in batches])

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, index: int) -> npt.NDArray[np.int32]:
        """Return the links of a pair: source word and target word. (L, 2)"""
        return self._column[index].reshape(-1, 2).astype(np.int32, copy=False)
