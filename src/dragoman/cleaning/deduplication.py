"""Duplicates among any number of rows, exactly and in bounded memory.

    texts → 128-bit digests → buckets by the digests' first bits, on disk → each bucket sorted → a bit for each row

Equal texts have equal digests; that unequal ones among n rows have equal digests anywhere has a probability below n²/2¹²⁹:
2 · 10⁻²⁴ for 36 million rows, 1.5 · 10⁻¹⁵ for a million million.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import OutputError
from dragoman.io.storage import cannot_write

Digests = NDArray[np.uint64]
"""Of shape (rows, 2)."""
Records = NDArray[np.void]
"""Digests with the numbers of their rows."""

_RECORD = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<u8")])
_ROWS_AT_ONCE = 2**20
_DIGEST_BYTES = 16
_BUCKET = "bucket-"


def digest_sources(sources: Sequence[str]) -> Digests:
    """128 bits of each text."""
    return _array(map(_encoded, sources))


def digest_pairs(sources: Sequence[str], targets: Sequence[str]) -> Digests:
    """128 bits of each pair; the source's length goes in first, so that it is plain where the target begins."""
    pairs = zip(map(_encoded, sources), map(_encoded, targets), strict=True)
    return _array(b"%d:%b%b" % (len(source), source, target) for source, target in pairs)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _array(texts: Iterable[bytes]) -> Digests:
    return np.frombuffer(b"".join([blake2b(text, digest_size=16).digest() for text in texts]), dtype="<u8").reshape(-1, 2)


class DuplicateSearch:
    """Rows are added in their order, and in the end each one is known to be the first of its kind or not.

    Up to `rows_at_once` rows wait in memory; beyond that they go to 256 files in `folder`, 24 bytes a row, and a file of more
    rows than that is split again before it is sorted. So what is held does not grow with the rows, but for the answer, a byte
    each. The folder is made where it does not stand, and may hold nothing but what an earlier, broken search has left.
    """

    def __init__(self, folder: Path, *, rows_at_once: int = _ROWS_AT_ONCE) -> None:
        self._folder = folder
        self._rows_at_once = rows_at_once
        self._waiting: list[Records] = []
        self._waiting_rows = 0
        self._rows = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.iterdir()):
                if not path.name.startswith(_BUCKET):
                    raise OutputError(f"{folder}: holds {path.name!r}; duplicates are sought in an empty folder")
            self._clear()
        except OSError as error:
            raise OutputError(cannot_write(folder, error)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing behind, whatever happened."""
        with suppress(OSError):
            self._clear()
            self._folder.rmdir()

    def _clear(self) -> None:
        for path in self._folder.glob(f"{_BUCKET}*"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def add(self, digests: Digests) -> None:
        """The next rows. Raises OutputError where the folder cannot be written to."""
        for start in range(0, len(digests), self._rows_at_once):
            part = digests[start : start + self._rows_at_once]
            records = np.empty(len(part), dtype=_RECORD)
            records["high"], records["low"] = part[:, 0], part[:, 1]
            records["row"] = np.arange(self._rows, self._rows + len(part), dtype=np.uint64)
            self._rows += len(part)
            if self._waiting_rows + len(part) > self._rows_at_once:
                self._spill()
            self._waiting.append(records)
            self._waiting_rows += len(part)

    def repeated(self) -> NDArray[np.bool_]:
        """For each row, whether an earlier one has the same digest. This ends the search and empties the folder."""
        marks = np.zeros(self._rows, dtype=np.bool_)
        if self._waiting_rows == self._rows:
            _first_ones(self._taken(), marks)
            return marks
        self._spill()
        try:
            for bucket in sorted(self._folder.iterdir()):
                self._search(bucket, 1, marks)
        except OSError as error:
            raise OutputError(cannot_write(self._folder, error)) from None
        return marks

    def _taken(self) -> Records:
        """The rows that wait in memory; there are none then."""
        waiting = np.concatenate([np.empty(0, dtype=_RECORD), *self._waiting])
        self._waiting, self._waiting_rows = [], 0
        return waiting

    def _spill(self) -> None:
        try:
            _append(self._taken(), self._folder, 0)
        except OSError as error:
            raise OutputError(cannot_write(self._folder, error)) from None

    def _search(self, bucket: Path, depth: int, marks: NDArray[np.bool_]) -> None:
        """Mark what is repeated in a file whose digests agree in their first `depth` bytes, and remove the file."""
        if bucket.stat().st_size <= self._rows_at_once * _RECORD.itemsize:
            _first_ones(np.fromfile(bucket, dtype=_RECORD), marks)
            bucket.unlink()
            return
        parts = bucket.with_name(f"{bucket.name}.parts")
        parts.mkdir()
        with bucket.open("rb") as stream:
            first = True
            while len(records := np.fromfile(stream, dtype=_RECORD, count=self._rows_at_once)):
                if depth < _DIGEST_BYTES:
                    # Without what is repeated already, a file of few different digests shrinks on the way.
                    _append(_first_ones(records, marks), parts, depth)
                else:
                    marks[records["row"][1 if first else 0 :]] = True
                first = False
        bucket.unlink()
        for part in sorted(parts.iterdir()):
            self._search(part, depth + 1, marks)
        parts.rmdir()


def _first_ones(records: Records, marks: NDArray[np.bool_]) -> Records:
    """The first record of each digest; the rows of the others, which must stand after it, are marked."""
    order = np.lexsort((records["low"], records["high"]))
    high, low = records["high"][order], records["low"][order]
    first = np.ones(len(records), dtype=np.bool_)
    first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    marks[records["row"][order[~first]]] = True
    return records[order[first]]


def _append(records: Records, folder: Path, depth: int) -> None:
    """Add each record to the file in `folder` that its digest's byte number `depth` names."""
    half = records["high"] if depth < 8 else records["low"]
    byte = (half >> np.uint64(56 - 8 * (depth % 8))).astype(np.uint8)
    order = np.argsort(byte, kind="stable")
    ends = np.cumsum(np.bincount(byte, minlength=256))
    for name, (start, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
        if start < end:
            with (folder / f"{_BUCKET}{name:02x}").open("ab") as stream:
                stream.write(records[order[start:end]].tobytes())
