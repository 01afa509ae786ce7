"""A trained model in int8 or float32 on a processor. Its encoder and its decoder step are one compiled function each.

The encoder reads sentences without padding, some at a time. Keys and values of the output are written once, into a slot for
each row and position. A table holds the row whose slot each position of a hypothesis descends from, and reordering the beam
reorders only this table.

    B sentences    N rows, R for each sentence    P stored rows    others as in `kernels.structs`
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dragoman.decoding.arrays import NUMPY
from dragoman.decoding.interface import StepFn
from dragoman.inference.backends.compiled import entry_points
from dragoman.inference.backends.compiled.arena import allocate, get_address
from dragoman.inference.backends.compiled.compiled_topk import CompiledTopK
from dragoman.inference.backends.compiled.kernels.structs import (
    MAX_LONG_COLUMNS,
    CrossAttention,
    CrossKVCache,
    DecoderWeights,
    EmbeddingTable,
    EncoderBatch,
    HeadLayout,
    LayerWeights,
    LinearWeights,
    NormWeights,
    Workspace,
)
from dragoman.inference.backends.compiled.search import CompiledSearch, DecoderWords
from dragoman.inference.backends.compiled.state import CompiledState, WorkspaceMemory
from dragoman.inference.backends.compiled.threads import WorkerThread
from dragoman.inference.backends.compiled.weights import (
    CompiledPrecision,
    Matrix,
    load_matrix,
    pack_output,
    pad_axis,
    round_up,
)
from dragoman.model_weights import OUTPUT, ModelWeights, Stack
from dragoman.tasks.inference_model import InferenceModel

if TYPE_CHECKING:
    from dragoman.inference.backends.compiled.pointer import CompiledPointer

# Least number of output positions at first; the cache doubles whenever it is full.
INITIAL_POSITIONS = 16
# Source tokens of several sentences that are encoded at once, so that activations stay in the processor's cache.
ENCODE_BLOCK_TOKENS = 256
# Tokens whose mapped embeddings take up to 8 MiB, as the system maps 64 KiB around each. Their memory is released at once.
MIN_RELEASED_TOKENS = 128
# Model width for each thread of one step. With less work than this, threads wait longer for each other than they compute.
WIDTH_PER_THREAD = 256


class _Source(NamedTuple):
    """Rows of one source in an embedding table and their positions, without padding."""

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


class _EncoderInputs(NamedTuple):
    """Inputs of the encoder as rows of a table.

    table_words: words of the `EmbeddingTable`
    num_positions: length of the longest source, padding included
    owner: arrays of the table, besides the model's
    """

    table_words: array[int]
    sources: list[_Source]
    num_positions: int
    owner: object


class TokenFrontend:
    """Token ids (B, S), padded on the right, which are rows of the model's embeddings."""

    max_initial_outputs: ClassVar[int] = sys.maxsize
    """Limit of the output positions at first: an output is about as long as its source."""

    def __init__(self, table: EmbeddingTable, padding_id: int) -> None:
        self.table_words, self.padding_id = entry_points.flatten((table,)), padding_id

    def read(self, source_BS: NDArray[np.int64]) -> _EncoderInputs:
        """Return the inputs of a batch."""
        sources = [_Source.from_padded(ids, self.padding_id) for ids in source_BS.tolist()]
        return _EncoderInputs(self.table_words, sources, source_BS.shape[1], None)


class VectorFrontend:
    """Any other source, whose vectors (B, S, D) are a table of their own in each batch. embed: returns the vectors"""

    max_initial_outputs: ClassVar[int] = 64
    """Limit of the output positions at first: frames are many more than words."""

    def __init__(self, embed: Callable[[NDArray[Any]], NDArray[np.float32]]) -> None:
        self.embed = embed

    def read(self, source: NDArray[Any]) -> _EncoderInputs:
        """Return the inputs of a batch."""
        vectors_BSD = np.ascontiguousarray(self.embed(source))
        num_sources, num_positions, width = vectors_BSD.shape
        scale_N = np.ones(num_sources * num_positions, np.float32)
        no_norm = NormWeights(0, 0, 0.0, 0, False, False)
        table = EmbeddingTable(get_address(vectors_BSD), 0, get_address(scale_N), width, no_norm)
        starts = range(0, len(scale_N), num_positions)
        sources = [_Source(range(start, start + num_positions), range(num_positions)) for start in starts]
        return _EncoderInputs(entry_points.flatten((table,)), sources, num_positions, (vectors_BSD, scale_N))


