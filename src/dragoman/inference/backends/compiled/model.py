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
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.inference.backends.compiled import jit_cache
from dragoman.inference.backends.compiled.compiled_topk import CompiledTopK
from dragoman.inference.backends.compiled.kernels.structs import (
    CrossAttention,
    CrossKVCache,
    DecoderWeights,
    EmbeddingTable,
    EncoderBatch,
    EncoderWeights,
    HeadLayout,
    Int8Weights,
    LayerWeights,
    Workspace,
)
from dragoman.inference.backends.compiled.search import CompiledSearch
from dragoman.inference.backends.compiled.state import CompiledState, WorkspaceTensors
from dragoman.inference.backends.compiled.threads import WorkerThread
from dragoman.inference.backends.compiled.weights import F16_OPTIONS, F32_OPTIONS, pack_output, round_up
from dragoman.inference.backends.shared import InferenceEmbedding
from dragoman.model.pointer import PointerState, WordTables
from dragoman.model.transformer import Transformer

# Least number of output positions at first; the cache doubles whenever it is full.
INITIAL_POSITIONS = 16
# Source tokens of several sentences that are encoded at once, so that activations stay in the processor's cache.
ENCODE_BLOCK_TOKENS = 256
# Model width for each thread of one step. With less work than this, threads wait longer for each other than they compute.
WIDTH_PER_THREAD = 256


@dataclass(frozen=True)
class StackWeights:
    """Weights of the encoder or the decoder. embedding_table: addresses of the embedding's own weights"""

    embedding: InferenceEmbedding
    embedding_table: EmbeddingTable
    layers: LayerWeights


@dataclass(frozen=True)
class CompiledPointer:
    """Pointer that adds the source's next word to the decoder's input, as `dragoman.model.pointer.Pointer` does.

    shifts_V: 1 for a target token that consumes a word
    weight_DD, bias_D: projection of the encoder's output, padded as the kernels' vectors
    """

    words: WordTables
    shifts_V: Tensor
    weight_DD: Tensor
    bias_D: Tensor | None

    def start(self, memory_ND: Tensor, source_BS: Tensor, token_mask_BS: Tensor) -> PointerState:
        """Return the state before the first target token. memory_ND: the encoder's output, token by token"""
        row_BS = token_mask_BS.flatten().cumsum(0).view_as(token_mask_BS) - 1
        row_BW = row_BS.gather(1, self.words.find_word_starts(source_BS))
        return PointerState(F.linear(memory_ND[row_BW], self.weight_DD, self.bias_D))

    def __call__(self, tokens_N: Tensor, state: PointerState) -> tuple[Tensor, PointerState]:
        """Return the vectors (N, D) to add to the decoder's inputs, and the state after these tokens."""
        num_words_N = self.shifts_V[tokens_N]
        if state.num_words_N is not None:
            num_words_N = num_words_N + state.num_words_N
        num_sentences, width, _ = state.vectors_BWD.shape
        word_BR = num_words_N.clamp(max=width - 1).view(num_sentences, -1)
        sentence_B1 = torch.arange(num_sentences, device="cpu")[:, None]
        return state.vectors_BWD[sentence_B1, word_BR].flatten(0, 1), replace(state, num_words_N=num_words_N)


