"""A trained model in int8 on a processor, whose encoder and decoder step are one compiled function each (see `kernels`).

The encoder reads sentences without padding, some at a time. Keys and values of the output are written once, into a slot for
each row and position. A table holds the row whose slot each position of a hypothesis descends from, and reordering the beam
reorders only this table.

    B sentences    N rows, R for each sentence    P stored rows    others as in `kernels.structs`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.inference.backends.compiled import jit_cache
from dragoman.inference.backends.compiled.kernels.cpu_features import build_tile_config, can_use_amx
from dragoman.inference.backends.compiled.kernels.structs import (
    ACCUMULATOR_STRIDE,
    LANES,
    TILE_ROWS,
    VECTOR_BYTES,
    CrossAttention,
    CrossKVCache,
    DecoderWeights,
    EmbeddingTable,
    EncoderBatch,
    EncoderWeights,
    HeadLayout,
    Int8Weights,
    LayerWeights,
    SelfKVCache,
    Workspace,
)
from dragoman.inference.backends.compiled.search import CompiledSearch
from dragoman.inference.backends.compiled.threads import StepGroup, WorkerThread
from dragoman.inference.backends.compiled.topk import CompiledTopK
from dragoman.inference.backends.shared import InferenceEmbedding
from dragoman.model.transformer import Transformer

# Least number of output positions at first; the cache doubles whenever it is full.
INITIAL_POSITIONS = 16
# Source tokens of several sentences that are encoded at once, so that activations stay in the processor's cache.
ENCODE_BLOCK_TOKENS = 256
# Model width for each thread of one step. With less work than this, threads wait longer for each other than they compute.
WIDTH_PER_THREAD = 256
# Kernels read tensors by address, so PyTorch's default type and device must not change them.
F32_OPTIONS: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
F16_OPTIONS: dict[str, Any] = {"dtype": torch.float16, "device": "cpu"}


class WorkspaceTensors:
    """Tensors of the workspace for a number of rows and of positions that each row attends to.

    shared_tensors: tensors that all threads of a group write
    thread_tensors: tensors of each thread
    workspaces: addresses of these tensors, for each thread
    """

    def __init__(
        self,
        num_rows: int,
        num_positions: int,
        head_layout: HeadLayout,
        *,
        width: int,
        max_outputs: int,
        workers: Sequence[WorkerThread] = (),
    ) -> None:
        """Allocate the tensors.

        width: D
        max_outputs: O of the widest product, apart from the one before the softmax
        workers: threads that compute each step together with the caller's thread
        """
        self.num_rows, self.num_positions, self.step_group = num_rows, num_positions, StepGroup(workers)
        self.tile_config = torch.from_numpy(build_tile_config())
        self.shared_tensors = {"projections": torch.empty(num_rows * max_outputs, **F32_OPTIONS)}
        if workers:
            self.shared_tensors |= {
                "attention_output": torch.empty(num_rows * head_layout.value_width, **F32_OPTIONS),
                "residual": torch.empty(num_rows * width, **F32_OPTIONS),
            }
        self.thread_tensors = [
            _allocate_thread_tensors(num_rows, num_positions, head_layout, width, max_outputs) for _ in self.step_group.groups
        ]
        tile_config_address = self.tile_config.data_ptr() if can_use_amx() else 0
        input_stride = self.thread_tensors[0]["quantized_inputs"].shape[1]
        self.workspaces = []
        for own_tensors, group in zip(self.thread_tensors, self.step_group.groups, strict=True):
            tensors = {"attention_output": own_tensors["y"], "residual": own_tensors["x"]} | own_tensors | self.shared_tensors
            addresses = {name: tensor.data_ptr() for name, tensor in tensors.items()}
            self.workspaces.append(
                Workspace(**addresses, tile_config=tile_config_address, width=width, input_stride=input_stride, group=group)
            )


def _allocate_thread_tensors(
    num_rows: int, num_positions: int, head_layout: HeadLayout, width: int, max_outputs: int
) -> dict[str, Tensor]:
    """Return the tensors of one thread, by the names of `Workspace`'s fields."""
    input_stride = -(-max(width, head_layout.value_width, max_outputs) // VECTOR_BYTES) * VECTOR_BYTES
    padded_rows = -(-num_rows // (2 * TILE_ROWS)) * 2 * TILE_ROWS
    floats = {
        "x": num_rows * width,
        "y": num_rows * max(width, head_layout.value_width),
        "row_scales": num_rows,
        "scores": num_positions * LANES,
    }
    return {name: torch.empty(count, **F32_OPTIONS) for name, count in floats.items()} | {
        "kv_rows": torch.empty(num_positions, dtype=torch.long, device="cpu"),
        "keys": torch.empty(num_rows * head_layout.key_width, **F16_OPTIONS),
        "values": torch.empty(num_rows * head_layout.value_width, **F16_OPTIONS),
        "quantized_inputs": torch.zeros(padded_rows, input_stride, dtype=torch.uint8, device="cpu"),
        "accumulators": torch.empty(4 * ACCUMULATOR_STRIDE, dtype=torch.int32, device="cpu"),
    }


class CompiledState(NamedTuple):
    """State of a batch of searches. A step writes into the state's memory, so each state serves one step.

    keys_LBSK, values_LBSU: keys and values of the source
    length_B: number of tokens of each source
    cross_kv: addresses of these three
    num_active: number of active sentences
    length: number of target tokens read
    self_keys, self_values: keys and values of the output (L, P, T, K or U); empty before the first step
    ancestors_NT: stored row whose slot each row descends from, at each position
    slot_row_N: stored row that each row writes
    sentence_N: source of each row, or of each active sentence before the first step
    logits_NV: logits, which each step overwrites
    """

    keys_LBSK: Tensor
    values_LBSU: Tensor
    length_B: Tensor
    cross_kv: CrossKVCache
    workspace: WorkspaceTensors
    num_active: int
    length: int = 0
    self_keys: Tensor = torch.empty(0)
    self_values: Tensor = torch.empty(0)
    ancestors_NT: Tensor = torch.empty(0)
    slot_row_N: Tensor = torch.empty(0)
    sentence_N: Tensor = torch.empty(0)
    logits_NV: Tensor = torch.empty(0)

    def reorder(self, rows_N: Tensor) -> CompiledState:
        """Return the state whose row i is row rows_N[i] of this one. No row leaves its sentence."""
        if self.length == 0 or self.ancestors_NT.shape[0] == self.num_active:
            return self
        return self._replace(ancestors_NT=self.ancestors_NT.index_select(0, rows_N))

    def select_sentences(self, sentences_B: Tensor) -> CompiledState:
        """Return the state of these sentences only. Keys and values stay in place."""
        num_active = sentences_B.shape[0]
        if num_active == self.num_active:
            return self
        if self.length == 0:
            return self._replace(num_active=num_active, sentence_N=self.sentence_N.index_select(0, sentences_B))
        beam_size = self.ancestors_NT.shape[0] // self.num_active
        rows_N = (sentences_B[:, None] * beam_size + torch.arange(beam_size, device="cpu")).flatten()
        return self._replace(
            num_active=num_active,
            ancestors_NT=self.ancestors_NT.index_select(0, rows_N),
            slot_row_N=self.slot_row_N.index_select(0, rows_N),
            sentence_N=self.sentence_N.index_select(0, rows_N),
            logits_NV=self.logits_NV[: num_active * beam_size],
        )

    def self_kv_cache(self) -> SelfKVCache:
        """Return the addresses of the output's keys and values."""
        return SelfKVCache(
            keys=self.self_keys.data_ptr(),
            values=self.self_values.data_ptr(),
            ancestors=self.ancestors_NT.data_ptr(),
            slot_rows=self.slot_row_N.data_ptr(),
            sentence_ids=self.sentence_N.data_ptr(),
            num_rows=self.self_keys.shape[1],
            capacity=self.ancestors_NT.shape[1],
        )

    def double_capacity(self) -> CompiledState:
        """Return the state with slots for twice as many positions."""
        ancestors_NT = F.pad(self.ancestors_NT, (0, self.ancestors_NT.shape[1]))
        keys, values = (_extend_positions(kv_LPTK, ancestors_NT.shape[1]) for kv_LPTK in (self.self_keys, self.self_values))
        return self._replace(self_keys=keys, self_values=values, ancestors_NT=ancestors_NT)


def _extend_positions(kv_LPTK: Tensor, num_positions: int) -> Tensor:
    """Return a copy with this many positions; the new ones are uninitialized."""
    extended_LPTK = kv_LPTK.new_empty(*kv_LPTK.shape[:2], num_positions, kv_LPTK.shape[3])
    extended_LPTK[:, :, : kv_LPTK.shape[2]] = kv_LPTK
    return extended_LPTK


@dataclass(frozen=True)
class StackWeights:
    """Weights of the encoder or the decoder. embedding_table: addresses of the embedding's own weights"""

    embedding: InferenceEmbedding
    embedding_table: EmbeddingTable
    layers: LayerWeights


@dataclass(frozen=True)
class CompiledTransformer:
    """Compiled model with the interface of `PackedTransformer`, for inference only.

    Several threads may use it at once, because kernels run without Python's lock and each state has its own memory.

    owned_tensors: all tensors whose addresses the other fields hold
    """

    encoder: StackWeights
    decoder: StackWeights
    cross_attention: CrossAttention
    head_layout: HeadLayout
    output: Int8Weights
    owned_tensors: Sequence[Tensor]
    make_topk: type[CompiledTopK] = CompiledTopK

    def start(self, source_BS: Tensor, workers: Sequence[WorkerThread] = ()) -> CompiledState:
        """Encode the sources, padded on the right, and return the state before the first target token.

        workers: threads that help the caller's thread
        """
        encoder, head_layout, (num_sentences, num_positions) = self.encoder, self.head_layout, source_BS.shape
        token_mask_BS = source_BS != encoder.embedding.padding_id
        length_B = token_mask_BS.sum(1)
        shape = self.decoder.layers.num_layers, num_sentences, num_positions
        keys_LBSK, values_LBSU = (
            torch.empty(*shape, width, **F16_OPTIONS) for width in (head_layout.key_width, head_layout.value_width)
        )
        length_i32_B = length_B.int()
        cross_kv = CrossKVCache(
            keys_LBSK.data_ptr(), values_LBSU.data_ptr(), length_i32_B.data_ptr(), num_sentences, num_positions
        )
        positions_SD, blocks = (
            encoder.embedding.compute_positions(0, num_positions),
            list(_iter_token_blocks(length_B.tolist())),
        )
        weights = EncoderWeights(
            encoder.embedding_table,
            positions_SD.data_ptr(),
            encoder.layers,
            self.cross_attention.kv,
            self.decoder.layers.num_layers,
            head_layout,
        )
        workspace = self._allocate_workspace(
            max(int(length_B[first:after].sum()) for first, after in blocks), num_positions, workers
        )
        for first, after in blocks:
            block_length_B = length_B[first:after]
            token_mask_CS = token_mask_BS[first:after]
            tokens_N, position_N = source_BS[first:after][token_mask_CS], token_mask_CS.nonzero()[:, 1].contiguous()
            offset_C, sentence_C = F.pad(block_length_B.cumsum(0), (1, 0)), torch.arange(first, after, device="cpu")
            batch = EncoderBatch(
                token_ids=tokens_N.data_ptr(),
                position_ids=position_N.data_ptr(),
                num_rows=len(tokens_N),
                sentence_starts=offset_C.data_ptr(),
                sentence_ids=sentence_C.data_ptr(),
                num_sentences=after - first,
            )
            arguments = batch, weights, cross_kv
            keep_alive = (
                self,
                tokens_N,
                position_N,
                offset_C,
                sentence_C,
                positions_SD,
                keys_LBSK,
                values_LBSU,
                length_i32_B,
                workspace,
            )
            workspace.step_group.run(partial(_encode_block, arguments, workspace.workspaces, keep_alive))
        sentence_N = torch.arange(num_sentences, dtype=torch.int32, device="cpu")
        return CompiledState(keys_LBSK, values_LBSU, length_i32_B, cross_kv, workspace, num_sentences, sentence_N=sentence_N)

    def step(self, tokens_N: Tensor, state: CompiledState) -> tuple[Tensor, CompiledState]:
        """Read one target token in each row, and return the logits (N, V) of the next token and the next state."""
        position, num_rows = state.length, tokens_N.shape[0]
        if position == 0:
            logits_NV = torch.empty(num_rows, self.output.num_outputs, **F32_OPTIONS)
            state = self.allocate_self_kv(state, num_rows)._replace(logits_NV=logits_NV)
        elif position == state.ancestors_NT.shape[1]:
            state = state.double_capacity()
        state, decoder = self.ensure_workspace(state, num_rows), self.decoder
        position_id_N = torch.zeros(num_rows, dtype=torch.long, device="cpu")
        tokens_N, position_vector_1D = tokens_N.contiguous(), decoder.embedding.compute_positions(position, 1)
        jit_cache.step(
            tokens_N.data_ptr(),
            position_id_N.data_ptr(),
            num_rows,
            position,
            self.get_decoder_weights(position_vector_1D),
            state.cross_kv,
            state.self_kv_cache(),
            state.workspace.workspaces[0],
            state.logits_NV.data_ptr(),
        )
        return state.logits_NV, state._replace(length=position + 1)

    def get_decoder_weights(self, positions_TD: Tensor, vocab_ids_W: Tensor | None = None) -> DecoderWeights:
        """Return the decoder's weights for the kernels. The caller keeps the positions and the token ids alive."""
        return DecoderWeights(
            self.decoder.embedding_table,
            positions_TD.data_ptr(),
            self.decoder.layers,
            self.cross_attention,
            self.head_layout,
            self.output,
            0 if vocab_ids_W is None else vocab_ids_W.data_ptr(),
        )

    def build_native_search(self, vocab_ids_W: Tensor | None = None) -> CompiledSearch:
        """Return the search that runs without Python. vocab_ids_W: token ids of a restricted output vocabulary"""
        return CompiledSearch(self, vocab_ids_W)

    def restrict_output(self, model: Transformer, vocab_ids_W: Tensor) -> CompiledTransformer:
        """Return this model with these output words only. model: the trained model that this one was compiled from"""
        from dragoman.inference.backends.compiled.pack import pack_output  # `pack` imports this module

        output, tensors = pack_output(model, vocab_ids_W)
        return replace(self, output=output, owned_tensors=[*self.owned_tensors, *tensors])

    def allocate_self_kv(self, state: CompiledState, num_rows: int) -> CompiledState:
        """Return the state with slots for the outputs of this many rows."""
        num_positions = max(INITIAL_POSITIONS, state.cross_kv.num_positions)  # most outputs are as long as their source
        shape = self.decoder.layers.num_layers, num_rows, num_positions
        return state._replace(
            self_keys=torch.empty(*shape, self.head_layout.key_width, **F16_OPTIONS),
            self_values=torch.empty(*shape, self.head_layout.value_width, **F16_OPTIONS),
            ancestors_NT=torch.zeros(num_rows, num_positions, dtype=torch.int32, device="cpu"),  # see `search.SearchBuffers`
            slot_row_N=torch.arange(num_rows, dtype=torch.int32, device="cpu"),
            sentence_N=state.sentence_N.repeat_interleave(num_rows // state.num_active),
        )

    def ensure_workspace(self, state: CompiledState, num_rows: int) -> CompiledState:
        """Return the state with a workspace for this many rows."""
        num_positions = max(state.cross_kv.num_positions, state.ancestors_NT.shape[1])
        if state.workspace.num_rows >= num_rows and state.workspace.num_positions >= num_positions:
            return state
        return state._replace(workspace=self._allocate_workspace(num_rows, num_positions, state.workspace.step_group.workers))

    def _allocate_workspace(self, num_rows: int, num_positions: int, workers: Sequence[WorkerThread]) -> WorkspaceTensors:
        projections = [*self.encoder.layers[1:5], *self.decoder.layers[1:5], *self.cross_attention[:3]]
        width = self.encoder.embedding.weight_VD.shape[1]
        return WorkspaceTensors(
            num_rows,
            num_positions,
            self.head_layout,
            width=width,
            max_outputs=max(projection.num_outputs for projection in projections),
            workers=workers,
        )

    @property
    def max_threads(self) -> int:
        """Largest useful number of threads for one step."""
        return max(1, self.encoder.embedding.weight_VD.shape[1] // WIDTH_PER_THREAD)


def _encode_block(
    arguments: tuple[Any, ...], workspaces: Sequence[Workspace], keep_alive: Sequence[object], thread_index: int
) -> int:
    """Encode one thread's share of a block. keep_alive: owners of the memory that the kernel reads and writes"""
    return jit_cache.encode(*arguments, workspaces[thread_index])


def _iter_token_blocks(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first sentence of each block and the one after its last."""
    first = num_tokens = 0
    for index, length in enumerate(lengths):
        if num_tokens and num_tokens + length > ENCODE_BLOCK_TOKENS:
            yield first, index
            first, num_tokens = index, 0
        num_tokens += length
    yield first, len(lengths)
