"""Search for duplicate rows in bounded memory.

    texts → 128-bit digests → buckets on disk, by the digests' first bits → each bucket sorted → mask over the rows

Equal texts have equal digests. The probability that any two different texts among n rows have equal digests is below n²/2¹²⁹:
2 · 10⁻²⁴ for 36 million rows.
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
from dragoman.io.storage import to_write_error

Digests = NDArray[np.uint64]
"""Array of shape (rows, 2): the high and the low 64 bits of each digest."""
Records = NDArray[np.void]
"""Structured array of digests with their row numbers."""

RECORD_DTYPE = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<u8")])
_DEFAULT_ROWS_IN_MEMORY = 2**20
_DIGEST_BYTES = 16
_BUCKET_PREFIX = "bucket-"


def digest_sources(sources: Sequence[str]) -> Digests:
    """Return the digest of each text, of shape (rows, 2)."""
    return _hash_texts(map(_encode, sources))


def digest_pairs(sources: Sequence[str], targets: Sequence[str]) -> Digests:
    """Return the digest of each pair, of shape (rows, 2). It includes the source's length, which marks the target's start."""
    pairs = zip(map(_encode, sources), map(_encode, targets), strict=True)
    return _hash_texts(b"%d:%b%b" % (len(source), source, target) for source, target in pairs)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _hash_texts(texts: Iterable[bytes]) -> Digests:
    return np.frombuffer(b"".join([blake2b(text, digest_size=16).digest() for text in texts]), dtype="<u8").reshape(-1, 2)


class DuplicateFinder:
    """Finder of repeated rows, to which rows are added in order.

    At most `max_rows_in_memory` rows stay in memory. Further rows go to 256 bucket files in `folder`, 24 bytes a row, and a
    bucket with more rows is split again before it is sorted. Only the resulting mask, one byte a row, grows with the rows. The
    folder is created if it is missing; it may hold nothing but buckets of an interrupted search, which are deleted.
    """

    def __init__(self, folder: Path, *, max_rows_in_memory: int = _DEFAULT_ROWS_IN_MEMORY) -> None:
        self._folder = folder
        self._max_rows_in_memory = max_rows_in_memory
        self._pending: list[Records] = []
        self._num_pending_rows = 0
        self.num_rows = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.iterdir()):
                if not path.name.startswith(_BUCKET_PREFIX):
                    raise OutputError(
                        f"{folder}: holds {path.name!r}; give an empty folder for the search for duplicates",
                        code="not-replaceable",
                    )
            self._clear()
        except OSError as error:
            raise to_write_error(folder, error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._clear()
            self._folder.rmdir()

    def _clear(self) -> None:
        for path in self._folder.glob(f"{_BUCKET_PREFIX}*"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def add(self, digests: Digests) -> None:
        """Add the next rows. Raises WriteError if the folder cannot be written."""
        for start in range(0, len(digests), self._max_rows_in_memory):
            digest_slice = digests[start : start + self._max_rows_in_memory]
            records = np.empty(len(digest_slice), dtype=RECORD_DTYPE)
            records["high"], records["low"] = digest_slice[:, 0], digest_slice[:, 1]
            records["row"] = np.arange(self.num_rows, self.num_rows + len(digest_slice), dtype=np.uint64)
            self.num_rows += len(digest_slice)
            if self._num_pending_rows + len(digest_slice) > self._max_rows_in_memory:
                self._spill_to_disk()
            self._pending.append(records)
            self._num_pending_rows += len(digest_slice)

    def find_repeated(self) -> NDArray[np.bool_]:
        """Return a mask over the rows: True if an earlier row has the same digest. This ends the search, so call it once."""
        is_repeated = np.zeros(self.num_rows, dtype=np.bool_)
        if self._num_pending_rows == self.num_rows:
            _mark_repeats(self._take_pending(), is_repeated)
            return is_repeated
        self._spill_to_disk()
        try:
            for bucket in sorted(self._folder.iterdir()):
                self._mark_bucket(bucket, 1, is_repeated)
        except OSError as error:
            raise to_write_error(self._folder, error) from None
        return is_repeated

    def _take_pending(self) -> Records:
        """Return the rows in memory, and release them."""
        pending = np.concatenate([np.empty(0, dtype=RECORD_DTYPE), *self._pending])
        self._pending, self._num_pending_rows = [], 0
        return pending

    def _spill_to_disk(self) -> None:
        try:
            _append_to_buckets(self._take_pending(), self._folder, 0)
        except OSError as error:
            raise to_write_error(self._folder, error) from None

    def _mark_bucket(self, bucket: Path, depth: int, is_repeated: NDArray[np.bool_]) -> None:
        """Mark the repeated rows of a bucket, whose digests agree in their first `depth` bytes, and delete it."""
        if bucket.stat().st_size <= self._max_rows_in_memory * RECORD_DTYPE.itemsize:
            _mark_repeats(np.fromfile(bucket, dtype=RECORD_DTYPE), is_repeated)
            bucket.unlink()
            return
        sub_folder = bucket.with_name(f"{bucket.name}.parts")
        sub_folder.mkdir()
        with bucket.open("rb") as stream:
            is_first_read = True
            while len(records := np.fromfile(stream, dtype=RECORD_DTYPE, count=self._max_rows_in_memory)):
                if depth < _DIGEST_BYTES:
                    # Without repeated rows, a bucket of few different digests shrinks.
                    _append_to_buckets(_mark_repeats(records, is_repeated), sub_folder, depth)
                else:
                    is_repeated[records["row"][1 if is_first_read else 0 :]] = True
                is_first_read = False
        bucket.unlink()
        for sub_bucket in sorted(sub_folder.iterdir()):
            self._mark_bucket(sub_bucket, depth + 1, is_repeated)
        sub_folder.rmdir()


def _split_repeats(records: Records) -> tuple[Records, NDArray[np.uint64]]:
    """Return the first record of each digest, and the rows of the others. Records of one digest must be in row order."""
    order = np.lexsort((records["low"], records["high"]))
    high, low = records["high"][order], records["low"][order]
    is_first = np.ones(len(records), dtype=np.bool_)
    is_first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    return records[order[is_first]], records["row"][order[~is_first]]


def _mark_repeats(records: Records, is_repeated: NDArray[np.bool_]) -> Records:
    """Return the first record of each digest, and mark the rows of the others."""
    first_records, repeated_rows = _split_repeats(records)
    is_repeated[repeated_rows] = True
    return first_records


def _append_to_buckets(records: Records, folder: Path, byte_index: int) -> None:
    """Append each record to the bucket in `folder` that byte `byte_index` of its digest names."""
    digest_word = records["high"] if byte_index < 8 else records["low"]
    byte = (digest_word >> np.uint64(56 - 8 * (byte_index % 8))).astype(np.uint8)
    order = np.argsort(byte, kind="stable")
    ends = np.cumsum(np.bincount(byte, minlength=256))
    for bucket_index, (start, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
        if start < end:
            with (folder / f"{_BUCKET_PREFIX}{bucket_index:02x}").open("ab") as stream:
                stream.write(records[order[start:end]].tobytes())
