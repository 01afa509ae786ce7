"""A trained model whose reading and whose step are one compiled function each (`kernels`), in int8 on a processor.

Sentences are read without padding, some at a time. Keys and values of the output are written once: each row has a place for
every token, and a table tells which row's place holds what a hypothesis descends from, so that to follow the beam only the
table is put in order.

    B sentences    N rows, R for each sentence    P rows that are stored    others as in `kernels`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.inference.backends.compiled import jit_cache as entries
from dragoman.inference.backends.compiled.cpu_features import has_tiles, tile_description
from dragoman.inference.backends.compiled.kernels.structs import (
    BYTES,
    LANES,
    SUMS_APART,
    TILE_ROWS,
    Across,
    Heads,
    Layers,
    Matrices,
    Memory,
    Past,
    Space,
    Table,
)
from dragoman.inference.backends.compiled.search import CompiledSearcher
from dragoman.inference.backends.compiled.threads import Helper, Meeting
from dragoman.inference.backends.compiled.topk import CompiledRanking
from dragoman.inference.backends.packed.model import PackedEmbedding

# Places of the output that room is made for at first, at least; then twice as many each time.
PLACES = 16
# So many tokens of the source are read at once, if they are of more than one sentence: what is computed stays in the cache.
ROWS_AT_ONCE = 256
# The width of a model for each thread that computes its step: of less than that, they wait longer for each other.
WIDTH_OF_A_MEMBER = 256
# What is known by its address is what it is said to be, whatever PyTorch would make of it by default.
FLOATS: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
HALVES: dict[str, Any] = {"dtype": torch.float16, "device": "cpu"}


class Room:
    """Memory to work in, for so many rows that look at so many places each.

    spaces: of each member of the team
    """

    def __init__(
        self, rows: int, places: int, heads: Heads, *, width: int, widest: int, helpers: Sequence[Helper] = ()
    ) -> None:
        """width: D. widest: O of the widest product, but for the last"""
        self.rows, self.places, self.meeting = rows, places, Meeting(helpers)
        self.description = torch.from_numpy(tile_description())
        self.shared = {"wide": torch.empty(rows * widest, **FLOATS)}
        if helpers:
            self.shared |= {
                "found": torch.empty(rows * heads.value_width, **FLOATS),
                "onto": torch.empty(rows * width, **FLOATS),
            }
        self.own = [_own_tensors(rows, places, heads, width, widest) for _ in self.meeting.teams]
        described = self.description.data_ptr() if has_tiles() else 0
        stride = self.own[0]["inputs"].shape[1]
        self.spaces = []
        for own, team in zip(self.own, self.meeting.teams, strict=True):
            tensors = {"found": own["y"], "onto": own["x"]} | own | self.shared
            addresses = {name: tensor.data_ptr() for name, tensor in tensors.items()}
            self.spaces.append(Space(**addresses, described=described, width=width, stride=stride, team=team))


def _own_tensors(rows: int, places: int, heads: Heads, width: int, widest: int) -> dict[str, Tensor]:
    """What each member writes for itself, by names as `Space` has them."""
    stride = -(-max(width, heads.value_width, widest) // BYTES) * BYTES
    filled = -(-rows // (2 * TILE_ROWS)) * 2 * TILE_ROWS
    floats = {"x": rows * width, "y": rows * max(width, heads.value_width), "steps": rows, "scores": places * LANES}
    return {name: torch.empty(count, **FLOATS) for name, count in floats.items()} | {
        "places": torch.empty(places, dtype=torch.long, device="cpu"),
        "keys": torch.empty(rows * heads.key_width, **HALVES),
        "values": torch.empty(rows * heads.value_width, **HALVES),
        "inputs": torch.zeros(filled, stride, dtype=torch.uint8, device="cpu"),
        "sums": torch.empty(4 * SUMS_APART, dtype=torch.int32, device="cpu"),
    }


class CompiledState(NamedTuple):
    """A step writes into its state's memory, so that each state is good for one step.

    keys_LBSK, values_LBSU: of the source. past_keys, past_values: of the output (L, P, T, K or U); none before it begins
    wanted: sentences that are
    length: tokens read
    lineage_NT: the stored row that holds what each row descends from at each place
    stored_N: where each row writes. sentence_N: the source of each, or of each sentence before the first step
    logits_NV: what the last step wrote, and the next will
    """

    keys_LBSK: Tensor
    values_LBSU: Tensor
    length_B: Tensor
    memory: Memory
    room: Room
    wanted: int
    length: int = 0
    past_keys: Tensor = torch.empty(0)
    past_values: Tensor = torch.empty(0)
    lineage_NT: Tensor = torch.empty(0)
    stored_N: Tensor = torch.empty(0)
    sentence_N: Tensor = torch.empty(0)
    logits_NV: Tensor = torch.empty(0)

    def reorder(self, rows_N: Tensor) -> CompiledState:
        """Row i becomes what row rows_N[i] was; no row leaves its sentence."""
        if self.length == 0 or self.lineage_NT.shape[0] == self.wanted:
            return self
        return self._replace(lineage_NT=self.lineage_NT.index_select(0, rows_N))

    def keep(self, sentences_B: Tensor) -> CompiledState:
        """Only these sentences, with all their rows. Nothing is moved."""
        wanted = sentences_B.shape[0]
        if wanted == self.wanted:
            return self
        if self.length == 0:
            return self._replace(wanted=wanted, sentence_N=self.sentence_N.index_select(0, sentences_B))
        width = self.lineage_NT.shape[0] // self.wanted
        rows_N = (sentences_B[:, None] * width + torch.arange(width, device="cpu")).flatten()
        return self._replace(
            wanted=wanted,
            lineage_NT=self.lineage_NT.index_select(0, rows_N),
            stored_N=self.stored_N.index_select(0, rows_N),
            sentence_N=self.sentence_N.index_select(0, rows_N),
            logits_NV=self.logits_NV[: wanted * width],
        )

    def past(self) -> Past:
        """Where it is."""
        return Past(
            keys=self.past_keys.data_ptr(),
            values=self.past_values.data_ptr(),
            lineage=self.lineage_NT.data_ptr(),
            stored=self.stored_N.data_ptr(),
            sentence=self.sentence_N.data_ptr(),
            rows=self.past_keys.shape[1],
            room=self.lineage_NT.shape[1],
        )

    def with_places(self) -> CompiledState:
        """Room for twice as many tokens in each row."""
        lineage_NT = F.pad(self.lineage_NT, (0, self.lineage_NT.shape[1]))
        keys, values = (_with_places(past, lineage_NT.shape[1]) for past in (self.past_keys, self.past_values))
        return self._replace(past_keys=keys, past_values=values, lineage_NT=lineage_NT)


def _with_places(past_LPTK: Tensor, places: int) -> Tensor:
    """With room for so many, those that are there first."""
    more_LPTK = past_LPTK.new_empty(*past_LPTK.shape[:2], places, past_LPTK.shape[3])
    more_LPTK[:, :, : past_LPTK.shape[2]] = past_LPTK
    return more_LPTK


@dataclass(frozen=True)
class Side:
    """What one stack reads by. table: of the embedding's own weights"""

    embedding: PackedEmbedding
    table: Table
    layers: Layers

    def positions(self, start: int, length: int) -> Tensor:
        """(length, D)"""
        found_SD = self.embedding.positions(start, length).detach()
        return found_SD.contiguous() if self.embedding.extra_D is None else found_SD + self.embedding.extra_D


