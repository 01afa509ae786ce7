"""A decoding step over static tensors, which a GPU records once as a CUDA graph and then replays.

A step has over a hundred kernels of a few microseconds each, and a launch takes as long as a kernel. A CUDA graph launches all
of them at once, but always with the same shapes, numbers and addresses. So tensors have one of a few shapes, finished
sentences stay in the batch as idle ones, and everything that changes is on the device, even the length. The layers are those of
the model.

Dimensions are those of `buffers`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.model.attention import disable_cudnn_attention
from dragoman.model.transformer import DecoderState, Transformer
from dragoman.tasks.inference_model import InferenceModel
from dragoman.torch_engine.buffers import BufferShape, StepBuffers, round_up_size
from dragoman.torch_engine.graphs import CudaGraphRecorder, RecordFn, WorkFn
from dragoman.torch_engine.inference_model import build_torch_inference_model, get_max_positions

# Least sizes. The GPU's attention copies masks whose rows are not multiples of 16 numbers.
MIN_SOURCE_LENGTH = 16
MIN_CAPACITY = 32
MAX_BUCKETS = 64
# Limit of all buffers as a share of the GPU's memory, and in bytes on a processor, for tests.
GPU_MEMORY_FRACTION = 1 / 4
CPU_MAX_BYTES = 1 << 28


@torch.no_grad()
def decode_step(model: Transformer, buffers: StepBuffers) -> None:
    """Read one token in each row, from embedding to logits. No operation depends on a number in the CPU's memory."""
    decoder, embedding, beam_size = model.decoder, model.decoder.embedding, buffers.shape.beam_size
    buffers.ancestors_BRT.index_copy_(
        2, buffers.length_1, buffers.hypothesis_R[:, None].expand_as(buffers.ancestors_BRT[:, :, :1])
    )
    age_T = buffers.length_1 - buffers.position_T
    is_visible_T = age_T >= 0 if decoder.window is None else (age_T >= 0) & (age_T <= decoder.window)
    is_ancestor_BRTR = (buffers.ancestors_BRT[..., None] == buffers.hypothesis_R) & is_visible_T[:, None]
    bias_B1RW = torch.where(is_ancestor_BRTR, buffers.visible_bias, buffers.masked_bias).flatten(2)[:, None]
    if decoder.relative_positions is not None:
        bias_HW = decoder.relative_positions(-age_T).repeat_interleave(beam_size, dim=1)
        bias_B1RW = bias_B1RW + bias_HW[:, None].to(bias_B1RW.dtype)
    torch.add(buffers.length_1 * beam_size, buffers.hypothesis_R, out=buffers.slot_R)

    scale_BR = (buffers.tokens_BR != embedding.padding_id).to(embedding.weight.dtype) * embedding.scale
    x_BRD = F.embedding(buffers.tokens_BR, embedding.weight) * scale_BR[:, :, None]
    x_BRD = embedding.norm(x_BRD + buffers.positions_TD.index_select(0, buffers.length_1))
    rotation_1K = None if buffers.rotation_TK is None else buffers.rotation_TK.index_select(0, buffers.length_1)
    for layer, self_kv, cross_kv in zip(decoder.layers, buffers.self_kv, buffers.cross_kv, strict=True):
        x_BRD, _ = layer(x_BRD, self_kv, cross_kv, bias_B1RW, buffers.memory_bias_B11S, rotation_1K)
    x_ND = decoder.norm(x_BRD).index_select(0, buffers.order_B).flatten(0, 1)
    _matmul_into(x_ND, model.output.t(), buffers.logits_NV)
    if model.output_bias is not None:
        buffers.logits_NV.add_(model.output_bias)
    buffers.length_1.add_(1)


def _matmul_into(x_ND: Tensor, weight_DV: Tensor, out_NV: Tensor) -> None:
    """Write the logits in the precision of their sums, because many would be equal in bfloat16."""
    if x_ND.dtype == out_NV.dtype:
        torch.mm(x_ND, weight_DV, out=out_NV)
    elif x_ND.is_cuda:
        torch.mm(x_ND, weight_DV, out_dtype=out_NV.dtype, out=out_NV)
    else:
        out_NV.copy_(torch.mm(x_ND, weight_DV))


class ShapeBucket:
    """Buffers, their step, and a weak reference to the search that uses them. Without a search they are free."""

    def __init__(self, buffers: StepBuffers, run_step: WorkFn) -> None:
        self.buffers = buffers
        self.run_step = run_step
        self.state_ref: Callable[[], StaticState | None] = lambda: None


@dataclass(eq=False)
class StaticState:
    """State of a search. It changes in place, and each call returns the state that it received.

    initial_state: encoded sources, until the first step shows the number of hypotheses
    bucket: buffers of the sentences after the first step
    num_active: number of active sentences
    length: number of tokens read
    """

    model: StaticTransformer
    initial_state: DecoderState | None
    num_active: int
    bucket: ShapeBucket | None = None
    length: int = 0

    def reorder(self, rows_N: Tensor) -> StaticState:
        """Replace row i by row rows_N[i]. No row leaves its sentence."""
        if self.bucket is not None and self.bucket.buffers.shape.beam_size > 1:
            buffers = self.bucket.buffers
            beam_size, order_B = buffers.shape.beam_size, buffers.order_B[: self.num_active]
            parent_BRT = (rows_N % beam_size).view(-1, beam_size, 1).expand(-1, -1, buffers.shape.capacity)
            buffers.ancestors_BRT.index_copy_(0, order_B, buffers.ancestors_BRT.index_select(0, order_B).gather(1, parent_BRT))
        return self

    def select_sentences(self, sentences_B: Tensor) -> StaticState:
        """Keep only these sentences. The others become idle, and are dropped once they are half of all."""
        if self.initial_state is not None:
            self.initial_state, self.num_active = self.initial_state.select_sentences(sentences_B), len(sentences_B)
        if self.bucket is None:
            return self
        buffers = self.bucket.buffers
        order_B = buffers.order_B[: self.num_active].index_select(0, sentences_B)
        self.num_active = len(order_B)
        buffers.order_B[: self.num_active] = order_B
        if 0 < 2 * self.num_active <= buffers.shape.num_sentences:
            self.model.migrate(self, self.bucket, capacity=buffers.shape.capacity)
        return self