@dataclass(frozen=True)
class CompiledTransformer:
    """Compiled model, for inference only.

    Several threads may use it at once, because kernels run without Python's lock and each state has its own memory.

    weights: the weights that were compiled; the embeddings are read in place
    encoder_positions, decoder_positions: tables that all copies of this model share
    pointer: pointer of a parser; None in other models
    owned_arrays: all arrays whose addresses the other fields hold
    """

    weights: ModelWeights
    encoder_positions: PositionTable
    decoder_positions: PositionTable
    frontend: TokenFrontend | VectorFrontend
    encoder: LayerWeights
    decoder_embedding: EmbeddingTable
    decoder: LayerWeights
    cross_attention: CrossAttention
    head_layout: HeadLayout
    output: LinearWeights
    pointer: CompiledPointer | None
    precision: CompiledPrecision
    owned_arrays: Sequence[NDArray[Any]]

    def start(self, source: NDArray[Any], workers: Sequence[WorkerThread] = ()) -> CompiledState:
        """Encode the sources, such as ids (B, S), and return the state before the first target token.

        workers: threads that help the caller's thread
        """
        state, memory_ND = self.encode(source, workers, keeps_memory=self.pointer is not None)
        return state if self.pointer is None else state._replace(pointer=self.pointer.start(memory_ND, source))

    def encode(
        self, source: NDArray[Any], workers: Sequence[WorkerThread], *, keeps_memory: bool
    ) -> tuple[CompiledState, NDArray[np.float32]]:
        """Return the state with the keys and values of the sources, and the encoder's outputs, token by token.

        keeps_memory: whether the outputs (N, D) are kept; else there are none (0, D)
        """
        inputs = self.frontend.read(source)
        num_positions = -(-inputs.num_positions // MAX_LONG_COLUMNS) * MAX_LONG_COLUMNS
        lengths = [len(row.ids) for row in inputs.sources]
        head_layout, num_sentences = self.head_layout, len(lengths)
        length_B = np.array(lengths, np.int32)
        shape = self.num_decoder_layers, num_sentences, num_positions
        keys_LBSK, values_LBSU = (
            allocate((*shape, width), self._kv_dtype) for width in (head_layout.key_width, head_layout.value_width)
        )
        keys, values, length_address = (get_address(array) for array in (keys_LBSK, values_LBSU, length_B))
        cross_kv = CrossKVCache(keys, values, length_address, num_sentences, num_positions)
        blocks = list(iter_token_blocks(lengths))
        max_rows = max(sum(lengths[first:after]) for first, after in blocks)
        capacity = max(num_positions, self._compute_initial_capacity(num_positions))
        workspace = self.allocate_workspace(max_rows, capacity, workers)
        memory_ND = allocate((sum(lengths) if keeps_memory else 0, workspace.width), np.float32)
        self._encode_blocks(inputs, blocks, cross_kv, memory_ND, workspace)
        state = CompiledState(
            keys_LBSK,
            values_LBSU,
            length_B,
            cross_kv,
            workspace,
            num_sentences,
            sentence_N=np.arange(num_sentences, dtype=np.int32),
        )
        return state, memory_ND

    def _encode_blocks(
        self,
        inputs: _EncoderInputs,
        blocks: Sequence[tuple[int, int]],
        cross_kv: CrossKVCache,
        memory_ND: NDArray[np.float32],
        workspace: WorkspaceMemory,
    ) -> None:
        """Write the keys and values of the sources into `cross_kv`, and the encoder's outputs into `memory_ND` if it has rows.

        blocks: the first sentence of each block, and the one after its last
        cross_kv: addresses of arrays that the caller keeps alive
        """
        positions = self.encoder_positions.get(inputs.num_positions)
        weights = inputs.table_words, get_address(positions), self._encoder_words
        num_rows = 0
        for first, after in blocks:
            block = inputs.sources[first:after]
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
                outputs=get_address(memory_ND[num_rows:]) if len(memory_ND) else 0,
            )
            row_ids = token_ids, position_ids, sentence_starts, sentence_ids
            keep_alive = self, inputs, positions, memory_ND, workspace, row_ids
            workspace.step_group.run(partial(_encode_block, (batch, weights, cross_kv), workspace.workspaces, keep_alive))
            num_rows += len(token_ids)
            if len(token_ids) >= MIN_RELEASED_TOKENS:
                self.weights.release()

    @cached_property
    def _encoder_words(self) -> array[int]:
        """Words of `EncoderWeights` behind the embedding table and the address of its positions."""
        return entry_points.flatten((self.encoder, self.cross_attention.kv, self.num_decoder_layers, self.head_layout))

    @cached_property
    def _decoder_words(self) -> tuple[array[int], array[int]]:
        """Words of `DecoderWeights` before the address of its positions, and between it and that of the vocabulary map."""
        weights = self._get_decoder_weights()
        return entry_points.flatten(weights[:1]), entry_points.flatten(weights[2:-1])

    def step(self, tokens_N: NDArray[np.int64], state: CompiledState) -> tuple[NDArray[np.float32], CompiledState]:
        """Read one target token in each row, and return the logits (N, V) of the next token and the next state."""
        position, num_rows = state.length, len(tokens_N)
        if position == 0:
            logits_NV = allocate((num_rows, self.output.num_outputs), np.float32)
            state = self.allocate_self_kv(state, num_rows)._replace(logits_NV=logits_NV)
        elif position == state.ancestors_NT.shape[1]:
            state = state.double_capacity()
        state, positions_TD = self.ensure_workspace(state, num_rows), self.decoder_positions.get(position + 1)
        tokens_N, position_id_N = np.ascontiguousarray(tokens_N, np.int64), np.full(num_rows, position)
        added_ND, pointer_state = None, state.pointer
        if self.pointer is not None and pointer_state is not None:
            added_ND, pointer_state = self.pointer(tokens_N, pointer_state)
        entry_points.step(
            get_address(tokens_N),
            get_address(position_id_N),
            0 if added_ND is None else get_address(added_ND),
            num_rows,
            position,
            self._get_decoder_weights(get_address(positions_TD)),
            state.cross_kv,
            state.self_kv_cache(),
            state.workspace.workspaces[0],
            get_address(state.logits_NV),
        )
        return state.logits_NV, state._replace(length=position + 1, pointer=pointer_state)

    @property
    def _kv_dtype(self) -> type[np.floating[Any]]:
        """Type of keys and values."""
        return np.float32 if self.head_layout.has_float32_kv else np.float16

    @property
    def num_decoder_layers(self) -> int:
        """Number of layers of the decoder, each of which has keys and values."""
        return self.decoder.num_layers

    @property
    def num_outputs(self) -> int:
        """Number of output words, V."""
        return self.output.num_outputs

    def get_decoder_words(self, num_positions: int, vocab_ids_W: NDArray[np.int64] | None = None) -> DecoderWords:
        """Return the decoder's weights for a search that reads this many positions.

        vocab_ids_W: token ids of a restricted output vocabulary
        """
        positions_TD = self.decoder_positions.get(num_positions)
        before_positions, after_positions = self._decoder_words
        vocabulary_map = 0 if vocab_ids_W is None else get_address(vocab_ids_W)
        words = entry_points.flatten((before_positions, get_address(positions_TD), after_positions, vocabulary_map))
        return DecoderWords(words, (positions_TD, vocab_ids_W))

    def _get_decoder_weights(self, positions: int = 0) -> DecoderWeights:
        """Return the decoder's weights. positions: address of its positions"""
        return DecoderWeights(
            self.decoder_embedding,
            positions,
            self.decoder,
            self.cross_attention,
            self.head_layout,
            self.output,
            0,
        )

    def build_inference_model(self, vocab_ids_W: NDArray[np.int64] | None = None) -> InferenceModel:
        """Return the inference model, with the search that runs without Python unless the model is a parser with a pointer.

        vocab_ids_W: token ids of a restricted output vocabulary
        """
        step: StepFn = self.step
        if vocab_ids_W is not None:
            step = lambda tokens_N, state: self.step(vocab_ids_W[tokens_N], state)  # noqa: E731
        native_search = CompiledSearch(self, vocab_ids_W) if self.pointer is None else None
        return InferenceModel(self.start, step, NUMPY, self.weights.max_positions, CompiledTopK, native_search)

    def restrict_output(self, vocab_ids_W: NDArray[np.int64]) -> CompiledTransformer:
        """Return this model with these output words only."""
        bias_V = self.weights.output_bias
        bias_W = None if bias_V is None else bias_V[vocab_ids_W]
        output, arrays = pack_output(
            self._output_matrix[vocab_ids_W], bias_W, self.precision, self.weights.get_input_step(OUTPUT)
        )
        return replace(self, output=output, owned_arrays=[*self.owned_arrays, *arrays])

    @cached_property
    def _output_matrix(self) -> Matrix:
        """Output matrix (V, D), which each batch with a shortlist reads."""
        return load_matrix(self.weights, OUTPUT, self.precision)

    def allocate_self_kv(self, state: CompiledState, num_rows: int) -> CompiledState:
        """Return the state with slots for the outputs of this many rows."""
        beam_size, num_positions = num_rows // state.num_active, self._compute_initial_capacity(state.cross_kv.num_positions)
        layout, shape = self.head_layout, (self.num_decoder_layers, num_rows)
        widths = (0, 0, state.workspace.width) if self.decoder.has_ssru else (layout.key_width, layout.value_width, 0)
        return state._replace(
            self_keys=allocate((*shape, num_positions, widths[0]), self._kv_dtype),
            self_values=allocate((*shape, num_positions, widths[1]), self._kv_dtype),
            cells=allocate((*shape, 2, widths[2]), np.float32),
            ancestors_NT=np.zeros((num_rows, num_positions), np.int32),  # see `search.SearchBuffers`
            slot_row_N=np.arange(num_rows, dtype=np.int32),
            sentence_N=np.repeat(state.sentence_N, beam_size),
        )

    def ensure_workspace(self, state: CompiledState, num_rows: int) -> CompiledState:
        """Return the state with a workspace for this many rows."""
        num_positions = max(state.cross_kv.num_positions, state.ancestors_NT.shape[1])
        if state.workspace.num_rows >= num_rows and state.workspace.num_positions >= num_positions:
            return state
        return state._replace(workspace=self.allocate_workspace(num_rows, num_positions, state.workspace.step_group.workers))

    def allocate_workspace(self, num_rows: int, num_positions: int, workers: Sequence[WorkerThread]) -> WorkspaceMemory:
        """Return the memory for this many rows, each of which attends to at most this many positions."""
        width = round_up(self.weights.config.d_model)
        return WorkspaceMemory(
            num_rows,
            num_positions,
            self.head_layout,
            width=width,
            max_outputs=self.max_outputs,
            workers=workers,
        )

    def _compute_initial_capacity(self, num_source_positions: int) -> int:
        """Return the number of output positions at first, which suffices for most outputs of sources with this many vectors."""
        capacity = max(INITIAL_POSITIONS, num_source_positions + num_source_positions // 2)
        return min(capacity, self.frontend.max_initial_outputs)

    @property
    def max_outputs(self) -> int:
        """Outputs of the widest product, apart from the one before the softmax."""
        projections = [*self.encoder[1:6], *self.decoder[1:6], *self.cross_attention[:3]]
        return max(projection.num_outputs for projection in projections)

    @property
    def max_threads(self) -> int:
        """Largest useful number of threads for one step."""
        return max(1, self.weights.config.d_model // WIDTH_PER_THREAD)


class PositionTable:
    """First positions of a stack in the kernels' layout, which grows with the longest sentence."""

    def __init__(self, weights: ModelWeights, stack: Stack, head_layout: HeadLayout) -> None:
        self.weights, self.stack, self.head_layout = weights, stack, head_layout
        self._positions_TD = np.empty((0, 0), np.float32)

    def get(self, length: int) -> NDArray[np.float32]:
        """Return at least the first `length` positions (≥ length, D). The caller keeps the array alive.

        Raises IndexError for a position that a learned table does not have.
        """
        positions_TD = self._positions_TD  # another thread may replace it at any time
        if len(positions_TD) < length:
            try:
                positions_TD = self._compute(2 * length)
            except IndexError:  # a learned table ends before
                positions_TD = self._compute(length)
            self._positions_TD = positions_TD
        return positions_TD

    def _compute(self, length: int) -> NDArray[np.float32]:
        """Return the vectors (length, D) of the first positions, with zeros up to whole vectors of the kernels.

        With rotary positions, the sines and cosines of the pairs of all heads of a group are behind each vector.
        """
        positions_TD, extra_D = self.weights.compute_positions(self.stack, 0, length), self.weights.get_target_space(self.stack)
        layout, width = self.head_layout, round_up(positions_TD.shape[1])
        padded_TD = allocate((length, width + layout.rotation_width), np.float32, make=np.zeros)
        padded_TD[:, : positions_TD.shape[1]] = positions_TD if extra_D is None else positions_TD + extra_D
        if (rotation_TK := self.weights.compute_rotations(length)) is not None:
            halves_T2X = rotation_TK.repeat(layout.num_heads, axis=1).reshape(length, 2, -1)
            padded_TD[:, width:] = pad_axis(halves_T2X, layout.rotation_width // 2).reshape(length, -1)
        return padded_TD


def _encode_block(
    arguments: tuple[Any, ...], workspaces: Sequence[Workspace], keep_alive: Sequence[object], thread_index: int
) -> int:
    """Encode one thread's share of a block. keep_alive: owners of the memory that the kernel reads and writes"""
    return entry_points.encode(*arguments, workspaces[thread_index])


def iter_token_blocks(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first sentence of each block and the one after its last."""
    first = num_tokens = 0
    for index, length in enumerate(lengths):
        if num_tokens and num_tokens + length > ENCODE_BLOCK_TOKENS:
            yield first, index
            first, num_tokens = index, 0
        num_tokens += length
    yield first, len(lengths)
