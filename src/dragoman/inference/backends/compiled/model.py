"""A trained model whose reading and whose step are one compiled function each (`kernels`), in int8 on a processor.

Sentences are read without padding, some at a time. Keys and values of the output are written once: each row has a place for
every token, and a table tells which row's place holds what a hypothesis descends from, so that to follow the beam only the
table is put in order.

    B sentences    N rows, R for each sentence    P rows that are stored    others as in `kernels`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.inference.backends.compiled import jit_cache
from dragoman.inference.backends.compiled.cpu_features import build_tile_config, can_use_amx
from dragoman.inference.backends.compiled.kernels.structs import (
    ACCUMULATOR_STRIDE,
    LANES,
    TILE_ROWS,
    VECTOR_BYTES,
    CrossAttention,
    CrossKVCache,
    EmbeddingTable,
    HeadLayout,
    Int8Weights,
    LayerWeights,
    SelfKVCache,
    Workspace,
)
from dragoman.inference.backends.compiled.search import CompiledSearch
from dragoman.inference.backends.compiled.threads import StepGroup, WorkerThread
from dragoman.inference.backends.compiled.topk import CompiledTopK
from dragoman.inference.backends.packed.model import PackedEmbedding

# Places of the output that room is made for at first, at least; then twice as many each time.
INITIAL_POSITIONS = 16
# So many tokens of the source are read at once, if they are of more than one sentence: what is computed stays in the cache.
ENCODE_BLOCK_TOKENS = 256
# The width of a model for each thread that computes its step: of less than that, they wait longer for each other.
WIDTH_PER_THREAD = 256
# What is known by its address is what it is said to be, whatever PyTorch would make of it by default.
F32_OPTIONS: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
F16_OPTIONS: dict[str, Any] = {"dtype": torch.float16, "device": "cpu"}


class WorkspaceTensors:
    """Memory to work in, for so many rows that look at so many places each.

    spaces: of each member of the team
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
        """width: D. widest: O of the widest product, but for the last"""
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
    """What each member writes for itself, by names as `Space` has them."""
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
    """A step writes into its state's memory, so that each state is good for one step.

    keys_LBSK, values_LBSU: of the source. past_keys, past_values: of the output (L, P, T, K or U); none before it begins
    wanted: sentences that are
    length: tokens read
    lineage_NT: the stored row that holds what each row descends from at each place
    stored_N: where each row writes. sentence_N: the source of each, or of each sentence before the first step
    logits_NV: what the last step wrote, and the next will
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
        """Row i becomes what row rows_N[i] was; no row leaves its sentence."""
        if self.length == 0 or self.ancestors_NT.shape[0] == self.num_active:
            return self
        return self._replace(ancestors_NT=self.ancestors_NT.index_select(0, rows_N))

    def select_sentences(self, sentences_B: Tensor) -> CompiledState:
        """Only these sentences, with all their rows. Nothing is moved."""
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
        """Where it is."""
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
        """Room for twice as many tokens in each row."""
        ancestors_NT = F.pad(self.ancestors_NT, (0, self.ancestors_NT.shape[1]))
        keys, values = (_extend_positions(kv_LPTK, ancestors_NT.shape[1]) for kv_LPTK in (self.self_keys, self.self_values))
        return self._replace(self_keys=keys, self_values=values, ancestors_NT=ancestors_NT)


def _extend_positions(kv_LPTK: Tensor, num_positions: int) -> Tensor:
    """With room for so many, those that are there first."""
    extended_LPTK = kv_LPTK.new_empty(*kv_LPTK.shape[:2], num_positions, kv_LPTK.shape[3])
    extended_LPTK[:, :, : kv_LPTK.shape[2]] = kv_LPTK
    return extended_LPTK


@dataclass(frozen=True)
class StackWeights:
    """What one stack reads by. table: of the embedding's own weights"""

    embedding: PackedEmbedding
    embedding_table: EmbeddingTable
    layers: LayerWeights

    def compute_positions(self, start: int, length: int) -> Tensor:
        """(length, D)"""
        positions_SD = self.embedding.positions(start, length).detach()
        return positions_SD.contiguous() if self.embedding.extra_D is None else positions_SD + self.embedding.extra_D


