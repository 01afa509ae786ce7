"""Batches: padded ids under a token budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from dragoman.data.tokenization.special_tokens import END_ID, PADDING_ID
from dragoman.data.tokenization.word_boundaries import Looks

if TYPE_CHECKING:  # who translates has no corpus to open
    from dragoman.data.encoded_corpus import Corpus, Ids

Row: TypeAlias = "Ids | Sequence[int]"
# Of what a batch computes, by its longer sides: for less than this, one pass more does not pay.
WORTH_A_PART = 0.15


@dataclass(frozen=True)
class Guide:
    """Where the places of a target should look in its source, and which share of them should.

    places_3G: row of the batch, place of the target, place of the source
    """

    places_3G: Tensor
    share_G: Tensor
    rows: int

    @classmethod
    def of(cls, looks: Sequence[Looks]) -> Guide:
        """From those of each row of a batch."""
        rows = np.repeat(np.arange(len(looks)), [len(share) for _, _, share in looks])
        targets, sources, shares = (np.concatenate(side) for side in zip(*looks, strict=True))
        return cls(torch.from_numpy(np.stack([rows, targets, sources])), torch.from_numpy(shares), len(looks))

    def of_rows(self, begin: int, end: int) -> Guide:
        here = (self.places_3G[0] >= begin) & (self.places_3G[0] < end)
        places_3G = self.places_3G[:, here] - torch.tensor([[begin], [0], [0]], device=here.device)
        return Guide(places_3G, self.share_G[here], end - begin)

    def to(self, device: torch.device) -> Guide:
        return replace(
            self, places_3G=self.places_3G.to(device, non_blocking=True), share_G=self.share_G.to(device, non_blocking=True)
        )

    def pin_memory(self) -> Guide:
        return replace(self, places_3G=self.places_3G.pin_memory(), share_G=self.share_G.pin_memory())


@dataclass(frozen=True)
class Batch:
    """Padded ids: what the encoder reads, what the decoder reads, and what it should say next."""

    source_BS: Tensor
    inputs_BT: Tensor
    targets_BT: Tensor
    num_target_tokens: int
    real_X: Tensor | None = None
    """Where the targets, laid end to end, hold a real token, if that is known already."""
    guide: Guide | None = None
    """Where a guided head should look."""

    def real_places(self) -> Tensor:
        """Where the targets, laid end to end, hold a real token. (X,)"""
        return (self.targets_BT != PADDING_ID).flatten().nonzero().flatten() if self.real_X is None else self.real_X

    def to(self, device: torch.device) -> Batch:
        """On that device. What would wait for it to count is counted before."""
        return Batch(
            self.source_BS.to(device, non_blocking=True),
            self.inputs_BT.to(device, non_blocking=True),
            self.targets_BT.to(device, non_blocking=True),
            self.num_target_tokens,
            self.real_places().to(device, non_blocking=True),
            None if self.guide is None else self.guide.to(device),
        )

    def pin_memory(self) -> Batch:
        """In memory that a GPU copies from by itself; torch's loader calls this by name."""
        tensors = (self.source_BS.pin_memory(), self.inputs_BT.pin_memory(), self.targets_BT.pin_memory())
        guide = None if self.guide is None else self.guide.pin_memory()
        return Batch(*tensors, self.num_target_tokens, self.real_places().pin_memory(), guide)


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


def collate(sources: Sequence[Row], targets: Sequence[Row], *, start_id: int, looks: Sequence[Looks] | None = None) -> Batch:
    """Pad, and shift the target: the decoder reads start, y₁, y₂, … and should say y₁, y₂, …, end."""
    return Batch(
        pad(sources),
        pad(targets, first=start_id),
        pad(targets, last=END_ID),
        sum(len(target) + 1 for target in targets),
        guide=None if looks is None else Guide.of(looks),
    )


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """The upper and the lower rows of a batch, each without columns that are padding alone."""
    middle = len(batch.source_BS) // 2
    return _rows(batch, 0, middle), _rows(batch, middle, len(batch.source_BS))


def _rows(batch: Batch, begin: int, end: int) -> Batch:
    rows = slice(begin, end)
    source_BS, inputs_BT, targets_BT = batch.source_BS[rows], batch.inputs_BT[rows], batch.targets_BT[rows]
    real_BT = targets_BT != PADDING_ID
    sources = slice(int((source_BS != PADDING_ID).sum(dim=1).max()))
    targets = slice(int(real_BT.sum(dim=1).max()))
    guide = None if batch.guide is None else batch.guide.of_rows(begin, end)
    return Batch(source_BS[:, sources], inputs_BT[:, targets], targets_BT[:, targets], int(real_BT.sum()), guide=guide)


def cut(lengths: Sequence[int], batch_tokens: int) -> Iterator[slice]:
    """Consecutive rows of these lengths in parts whose padded size stays within the budget; a longer row gets its own."""
    begin = longest = 0
    for row, length in enumerate(lengths):
        if row > begin and max(longest, length) * (row + 1 - begin) > batch_tokens:
            yield slice(begin, row)
            begin, longest = row, 0
        longest = max(longest, length)
    if lengths:
        yield slice(begin, len(lengths))


def apart(lengths: Sequence[int], rows: slice, worth: float | None = None) -> Iterator[slice]:
    """These rows, of lengths that rise, in as many parts as it takes for the longest not to pad the others by much.

    worth: the places that a part more has to save
    """
    begin, end = rows.start, rows.stop
    whole = lengths[end - 1] * (end - begin)
    worth = WORTH_A_PART * whole if worth is None else worth
    sizes = [lengths[at - 1] * (at - begin) + lengths[end - 1] * (end - at) for at in range(begin + 1, end)]
    if not sizes or whole - min(sizes) < worth:
        yield rows
        return
    at = begin + 1 + sizes.index(min(sizes))
    yield from apart(lengths, slice(begin, at), worth)
    yield from apart(lengths, slice(at, end), worth)


def collate_within(
    sources: Sequence[Row],
    targets: Sequence[Row],
    *,
    batch_tokens: int,
    start_id: int,
    looks: Sequence[Looks] | None = None,
    uneven: bool = False,
) -> list[Batch]:
    """One batch, or where it would exceed the budget the same pairs in several, by length.

    uneven: their lengths are no longer those that they were put together by, so that one may pad all others
    """
    lengths = [max(len(source), len(target) + 1) for source, target in zip(sources, targets, strict=True)]
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    rising = [lengths[row] for row in order]
    slices = list(cut(rising, batch_tokens))
    if uneven:
        slices = [narrow for rows in slices for narrow in apart(rising, rows)]
    if len(slices) == 1:
        return [collate(sources, targets, start_id=start_id, looks=looks)]
    parts = [order[rows] for rows in slices]
    return [
        collate(
            [sources[row] for row in part],
            [targets[row] for row in part],
            start_id=start_id,
            looks=None if looks is None else [looks[row] for row in part],
        )
        for part in parts
    ]


def batches_in_order(corpus: Corpus, *, batch_tokens: int, start_id: int) -> Iterator[Batch]:
    """All pairs of a corpus once, from the shortest to the longest: what validation reads."""
    longest = np.maximum(*corpus.lengths())
    order = np.argsort(longest, kind="stable")
    for part in cut(longest[order].tolist(), batch_tokens):
        rows = order[part].tolist()
        yield collate([corpus.source(row) for row in rows], [corpus.target(row) for row in rows], start_id=start_id)
