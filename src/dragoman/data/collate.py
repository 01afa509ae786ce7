"""Batches of padded ids under a token budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dragoman.data.padding import IdSequence, pad_sequences, split_by_tokens
from dragoman.data.tokenization.special_tokens import END_ID, PADDING_ID
from dragoman.data.tokenization.word_boundaries import AlignmentTarget

if TYPE_CHECKING:  # inference does not need pyarrow
    from dragoman.data.encoded_corpus import Corpus

# Share of a batch's padded tokens that a split must save, because each part costs a pass.
MIN_SPLIT_SAVING = 0.15


@dataclass(frozen=True)
class AlignmentTargets:
    """Attention that guided alignment trains: links between target and source positions, with weights.

    positions_3G: for each link G: row of the batch, target position, source position
    weights_G: weight of each link; the weights of a target position sum to 1
    """

    positions_3G: Tensor
    weights_G: Tensor

    @classmethod
    def from_rows(cls, row_targets: Sequence[AlignmentTarget]) -> AlignmentTargets:
        rows = np.repeat(np.arange(len(row_targets)), [len(row_weights) for _, _, row_weights in row_targets])
        targets, sources, weights = (np.concatenate(side) for side in zip(*row_targets, strict=True))
        return cls(torch.from_numpy(np.stack([rows, targets, sources])), torch.from_numpy(weights))

    def select_rows(self, begin: int, end: int) -> AlignmentTargets:
        """Return the targets of rows `begin` to `end`, excluding `end`."""
        mask = (self.positions_3G[0] >= begin) & (self.positions_3G[0] < end)
        positions_3G = self.positions_3G[:, mask] - torch.tensor([[begin], [0], [0]], device=mask.device)
        return AlignmentTargets(positions_3G, self.weights_G[mask])

    def to(self, device: torch.device) -> AlignmentTargets:
        return replace(
            self,
            positions_3G=self.positions_3G.to(device, non_blocking=True),
            weights_G=self.weights_G.to(device, non_blocking=True),
        )

    def pin_memory(self) -> AlignmentTargets:
        return replace(self, positions_3G=self.positions_3G.pin_memory(), weights_G=self.weights_G.pin_memory())


@dataclass(frozen=True)
class Batch:
    """Padded ids of sentence pairs.

    source_BS: input of the encoder
    inputs_BT: input of the decoder: the start token, y₁, y₂, …
    targets_BT: expected output of the decoder: y₁, y₂, …, the end token
    num_target_tokens: tokens of the targets with their end tokens, without padding
    nonpad_positions_X: positions of real tokens in the flattened targets, if they are known already
    alignment_targets: attention that a guided head should have
    """

    source_BS: Tensor
    inputs_BT: Tensor
    targets_BT: Tensor
    num_target_tokens: int
    nonpad_positions_X: Tensor | None = None
    alignment_targets: AlignmentTargets | None = None

    def find_nonpad_positions(self) -> Tensor:
        """Return the positions of real tokens in the flattened targets. (X,)"""
        return (
            (self.targets_BT != PADDING_ID).flatten().nonzero().flatten()
            if self.nonpad_positions_X is None
            else self.nonpad_positions_X
        )

    def to(self, device: torch.device) -> Batch:
        """Return a copy on the device. The positions of real tokens are computed first, because that would wait for a GPU."""
        return Batch(
            self.source_BS.to(device, non_blocking=True),
            self.inputs_BT.to(device, non_blocking=True),
            self.targets_BT.to(device, non_blocking=True),
            self.num_target_tokens,
            self.find_nonpad_positions().to(device, non_blocking=True),
            None if self.alignment_targets is None else self.alignment_targets.to(device),
        )

    def pin_memory(self) -> Batch:
        """Return a copy in page-locked memory; torch's DataLoader calls this method by name."""
        tensors = (self.source_BS.pin_memory(), self.inputs_BT.pin_memory(), self.targets_BT.pin_memory())
        alignment_targets = None if self.alignment_targets is None else self.alignment_targets.pin_memory()
        return Batch(*tensors, self.num_target_tokens, self.find_nonpad_positions().pin_memory(), alignment_targets)


def collate(
    sources: Sequence[IdSequence],
    targets: Sequence[IdSequence],
    *,
    start_id: int,
    alignment_targets: Sequence[AlignmentTarget] | None = None,
) -> Batch:
    """Return a batch of padded pairs: the decoder reads start, y₁, y₂, … and predicts y₁, y₂, …, end."""
    return Batch(
        torch.from_numpy(pad_sequences(sources)),
        torch.from_numpy(pad_sequences(targets, prefix_id=start_id)),
        torch.from_numpy(pad_sequences(targets, suffix_id=END_ID)),
        sum(len(target) + 1 for target in targets),
        alignment_targets=None if alignment_targets is None else AlignmentTargets.from_rows(alignment_targets),
    )


def split_in_half(batch: Batch) -> tuple[Batch, Batch]:
    """Return the upper and the lower rows of a batch, each without columns that hold only padding."""
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


def split_to_reduce_padding(lengths: Sequence[int], rows: slice, min_saving: float | None = None) -> Iterator[slice]:
    """Yield the rows in parts, split as long as a split saves enough padding.

    lengths: ascending lengths of all rows
    min_saving: padded tokens that a split must save; by default a share of the padded tokens of `rows`
    """
    begin, end = rows.start, rows.stop
    padded_tokens = lengths[end - 1] * (end - begin)
    min_saving = MIN_SPLIT_SAVING * padded_tokens if min_saving is None else min_saving
    split_sizes = [lengths[split - 1] * (split - begin) + lengths[end - 1] * (end - split) for split in range(begin + 1, end)]
    if not split_sizes or padded_tokens - min(split_sizes) < min_saving:
        yield rows
        return
    best_split = begin + 1 + split_sizes.index(min(split_sizes))
    yield from split_to_reduce_padding(lengths, slice(begin, best_split), min_saving)
    yield from split_to_reduce_padding(lengths, slice(best_split, end), min_saving)


def collate_with_budget(
    sources: Sequence[IdSequence],
    targets: Sequence[IdSequence],
    *,
    batch_tokens: int,
    start_id: int,
    alignment_targets: Sequence[AlignmentTarget] | None = None,
    reduce_padding: bool = False,
) -> list[Batch]:
    """Return one batch, or several by length if one would exceed the budget.

    sources: ids of each source, as the encoder reads them
    targets: ids of each target without its end token
    batch_tokens: limit of the padded tokens on either side
    start_id: first id that the decoder reads
    alignment_targets: attention that a guided head should have, for each pair
    reduce_padding: split further if the lengths differ much, as after noise has changed them
    """
    lengths = [max(len(source), len(target) + 1) for source, target in zip(sources, targets, strict=True)]
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    sorted_lengths = [lengths[row] for row in order]
    slices = list(split_by_tokens(sorted_lengths, batch_tokens))
    if reduce_padding:
        slices = [part for rows in slices for part in split_to_reduce_padding(sorted_lengths, rows)]
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
    """Yield batches of all pairs of a corpus, each pair once, from the shortest to the longest, for validation."""
    max_lengths = np.maximum(*corpus.lengths())
    order = np.argsort(max_lengths, kind="stable")
    for positions in split_by_tokens(max_lengths[order].tolist(), batch_tokens):
        rows = order[positions].tolist()
        yield collate([corpus.source(row) for row in rows], [corpus.target(row) for row in rows], start_id=start_id)
