"""A decoding step of fixed shapes on fixed tensors, which a GPU is told once and then only asked to repeat.

A step is a hundred kernels and more of a few microseconds each, and to ask for one takes as long as to do it. A CUDA graph asks
for all at once, but always for the same kernels, numbers and addresses. So tensors have one of few shapes, sentences that are
finished run on as idle ones, and all that changes lies on the device, the length included.

Dimensions are those of `buffers`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.inference.backends.cuda.buffers import Buffers, Shape, padded_size
from dragoman.inference.backends.cuda.graphs import CudaGraphs, Record, Work
from dragoman.model.attention import Attention, KeyValue
from dragoman.model.layers import DecoderLayer
from dragoman.model.transformer import DecoderState, Transformer
from dragoman.tasks.inference_model import Speaker, most_positions

# The least of each; masks whose rows are not multiples of 16 numbers are copied by the GPU's attention.
LEAST_SOURCE = 16
LEAST_ROOM = 32
MOST_BUCKETS = 64
# Of the GPU's memory; on a processor, where nothing but tests comes here, so many bytes.
MEMORY_SHARE = 1 / 4
PROCESSOR_BYTES = 1 << 28


@dataclass(frozen=True)
class FixedLayer:
    """A decoder layer that finds its past in slots; queries, keys and values of a place are one product."""

    layer: DecoderLayer
    weight_XD: Tensor
    bias_X: Tensor | None
    widths: list[int]

    @classmethod
    def of(cls, layer: DecoderLayer) -> FixedLayer:
        linears = [layer.attention.query, layer.attention.key, layer.attention.value]
        weight_XD = torch.cat([linear.weight.detach() for linear in linears])
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        return cls(layer, weight_XD, torch.cat(biases) if biases else None, [linear.out_features for linear in linears])

    def __call__(
        self, x_BRD: Tensor, past: KeyValue, slot_R: Tensor, bias_B1RW: Tensor, memory: KeyValue, memory_bias_B11S: Tensor
    ) -> Tensor:
        layer, within, across = self.layer, self.layer.attention, self.layer.cross_attention

        def look_back(y_BRD: Tensor) -> Tensor:
            at_once_BRX = F.linear(y_BRD, self.weight_XD, self.bias_X)
            query, key, value = (_heads(one, within.num_heads) for one in torch.split(at_once_BRX, self.widths, dim=-1))
            past.key.index_copy_(2, slot_R, key)
            past.value.index_copy_(2, slot_R, value)
            return _answer(within, query, past, bias_B1RW)

        def look_across(y_BRD: Tensor) -> Tensor:
            return _answer(across, _heads(across.query(y_BRD), across.num_heads), memory, memory_bias_B11S)

        x_BRD = layer.attention_residual(x_BRD, look_back)
        x_BRD = layer.cross_attention_residual(x_BRD, look_across)
        return cast(Tensor, layer.feed_forward_residual(x_BRD, layer.feed_forward))


def _heads(x_BRX: Tensor, num_heads: int) -> Tensor:
    return x_BRX.view(*x_BRX.shape[:2], num_heads, -1).transpose(1, 2)


def _answer(attention: Attention, query_BHRK: Tensor, seen: KeyValue, bias: Tensor) -> Tensor:
    heads_BHRU = F.scaled_dot_product_attention(query_BHRK, seen.key, seen.value, attn_mask=bias)
    return cast(Tensor, attention.output(heads_BHRU.transpose(1, 2).flatten(-2)))


@torch.no_grad()
def advance(model: Transformer, layers: Sequence[FixedLayer], fixed: Buffers) -> None:
    """Read one more token in each row, from embedding to logits. Nothing here depends on a number that the processor knows."""
    decoder, embedding, beam = model.decoder, model.decoder.embedding, fixed.shape.beam
    fixed.lineage_BRT.index_copy_(2, fixed.length_1, fixed.hypothesis_R[:, None].expand_as(fixed.lineage_BRT[:, :, :1]))
    age_T = fixed.length_1 - fixed.time_T
    near_T = age_T >= 0 if decoder.window is None else (age_T >= 0) & (age_T <= decoder.window)
    descends_BRTR = (fixed.lineage_BRT[..., None] == fixed.hypothesis_R) & near_T[:, None]
    bias_B1RW = torch.where(descends_BRTR, fixed.seen, fixed.not_seen).flatten(2)[:, None]
    slot_R = fixed.length_1 * beam + fixed.hypothesis_R

    scale_BR = (fixed.tokens_BR != embedding.padding_id).to(embedding.weight.dtype) * embedding.scale
    x_BRD = F.embedding(fixed.tokens_BR, embedding.weight) * scale_BR[:, :, None]
    x_BRD = x_BRD + fixed.positions_TD.index_select(0, fixed.length_1)
    for layer, past, memory in zip(layers, fixed.past, fixed.memory, strict=True):
        x_BRD = layer(x_BRD, past, slot_R, bias_B1RW, memory, fixed.memory_bias_B11S)
    x_ND = decoder.norm(x_BRD).index_select(0, fixed.order_B).flatten(0, 1)
    _product(x_ND, model.output.t(), fixed.logits_NV)
    fixed.length_1.add_(1)


def _product(x_ND: Tensor, weight_DV: Tensor, into_NV: Tensor) -> None:
    """Logits keep the digits of the sums in which they were computed: in bfloat16 many would be equal."""
    if x_ND.dtype == into_NV.dtype:
        torch.mm(x_ND, weight_DV, out=into_NV)
    elif x_ND.is_cuda:
        torch.mm(x_ND, weight_DV, out_dtype=into_NV.dtype, out=into_NV)
    else:
        into_NV.copy_(torch.mm(x_ND, weight_DV))


class Bucket:
    """Buffers, what advances them, and the search that is using them; once that is dropped, they are free for another."""

    def __init__(self, fixed: Buffers, advance: Work) -> None:
        self.fixed = fixed
        self.advance = advance
        self.user: Callable[[], FixedState | None] = lambda: None


@dataclass(eq=False)
class FixedState:
    """Where a search stands. It changes in place: what a call gives back stands for the state that it was given.

    begun: the source as the encoder read it, until the first step tells how many hypotheses there are
    bucket: where the sentences are from then on
    count: sentences that are wanted
    length: tokens read
    """

    owner: FixedTransformer
    begun: DecoderState | None
    count: int
    bucket: Bucket | None = None
    length: int = 0

    def reorder(self, rows_N: Tensor) -> FixedState:
        """Row i becomes what row rows_N[i] was; no row leaves its sentence."""
        if self.bucket is not None and self.bucket.fixed.shape.beam > 1:
            fixed = self.bucket.fixed
            beam, order_B = fixed.shape.beam, fixed.order_B[: self.count]
            parent_BRT = (rows_N % beam).view(-1, beam, 1).expand(-1, -1, fixed.shape.room)
            fixed.lineage_BRT.index_copy_(0, order_B, fixed.lineage_BRT.index_select(0, order_B).gather(1, parent_BRT))
        return self

    def keep(self, sentences_B: Tensor) -> FixedState:
        """Only these sentences. The others run on as idle ones until they are half of all."""
        if self.begun is not None:
            self.begun, self.count = self.begun.keep(sentences_B), len(sentences_B)
        if self.bucket is None:
            return self
        fixed = self.bucket.fixed
        order_B = fixed.order_B[: self.count].index_select(0, sentences_B)
        self.count = len(order_B)
        fixed.order_B[: self.count] = order_B
        if 0 < 2 * self.count <= fixed.shape.sentences:
            self.owner.move(self, self.bucket, room=fixed.shape.room)
        return self


class FixedTransformer:
    """A trained model whose weights no longer change, with the two calls that a search makes.

    record: turns the work of a shape into what repeats it: CUDA graphs on a GPU, the work itself where none are to be had
    most_bytes: of all buffers; beyond it those go that no search is using, the longest unused first
    """

    def __init__(self, model: Transformer, *, record: Record | None = None, most_bytes: int | None = None) -> None:
        device = model.output.device
        self.model = model.eval()
        self.layers = [FixedLayer.of(cast(DecoderLayer, layer)) for layer in model.decoder.layers]
        self.positions = most_positions([model])
        self.record = record or (CudaGraphs(device) if device.type == "cuda" else lambda work: work)
        self.most_bytes = most_bytes or (
            int(torch.cuda.get_device_properties(device).total_memory * MEMORY_SHARE)
            if device.type == "cuda"
            else PROCESSOR_BYTES
        )
        self.buckets: list[Bucket] = []
        self.lock = threading.Lock()

    def start(self, source_BS: Tensor) -> FixedState:
        """Read the source: the state before the first target token."""
        return FixedState(self, self.model.start(source_BS), len(source_BS))

    @torch.no_grad()
    def step(self, tokens_N: Tensor, state: FixedState) -> tuple[Tensor, FixedState]:
        """Read one more target token in each row: the logits (N, V) of the next, which the step after this one writes over.

        Raises IndexError beyond the last of learned positions.
        """
        bucket = state.bucket
        if bucket is None:
            bucket = self._begin(state, len(tokens_N) // state.count)
        elif state.length == bucket.fixed.shape.room:
            if state.length == self.positions:
                raise IndexError(f"position {state.length + 1} of {self.positions} learned ones")
            room = min(2 * state.length, self.positions or 2 * state.length)
            bucket = self.move(state, bucket, room=room)
        fixed = bucket.fixed
        fixed.tokens_BR.index_copy_(0, fixed.order_B[: state.count], tokens_N.view(state.count, -1))
        bucket.advance()
        state.length += 1
        return fixed.logits_NV[: len(tokens_N)], state

    def _begin(self, state: FixedState, beam: int) -> Bucket:
        begun, room = cast(DecoderState, state.begun), min(LEAST_ROOM, self.positions or LEAST_ROOM)
        source = padded_size(begun.memory_mask.shape[-1], LEAST_SOURCE)
        state.bucket = self._take(Shape(padded_size(state.count), beam, source, room), state)
        state.bucket.fixed.begin(begun)
        state.begun = None
        return state.bucket

    @torch.no_grad()
    def move(self, state: FixedState, before: Bucket, *, room: int) -> Bucket:
        """Go on with the sentences that are wanted alone, and with so many places for the output."""
        shape = before.fixed.shape._replace(sentences=padded_size(state.count), room=room)
        state.bucket = self._take(shape, state)
        state.bucket.fixed.take_over(before.fixed, state.count, state.length)
        before.user = lambda: None
        return state.bucket

    def _take(self, shape: Shape, state: FixedState) -> Bucket:
        """A bucket that nobody is using, made where there is none."""
        with self.lock:
            free = [bucket for bucket in self.buckets if bucket.user() is None]
            bucket = next((one for one in free if one.fixed.shape == shape), None) or self._make(shape)
            bucket.user = weakref.ref(state)
            self.buckets = [one for one in self.buckets if one is not bucket] + [bucket]
            total = sum(one.fixed.bytes for one in self.buckets)
            for one in free:
                if one is not bucket and (total > self.most_bytes or len(self.buckets) > MOST_BUCKETS):
                    self.buckets.remove(one)
                    total -= one.fixed.bytes
            return bucket

    @torch.inference_mode(False)
    def _make(self, shape: Shape) -> Bucket:
        fixed = Buffers(shape, self.model)
        return Bucket(fixed, self.record(partial(advance, self.model, self.layers, fixed)))


def fixed_speaker(model: Transformer, *, record: Record | None = None) -> Speaker:
    """What a search asks for words, where the model is on a GPU."""
    fixed = FixedTransformer(model, record=record)
    return Speaker(fixed.start, fixed.step, model.output.device, fixed.positions)
