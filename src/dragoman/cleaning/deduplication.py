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
from dragoman.io.storage import describe_write_error

Digests = NDArray[np.uint64]
"""Of shape (rows, 2)."""
Records = NDArray[np.void]
"""Digests with the numbers of their rows."""

_RECORD_DTYPE = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<u8")])
_DEFAULT_ROWS_IN_MEMORY = 2**20
_DIGEST_BYTES = 16
_BUCKET_PREFIX = "bucket-"


def digest_sources(sources: Sequence[str]) -> Digests:
    """128 bits of each text."""
    return _hash_texts(map(_encode, sources))


def digest_pairs(sources: Sequence[str], targets: Sequence[str]) -> Digests:
    """128 bits of each pair; the source's length goes in first, so that it is plain where the target begins."""
    pairs = zip(map(_encode, sources), map(_encode, targets), strict=True)
    return _hash_texts(b"%d:%b%b" % (len(source), source, target) for source, target in pairs)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _hash_texts(texts: Iterable[bytes]) -> Digests:
    return np.frombuffer(b"".join([blake2b(text, digest_size=16).digest() for text in texts]), dtype="<u8").reshape(-1, 2)


class DuplicateFinder:
    """Rows are added in their order, and in the end each one is known to be the first of its kind or not.

    Up to `rows_at_once` rows wait in memory; beyond that they go to 256 files in `folder`, 24 bytes a row, and a file of more
    rows than that is split again before it is sorted. So what is held does not grow with the rows, but for the answer, a byte
    each. The folder is made where it does not stand, and may hold nothing but what an earlier, broken search has left.
    """

    def __init__(self, folder: Path, *, max_rows_in_memory: int = _DEFAULT_ROWS_IN_MEMORY) -> None:
        self._folder = folder
        self._max_rows_in_memory = max_rows_in_memory
        self._pending: list[Records] = []
        self._num_pending_rows = 0
        self._num_rows = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.iterdir()):
                if not path.name.startswith(_BUCKET_PREFIX):
                    raise OutputError(f"{folder}: holds {path.name!r}; duplicates are sought in an empty folder")
            self._clear()
        except OSError as error:
            raise OutputError(describe_write_error(folder, error)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing behind, whatever happened."""
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
        """The next rows. Raises OutputError where the folder cannot be written to."""
        for start in range(0, len(digests), self._max_rows_in_memory):
            digest_slice = digests[start : start + self._max_rows_in_memory]
            records = np.empty(len(digest_slice), dtype=_RECORD_DTYPE)
            records["high"], records["low"] = digest_slice[:, 0], digest_slice[:, 1]
            records["row"] = np.arange(self._num_rows, self._num_rows + len(digest_slice), dtype=np.uint64)
            self._num_rows += len(digest_slice)
            if self._num_pending_rows + len(digest_slice) > self._max_rows_in_memory:
                self._spill_to_disk()
            self._pending.append(records)
            self._num_pending_rows += len(digest_slice)

    def find_repeated(self) -> NDArray[np.bool_]:
        """For each row, whether an earlier one has the same digest. This ends the search and empties the folder."""
        is_repeated = np.zeros(self._num_rows, dtype=np.bool_)
        if self._num_pending_rows == self._num_rows:
            _mark_repeats(self._take_pending(), is_repeated)
            return is_repeated
        self._spill_to_disk()
        try:
            for bucket in sorted(self._folder.iterdir()):
                self._mark_bucket(bucket, 1, is_repeated)
        except OSError as error:
            raise OutputError(describe_write_error(self._folder, error)) from None
        return is_repeated

    def _take_pending(self) -> Records:
        """The rows that wait in memory; there are none then."""
        pending = np.concatenate([np.empty(0, dtype=_RECORD_DTYPE), *self._pending])
        self._pending, self._num_pending_rows = [], 0
        return pending

    def _spill_to_disk(self) -> None:
        try:
            _append_to_buckets(self._take_pending(), self._folder, 0)
        except OSError as error:
            raise OutputError(describe_write_error(self._folder, error)) from None

    def _mark_bucket(self, bucket: Path, depth: int, is_repeated: NDArray[np.bool_]) -> None:
        """Mark what is repeated in a file whose digests agree in their first `depth` bytes, and remove the file."""
        if bucket.stat().st_size <= self._max_rows_in_memory * _RECORD_DTYPE.itemsize:
            _mark_repeats(np.fromfile(bucket, dtype=_RECORD_DTYPE), is_repeated)
            bucket.unlink()
            return
        sub_folder = bucket.with_name(f"{bucket.name}.parts")
        sub_folder.mkdir()
        with bucket.open("rb") as stream:
            is_first_read = True
            while len(records := np.fromfile(stream, dtype=_RECORD_DTYPE, count=self._max_rows_in_memory)):
                if depth < _DIGEST_BYTES:
                    # Without what is repeated already, a file of few different digests shrinks on the way.
                    _append_to_buckets(_mark_repeats(records, is_repeated), sub_folder, depth)
                else:
                    is_repeated[records["row"][1 if is_first_read else 0 :]] = True
                is_first_read = False
        bucket.unlink()
        for sub_bucket in sorted(sub_folder.iterdir()):
            self._mark_bucket(sub_bucket, depth + 1, is_repeated)
        sub_folder.rmdir()


def _mark_repeats(records: Records, is_repeated: NDArray[np.bool_]) -> Records:
    """The first record of each digest; the rows of the others, which must stand after it, are marked."""
    order = np.lexsort((records["low"], records["high"]))
    high, low = records["high"][order], records["low"][order]
    is_first = np.ones(len(records), dtype=np.bool_)
    is_first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    is_repeated[records["row"][order[~is_first]]] = True
    return records[order[is_first]]


def _append_to_buckets(records: Records, folder: Path, byte_index: int) -> None:
    """Add each record to the file in `folder` that its digest's byte number `depth` names."""
    digest_word = records["high"] if byte_index < 8 else records["low"]
    byte = (digest_word >> np.uint64(56 - 8 * (byte_index % 8))).astype(np.uint8)
    order = np.argsort(byte, kind="stable")
    ends = np.cumsum(np.bincount(byte, minlength=256))
    for bucket_index, (start, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
        if start < end:
            with (folder / f"{_BUCKET_PREFIX}{bucket_index:02x}").open("ab") as stream:
                stream.write(records[order[start:end]].tobytes())
