"""Search over blocks of a compiled model: its heads or draft, the memory of the search, and the calls of its kernel.

C sentences    k block size    others as in `search`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.native_search import SearchRequest
from dragoman.inference.backends.compiled import jit_cache
from dragoman.inference.backends.compiled.arena import F32_BYTES, F64_BYTES, I32_BYTES, I64_BYTES, Arena
from dragoman.inference.backends.compiled.kernels.structs import (
    ADD_RESIDUAL_U8,
    LOGIT_BLOCK,
    RELU,
    BlockBuffers,
    CrossKVCache,
    LinearWeights,
    ProposerWeights,
    RowBuffers,
    SelfKVCache,
    Workspace,
)
from dragoman.inference.backends.compiled.model import CompiledTransformer
from dragoman.inference.backends.compiled.pack import compile_draft
from dragoman.inference.backends.compiled.search import (
    CompiledSearch,
    DecoderWords,
    GreedyMemory,
    SearchBuffers,
    SearchThreads,
    build_search_options,
)
from dragoman.inference.backends.compiled.state import CompiledState
from dragoman.inference.backends.compiled.threads import Canceled
from dragoman.inference.backends.compiled.weights import CompiledPrecision, WeightPacker, pack_output, round_up
from dragoman.inference.backends.proposals import get_num_positions
from dragoman.inference.backends.shared import LazyWeight
from dragoman.model.draft_decoder import DraftDecoder, Proposer
from dragoman.model.prediction_heads import PredictionHead, PredictionHeads
from dragoman.model.proposal_output import ProposalOutput
from dragoman.model.transformer import Transformer

# Steps of one call. Python handles Ctrl-C between calls.
MAX_STEPS_PER_CALL = 64


NO_PRODUCT = LinearWeights(0, 0, 0, 0, 0, 0, 0, False)


class CompiledHeads:
    """Prediction heads in the precision of the model. weights: addresses of `tensors`"""

    def __init__(self, heads: PredictionHeads, model: Transformer, precision: CompiledPrecision) -> None:
        """Pack the heads of a trained model."""
        packer, modules = WeightPacker(precision), [cast(PredictionHead, head) for head in heads.heads]
        padding = round_up(heads.d_model) - heads.d_model

        def pad_inputs(head: PredictionHead) -> Tensor:
            h_JD, y_JD = torch.split(head.inner.weight.detach(), heads.d_model, dim=1)
            return torch.cat([F.pad(h_JD, (0, padding)), F.pad(y_JD, (0, padding))], dim=1)

        inner_weights = [LazyWeight.from_tensor(pad_inputs(head)) for head in modules]
        outer_weights = [LazyWeight.from_tensor(head.outer.weight) for head in modules]
        ids_W = heads.token_ids_W
        bias_W = None if model.output_bias is None else model.output_bias.detach()[ids_W]
        output, output_tensors = pack_output(model.output.detach()[ids_W], bias_W, precision)
        self.d_inner, self.num_proposals = heads.d_inner, heads.num_proposals
        self.weights = ProposerWeights(
            has_draft=False,
            inner=packer.pack(inner_weights, [head.inner.bias for head in modules], RELU),
            outer=packer.pack(outer_weights, [head.outer.bias for head in modules], ADD_RESIDUAL_U8),
            output=output,
            token_ids=packer.add_tensor(ids_W.to(dtype=torch.long, device="cpu")),
        )
        self.tensors = [*packer.tensors, *output_tensors]


class CompiledDraft:
    """Draft decoder in the precision of the model. weights: addresses of `tensors`"""

    def __init__(self, draft: DraftDecoder, model: Transformer, precision: CompiledPrecision) -> None:
        """Pack the draft of a trained model."""
        self.decoder, packer = compile_draft(model, draft, precision), WeightPacker(precision)
        output = ProposalOutput.from_model(model, draft.token_ids_W)
        output_weights, output_tensors = pack_output(output.output_WD, output.bias_W, precision)
        token_ids = packer.add_tensor(draft.token_ids_W.to(dtype=torch.long, device="cpu"))
        self.weights = ProposerWeights(True, NO_PRODUCT, NO_PRODUCT, output_weights, token_ids)
        self.tensors = [*packer.tensors, *output_tensors, *self.decoder.owned_tensors]

    def extend_model(self, model: CompiledTransformer) -> CompiledTransformer:
        """Return the model whose states hold the draft's keys and values behind those of the decoder."""
        cross_attention = model.cross_attention._replace(kv=self.decoder.cross_kv)
        return replace(model, cross_attention=cross_attention, num_draft_layers=1)


