"""Batches: padded ids under a token budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from dragoman.data.tokenization.special_tokens import END_ID, PADDING_ID
from dragoman.data.tokenization.word_boundaries import AlignmentTarget

if TYPE_CHECKING:  # who translates has no corpus to open
    from dragoman.data.encoded_corpus import Corpus, Ids

IdSequence: TypeAlias = "Ids | Sequence[int]"
# Of what a batch computes, by its longer sides: for less than this, one pass more does not pay.
MIN_SPLIT_SAVING = 0.15


@dataclass(frozen=True)
class AlignmentTargets:
    """Where the places of a target should look in its source, and which share of them should.

    places_3G: row of the batch, place of the target, place of the source
    """

    positions_3G: Tensor
    weights_G: Tensor
    num_rows: int

    @classmethod
    def from_rows(cls, row_targets: Sequence[AlignmentTarget]) -> AlignmentTargets:
        """From those of each row of a batch."""
        rows = np.repeat(np.arange(len(row_targets)), [len(row_weights) for _, _, row_weights in row_targets])
        targets, sources, weights = (np.concatenate(side) for side in zip(*row_targets, strict=True))
        return cls(torch.from_numpy(np.stack([rows, targets, sources])), torch.from_numpy(weights), len(row_targets))

    def select_rows(self, begin: int, end: int) -> AlignmentTargets:
        mask = (self.positions_3G[0] >= begin) & (self.positions_3G[0] < end)
        positions_3G = self.positions_3G[:, mask] - torch.tensor([[begin], [0], [0]], device=mask.device)
        return AlignmentTargets(positions_3G, self.weights_G[mask], end - begin)

    def to(self, device: torch.device) -> AlignmentTargets:
        return replace(
            self,
            places_3G=self.positions_3G.to(device, non_blocking=True),
            share_G=self.weights_G.to(device, non_blocking=True),
        )

    def pin_memory(self) -> AlignmentTargets:
        return replace(self, places_3G=self.positions_3G.pin_memory(), share_G=self.weights_G.pin_memory())


@dataclass(frozen=True)
class Batch:
    """Padded ids: what the encoder reads, what the decoder reads, and what it should say next."""

    source_BS: Tensor
    inputs_BT: Tensor
    targets_BT: Tensor
    num_target_tokens: int
    nonpad_positions_X: Tensor | None = None
    """Where the targets, laid end to end, hold a real token, if that is known already."""
    alignment_targets: AlignmentTargets | None = None
    """Where a guided head should look."""

    def find_nonpad_positions(self) -> Tensor:
        """Where the targets, laid end to end, hold a real token. (X,)"""
        return (
            (self.targets_BT != PADDING_ID).flatten().nonzero().flatten()
            if self.nonpad_positions_X is None
            else self.nonpad_positions_X
        )

    def to(self, device: torch.device) -> Batch:
        """On that device. What would wait for it to count is counted before."""
        return Batch(
            self.source_BS.to(device, non_blocking=True),
            self.inputs_BT.to(device, non_blocking=True),
            self.targets_BT.to(device, non_blocking=True),
            self.num_target_tokens,
            self.find_nonpad_positions().to(device, non_blocking=True),
            None if self.alignment_targets is None else self.alignment_targets.to(device),
        )

    def pin_memory(self) -> Batch:
        """In memory that a GPU copies from by itself; torch's loader calls this by name."""
        tensors = (self.source_BS.pin_memory(), self.inputs_BT.pin_memory(), self.targets_BT.pin_memory())
        alignment_targets = None if self.alignment_targets is None else self.alignment_targets.pin_memory()
        return Batch(*tensors, self.num_target_tokens, self.find_nonpad_positions().pin_memory(), alignment_targets)


def pad_sequences(rows: Sequence[IdSequence], *, prefix_id: int | None = None, suffix_id: int | None = None) -> Tensor:
    """Ids of unequal length as one tensor, padded on the right; `first` and `last` are put around each row."""
    num_prefix_ids, num_suffix_ids = int(prefix_id is not None), int(suffix_id is not None)
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
    return torch.from_numpy(padded_BT)


def collate(
    sources: Sequence[IdSequence],
    targets: Sequence[IdSequence],
    *,
    start_id: int,
    alignment_targets: Sequence[AlignmentTarget] | None = None,
) -> Batch:
    """Pad, and shift the target: the decoder reads start, y₁, y₂, … and should say y₁, y₂, …, end."""
    return Batch(
        pad_sequences(sources),
        pad_sequences(targets, prefix_id=start_id),
        pad_sequences(targets, suffix_id=END_ID),
        sum(len(target) + 1 for target in targets),
        alignment_targets=None if alignment_targets is None else AlignmentTargets.from_rows(alignment_targets),
    )