@dataclass(frozen=True)
class CompiledTransformer:
    """What a search asks for words, as `PackedTransformer` is; for inference only.

    Several threads may use it at once: who computes has left Python's lock, and what `start` gives has memory of its own.

    kept: all tensors whose addresses are here
    """

    encoder: StackWeights
    decoder: StackWeights
    cross_attention: CrossAttention
    head_layout: HeadLayout
    output: Int8Weights
    owned_tensors: Sequence[Tensor]
    make_topk: ClassVar[type[CompiledTopK]] = CompiledTopK

    def start(self, source_BS: Tensor, workers: Sequence[WorkerThread] = ()) -> CompiledState:
        """Read the source, padded on the right, with helpers or without: the state before the first target token."""
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
        positions_SD, blocks = encoder.compute_positions(0, num_positions), list(_iter_token_blocks(length_B.tolist()))
        workspace = self._allocate_workspace(
            max(int(length_B[first:after].sum()) for first, after in blocks), num_positions, workers
        )
        for first, after in blocks:
            block_length_B = length_B[first:after]
            token_mask_CS = token_mask_BS[first:after]
            tokens_N, position_N = source_BS[first:after][token_mask_CS], token_mask_CS.nonzero()[:, 1].contiguous()
            offset_C, sentence_C = F.pad(block_length_B.cumsum(0), (1, 0)), torch.arange(first, after, device="cpu")
            arguments = (
                tokens_N.data_ptr(),
                position_N.data_ptr(),
                len(tokens_N),
                offset_C.data_ptr(),
                sentence_C.data_ptr(),
                after - first,
                encoder.embedding_table,
                positions_SD.data_ptr(),
                encoder.layers,
                self.cross_attention,
                self.decoder.layers.num_layers,
                head_layout,
                cross_kv,
            )
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
        """Read one more target token in each row: the logits (N, V) of the next, and the state after it."""
        position, num_rows = state.length, tokens_N.shape[0]
        if position == 0:
            logits_NV = torch.empty(num_rows, self.output.num_outputs, **F32_OPTIONS)
            state = self.allocate_self_kv(state, num_rows)._replace(logits_NV=logits_NV)
        elif position == state.ancestors_NT.shape[1]:
            state = state.double_capacity()
        state, decoder = self.ensure_workspace(state, num_rows), self.decoder
        position_id_N = torch.zeros(num_rows, dtype=torch.long, device="cpu")
        tokens_N, position_vector_1D = tokens_N.contiguous(), decoder.compute_positions(position, 1)
        jit_cache.step(
            tokens_N.data_ptr(),
            position_id_N.data_ptr(),
            num_rows,
            position,
            decoder.embedding_table,
            position_vector_1D.data_ptr(),
            decoder.layers,
            self.cross_attention,
            self.head_layout,
            self.output,
            state.cross_kv,
            state.self_kv_cache(),
            state.workspace.workspaces[0],
            state.logits_NV.data_ptr(),
        )
        return state.logits_NV, state._replace(length=position + 1)

    def build_native_search(self, vocab_ids_W: Tensor | None = None) -> CompiledSearch:
        """Searches without Python. words_W: the words that it says, where it is one `with_words`"""
        return CompiledSearch(self, vocab_ids_W)

    def allocate_self_kv(self, state: CompiledState, num_rows: int) -> CompiledState:
        """With a place for what so many rows say."""
        num_positions = max(INITIAL_POSITIONS, state.cross_kv.num_positions)  # most outputs are about as long as their source
        shape = self.decoder.layers.num_layers, num_rows, num_positions
        return state._replace(
            self_keys=torch.empty(*shape, self.head_layout.key_width, **F16_OPTIONS),
            self_values=torch.empty(*shape, self.head_layout.value_width, **F16_OPTIONS),
            ancestors_NT=torch.zeros(num_rows, num_positions, dtype=torch.int32, device="cpu"),  # see `searcher.Rows`
            slot_row_N=torch.arange(num_rows, dtype=torch.int32, device="cpu"),
            sentence_N=state.sentence_N.repeat_interleave(num_rows // state.num_active),
        )

    def ensure_workspace(self, state: CompiledState, num_rows: int) -> CompiledState:
        """With memory to compute so many rows in."""
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
        """Threads that a step is worth sharing out to."""
        return max(1, self.encoder.embedding.weight_VD.shape[1] // WIDTH_PER_THREAD)


def _encode_block(
    arguments: tuple[Any, ...], workspaces: Sequence[Workspace], keep_alive: Sequence[object], thread_index: int
) -> int:
    """kept: what stands where addresses are given, for as long as somebody may be at work"""
    return jit_cache.encode(*arguments, workspaces[thread_index])


def _iter_token_blocks(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Which sentences are read together: from, and up to."""
    first = num_tokens = 0
    for index, length in enumerate(lengths):
        if num_tokens and num_tokens + length > ENCODE_BLOCK_TOKENS:
            yield first, index
            first, num_tokens = index, 0
        num_tokens += length
    yield first, len(lengths)