def build_block_search(compiled_model: object, model: Transformer, proposer: Proposer) -> CompiledBlockSearch | None:
    """Return the search over blocks of a compiled model, or None if the workspace of its products is too narrow for heads.

    model: the trained model that the compiled one was made from
    """
    assert isinstance(compiled_model, CompiledTransformer)
    max_positions = get_num_positions(model.decoder.embedding)
    if isinstance(proposer, DraftDecoder):
        draft = CompiledDraft(proposer, model, compiled_model.precision)
        return CompiledBlockSearch(draft.extend_model(compiled_model), draft, max_positions)
    if max(2 * round_up(proposer.d_model), round_up(proposer.d_inner)) > compiled_model.max_outputs:
        return None
    heads = CompiledHeads(proposer, model, compiled_model.precision)
    return CompiledBlockSearch(compiled_model, heads, max_positions)


class _BlockMemory:
    """Memory of `BlockBuffers` for the threads of a group."""

    def __init__(self, request: SearchRequest, block_size: int, *, width: int, num_logit_blocks: int, num_threads: int) -> None:
        """Allocate the memory.

        width: D
        num_logit_blocks: V / LOGIT_BLOCK
        """
        num_sentences, max_length = len(request.max_lengths), max(request.max_lengths)
        num_rows, threshold = num_sentences * block_size, request.typical_threshold
        self.block_size, self.num_sentences, self.typical_threshold = block_size, num_sentences, threshold
        sizes = {
            "block_ids": num_rows * I64_BYTES,
            "last_rows": num_sentences * I64_BYTES,
            "output_lengths": num_sentences * I64_BYTES,
            "longest": I64_BYTES,
            "draft_ids": 2 * num_sentences * I64_BYTES,
            "num_steps": num_sentences * I64_BYTES,
            "step_lengths": num_sentences * max_length * I32_BYTES,
            "head_outputs": num_rows * width * F32_BYTES,
            "exp_moments": num_rows * num_logit_blocks * F64_BYTES if threshold else 0,
            "proposal_logits": num_rows * F32_BYTES if threshold else 0,
        }
        zeros = ("block_ids", "last_rows", "output_lengths", "longest", "draft_ids", "num_steps")
        self.shared_arena = Arena(sizes, zeros)
        self.head_inputs = [Arena({"head_inputs": num_sentences * 2 * width * F32_BYTES}) for _ in range(num_threads)]

    @property
    def longest(self) -> int:
        """Length of the longest output of an active sentence."""
        return int(self.shared_arena.view("longest", np.int64)[0])

    def list_step_lengths(self) -> list[tuple[int, ...]]:
        """Return the tokens that each step has added to the output of each sentence."""
        rows = self.shared_arena.view("step_lengths", np.int32, self.num_sentences, -1).tolist()
        counts = self.shared_arena.view("num_steps", np.int64).tolist()
        return [tuple(row[:count]) for row, count in zip(rows, counts, strict=True)]

    def to_buffers(self, num_positions: int) -> list[BlockBuffers]:
        """Return the addresses for each thread. num_positions: rows of the table of positions"""
        return [
            BlockBuffers(
                self.block_size, num_positions, self.typical_threshold, **self.shared_arena.addresses, **head_inputs.addresses
            )
            for head_inputs in self.head_inputs
        ]