def split_in_half(batch: Batch) -> tuple[Batch, Batch]:
    """The upper and the lower rows of a batch, each without columns that are padding alone."""
    middle = len(batch.source_BS) // 2
    return _select_rows(batch, 0, middle), _select_rows(batch, middle, len(batch.source_BS))


def _select_rows(batch: Batch, begin: int, end: int) -> Batch:
    rows = slice(begin, end)
    source_BS, inputs_BT, targets_BT = batch.source_BS[rows], batch.inputs_BT[rows], batch.targets_BT[rows]
    nonpad_BT = targets_BT != PADDING_ID
    source_columns = slice(int((source_BS != PADDING_ID).sum(dim=1).max()))
    target_columns = slice(int(nonpad_BT.sum(dim=1).max()))
    alignment_targets = None if batch.alignment_targets is None else batch.alignment_targets.select_rows(begin, end)
    return Batch(
        source_BS[:, source_columns],
        inputs_BT[:, target_columns],
        targets_BT[:, target_columns],
        int(nonpad_BT.sum()),
        alignment_targets=alignment_targets,
    )


def split_by_tokens(lengths: Sequence[int], batch_tokens: int) -> Iterator[slice]:
    """Consecutive rows of these lengths in parts whose padded size stays within the budget; a longer row gets its own."""
    begin = longest = 0
    for row, length in enumerate(lengths):
        if row > begin and max(longest, length) * (row + 1 - begin) > batch_tokens:
            yield slice(begin, row)
            begin, longest = row, 0
        longest = max(longest, length)
    if lengths:
        yield slice(begin, len(lengths))


def split_to_reduce_padding(lengths: Sequence[int], rows: slice, min_saving: float | None = None) -> Iterator[slice]:
    """These rows, of lengths that rise, in as many parts as it takes for the longest not to pad the others by much.

    worth: the places that a part more has to save
    """
    begin, end = rows.start, rows.stop
    padded_tokens = lengths[end - 1] * (end - begin)
    min_saving = MIN_SPLIT_SAVING * padded_tokens if min_saving is None else min_saving
    split_sizes = [lengths[split - 1] * (split - begin) + lengths[end - 1] * (end - split) for split in range(begin + 1, end)]
    if not split_sizes or padded_tokens - min(split_sizes) < min_saving:
        yield rows
        return
    at = begin + 1 + split_sizes.index(min(split_sizes))
    yield from split_to_reduce_padding(lengths, slice(begin, at), min_saving)
    yield from split_to_reduce_padding(lengths, slice(at, end), min_saving)


def collate_with_budget(
    sources: Sequence[IdSequence],
    targets: Sequence[IdSequence],
    *,
    batch_tokens: int,
    start_id: int,
    alignment_targets: Sequence[AlignmentTarget] | None = None,
    reduce_padding: bool = False,
) -> list[Batch]:
    """One batch, or where it would exceed the budget the same pairs in several, by length.

    uneven: their lengths are no longer those that they were put together by, so that one may pad all others
    """
    lengths = [max(len(source), len(target) + 1) for source, target in zip(sources, targets, strict=True)]
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    sorted_lengths = [lengths[row] for row in order]
    slices = list(split_by_tokens(sorted_lengths, batch_tokens))
    if reduce_padding:
        slices = [subset_rows for rows in slices for subset_rows in split_to_reduce_padding(sorted_lengths, rows)]
    if len(slices) == 1:
        return [collate(sources, targets, start_id=start_id, alignment_targets=alignment_targets)]
    groups = [order[rows] for rows in slices]
    return [
        collate(
            [sources[row] for row in group],
            [targets[row] for row in group],
            start_id=start_id,
            alignment_targets=None if alignment_targets is None else [alignment_targets[row] for row in group],
        )
        for group in groups
    ]


def iter_batches_by_length(corpus: Corpus, *, batch_tokens: int, start_id: int) -> Iterator[Batch]:
    """All pairs of a corpus once, from the shortest to the longest: what validation reads."""
    max_lengths = np.maximum(*corpus.lengths())
    order = np.argsort(max_lengths, kind="stable")
    for positions in split_by_tokens(max_lengths[order].tolist(), batch_tokens):
        rows = order[positions].tolist()
        yield collate([corpus.source(row) for row in rows], [corpus.target(row) for row in rows], start_id=start_id)
