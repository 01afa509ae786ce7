"""The tensors that steps of one shape read and write, all of which keep their places in memory.

Keys and values are written once and never moved. The hypotheses of a sentence share its slots, R for each place of the output,
and to follow the beam only the table is put in order that tells who descends from which slot.

    B sentences, idle ones included    R hypotheses of each    S source places    T places of the output    W slots, T·R of them
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, cast

import torch
from torch import Tensor

from dragoman.model.attention import Attention, KeyValue
from dragoman.model.layers import DecoderLayer
from dragoman.model.transformer import DecoderState, Transformer

NOT_SEEN = float("-inf")


class Shape(NamedTuple):
    """sentences: B, beam: R, source: S, room: T"""

    sentences: int
    beam: int
    source: int
    room: int


def padded_size(count: int, least: int = 1) -> int:
    """The next power of two; above 64 also what lies halfway between two of them, so that at most a third is idle."""
    size = max(least, 1 << (count - 1).bit_length())
    return size * 3 // 4 if size > 64 and count <= size * 3 // 4 else size


class Buffers:
    """All that steps of one shape read and write; nothing in it ever gets another address.

    tokens_BR: the next token of each hypothesis
    order_B: which sentence here is the first, second, … of the caller's; what stands after those is idle
    length_1: places written so far
    lineage_BRT: for each place written, the hypothesis of then whose slot this one descends from
    past, memory: for each layer, keys and values of the output (B, H, W, ·) and of the source (B, H, S, ·)
    memory_bias_B11S: 0 for a source token, -inf for padding
    logits_NV: after a step, in the caller's order
    """

    def __init__(self, shape: Shape, model: Transformer) -> None:
        sentences, beam, source, room = shape
        device, dtype = model.output.device, model.output.dtype

        def empty(length: int, like: Attention) -> KeyValue:
            widths = (linear.out_features // like.num_heads for linear in (like.key, like.value))
            sizes = ((sentences, like.num_heads, length, width) for width in widths)
            return KeyValue(*(torch.zeros(size, device=device, dtype=dtype) for size in sizes))

        layers = [cast(DecoderLayer, layer) for layer in model.decoder.layers]
        embedding = model.decoder.embedding
        self.shape = shape
        self.tokens_BR = torch.zeros(sentences, beam, dtype=torch.long, device=device)
        self.order_B = torch.arange(sentences, device=device)
        self.length_1 = torch.zeros(1, dtype=torch.long, device=device)
        self.lineage_BRT = torch.zeros(sentences, beam, room, dtype=torch.int16, device=device)
        self.past = [empty(beam * room, layer.attention) for layer in layers]
        self.memory = [empty(source, layer.cross_attention) for layer in layers]
        self.memory_bias_B11S = torch.zeros(sentences, 1, 1, source, device=device, dtype=dtype)
        exact = torch.promote_types(dtype, torch.float32)
        self.logits_NV = torch.empty(sentences * beam, len(model.output), device=device, dtype=exact)
        positions_TD = embedding.positions(0, room).detach().to(dtype)
        self.positions_TD = positions_TD.clone() if embedding.extra is None else positions_TD + embedding.extra.detach()
        self.time_T = torch.arange(room, device=device)
        self.hypothesis_R = torch.arange(beam, dtype=torch.int16, device=device)
        self.seen, self.not_seen = (torch.tensor(value, device=device, dtype=dtype) for value in (0.0, NOT_SEEN))

    @property
    def bytes(self) -> int:
        both = [tensor for pair in (*self.past, *self.memory) for tensor in pair]
        return sum(tensor.nbytes for tensor in (*both, *vars(self).values()) if isinstance(tensor, Tensor))

    def begin(self, state: DecoderState) -> None:
        """Sentences that have been read and nothing said of them."""
        self._clear()
        self._lay_memory(state.memory, torch.where(state.memory_mask, self.seen, self.not_seen))

    def take_over(self, other: Buffers, count: int, length: int) -> None:
        """The first sentences of another shape, as the caller counts them, and the first places of their outputs."""
        rows_B, slots = other.order_B[:count], length * self.shape.beam
        self._clear()
        self._lay_memory((pair.rows(rows_B) for pair in other.memory), other.memory_bias_B11S.index_select(0, rows_B))
        for into, pair in zip(self.past, other.past, strict=True):
            _lay(into.key, pair.key[:, :, :slots].index_select(0, rows_B))
            _lay(into.value, pair.value[:, :, :slots].index_select(0, rows_B))
        _lay(self.lineage_BRT, other.lineage_BRT[:, :, :length].index_select(0, rows_B))
        self.length_1.fill_(length)

    def _clear(self) -> None:
        """Leave nothing that could spread: an infinity that is not seen is still no number times zero."""
        for pair in (*self.past, *self.memory):
            pair.key.zero_()
            pair.value.zero_()
        self.memory_bias_B11S.fill_(NOT_SEEN)[..., 0] = 0.0  # an idle sentence sees something, too
        torch.arange(len(self.order_B), out=self.order_B)
        self.length_1.zero_()

    def _lay_memory(self, memory: Iterable[KeyValue], bias_B11S: Tensor) -> None:
        for into, pair in zip(self.memory, memory, strict=True):
            _lay(into.key, pair.key)
            _lay(into.value, pair.value)
        _lay(self.memory_bias_B11S, bias_B11S)


def _lay(into: Tensor, given: Tensor) -> None:
    """Write a smaller tensor into the first places of a larger one."""
    into[tuple(slice(size) for size in given.shape)] = given