class StaticTransformer:
    """Trained model with static buffers, and the interface of `Transformer` for a search.

    record_fn: records the work of a shape: as CUDA graphs on a GPU, and not at all elsewhere
    max_bytes: limit of all buffers; beyond it, free buffers are dropped, the least recently used first
    """

    def __init__(self, model: Transformer, *, record_fn: RecordFn | None = None, max_bytes: int | None = None) -> None:
        device = model.output.device
        self.model = model.eval()
        self.max_positions = get_max_positions([model])
        self.record_fn = record_fn or (CudaGraphRecorder(device) if device.type == "cuda" else lambda work: work)
        self.max_bytes = max_bytes or (
            int(torch.cuda.get_device_properties(device).total_memory * GPU_MEMORY_FRACTION)
            if device.type == "cuda"
            else CPU_MAX_BYTES
        )
        self.buckets: list[ShapeBucket] = []
        self.lock = threading.Lock()

    def start(self, source_BS: Tensor) -> StaticState:
        """Encode the sources, and return the state before the first target token."""
        return StaticState(self, self.model.start(source_BS), len(source_BS))

    @torch.no_grad()
    def step(self, tokens_N: Tensor, state: StaticState) -> tuple[Tensor, StaticState]:
        """Read one target token in each row, and return the logits (N, V) of the next token, which the next step overwrites.

        Raises IndexError after the last learned position.
        """
        bucket = state.bucket
        if bucket is None:
            bucket = self._begin_search(state, len(tokens_N) // state.num_active)
        elif state.length == bucket.buffers.shape.capacity:
            if state.length == self.max_positions:
                raise IndexError(
                    f"position {state.length + 1}: the model has {self.max_positions} learned positions; shorten the output"
                )
            capacity = min(2 * state.length, self.max_positions or 2 * state.length)
            bucket = self.migrate(state, bucket, capacity=capacity)
        buffers = bucket.buffers
        buffers.tokens_BR.index_copy_(0, buffers.order_B[: state.num_active], tokens_N.view(state.num_active, -1))
        bucket.run_step()
        state.length += 1
        return buffers.logits_NV[: len(tokens_N)], state

    def _begin_search(self, state: StaticState, beam_size: int) -> ShapeBucket:
        initial_state, capacity = cast(DecoderState, state.initial_state), min(MIN_CAPACITY, self.max_positions or MIN_CAPACITY)
        source_length = round_up_size(initial_state.memory_mask.shape[-1], MIN_SOURCE_LENGTH)
        state.bucket = self._acquire_bucket(
            BufferShape(round_up_size(state.num_active), beam_size, source_length, capacity), state
        )
        state.bucket.buffers.load_sources(initial_state)
        state.initial_state = None
        return state.bucket

    @torch.no_grad()
    def migrate(self, state: StaticState, old_bucket: ShapeBucket, *, capacity: int) -> ShapeBucket:
        """Move the active sentences to buffers of their number, with this capacity."""
        shape = old_bucket.buffers.shape._replace(num_sentences=round_up_size(state.num_active), capacity=capacity)
        state.bucket = self._acquire_bucket(shape, state)
        state.bucket.buffers.copy_from(old_bucket.buffers, state.num_active, state.length)
        old_bucket.state_ref = lambda: None
        return state.bucket

    def _acquire_bucket(self, shape: BufferShape, state: StaticState) -> ShapeBucket:
        """Return a free bucket of this shape, or a new one."""
        with self.lock:
            free_buckets = [bucket for bucket in self.buckets if bucket.state_ref() is None]
            bucket = next(
                (candidate for candidate in free_buckets if candidate.buffers.shape == shape), None
            ) or self._create_bucket(shape)
            bucket.state_ref = weakref.ref(state)
            self.buckets = [candidate for candidate in self.buckets if candidate is not bucket] + [bucket]
            total_bytes = sum(candidate.buffers.num_bytes for candidate in self.buckets)
            for candidate in free_buckets:
                if candidate is not bucket and (total_bytes > self.max_bytes or len(self.buckets) > MAX_BUCKETS):
                    self.buckets.remove(candidate)
                    total_bytes -= candidate.buffers.num_bytes
            return bucket

    @torch.inference_mode(False)
    def _create_bucket(self, shape: BufferShape) -> ShapeBucket:
        buffers = StepBuffers(shape, self.model)
        return ShapeBucket(buffers, self.record_fn(partial(decode_step, self.model, buffers)))


def build_static_inference_model(model: Transformer, *, record_fn: RecordFn | None = None) -> InferenceModel:
    """Return the inference model of a model, whose steps are recorded on a GPU."""
    disable_cudnn_attention()
    static_model = StaticTransformer(model, record_fn=record_fn)
    device, max_positions = model.output.device, static_model.max_positions
    return build_torch_inference_model(static_model.start, static_model.step, device, max_positions)
