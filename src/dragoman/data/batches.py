"""Batches under a token budget, in an order that is a pure function of (seed, epoch).

Pairs are shuffled, sorted by the length of their longer side (shuffled among equals), cut into batches whose padded size stays
within the budget on either side, and the batches are shuffled. No pair is left out and none comes twice in an epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dragoman.data.corpus import Corpus, Ids
from dragoman.data.subword import END_ID, PADDING_ID

Indices = npt.NDArray[np.int64]
Row = Ids | Sequence[int]


@dataclass(frozen=True)
class Batch:
    """Padded ids: what the encoder reads, what the decoder reads, and what it should say next."""

    source_BS: Tensor
    inputs_BT: Tensor
    targets_BT: Tensor
    num_target_tokens: int

    def to(self, device: torch.device) -> Batch:
        return Batch(
            self.source_BS.to(device, non_blocking=True),
            self.inputs_BT.to(device, non_blocking=True),
            self.targets_BT.to(device, non_blocking=True),
            self.num_target_tokens,
        )


def plan_epoch(
    source_lengths: Ids, target_lengths: Ids, *, batch_tokens: int, seed: int, epoch: int, shuffle: bool = True
) -> list[Indices]:
    """The batches of one epoch as arrays of pair numbers. A pair that exceeds the budget alone gets a batch of its own."""
    random = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    longest = np.maximum(source_lengths, target_lengths)
    order = random.permutation(len(longest)) if shuffle else np.arange(len(longest))
    order = order[np.lexsort((target_lengths[order], longest[order]))]
    starts = [0]
    for place, length in enumerate(longest[order].tolist()):
        if place > starts[-1] and length * (place + 1 - starts[-1]) > batch_tokens:
            starts.append(place)
    batches = [part for part in np.split(order, starts[1:]) if len(part)]
    return [batches[index] for index in random.permutation(len(batches))] if shuffle else batches


def pad(rows: Sequence[Row], *, first: int | None = None, last: int | None = None) -> Tensor:
    """Ids of unequal length as one tensor, padded on the right; `first` and `last` are put around each row."""
    before, after = int(first is not None), int(last is not None)
    lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
    padded = np.full((len(rows), int(lengths.max()) + before + after), PADDING_ID, dtype=np.int64)
    places = np.arange(padded.shape[1])
    padded[(places >= before) & (places < before + lengths[:, None])] = np.concatenate([np.asarray(row) for row in rows])
    if first is not None:
        padded[:, 0] = first
    if last is not None:
        padded[np.arange(len(rows)), before + lengths] = last
    return torch.from_numpy(padded)


def collate(sources: Sequence[Row], targets: Sequence[Row], *, start_id: int) -> Batch:
    """Pad, and shift the target: the decoder reads start, y₁, y₂, … and should say y₁, y₂, …, end."""
    return Batch(
        pad(sources),
        pad(targets, first=start_id),
        pad(targets, last=END_ID),
        sum(len(target) + 1 for target in targets),
    )


@dataclass(frozen=True)
class Cursor:
    """A place in the endless sequence of batches: the next one is number `batch` of epoch `epoch`."""

    epoch: int = 0
    batch: int = 0


class BatchStream:
    """The endless sequence of batches of a corpus, from any cursor on."""

    def __init__(self, corpus: Corpus, *, batch_tokens: int, seed: int, start_id: int, cursor: Cursor) -> None:
        self.corpus = corpus
        self.batch_tokens = batch_tokens
        self.seed = seed
        self.start_id = start_id
        self.cursor = cursor
        self._lengths = corpus.lengths()
        self._plan = self._plan_of(cursor.epoch)

    def _plan_of(self, epoch: int) -> list[Indices]:
        return plan_epoch(*self._lengths, batch_tokens=self.batch_tokens, seed=self.seed, epoch=epoch)

    def batches_in_epoch(self) -> int:
        return len(self._plan)

    def next(self) -> Batch:
        if self.cursor.batch >= len(self._plan):
            self.cursor = Cursor(self.cursor.epoch + 1, 0)
            self._plan = self._plan_of(self.cursor.epoch)
        indices = self._plan[self.cursor.batch]
        self.cursor = Cursor(self.cursor.epoch, self.cursor.batch + 1)
        return batch_of(self.corpus, indices, start_id=self.start_id)


def batch_of(corpus: Corpus, indices: Indices, *, start_id: int) -> Batch:
    """These pairs of the corpus, padded."""
    numbers: list[int] = indices.tolist()
    return collate([corpus.source(i) for i in numbers], [corpus.target(i) for i in numbers], start_id=start_id)