@dataclass(frozen=True)
class CompiledBlockSearch:
    """Search over blocks in machine code.

    max_positions: rows of a learned table of positions; None if positions never end
    """

    model: CompiledTransformer
    proposer: CompiledHeads | CompiledDraft
    max_positions: int | None

    def __call__(self, source_BS: Tensor, request: SearchRequest, *, block_size: int) -> list[Hypothesis]:
        """Return the greedy output of each source; sources are padded on the right."""
        jit_cache.block_search.load()
        search = CompiledSearch(self.model)
        return search.distribute(source_BS, request, block_size, partial(self._search, block_size))

    def _search(self, block_size: int, source_BS: Tensor, request: SearchRequest, threads: SearchThreads) -> list[Hypothesis]:
        model, num_sentences = self.model, len(request.max_lengths)
        num_rows, num_prompt_tokens = num_sentences * block_size, len(request.prompt)
        results, (options, option_arrays) = GreedyMemory(request), build_search_options(request)
        state = model.allocate_self_kv(model.start(source_BS, threads.workers), num_sentences)
        num_threads = len(state.workspace.workspaces)
        buffers = SearchBuffers(num_rows, 1, model.num_outputs, request.start_id, num_threads)
        num_logit_blocks = -(-model.num_outputs // LOGIT_BLOCK)
        block_memory = _BlockMemory(
            request,
            block_size,
            width=state.workspace.width,
            num_logit_blocks=num_logit_blocks,
            num_threads=num_threads,
        )
        num_active, is_first = num_sentences, 1
        while num_active:
            if threads.canceled.is_set():
                raise Canceled
            # A draft writes behind a block that a step has verified.
            while num_prompt_tokens + block_memory.longest + 2 * block_size > state.ancestors_NT.shape[1]:
                state = state.double_capacity()
            state = model.ensure_workspace(state, num_rows)
            num_positions = state.ancestors_NT.shape[1]
            if self.max_positions is not None:
                num_positions = min(num_positions, self.max_positions)
            decoder = model.get_decoder_words(num_positions)
            arguments = is_first, MAX_STEPS_PER_CALL, num_active, decoder.words, state.cross_kv, state.self_kv_cache()
            draft, *draft_caches = self._get_draft_arguments(state, decoder, num_positions)
            keep_alive = model, self.proposer, state, buffers, block_memory, option_arrays, decoder, draft, results
            buffers.set_num_active(num_active)
            last_arguments = options, results.buffers, self.proposer.weights, draft.words, *draft_caches
            num_active = state.workspace.step_group.run(
                partial(
                    _run_kernel,
                    arguments,
                    state.workspace.workspaces,
                    buffers.row_buffers,
                    last_arguments,
                    block_memory.to_buffers(num_positions),
                    keep_alive,
                )
            )
            is_first = 0
        return [
            replace(hypothesis, step_lengths=step_lengths)
            for hypothesis, step_lengths in zip(results.to_hypotheses(), block_memory.list_step_lengths(), strict=True)
        ]

    def _get_draft_arguments(
        self, state: CompiledState, decoder: DecoderWords, num_positions: int
    ) -> tuple[DecoderWords, CrossKVCache, SelfKVCache]:
        """Return the weights and the caches of the draft, or those of the decoder, which nothing reads, for heads."""
        cross_kv, self_kv = state.cross_kv, state.self_kv_cache()
        if isinstance(self.proposer, CompiledHeads):
            return decoder, cross_kv, self_kv
        layer = self.model.decoder.layers.num_layers
        cross_kv = cross_kv._replace(keys=state.keys_LBSK[layer].data_ptr(), values=state.values_LBSU[layer].data_ptr())
        self_kv = self_kv._replace(keys=state.self_keys[layer].data_ptr(), values=state.self_values[layer].data_ptr())
        return self._draft_model.get_decoder_words(num_positions), cross_kv, self_kv

    @cached_property
    def _draft_model(self) -> CompiledTransformer:
        """The model with the layer of the draft in place of the decoder's layers."""
        assert isinstance(self.proposer, CompiledDraft)
        draft = self.proposer.decoder
        decoder = replace(self.model.decoder, layers=draft.layers)
        return replace(self.model, decoder=decoder, cross_attention=draft.cross_attention)


def _run_kernel(
    arguments: tuple[Any, ...],
    workspaces: Sequence[Workspace],
    row_buffers: Sequence[RowBuffers],
    last_arguments: tuple[Any, ...],
    block_buffers: Sequence[BlockBuffers],
    keep_alive: Sequence[object],
    thread_index: int,
) -> int:
    """Run one thread's share of some steps. keep_alive: owners of the memory that the kernel reads and writes"""
    return jit_cache.block_search(
        *arguments, workspaces[thread_index], row_buffers[thread_index], *last_arguments, block_buffers[thread_index]
    )
