"""KV cache of the packed decoder. Keys and values are written once and stay in place while hypotheses are reordered.

The R hypotheses of a sentence share its slots, and each step writes one slot for each hypothesis. A small table holds 0 for
each ancestor slot of a hypothesis and -inf for all other slots. Attention adds it to the scores, and reordering the beam
reorders only this table. Slots without alive descendants are dropped when the cache is full.

    C stored sentences, B of them active    Y heads of all stored sentences (C·H)    W slots    Z keys or values of a head
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.inference.backends.packed.cached_attention import choose_kv_dtype
from dragoman.model.attention import KeyValue
from dragoman.model.linear import round_up_rows
from dragoman.model.pointer import PointerState

MASKED_BIAS = float("-inf")
# Numbers in a vector of the processor. A softmax over fewer numbers computes them one by one and takes ten times as long.
SOFTMAX_LANES = {torch.float32: 16, torch.bfloat16: 32}
# Least number of steps that the cache grows by; it grows by more in proportion to the length so far.
RESERVED_STEPS = 4


@dataclass(frozen=True)
class PackedState:
    """State of a batch of searches. A step writes into the state's slots, so each state serves one step.

    cross_kv: keys and values of the source, for each layer (Y, S, Z)
    memory_bias: (Y, 1, S), 0 for a token and -inf for padding; None without padding
    num_stored: C
    self_kv: keys and values of the output so far, for each layer (Y, W, Z); None before the first step
    ancestors_CRW: 0 for the ancestors of each hypothesis, -inf for all other slots
    position_CW: position of each slot in the output; None unless an attention window needs it
    num_used_slots: number of written slots
    length: number of tokens read
    active_B: indices of the active sentences among the stored ones; None if all are active
    pointer: state of the pointer of each active hypothesis; None in a model without one
    """

    cross_kv: tuple[KeyValue, ...]
    memory_bias: Tensor | None
    num_stored: int
    self_kv: tuple[KeyValue, ...] | None = None
    ancestors_CRW: Tensor | None = None
    position_CW: Tensor | None = None
    num_used_slots: int = 0
    length: int = 0
    active_B: Tensor | None = None
    pointer: PointerState | None = None

    def reorder(self, rows_N: Tensor) -> PackedState:
        """Return the state whose row i is row rows_N[i] of this one. No row leaves its sentence."""
        ancestors_CRW = self.ancestors_CRW
        if ancestors_CRW is None or ancestors_CRW.shape[1] == 1:
            return self
        pointer = self.pointer and self.pointer.reorder(rows_N)
        if self.active_B is not None:
            rows_M = self.active_rows()
            assert rows_M is not None
            rows_N = torch.arange(ancestors_CRW.shape[0] * ancestors_CRW.shape[1]).index_copy_(0, rows_M, rows_M[rows_N])
        ancestors_CRW = ancestors_CRW.flatten(0, 1).index_select(0, rows_N).view_as(ancestors_CRW)
        return replace(self, ancestors_CRW=ancestors_CRW, pointer=pointer)

    def select_sentences(self, sentences_B: Tensor) -> PackedState:
        """Return the state of these sentences only. They are moved once this reduces the number of computed sentences."""
        active_B = sentences_B if self.active_B is None else self.active_B[sentences_B]
        if len(active_B) == self.num_stored:
            return self
        state = replace(self, active_B=active_B, pointer=self.pointer and self.pointer.select_sentences(sentences_B))
        return state._compact(0) if round_up_rows(len(active_B)) < self.num_stored else state

    @property
    def num_active(self) -> int:
        """Number of active sentences."""
        return self.num_stored if self.active_B is None else len(self.active_B)

    def active_rows(self) -> Tensor | None:
        """Return the indices of the active rows among the C·R stored rows; None if all are active."""
        if self.active_B is None or self.ancestors_CRW is None:
            return None
        beam_size = self.ancestors_CRW.shape[1]
        return (self.active_B[:, None] * beam_size + torch.arange(beam_size)).flatten()

    def allocate(self, beam_size: int, *, float32_attention: bool, track_positions: bool) -> PackedState:
        """Return the state with empty slots for this many hypotheses of each sentence.

        float32_attention: keys and values are always float32
        track_positions: an attention window needs the position of each slot
        """
        num_heads, num_positions, key_width = self.cross_kv[0].key.shape
        dtype = torch.float32 if float32_attention else choose_kv_dtype(num_heads, key_width, beam_size)
        lanes = SOFTMAX_LANES[dtype]
        num_padding = (
            _round_up_to_lanes(num_positions, lanes) - num_positions
            if dtype == torch.bfloat16
            else max(lanes - num_positions, 0)
        )
        num_slots = _round_up_to_lanes(beam_size * RESERVED_STEPS, lanes)
        memory_bias = self.memory_bias
        if num_padding:
            memory_bias = torch.zeros(num_heads, 1, num_positions) if memory_bias is None else memory_bias
            memory_bias = F.pad(memory_bias, (0, num_padding), value=MASKED_BIAS)

        def to_dense(x: Tensor) -> Tensor:
            return F.pad(x, (0, 0, 0, num_padding)).to(dtype).contiguous() if num_padding else x.to(dtype).contiguous()

        def allocate_slots(like: Tensor) -> Tensor:
            return torch.zeros(num_heads, num_slots, like.shape[2], dtype=dtype)

        return replace(
            self,
            cross_kv=tuple(KeyValue(to_dense(layer.key), to_dense(layer.value)) for layer in self.cross_kv),
            memory_bias=None if memory_bias is None else memory_bias.to(dtype),
            self_kv=tuple(KeyValue(allocate_slots(layer.key), allocate_slots(layer.value)) for layer in self.cross_kv),
            ancestors_CRW=torch.full((self.num_stored, beam_size, num_slots), MASKED_BIAS, dtype=dtype),
            position_CW=torch.zeros(self.num_stored, num_slots, dtype=torch.long) if track_positions else None,
        )

    def prepare_step(self, window: int | None) -> PackedState:
        """Return the state with a free slot for each row, which is its own ancestor. A window hides distant slots."""
        assert self.ancestors_CRW is not None
        beam_size, num_slots = self.ancestors_CRW.shape[1:]
        state = self
        if self.num_used_slots + beam_size > num_slots:
            state = self._compact(beam_size * (RESERVED_STEPS + self.length // 4))
        assert state.ancestors_CRW is not None
        if window is not None:
            assert state.position_CW is not None
            state.position_CW[:, state.num_used_slots : state.num_used_slots + beam_size] = state.length
            is_expired_CW = state.position_CW < state.length - window
            state.ancestors_CRW.masked_fill_(is_expired_CW[:, None], MASKED_BIAS)
        current_CRR = state.ancestors_CRW[:, :, state.num_used_slots : state.num_used_slots + beam_size]
        current_CRR.diagonal(dim1=1, dim2=2).zero_()
        return state

    def _compact(self, free_slots: int) -> PackedState:
        """Return the state of the active sentences, with the slots that have descendants and this many free slots.

        The number of sentences is rounded up to a usual number.
        """
        cross_kv, bias, num_stored = self.cross_kv, self.memory_bias, self.num_stored
        num_heads = len(cross_kv[0].key) // num_stored
        kept_B, active_B = self.active_B, self.active_B
        heads_H = torch.arange(num_heads)
        if kept_B is None:
            kept_B = torch.arange(num_stored)
        elif (new_num_stored := min(round_up_rows(len(kept_B)), num_stored)) < num_stored:
            active_B = torch.arange(len(kept_B)) if new_num_stored > len(kept_B) else None
            kept_B = F.pad(kept_B, (0, new_num_stored - len(kept_B)), value=int(kept_B[-1]))
            rows_Y = (kept_B[:, None] * num_heads + heads_H).flatten()
            cross_kv = tuple(layer.select(rows_Y) for layer in cross_kv)
            bias = None if bias is None else bias.index_select(0, rows_Y)
            num_stored = new_num_stored
        else:
            kept_B = torch.arange(num_stored)
        state = replace(self, cross_kv=cross_kv, memory_bias=bias, num_stored=num_stored, active_B=active_B)
        if self.self_kv is None or self.ancestors_CRW is None:
            return state
        ancestors_CRW = self.ancestors_CRW.index_select(0, kept_B)
        old_num_slots = ancestors_CRW.shape[2]
        alive_CW = (ancestors_CRW == 0).any(1)
        num_used_slots = int(alive_CW.sum(1).max())
        order_CW = alive_CW.byte().sort(dim=1, descending=True, stable=True).indices
        num_slots = _round_up_to_lanes(
            num_used_slots + (free_slots or old_num_slots - self.num_used_slots), SOFTMAX_LANES[ancestors_CRW.dtype]
        )
        if num_slots > old_num_slots:  # the new slots hold copies of an old slot, which is hidden
            order_CW = F.pad(order_CW, (0, num_slots - old_num_slots))
        order_CW = order_CW[:, :num_slots]
        ancestors_CRW = ancestors_CRW.gather(2, order_CW[:, None].expand(-1, ancestors_CRW.shape[1], -1))
        ancestors_CRW[:, :, num_used_slots:] = MASKED_BIAS
        position_CW = None if self.position_CW is None else self.position_CW.index_select(0, kept_B).gather(1, order_CW)
        offset_CH = (kept_B[:, None] * num_heads + heads_H) * old_num_slots
        old_slots_A = (offset_CH[:, :, None] + order_CW[:, None]).flatten()

        def gather_slots(x: Tensor) -> Tensor:
            return x.flatten(0, 1).index_select(0, old_slots_A).view(num_stored * num_heads, num_slots, -1)

        self_kv = tuple(KeyValue(gather_slots(layer.key), gather_slots(layer.value)) for layer in self.self_kv)
        return replace(
            state, self_kv=self_kv, ancestors_CRW=ancestors_CRW, position_CW=position_CW, num_used_slots=num_used_slots
        )


def _round_up_to_lanes(count: int, lanes: int) -> int:
    """Round up to a multiple of a vector's numbers; a softmax over other counts takes up to three times as long."""
    return -(-count // lanes) * lanes