@dataclass(frozen=True)
class CompiledTransformer:
    """Compiled model with the interface of `PackedTransformer`, for inference only.

    Several threads may use it at once, because kernels run without Python's lock and each state has its own memory.

    pointer: pointer of a parser; None in other models
    owned_tensors: all tensors whose addresses the other fields hold
    num_draft_layers: layers of a draft, whose keys and values are behind those of the decoder; see `block_search`
    """

    encoder: StackWeights
    decoder: StackWeights
    cross_attention: CrossAttention
    head_layout: HeadLayout
    output: Int8Weights
    pointer: CompiledPointer | None
    owned_tensors: Sequence[Tensor]
    make_topk: type[CompiledTopK] = CompiledTopK
    num_draft_layers: int = 0

    def start(self, source_BS: Tensor, workers: Sequence[WorkerThread] = ()) -> CompiledState:
        """Encode the sources, padded on the right, and return the state before the first target token.

        workers: threads that help the caller's thread
        """
        encoder, head_layout, (num_sentences, num_positions) = self.encoder, self.head_layout, source_BS.shape
        token_mask_BS = source_BS != encoder.embedding.padding_id
        length_B = token_mask_BS.sum(1, dtype=torch.int32)
        lengths = length_B.tolist()
        shape = self.num_decoder_layers, num_sentences, num_positions
        keys_LBSK, values_LBSU = (
            torch.empty(*shape, width, **F16_OPTIONS) for width in (head_layout.key_width, head_layout.value_width)
        )
        cross_kv = CrossKVCache(keys_LBSK.data_ptr(), values_LBSU.data_ptr(), length_B.data_ptr(), num_sentences, num_positions)
        blocks = list(_iter_token_blocks(lengths))
        max_rows = max(sum(lengths[first:after]) for first, after in blocks)
        workspace = self._allocate_workspace(max_rows, _compute_initial_capacity(num_positions), workers)
        num_outputs = 0 if self.pointer is None else sum(lengths)
        memory_ND = torch.empty(num_outputs, workspace.width, **F32_OPTIONS)
        self._encode_blocks(source_BS, token_mask_BS, lengths, blocks, cross_kv, memory_ND, workspace)
        sentence_N = torch.arange(num_sentences, dtype=torch.int32, device="cpu")
        pointer_state = None if self.pointer is None else self.pointer.start(memory_ND, source_BS, token_mask_BS)
        return CompiledState(
            keys_LBSK,
            values_LBSU,
            length_B,
            cross_kv,
            workspace,
            num_sentences,
            sentence_N=sentence_N,
            pointer=pointer_state,
        )

    def _encode_blocks(
        self,
        source_BS: Tensor,
        token_mask_BS: Tensor,
        lengths: Sequence[int],
        blocks: Sequence[tuple[int, int]],
        cross_kv: CrossKVCache,
        memory_ND: Tensor,
        workspace: WorkspaceTensors,
    ) -> None:
        """Write the keys and values of the sources into `cross_kv`, and a parser's encoder outputs into `memory_ND`.

        lengths: number of tokens of each source
        blocks: the first sentence of each block, and the one after its last
        cross_kv: addresses of tensors that the caller keeps alive
        """
        positions_SD = compute_padded_positions(self.encoder.embedding, 0, source_BS.shape[1])
        weights = EncoderWeights(
            self.encoder.embedding_table,
            positions_SD.data_ptr(),
            self.encoder.layers,
            self.cross_attention.kv,
            self.num_decoder_layers,
            self.head_layout,
        )
        tokens_N, position_N = source_BS[token_mask_BS], token_mask_BS.nonzero()[:, 1].contiguous()
        starts = [0, *accumulate(lengths)]  # of the sentences, and the end of the last one
        sentence_B = torch.arange(len(source_BS), device="cpu")
        keep_alive = self, tokens_N, position_N, sentence_B, positions_SD, memory_ND, workspace
        for first, after in blocks:
            first_row, end_row = starts[first], starts[after]
            block_start_C = torch.tensor(starts[first : after + 1], device="cpu") - first_row
            batch = EncoderBatch(
                token_ids=tokens_N[first_row:].data_ptr(),
                position_ids=position_N[first_row:].data_ptr(),
                num_rows=end_row - first_row,
                sentence_starts=block_start_C.data_ptr(),
                sentence_ids=sentence_B[first:].data_ptr(),
                num_sentences=after - first,
                outputs=memory_ND[first_row:].data_ptr() if len(memory_ND) else 0,
            )
            block_tensors = *keep_alive, block_start_C
            workspace.step_group.run(partial(_encode_block, (batch, weights, cross_kv), workspace.workspaces, block_tensors))

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
        tokens_N, position_vector_1D = tokens_N.contiguous(), compute_padded_positions(decoder.embedding, position, 1)
        added_ND, pointer_state = None, state.pointer
        if self.pointer is not None and pointer_state is not None:
            added_ND, pointer_state = self.pointer(tokens_N, pointer_state)
        jit_cache.step(
            tokens_N.data_ptr(),
            position_id_N.data_ptr(),
            0 if added_ND is None else added_ND.data_ptr(),
            num_rows,
            position,
            self.get_decoder_weights(position_vector_1D),
            state.cross_kv,
            state.self_kv_cache(),
            state.workspace.workspaces[0],
            state.logits_NV.data_ptr(),
        )
        return state.logits_NV, state._replace(length=position + 1, pointer=pointer_state)

    @property
    def num_decoder_layers(self) -> int:
        """Number of layers with keys and values: those of the decoder and of a draft."""
        return self.decoder.layers.num_layers + self.num_draft_layers

    @property
    def num_outputs(self) -> int:
        """Number of output words, V."""
        return self.output.num_outputs

    def compute_positions(self, length: int) -> Tensor:
        """Return the decoder's first positions (length, D)."""
        return compute_padded_positions(self.decoder.embedding, 0, length)

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

    def build_native_search(self, vocab_ids_W: Tensor | None = None) -> CompiledSearch | None:
        """Return the search that runs without Python, or None for a parser with a pointer.

        vocab_ids_W: token ids of a restricted output vocabulary
        """
        return CompiledSearch(self, vocab_ids_W) if self.pointer is None else None

    def restrict_output(self, model: Transformer, vocab_ids_W: Tensor) -> CompiledTransformer:
        """Return this model with these output words only. model: the trained model that this one was compiled from"""
        bias_W = None if model.output_bias is None else model.output_bias.detach()[vocab_ids_W]
        output, tensors = pack_output(model.output.detach()[vocab_ids_W], bias_W)
        return replace(self, output=output, owned_tensors=[*self.owned_tensors, *tensors])

    def allocate_self_kv(self, state: CompiledState, num_rows: int) -> CompiledState:
        """Return the state with slots for the outputs of this many rows."""
        num_positions = _compute_initial_capacity(state.cross_kv.num_positions)
        shape = self.num_decoder_layers, num_rows, num_positions
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
        width = round_up(self.encoder.embedding.weight_VD.shape[1])
        return WorkspaceTensors(
            num_rows,
            num_positions,
            self.head_layout,
            width=width,
            max_outputs=self.max_outputs,
            workers=workers,
        )

    @property
    def max_outputs(self) -> int:
        """Outputs of the widest product, apart from the one before the softmax."""
        projections = [*self.encoder.layers[1:5], *self.decoder.layers[1:5], *self.cross_attention[:3]]
        return max(projection.num_outputs for projection in projections)

    @property
    def max_threads(self) -> int:
        """Largest useful number of threads for one step."""
        return max(1, self.encoder.embedding.weight_VD.shape[1] // WIDTH_PER_THREAD)


def compute_padded_positions(embedding: InferenceEmbedding, start: int, length: int) -> Tensor:
    """Return the vectors (length, D) of the positions from `start` on, with zeros up to whole vectors of the kernels."""
    positions_TD = embedding.compute_positions(start, length).float()
    return F.pad(positions_TD, (0, round_up(positions_TD.shape[1]) - positions_TD.shape[1])).contiguous()


def _compute_initial_capacity(num_source_positions: int) -> int:
    """Return the number of output positions at first, which suffices for most outputs of sources with this many tokens."""
    return max(INITIAL_POSITIONS, num_source_positions + num_source_positions // 2)


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