@dataclass(frozen=True)
class CompiledTransformer:
    """What a search asks for words, as `PackedTransformer` is; for inference only.

    Several threads may use it at once: who computes has left Python's lock, and what `start` gives has memory of its own.

    kept: all tensors whose addresses are here
    """

    source: Side
    target: Side
    across: Across
    heads: Heads
    output: Matrices
    kept: Sequence[Tensor]
    ranking: ClassVar[type[CompiledRanking]] = CompiledRanking

    def start(self, source_BS: Tensor, helpers: Sequence[Helper] = ()) -> CompiledState:
        """Read the source, padded on the right, with helpers or without: the state before the first target token."""
        source, heads, (sentences, places) = self.source, self.heads, source_BS.shape
        there_BS = source_BS != source.embedding.padding_id
        length_B = there_BS.sum(1)
        shape = self.target.layers.number, sentences, places
        keys_LBSK, values_LBSU = (torch.empty(*shape, width, **HALVES) for width in (heads.key_width, heads.value_width))
        short_B = length_B.int()
        memory = Memory(keys_LBSK.data_ptr(), values_LBSU.data_ptr(), short_B.data_ptr(), sentences, places)
        positions_SD, parts = source.positions(0, places), list(_parts(length_B.tolist()))
        room = self._room(max(int(length_B[first:after].sum()) for first, after in parts), places, helpers)
        for first, after in parts:
            some_B = length_B[first:after]
            here_CS = there_BS[first:after]
            tokens_N, at_N = source_BS[first:after][here_CS], here_CS.nonzero()[:, 1].contiguous()
            begins_C, numbers_C = F.pad(some_B.cumsum(0), (1, 0)), torch.arange(first, after, device="cpu")
            given = (
                tokens_N.data_ptr(),
                at_N.data_ptr(),
                len(tokens_N),
                begins_C.data_ptr(),
                numbers_C.data_ptr(),
                after - first,
                source.table,
                positions_SD.data_ptr(),
                source.layers,
                self.across,
                self.target.layers.number,
                heads,
                memory,
            )
            kept = self, tokens_N, at_N, begins_C, numbers_C, positions_SD, keys_LBSK, values_LBSU, short_B, room
            room.meeting.hold(partial(_encode, given, room.spaces, kept))
        sentence_N = torch.arange(sentences, dtype=torch.int32, device="cpu")
        return CompiledState(keys_LBSK, values_LBSU, short_B, memory, room, sentences, sentence_N=sentence_N)

    def step(self, tokens_N: Tensor, state: CompiledState) -> tuple[Tensor, CompiledState]:
        """Read one more target token in each row: the logits (N, V) of the next, and the state after it."""
        now, rows = state.length, tokens_N.shape[0]
        if now == 0:
            logits_NV = torch.empty(rows, self.output.outputs, **FLOATS)
            state = self.begun(state, rows)._replace(logits_NV=logits_NV)
        elif now == state.lineage_NT.shape[1]:
            state = state.with_places()
        state, target = self.with_room(state, rows), self.target
        at_N = torch.zeros(rows, dtype=torch.long, device="cpu")
        tokens_N, position_1D = tokens_N.contiguous(), target.positions(now, 1)
        entries.step(
            tokens_N.data_ptr(),
            at_N.data_ptr(),
            rows,
            now,
            target.table,
            position_1D.data_ptr(),
            target.layers,
            self.across,
            self.heads,
            self.output,
            state.memory,
            state.past(),
            state.room.spaces[0],
            state.logits_NV.data_ptr(),
        )
        return state.logits_NV, state._replace(length=now + 1)

    def searcher(self, words_W: Tensor | None = None) -> CompiledSearcher:
        """Searches without Python. words_W: the words that it says, where it is one `with_words`"""
        return CompiledSearcher(self, words_W)

    def begun(self, state: CompiledState, rows: int) -> CompiledState:
        """With a place for what so many rows say."""
        places = max(PLACES, state.memory.places)  # most outputs are about as long as their source
        shape = self.target.layers.number, rows, places
        return state._replace(
            past_keys=torch.empty(*shape, self.heads.key_width, **HALVES),
            past_values=torch.empty(*shape, self.heads.value_width, **HALVES),
            lineage_NT=torch.zeros(rows, places, dtype=torch.int32, device="cpu"),  # see `searcher.Rows`
            stored_N=torch.arange(rows, dtype=torch.int32, device="cpu"),
            sentence_N=state.sentence_N.repeat_interleave(rows // state.wanted),
        )

    def with_room(self, state: CompiledState, rows: int) -> CompiledState:
        """With memory to compute so many rows in."""
        places = max(state.memory.places, state.lineage_NT.shape[1])
        if state.room.rows >= rows and state.room.places >= places:
            return state
        return state._replace(room=self._room(rows, places, state.room.meeting.helpers))

    def _room(self, rows: int, places: int, helpers: Sequence[Helper]) -> Room:
        products = [*self.source.layers[1:5], *self.target.layers[1:5], *self.across[:3]]
        width = self.source.embedding.weight_VD.shape[1]
        return Room(rows, places, self.heads, width=width, widest=max(one.outputs for one in products), helpers=helpers)

    @property
    def most_members(self) -> int:
        """Threads that a step is worth sharing out to."""
        return max(1, self.source.embedding.weight_VD.shape[1] // WIDTH_OF_A_MEMBER)


def _encode(given: tuple[Any, ...], spaces: Sequence[Space], kept: Sequence[object], member: int) -> int:
    """kept: what stands where addresses are given, for as long as somebody may be at work"""
    return entries.encode(*given, spaces[member])


def _parts(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Which sentences are read together: from, and up to."""
    first = rows = 0
    for number, length in enumerate(lengths):
        if rows and rows + length > ROWS_AT_ONCE:
            yield first, number
            first, rows = number, 0
        rows += length
    yield first, len(lengths)
