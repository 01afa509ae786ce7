"""Padding of id sequences, and their division under a budget of padded tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dragoman.data.tokenization.special_tokens import PADDING_ID

if TYPE_CHECKING:  # inference does not need pyarrow
    from dragoman.data.encoded_corpus import Ids

IdSequence: TypeAlias = "Ids | Sequence[int]"


def pad_sequences(
    rows: Sequence[IdSequence], *, prefix_id: int | None = None, suffix_id: int | None = None
) -> NDArray[np.int64]:
    """Return rows of ids as one array, padded on the right, with the prefix and the suffix around each row. (B, T)"""
    num_prefix_ids, num_suffix_ids = int(prefix_id is not None), int(suffix_id is not None)
    if len(rows) == 1 and not num_prefix_ids + num_suffix_ids:  # nothing is padded
        return np.array(rows, dtype=np.int64)
    lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
    padded_BT = np.full((len(rows), int(lengths.max()) + num_prefix_ids + num_suffix_ids), PADDING_ID, dtype=np.int64)
    columns = np.arange(padded_BT.shape[1])
    padded_BT[(columns >= num_prefix_ids) & (columns < num_prefix_ids + lengths[:, None])] = np.concatenate(
        [np.asarray(row) for row in rows]
    )
    if prefix_id is not None:
        padded_BT[:, 0] = prefix_id
    if suffix_id is not None:
        padded_BT[np.arange(len(rows)), num_prefix_ids + lengths] = suffix_id
    return padded_BT


def split_by_tokens(lengths: Sequence[int], batch_tokens: int) -> Iterator[slice]:
    """Yield consecutive rows whose padded size stays within the budget; a row above the budget is a part by itself."""
    begin = longest = 0
    for row, length in enumerate(lengths):
        if row > begin and max(longest, length) * (row + 1 - begin) > batch_tokens:
            yield slice(begin, row)
            begin, longest = row, 0
        longest = max(longest, length)
    if lengths:
        yield slice(begin, len(lengths))
