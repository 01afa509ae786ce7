"""A trained model whose reading and whose step are one compiled function each (`kernels`), in int8 on a processor.

Sentences are read without padding, some at a time. Keys and values of the output are written once: each row has a place for
every token, and a table tells which row's place holds what a hypothesis descends from, so that to follow the beam only the
table is put in order.

    B sentences    N rows, R for each sentence    others as in `kernels`
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.engine import kernels
from dragoman.engine.kernels import Across, Heads, Layers, Seen
from dragoman.engine.matrices import SUMS_APART, Matrices, Space
from dragoman.engine.packed import PackedEmbedding
from dragoman.engine.ranking import CompiledRanking
from dragoman.engine.vectors import BYTES, LANES, TILE_ROWS, has_tiles, tile_description

# Places of the output that room is made for, at first; then twice as many each time.
PLACES = 16
# So many tokens of the source are read at once, if they are of more than one sentence: what is computed stays in the cache.
ROWS_AT_ONCE = 256


class CompiledState(NamedTuple):
    """A step writes into its state's memory, so that each state is good for one step.

    wanted: sentences that are
    length: tokens read
    seen: has rows from the first step on
    logits_NV: what the last step wrote, and the next will
    """

    seen: Seen
    space: Space
    logits_NV: Tensor
    wanted: int
    length: int = 0

    def reorder(self, rows_N: Tensor) -> CompiledState:
        """Row i becomes what row rows_N[i] was; no row leaves its sentence."""
        seen = self.seen
        if len(seen.lineage) == self.wanted:
            return self
        return self._replace(seen=seen._replace(lineage=seen.lineage[rows_N.numpy()]))

    def keep(self, sentences_B: Tensor) -> CompiledState:
        """Only these sentences, with all their rows. Nothing is moved."""
        seen, wanted = self.seen, sentences_B.shape[0]
        if wanted == self.wanted:
            return self
        width = len(seen.lineage) // self.wanted
        rows_N = (sentences_B[:, None] * width + torch.arange(width)).flatten().numpy()
        kept = seen._replace(lineage=seen.lineage[rows_N], stored=seen.stored[rows_N], sentence=seen.sentence[rows_N])
        return self._replace(wanted=wanted, seen=kept, logits_NV=self.logits_NV[: wanted * width])

    def with_room(self) -> CompiledState:
        """For twice as many tokens in each row."""
        seen, space, places = self.seen, self.space, len(self.seen.past_keys)
        lineage = np.empty((len(seen.lineage), 2 * places), np.int32)
        lineage[:, :places] = seen.lineage
        seen = seen._replace(past_keys=_twice(seen.past_keys), past_values=_twice(seen.past_values), lineage=lineage)
        if len(space.scores) < 2 * places + LANES:
            space = space._replace(scores=np.empty(2 * places + LANES, np.float32))
        return self._replace(seen=seen, space=space)


def _twice(past: NDArray[np.float32]) -> NDArray[np.float32]:
    more = np.empty((2 * len(past), *past.shape[1:]), np.float32)
    more[: len(past)] = past
    return more


class Side(NamedTuple):
    """What one stack reads by."""

    table_VD: NDArray[np.float32]
    gain_V: NDArray[np.float32]
    embedding: PackedEmbedding
    layers: Layers

    def positions(self, start: int, length: int) -> NDArray[np.float32]:
        """(length, D)"""
        found_SD = self.embedding.positions(start, length).detach()
        if self.embedding.extra_D is not None:
            found_SD = found_SD + self.embedding.extra_D
        return np.asarray(found_SD.contiguous().numpy())


@dataclass(frozen=True)
class CompiledTransformer:
    """What a search asks for words, as `PackedTransformer` is; for inference only.

    Several threads may use it at once: who computes has left Python's lock, and each batch has its own memory.
    """

    source: Side
    target: Side
    across: Across
    heads: Heads
    output: Matrices
    ranking: ClassVar[type[CompiledRanking]] = CompiledRanking

    @property
    def width(self) -> int:
        """D"""
        return int(self.source.table_VD.shape[1])

    def start(self, source_BS: Tensor) -> CompiledState:
        """Read the source, padded on the right: the state before the first target token."""
        source, (sentences, places) = self.source, source_BS.shape
        length_B = (source_BS != source.embedding.padding_id).sum(1).int().numpy()
        shape = len(self.target.layers.inner.scale), sentences, self.heads.number, places
        memory_keys = np.empty((*shape, self.heads.key_width), np.float32)
        memory_values = np.empty((*shape, self.heads.value_width), np.float32)
        positions_SD = source.positions(0, places)
        ids_BS, space = source_BS.numpy(), None
        for some in _parts(length_B):
            rows = int(length_B[some].sum())
            if space is None or len(space.x) < rows:
                space = self._space(rows, places)
            first = np.concatenate([[0], length_B[some].cumsum()])
            kernels.encode(
                np.concatenate([ids_BS[one, : length_B[one]] for one in some]),
                np.concatenate([np.arange(length_B[one]) for one in some]),
                first.astype(np.int64),
                np.asarray(some),
                *source[:2],
                positions_SD,
                source.layers,
                self.across,
                self.heads,
                memory_keys,
                memory_values,
                space,
            )
        nothing = np.empty((0, 0, 0, 0, 0), np.float32)
        none = np.empty(0, np.int32)
        seen = Seen(nothing, nothing, memory_keys, memory_values, np.empty((0, 0), np.int32), none, none, length_B)
        assert space is not None
        return CompiledState(seen, space, torch.empty(0), sentences)

    def step(self, tokens_N: Tensor, state: CompiledState) -> tuple[Tensor, CompiledState]:
        """Read one more target token in each row: the logits (N, V) of the next, and the state after it."""
        now = state.length
        if now == 0:
            state = self._begun(state, tokens_N.shape[0])
        elif now == len(state.seen.past_keys):
            state = state.with_room()
        seen, logits_NV, target = state.seen, state.logits_NV, self.target
        seen.lineage[:, now] = seen.stored
        kernels.step(
            tokens_N.numpy(),
            np.zeros(tokens_N.shape[0], np.int64),
            now,
            target.table_VD,
            target.gain_V,
            target.positions(now, 1),
            target.layers,
            self.across,
            self.heads,
            self.output,
            seen,
            state.space,
            logits_NV.numpy(),
        )
        return logits_NV, state._replace(length=now + 1)

    def _begun(self, state: CompiledState, rows: int) -> CompiledState:
        shape = PLACES, len(self.target.layers.inner.scale), rows, self.heads.number
        seen = state.seen._replace(
            past_keys=np.empty((*shape, self.heads.key_width), np.float32),
            past_values=np.empty((*shape, self.heads.value_width), np.float32),
            lineage=np.empty((rows, PLACES), np.int32),
            stored=np.arange(rows, dtype=np.int32),
            sentence=np.repeat(np.arange(state.wanted, dtype=np.int32), rows // state.wanted),
        )
        space = state.space
        if len(space.x) < rows or len(space.scores) < PLACES + LANES:
            space = self._space(rows, max(PLACES, seen.memory_keys.shape[3]))
        return state._replace(seen=seen, space=space, logits_NV=torch.empty(rows, self.output.outputs))

    def _space(self, rows: int, places: int) -> Space:
        found_width = self.heads.number * self.heads.value_width
        matrices = [each for stack in (self.source.layers, self.target.layers) for each in stack[:4]]
        widest = max(one.outputs for one in [*matrices, *self.across[:3]])
        inputs = -(-max(widest, self.width, found_width) // BYTES) * BYTES
        return Space(
            x=np.empty((rows, self.width), np.float32),
            y=np.empty((rows, max(self.width, found_width)), np.float32),
            wide=np.empty((rows, widest), np.float32),
            inputs=np.zeros((-(-rows // (2 * TILE_ROWS)) * 2 * TILE_ROWS, inputs), np.uint8),
            steps=np.empty(rows, np.float32),
            scores=np.empty(places + LANES, np.float32),
            sums=np.empty(4 * SUMS_APART, np.int32),
            described=tile_description() if has_tiles() else np.empty(0, np.uint8),
        )


def _parts(length_B: NDArray[np.int32]) -> Iterator[list[int]]:
    """Numbers of sentences that are read together."""
    some: list[int] = []
    rows = 0
    for number, length in enumerate(length_B.tolist()):
        if some and rows + length > ROWS_AT_ONCE:
            yield some
            some, rows = [], 0
        some.append(number)
        rows += length
    if some:
        yield some
