"""Static tensors that all steps of one shape read and write. Their addresses never change.

Keys and values are written once and never moved. The hypotheses of a sentence share its slots, R for each output position.
Reordering the beam reorders only the table of ancestors.

    B sentences, idle ones included    R hypotheses of each    S source positions    T output positions    W = T·R slots
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, cast

import torch
from torch import Tensor

from dragoman.model.attention import Attention, KeyValue
from dragoman.model.layers import DecoderLayer
from dragoman.model.transformer import DecoderState, Transformer

MASKED_BIAS = float("-inf")


class BufferShape(NamedTuple):
    """Shape of the buffers: B, R, S and T."""

    num_sentences: int
    beam_size: int
    source_length: int
    capacity: int


def round_up_size(count: int, minimum: int = 1) -> int:
    """Round up to a power of two, or above 64 to three quarters of one, so that at most a third is idle."""
    size = max(minimum, 1 << (count - 1).bit_length())
    return size * 3 // 4 if size > 64 and count <= size * 3 // 4 else size


class SlotKeyValue(KeyValue):
    """Keys and values of all slots (B, H, W, ·), in which those of a step replace the slots of `slot_R`."""

    slot_R: Tensor

    def append(self, new: KeyValue) -> KeyValue:
        """Write the keys and values of a step, and return all slots."""
        self.key.index_copy_(2, self.slot_R, new.key)
        self.value.index_copy_(2, self.slot_R, new.value)
        return self


class StepBuffers:
    """Inputs, cache and outputs of steps of one shape.

    tokens_BR: the next token of each hypothesis
    order_B: index of the caller's first, second, … sentence; the sentences behind these are idle
    length_1: number of positions written
    slot_R: slots of the position that a step writes
    ancestors_BRT: hypothesis whose slot this one descends from, for each written position.
    self_kv, cross_kv: for each layer, keys and values of the output (B, H, W, ·) and of the source (B, H, S, ·)
    memory_bias_B11S: 0 for a source token, -inf for padding
    logits_NV: logits of the last step, in the caller's order
    """

    def __init__(self, shape: BufferShape, model: Transformer) -> None:
        num_sentences, beam_size, source_length, capacity = shape
        device, dtype = model.output.device, model.output.dtype

        def allocate_kv(length: int, like: Attention) -> KeyValue:
            widths = (linear.out_features // like.num_key_value_heads for linear in (like.key, like.value))
            sizes = ((num_sentences, like.num_heads, length, width) for width in widths)
            return KeyValue(*(torch.zeros(size, device=device, dtype=dtype) for size in sizes))

        layers = [cast(DecoderLayer, layer) for layer in model.decoder.layers]
        embedding = model.decoder.embedding
        self.shape = shape
        self.tokens_BR = torch.zeros(num_sentences, beam_size, dtype=torch.long, device=device)
        self.order_B = torch.arange(num_sentences, device=device)
        self.length_1 = torch.zeros(1, dtype=torch.long, device=device)
        self.ancestors_BRT = torch.zeros(num_sentences, beam_size, capacity, dtype=torch.int16, device=device)
        self.slot_R = torch.zeros(beam_size, dtype=torch.long, device=device)
        self.self_kv = [SlotKeyValue(*allocate_kv(beam_size * capacity, layer.attention)) for layer in layers]
        for self_kv in self.self_kv:
            self_kv.slot_R = self.slot_R
        self.cross_kv = [allocate_kv(source_length, layer.cross_attention) for layer in layers]
        self.memory_bias_B11S = torch.zeros(num_sentences, 1, 1, source_length, device=device, dtype=dtype)
        logits_dtype = torch.promote_types(dtype, torch.float32)
        self.logits_NV = torch.empty(num_sentences * beam_size, len(model.output), device=device, dtype=logits_dtype)
        positions_TD = embedding.positions(0, capacity).detach().to(device, dtype).expand(capacity, embedding.weight.shape[1])
        self.positions_TD = (
            positions_TD.clone()
            if embedding.target_space_embedding is None
            else positions_TD + embedding.target_space_embedding.detach()
        )
        rotary = model.decoder.rotary_positions
        self.rotation_TK = None if rotary is None else rotary(0, capacity).to(device, dtype).clone()
        self.position_T = torch.arange(capacity, device=device)
        self.hypothesis_R = torch.arange(beam_size, dtype=torch.int16, device=device)
        self.visible_bias, self.masked_bias = (torch.tensor(value, device=device, dtype=dtype) for value in (0.0, MASKED_BIAS))

    @property
    def num_bytes(self) -> int:
        kv_tensors = [tensor for pair in (*self.self_kv, *self.cross_kv) for tensor in pair]
        return sum(tensor.nbytes for tensor in (*kv_tensors, *vars(self).values()) if isinstance(tensor, Tensor))

    def load_sources(self, state: DecoderState) -> None:
        """Load encoded sources, before their first token."""
        self._clear()
        self._write_cross_kv(state.cross_kv, torch.where(state.memory_mask, self.visible_bias, self.masked_bias))

    def copy_from(self, source_buffers: StepBuffers, num_sentences: int, length: int) -> None:
        """Copy the caller's first sentences, and the first positions of their outputs, from buffers of another shape."""
        rows_B, num_slots = source_buffers.order_B[:num_sentences], length * self.shape.beam_size
        self._clear()
        self._write_cross_kv(
            (pair.select(rows_B) for pair in source_buffers.cross_kv), source_buffers.memory_bias_B11S.index_select(0, rows_B)
        )
        for target_kv, pair in zip(self.self_kv, source_buffers.self_kv, strict=True):
            _copy_into_prefix(target_kv.key, pair.key[:, :, :num_slots].index_select(0, rows_B))
            _copy_into_prefix(target_kv.value, pair.value[:, :, :num_slots].index_select(0, rows_B))
        _copy_into_prefix(self.ancestors_BRT, source_buffers.ancestors_BRT[:, :, :length].index_select(0, rows_B))
        self.length_1.fill_(length)

    def _clear(self) -> None:
        """Set all buffers to zero, because an old infinity times a zero weight is not a number."""
        for pair in (*self.self_kv, *self.cross_kv):
            pair.key.zero_()
            pair.value.zero_()
        self.memory_bias_B11S.fill_(MASKED_BIAS)[..., 0] = 0.0  # an idle sentence needs a visible key, too
        torch.arange(len(self.order_B), out=self.order_B)
        self.length_1.zero_()

    def _write_cross_kv(self, cross_kv: Iterable[KeyValue], bias_B11S: Tensor) -> None:
        for target_kv, pair in zip(self.cross_kv, cross_kv, strict=True):
            _copy_into_prefix(target_kv.key, pair.key)
            _copy_into_prefix(target_kv.value, pair.value)
        _copy_into_prefix(self.memory_bias_B11S, bias_B11S)


def _copy_into_prefix(target: Tensor, source: Tensor) -> None:
    """Copy a tensor into the beginning of a larger one, in each dimension."""
    target[tuple(slice(size) for size in source.shape)] = source
