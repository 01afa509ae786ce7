"""What a packed decoder has seen: keys and values that are written once and stay where they are while hypotheses change places.

The R hypotheses of a sentence share its slots: each step writes one slot for each of them, and which slots a hypothesis
descends from is a row of a small table, 0 for an ancestor and -inf for any other, that is added to the scores of its
attention. To follow the beam only this table is put in order. Slots from which nothing alive descends are cleared out when
there is no room for more.

    C stored sentences, of which B are still wanted    Y heads of all of them (C·H)    W slots    Z keys or values of a head
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.inference.backends.packed.attention import best_dtype
from dragoman.model.attention import KeyValue
from dragoman.model.linear import whole_rows
from dragoman.model.pointer import Pointed

NOT_SEEN = float("-inf")
# Numbers in a processor's vector, by their bits: a softmax over fewer is computed one by one, at ten times the price.
LANES = {torch.float32: 16, torch.bfloat16: 32}
# Steps for which room is made at a time, and more in proportion to the length so far.
STEPS_AHEAD = 4


@dataclass(frozen=True)
class PackedState:
    """A step writes into its state's slots, so that each state is good for one step.

    memory: keys and values of the source, for each layer (Y, S, Z)
    memory_bias: (Y, 1, S), 0 for a token and -inf for padding; none where there is no padding
    sentences: C
    past: keys and values of the output so far, for each layer (Y, W, Z); none before the first step
    lineage_CRW: 0 for the ancestors of each hypothesis, -inf for all other slots
    time_CW: the position of each slot in the output, where a window needs it
    used: slots that are written
    length: tokens read
    wanted_B: numbers of the wanted sentences among the stored; none where all are
    pointed: where each wanted hypothesis is in its source's words, in a model that points at them
    """

    memory: tuple[KeyValue, ...]
    memory_bias: Tensor | None
    sentences: int
    past: tuple[KeyValue, ...] | None = None
    lineage_CRW: Tensor | None = None
    time_CW: Tensor | None = None
    used: int = 0
    length: int = 0
    wanted_B: Tensor | None = None
    pointed: Pointed | None = None

    def reorder(self, rows_N: Tensor) -> PackedState:
        """Row i becomes what row rows_N[i] was; no row leaves its sentence."""
        lineage_CRW = self.lineage_CRW
        if lineage_CRW is None or lineage_CRW.shape[1] == 1:
            return self
        pointed = self.pointed and self.pointed.reorder(rows_N)
        if self.wanted_B is not None:
            rows_M = self.stored_rows()
            assert rows_M is not None
            rows_N = torch.arange(lineage_CRW.shape[0] * lineage_CRW.shape[1]).index_copy_(0, rows_M, rows_M[rows_N])
        lineage_CRW = lineage_CRW.flatten(0, 1).index_select(0, rows_N).view_as(lineage_CRW)
        return replace(self, lineage_CRW=lineage_CRW, pointed=pointed)

    def keep(self, sentences_B: Tensor) -> PackedState:
        """Only these sentences, with all their rows. They are moved when they are so few that fewer can be computed."""
        wanted_B = sentences_B if self.wanted_B is None else self.wanted_B[sentences_B]
        if len(wanted_B) == self.sentences:
            return self
        state = replace(self, wanted_B=wanted_B, pointed=self.pointed and self.pointed.keep(sentences_B))
        return state._with_room(0) if whole_rows(len(wanted_B)) < self.sentences else state

    @property
    def wanted(self) -> int:
        """The number of sentences that are."""
        return self.sentences if self.wanted_B is None else len(self.wanted_B)

    def stored_rows(self) -> Tensor | None:
        """Numbers of the wanted rows among the stored ones, which are C·R in order; none where all are wanted."""
        if self.wanted_B is None or self.lineage_CRW is None:
            return None
        width = self.lineage_CRW.shape[1]
        return (self.wanted_B[:, None] * width + torch.arange(width)).flatten()

    def begin(self, width: int, *, exact: bool, timed: bool) -> PackedState:
        """Empty slots, R = `width` hypotheses a sentence.

        exact: attention is computed in float32, always
        timed: a window needs to know when slots were written
        """
        heads, places, key_width = self.memory[0].key.shape
        dtype = torch.float32 if exact else best_dtype(heads, key_width, width)
        lanes = LANES[dtype]
        short = _whole_vectors(places, lanes) - places if dtype == torch.bfloat16 else max(lanes - places, 0)
        slots = _whole_vectors(width * STEPS_AHEAD, lanes)
        memory_bias = self.memory_bias
        if short:
            memory_bias = torch.zeros(heads, 1, places) if memory_bias is None else memory_bias
            memory_bias = F.pad(memory_bias, (0, short), value=NOT_SEEN)

        def dense(one: Tensor) -> Tensor:
            return F.pad(one, (0, 0, 0, short)).to(dtype).contiguous() if short else one.to(dtype).contiguous()

        def empty(like: Tensor) -> Tensor:
            return torch.zeros(heads, slots, like.shape[2], dtype=dtype)

        return replace(
            self,
            memory=tuple(KeyValue(dense(layer.key), dense(layer.value)) for layer in self.memory),
            memory_bias=None if memory_bias is None else memory_bias.to(dtype),
            past=tuple(KeyValue(empty(layer.key), empty(layer.value)) for layer in self.memory),
            lineage_CRW=torch.full((self.sentences, width, slots), NOT_SEEN, dtype=dtype),
            time_CW=torch.zeros(self.sentences, slots, dtype=torch.long) if timed else None,
        )

    def ready(self, window: int | None) -> PackedState:
        """Room for one more slot in each row, which descends from itself and, with a window, from what is near."""
        assert self.lineage_CRW is not None
        width, slots = self.lineage_CRW.shape[1:]
        state = self
        if self.used + width > slots:
            state = self._with_room(width * (STEPS_AHEAD + self.length // 4))
        assert state.lineage_CRW is not None
        if window is not None:
            assert state.time_CW is not None
            state.time_CW[:, state.used : state.used + width] = state.length
            far_CW = state.time_CW < state.length - window
            state.lineage_CRW.masked_fill_(far_CW[:, None], NOT_SEEN)
        now_CRR = state.lineage_CRW[:, :, state.used : state.used + width]
        now_CRR.diagonal(dim1=1, dim2=2).zero_()
        return state

    def _with_room(self, room: int) -> PackedState:
        """Wanted sentences, filled up to a usual number; slots that something descends from, and room for so many more."""
        memory, bias, sentences = self.memory, self.memory_bias, self.sentences
        heads = len(memory[0].key) // sentences
        wanted_B, still_B = self.wanted_B, self.wanted_B
        heads_H = torch.arange(heads)
        if wanted_B is None:
            wanted_B = torch.arange(sentences)
        elif (stored := min(whole_rows(len(wanted_B)), sentences)) < sentences:
            still_B = torch.arange(len(wanted_B)) if stored > len(wanted_B) else None
            wanted_B = F.pad(wanted_B, (0, stored - len(wanted_B)), value=int(wanted_B[-1]))
            rows_Y = (wanted_B[:, None] * heads + heads_H).flatten()
            memory = tuple(layer.rows(rows_Y) for layer in memory)
            bias = None if bias is None else bias.index_select(0, rows_Y)
            sentences = stored
        else:
            wanted_B = torch.arange(sentences)
        state = replace(self, memory=memory, memory_bias=bias, sentences=sentences, wanted_B=still_B)
        if self.past is None or self.lineage_CRW is None:
            return state
        lineage_CRW = self.lineage_CRW.index_select(0, wanted_B)
        before = lineage_CRW.shape[2]
        alive_CW = (lineage_CRW == 0).any(1)
        used = int(alive_CW.sum(1).max())
        order_CW = alive_CW.byte().sort(dim=1, descending=True, stable=True).indices
        slots = _whole_vectors(used + (room or before - self.used), LANES[lineage_CRW.dtype])
        if slots > before:  # the new slots hold copies of any old one, which nothing sees
            order_CW = F.pad(order_CW, (0, slots - before))
        order_CW = order_CW[:, :slots]
        lineage_CRW = lineage_CRW.gather(2, order_CW[:, None].expand(-1, lineage_CRW.shape[1], -1))
        lineage_CRW[:, :, used:] = NOT_SEEN
        time_CW = None if self.time_CW is None else self.time_CW.index_select(0, wanted_B).gather(1, order_CW)
        first_CH = (wanted_B[:, None] * heads + heads_H) * before
        places_A = (first_CH[:, :, None] + order_CW[:, None]).flatten()

        def moved(one: Tensor) -> Tensor:
            return one.flatten(0, 1).index_select(0, places_A).view(sentences * heads, slots, -1)

        past = tuple(KeyValue(moved(layer.key), moved(layer.value)) for layer in self.past)
        return replace(state, past=past, lineage_CRW=lineage_CRW, time_CW=time_CW, used=used)


def _whole_vectors(count: int, lanes: int) -> int:
    """A softmax over anything else takes up to three times as long."""
    return -(-count // lanes) * lanes
