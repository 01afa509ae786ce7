"""A trained model in int8 or float32 on a processor. Its encoder and its decoder step are one compiled function each.

The encoder reads sentences without padding, some at a time. Keys and values of the output are written once, into a slot for
each row and position. A table holds the row whose slot each position of a hypothesis descends from, and reordering the beam
reorders only this table.

    B sentences    N rows, R for each sentence    P stored rows    others as in `kernels.structs`
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, chain
from typing import Any, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.inference.backends.compiled import entry_points
from dragoman.inference.backends.compiled.compiled_topk import CompiledTopK
from dragoman.inference.backends.compiled.kernels.structs import (
    CrossAttention,
    CrossKVCache,
    DecoderWeights,
    EmbeddingTable,
    EncoderBatch,
    EncoderWeights,
    HeadLayout,
    LayerWeights,
    LinearWeights,
    Workspace,
)
from dragoman.inference.backends.compiled.search import CompiledSearch, DecoderWords
from dragoman.inference.backends.compiled.state import CompiledState, WorkspaceMemory
from dragoman.inference.backends.compiled.threads import WorkerThread
from dragoman.inference.backends.compiled.weights import F32_OPTIONS, CompiledPrecision, pack_output, round_up
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


class _Source(NamedTuple):
    """Token ids of one source and their positions, without padding."""

    ids: Sequence[int]
    positions: Sequence[int]

    @classmethod
    def from_padded(cls, ids: list[int], padding_id: int) -> Self:
        """Return the source of a row of ids, with padding anywhere in it."""
        num_tokens = len(ids) - ids.count(padding_id)
        if padding_id not in ids[:num_tokens]:
            return cls(ids[:num_tokens], range(num_tokens))
        positions = [position for position, token_id in enumerate(ids) if token_id != padding_id]
        return cls([ids[position] for position in positions], positions)


@dataclass(frozen=True)
class CompiledTransformer:
    """Compiled model with the interface of `PackedTransformer`, for inference only.

    Several threads may use it at once, because kernels run without Python's lock and each state has its own memory.

    pointer: pointer of a parser; None in other models
    owned_tensors: all tensors whose addresses the other fields hold
    """

    encoder: StackWeights
    decoder: StackWeights
    cross_attention: CrossAttention
    head_layout: HeadLayout
    output: LinearWeights
    pointer: CompiledPointer | None
    precision: CompiledPrecision
    owned_tensors: Sequence[Tensor]
    make_topk: type[CompiledTopK] = CompiledTopK

    def start(self, source_BS: Tensor, workers: Sequence[WorkerThread] = ()) -> CompiledState:
        """Encode the sources, padded on the right, and return the state before the first target token.

        workers: threads that help the caller's thread
        """
        head_layout, (num_sentences, num_positions) = self.head_layout, source_BS.shape
        padding_id = self.encoder.embedding.padding_id
        sources = [_Source.from_padded(ids, padding_id) for ids in source_BS.tolist()]
        lengths = [len(source.ids) for source in sources]
        length_B = torch.tensor(lengths, dtype=torch.int32, device="cpu")
        shape = self.num_decoder_layers, num_sentences, num_positions
        keys_LBSK, values_LBSU = (
            torch.empty(*shape, width, **self._kv_options) for width in (head_layout.key_width, head_layout.value_width)
        )
        cross_kv = CrossKVCache(keys_LBSK.data_ptr(), values_LBSU.data_ptr(), length_B.data_ptr(), num_sentences, num_positions)
        blocks = list(_iter_token_blocks(lengths))
        max_rows = max(sum(lengths[first:after]) for first, after in blocks)
        workspace = self._allocate_workspace(max_rows, _compute_initial_capacity(num_positions), workers)
        num_outputs = 0 if self.pointer is None else sum(lengths)
        memory_ND = torch.empty(num_outputs, workspace.width, **F32_OPTIONS)
        self._encode_blocks(sources, num_positions, blocks, cross_kv, memory_ND, workspace)
        pointer_state = None
        if self.pointer is not None:
            pointer_state = self.pointer.start(memory_ND, source_BS, source_BS != padding_id)
        return CompiledState(
            keys_LBSK,
            values_LBSU,
            length_B,
            cross_kv,
            workspace,
            num_sentences,
            sentence_N=torch.arange(num_sentences, dtype=torch.int32, device="cpu"),
            pointer=pointer_state,
        )

    def _encode_blocks(
        self,
        sources: Sequence[_Source],
        num_positions: int,
        blocks: Sequence[tuple[int, int]],
        cross_kv: CrossKVCache,
        memory_ND: Tensor,
        workspace: WorkspaceMemory,
    ) -> None:
        """Write the keys and values of the sources into `cross_kv`, and a parser's encoder outputs into `memory_ND`.

        num_positions: length of the longest source
        blocks: the first sentence of each block, and the one after its last
        cross_kv: addresses of tensors that the caller keeps alive
        """
        positions = self._encoder_positions.get(num_positions)
        before_positions, after_positions = self._encoder_words
        weights = before_positions, positions.data_ptr(), after_positions
        num_rows = 0
        for first, after in blocks:
            block = sources[first:after]
            token_ids = array("q", chain.from_iterable(source.ids for source in block))
            position_ids = array("q", chain.from_iterable(source.positions for source in block))
            sentence_starts = array("q", accumulate((len(source.ids) for source in block), initial=0))
            sentence_ids = array("q", range(first, after))
            batch = EncoderBatch(
                token_ids=token_ids.buffer_info()[0],
                position_ids=position_ids.buffer_info()[0],
                num_rows=len(token_ids),
                sentence_starts=sentence_starts.buffer_info()[0],
                sentence_ids=sentence_ids.buffer_info()[0],
                num_sentences=after - first,
                outputs=memory_ND[num_rows:].data_ptr() if len(memory_ND) else 0,
            )
            keep_alive = self, positions, memory_ND, workspace, token_ids, position_ids, sentence_starts, sentence_ids
            workspace.step_group.run(partial(_encode_block, (batch, weights, cross_kv), workspace.workspaces, keep_alive))
            num_rows += len(token_ids)

    @cached_property
    def _encoder_positions(self) -> PositionTable:
        return PositionTable(self.encoder.embedding)

    @cached_property
    def _decoder_positions(self) -> PositionTable:
        return PositionTable(self.decoder.embedding)

    @cached_property
    def _encoder_words(self) -> tuple[array[int], array[int]]:
        """Words of `EncoderWeights` before and after the address of its positions."""
        weights = EncoderWeights(
            self.encoder.embedding_table,
            0,
            self.encoder.layers,
            self.cross_attention.kv,
            self.num_decoder_layers,
            self.head_layout,
        )
        return entry_points.flatten(weights[:1]), entry_points.flatten(weights[2:])

    @cached_property
    def _decoder_words(self) -> tuple[array[int], array[int]]:
        """Words of `DecoderWeights` before the address of its positions, and between it and that of the vocabulary map."""
        weights = self._get_decoder_weights()
        return entry_points.flatten(weights[:1]), entry_points.flatten(weights[2:-1])

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
        entry_points.step(
            tokens_N.data_ptr(),
            position_id_N.data_ptr(),
            0 if added_ND is None else added_ND.data_ptr(),
            num_rows,
            position,
            self._get_decoder_weights(position_vector_1D.data_ptr()),
            state.cross_kv,
            state.self_kv_cache(),
            state.workspace.workspaces[0],
            state.logits_NV.data_ptr(),
        )
        return state.logits_NV, state._replace(length=position + 1, pointer=pointer_state)

    @property
    def _kv_options(self) -> dict[str, Any]:
        """Type and device of keys and values."""
        return {"dtype": torch.float32 if self.head_layout.has_float32_kv else torch.float16, "device": "cpu"}

    @property
    def num_decoder_layers(self) -> int:
        """Number of layers of the decoder, each of which has keys and values."""
        return self.decoder.layers.num_layers

    @property
    def num_outputs(self) -> int:
        """Number of output words, V."""
        return self.output.num_outputs

    def get_decoder_words(self, num_positions: int, vocab_ids_W: Tensor | None = None) -> DecoderWords:
        """Return the decoder's weights for a search that reads this many positions.

        vocab_ids_W: token ids of a restricted output vocabulary
        """
        positions_TD = self._decoder_positions.get(num_positions)
        before_positions, after_positions = self._decoder_words
        vocabulary_map = 0 if vocab_ids_W is None else vocab_ids_W.data_ptr()
        words = entry_points.flatten((before_positions, positions_TD.data_ptr(), after_positions, vocabulary_map))
        return DecoderWords(words, (positions_TD, vocab_ids_W))

    def _get_decoder_weights(self, positions: int = 0) -> DecoderWeights:
        """Return the decoder's weights. positions: address of its positions"""
        return DecoderWeights(
            self.decoder.embedding_table,
            positions,
            self.decoder.layers,
            self.cross_attention,
            self.head_layout,
            self.output,
            0,
        )

    def build_native_search(self, vocab_ids_W: Tensor | None = None) -> CompiledSearch | None:
        """Return the search that runs without Python, or None for a parser with a pointer.

        vocab_ids_W: token ids of a restricted output vocabulary
        """
        return CompiledSearch(self, vocab_ids_W) if self.pointer is None else None

    def restrict_output(self, model: Transformer, vocab_ids_W: Tensor) -> CompiledTransformer:
        """Return this model with these output words only. model: the trained model that this one was compiled from"""
        bias_W = None if model.output_bias is None else model.output_bias.detach()[vocab_ids_W]
        output, tensors = pack_output(model.output.detach()[vocab_ids_W], bias_W, self.precision)
        return replace(self, output=output, owned_tensors=[*self.owned_tensors, *tensors])

    def allocate_self_kv(self, state: CompiledState, num_rows: int) -> CompiledState:
        """Return the state with slots for the outputs of this many rows."""
        num_positions, beam_size = _compute_initial_capacity(state.cross_kv.num_positions), num_rows // state.num_active
        shape = self.num_decoder_layers, num_rows, num_positions
        return state._replace(
            self_keys=torch.empty(*shape, self.head_layout.key_width, **self._kv_options),
            self_values=torch.empty(*shape, self.head_layout.value_width, **self._kv_options),
            ancestors_NT=torch.zeros(num_rows, num_positions, dtype=torch.int32, device="cpu"),  # see `search.SearchBuffers`
            slot_row_N=torch.arange(num_rows, dtype=torch.int32, device="cpu"),
            sentence_N=torch.from_numpy(np.repeat(state.sentence_N.numpy(), beam_size)),
        )

    def ensure_workspace(self, state: CompiledState, num_rows: int) -> CompiledState:
        """Return the state with a workspace for this many rows."""
        num_positions = max(state.cross_kv.num_positions, state.ancestors_NT.shape[1])
        if state.workspace.num_rows >= num_rows and state.workspace.num_positions >= num_positions:
            return state
        return state._replace(workspace=self._allocate_workspace(num_rows, num_positions, state.workspace.step_group.workers))

    def _allocate_workspace(self, num_rows: int, num_positions: int, workers: Sequence[WorkerThread]) -> WorkspaceMemory:
        width = round_up(self.encoder.embedding.weight_VD.shape[1])
        return WorkspaceMemory(
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


class PositionTable:
    """First positions of an embedding in the kernels' layout, which grows with the longest sentence."""

    def __init__(self, embedding: InferenceEmbedding) -> None:
        self.embedding = embedding
        self._positions_TD = torch.empty(0, 0, **F32_OPTIONS)

    def get(self, length: int) -> Tensor:
        """Return at least the first `length` positions (≥ length, D). The caller keeps the tensor alive.

        Raises IndexError for a position that a learned table does not have.
        """
        positions_TD = self._positions_TD  # another thread may replace it at any time
        if len(positions_TD) < length:
            try:
                positions_TD = compute_padded_positions(self.embedding, 0, 2 * length)
            except IndexError:  # a learned table ends before
                positions_TD = compute_padded_positions(self.embedding, 0, length)
            self._positions_TD = positions_TD
        return positions_TD


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
    return entry_points.encode(*arguments, workspaces[thread_index])


def _iter_token_blocks(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first sentence of each block and the one after its last."""
    first = num_tokens = 0
    for index, length in enumerate(lengths):
        if num_tokens and num_tokens + length > ENCODE_BLOCK_TOKENS:
            yield first, index
            first, num_tokens = index, 0
        num_tokens += length
    yield first, len(lengths)
