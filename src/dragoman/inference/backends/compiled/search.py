"""Native search of a compiled model: allocates its memory, runs the kernels and converts the results to hypotheses.

B sentences    R hypotheses of each    X = 2R candidates    M longest output
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.decoding.beam_history import FinishedSentence, NodeRef, finalize
from dragoman.decoding.constraints import NEG_INF
from dragoman.decoding.greedy import to_hypothesis
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.native_search import SearchRequest
from dragoman.decoding.repetition import CHECK_INTERVAL, MIN_REPEATS
from dragoman.inference.backends.compiled import jit_cache
from dragoman.inference.backends.compiled.kernels.structs import (
    LOGIT_BLOCK,
    MAX_BEAM_SIZE,
    BeamBuffers,
    DecoderWeights,
    GreedyBuffers,
    RowBuffers,
    SearchOptions,
    Workspace,
)
from dragoman.inference.backends.compiled.state import CompiledState
from dragoman.inference.backends.compiled.threads import Canceled, WorkerThread, borrow_workers, get_thread_limit, run_all

# Steps of one call. Python handles Ctrl-C between calls.
MAX_STEPS_PER_CALL = 64
I64_OPTIONS: dict[str, Any] = {"dtype": torch.long, "device": "cpu"}
I32_OPTIONS: dict[str, Any] = {"dtype": torch.int32, "device": "cpu"}
F32_OPTIONS: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}

# Least number of rows of a thread group, because each group reads all weights.
ROWS_PER_GROUP = 8

ResultT = TypeVar("ResultT")
SearchKernel = Callable[..., int]
"""`jit_cache.greedy_search` or `jit_cache.beam_search`, without the argument for its results."""


class SearchThreads(NamedTuple):
    """Threads of one group. workers: threads that take part in each step. canceled: set when another group has failed"""

    workers: Sequence[WorkerThread]
    canceled: Event


class SearchBuffers:
    """Tensors of `RowBuffers` for the threads of a group.

    Ids of tokens and rows begin as 0. If a thread fails, the others read its unwritten values until they are canceled.
    """

    def __init__(self, num_rows: int, num_candidates: int, num_outputs: int, start_id: int, num_threads: int) -> None:
        num_blocks = -(-num_outputs // LOGIT_BLOCK)
        self.shared_tensors = {
            "last_ids": torch.full((num_rows,), start_id, **I64_OPTIONS),
            "num_active": torch.zeros(1, **I64_OPTIONS),
            "block_max": torch.empty(num_rows, num_blocks, **F32_OPTIONS),
            "block_sum": torch.empty(num_rows, num_blocks, dtype=torch.float64, device="cpu"),
            "logsumexp": torch.empty(num_rows, dtype=torch.float64, device="cpu"),
            "num_filled": torch.zeros(num_threads, num_rows, **I64_OPTIONS),
            "candidate_logits": torch.empty(num_threads, num_rows, num_candidates, **F32_OPTIONS),
            "candidate_ids": torch.zeros(num_threads, num_rows, num_candidates, **I64_OPTIONS),
        }
        self.thread_tensors = [
            {
                "input_ids": torch.empty(num_rows, **I64_OPTIONS),
                "position_ids": torch.empty(num_rows, **I64_OPTIONS),
                "logits": torch.empty(num_rows, LOGIT_BLOCK, **F32_OPTIONS),
            }
            for _ in range(num_threads)
        ]
        self.row_buffers = [
            RowBuffers(
                num_rows=num_rows,
                num_candidates=num_candidates,
                **{name: tensor.data_ptr() for name, tensor in (self.shared_tensors | own_tensors).items()},
            )
            for own_tensors in self.thread_tensors
        ]


class SearchableModel(Protocol):
    """Model whose states and weights a native search reads: a `CompiledTransformer`."""

    @property
    def max_threads(self) -> int: ...

    @property
    def num_outputs(self) -> int: ...

    def start(self, source_BS: Tensor, workers: Sequence[WorkerThread] = ()) -> CompiledState: ...

    def allocate_self_kv(self, state: CompiledState, num_rows: int) -> CompiledState: ...

    def ensure_workspace(self, state: CompiledState, num_rows: int) -> CompiledState: ...

    def compute_positions(self, length: int) -> Tensor: ...

    def get_decoder_weights(self, positions_TD: Tensor, vocab_ids_W: Tensor | None = None) -> DecoderWeights: ...


@dataclass(frozen=True)
class CompiledSearch:
    """Native search of a compiled model. vocab_ids_W: token ids of a restricted output vocabulary, or None"""

    model: SearchableModel
    vocab_ids_W: Tensor | None = None
    max_beam_size: int = MAX_BEAM_SIZE

    def greedy(self, source_BS: Tensor, request: SearchRequest) -> list[Hypothesis]:
        jit_cache.greedy_search.load()
        return self.distribute(source_BS, request, 1, self._search_greedy)

    def _search_greedy(self, source_BS: Tensor, request: SearchRequest, threads: SearchThreads) -> list[Hypothesis]:
        results = GreedyTensors(request)
        self._run_steps(
            source_BS,
            request,
            threads,
            1,
            1,
            partial(_call_entry_point, jit_cache.greedy_search, results.buffers, results),
        )
        return results.to_hypotheses()

    def beam(
        self, source_BS: Tensor, request: SearchRequest, *, beam_size: int, early_stopping: str, nbest: int
    ) -> list[list[Hypothesis]]:
        needs_all_slots = early_stopping in ("exhaustive", "heuristic")
        target_rank = (beam_size if needs_all_slots else min(nbest, beam_size)) - 1

        def search_sentences(source_BS: Tensor, request: SearchRequest, threads: SearchThreads) -> list[list[Hypothesis]]:
            beam_tensors = _BeamTensors(request, beam_size)
            beam_buffers = beam_tensors.to_buffers(target_rank=target_rank, early_stopping=early_stopping)
            self._run_steps(
                source_BS,
                request,
                threads,
                beam_size,
                2 * beam_size,
                partial(_call_entry_point, jit_cache.beam_search, beam_buffers, beam_tensors),
            )
            return beam_tensors.finalize(nbest)

        jit_cache.beam_search.load()
        return self.distribute(source_BS, request, beam_size, search_sentences)

    def distribute(
        self,
        source_BS: Tensor,
        request: SearchRequest,
        beam_size: int,
        search_fn: Callable[[Tensor, SearchRequest, SearchThreads], list[ResultT]],
    ) -> list[ResultT]:
        """Divide the sentences among groups of threads and run all groups. beam_size: R

        Groups take as many threads as the limit allows and other searches leave free.
        """
        num_sentences = len(request.max_lengths)
        if not num_sentences:
            return []
        jit_cache.encode.load()  # compiles in the main thread, where Ctrl-C works
        num_groups = max(1, min(num_sentences, num_sentences * beam_size // ROWS_PER_GROUP))
        with borrow_workers(min(get_thread_limit(), num_groups * self.model.max_threads) - 1) as workers:
            num_groups, canceled = min(num_groups, len(workers) + 1), Event()
            slices = [slice(first, None, num_groups) for first in range(num_groups)]
            leaders, members = workers[: num_groups - 1], workers[num_groups - 1 :]
            tasks = [
                partial(
                    search_fn,
                    source_BS[sentence_slice],
                    request.select(sentence_slice),
                    SearchThreads(members[sentence_slice], canceled),
                )
                for sentence_slice in slices
            ]
            results: dict[int, ResultT] = {}
            for sentence_slice, outputs in zip(slices, run_all(tasks, leaders, canceled.set), strict=True):
                results |= zip(range(num_sentences)[sentence_slice], outputs, strict=True)
        return [results[number] for number in range(num_sentences)]

    def _run_steps(
        self,
        source_BS: Tensor,
        request: SearchRequest,
        threads: SearchThreads,
        beam_size: int,
        num_candidates: int,
        kernel: SearchKernel,
    ) -> None:
        """Run the kernel from the first token to the last, up to the cache's capacity at a time. beam_size: R"""
        num_active, max_length, model = len(request.max_lengths), max(request.max_lengths), self.model
        assert min(request.max_lengths) >= 1
        num_rows, position, num_prompt_tokens = num_active * beam_size, 0, len(request.prompt)
        state = model.allocate_self_kv(model.start(source_BS, threads.workers), num_rows)
        buffers = SearchBuffers(num_rows, num_candidates, model.num_outputs, request.start_id, len(state.workspace.workspaces))
        options, option_tensors = build_search_options(request)
        while num_active:
            if threads.canceled.is_set():
                raise Canceled
            while num_prompt_tokens + position >= state.ancestors_NT.shape[1]:
                state = state.double_capacity()
            capacity = state.ancestors_NT.shape[1] - num_prompt_tokens
            end_position = min(capacity, max_length, position + MAX_STEPS_PER_CALL)
            state = model.ensure_workspace(state, num_rows)
            positions_TD = model.compute_positions(num_prompt_tokens + end_position)
            decoder_weights = model.get_decoder_weights(positions_TD, self.vocab_ids_W)
            arguments = position, end_position, num_active, decoder_weights, state.cross_kv, state.self_kv_cache()
            buffers.shared_tensors["num_active"].fill_(num_active)  # other threads read it if the first one fails
            keep_alive = model, self.vocab_ids_W, state, buffers, option_tensors, positions_TD
            num_active = state.workspace.step_group.run(
                partial(_run_kernel, kernel, arguments, state.workspace.workspaces, buffers.row_buffers, options, keep_alive)
            )
            position = end_position


def build_search_options(request: SearchRequest) -> tuple[SearchOptions, list[Tensor]]:
    """Return the settings of a search, and the tensors whose addresses they hold."""
    limit_B, allow_repetition_B, suppressed_ids_C, prompt_ids_P = tensors = [
        torch.tensor(values, **I64_OPTIONS)
        for values in (
            request.max_lengths,
            request.allow_repetition,
            [*request.suppress_tokens, request.end_id],
            request.prompt,
        )
    ]
    options = SearchOptions(
        max_lengths=limit_B.data_ptr(),
        allow_repetition=allow_repetition_B.data_ptr(),
        suppressed_ids=suppressed_ids_C.data_ptr(),
        num_suppressed=len(request.suppress_tokens),
        prompt_ids=prompt_ids_P.data_ptr(),
        num_prompt_tokens=len(request.prompt),
        end_id=request.end_id,
        min_length=request.min_length,
        no_repeat_ngram_size=request.no_repeat_ngram_size,
        repetition_window=request.repetition_window,
        min_repeats=MIN_REPEATS,
        check_interval=CHECK_INTERVAL,
        max_length=max(request.max_lengths),
    )
    return options, tensors


def _run_kernel(
    kernel: SearchKernel,
    arguments: tuple[Any, ...],
    workspaces: Sequence[Workspace],
    row_buffers: Sequence[RowBuffers],
    options: SearchOptions,
    keep_alive: Sequence[object],
    thread_index: int,
) -> int:
    """Run one thread's share of some steps. keep_alive: owners of the memory that the kernel reads and writes"""
    return kernel(*arguments, workspaces[thread_index], row_buffers[thread_index], options)


def _call_entry_point(
    entry_point: SearchKernel, output_buffers: GreedyBuffers | BeamBuffers, keep_alive: object, *arguments: Any
) -> int:
    """Call a kernel with its result buffers. keep_alive: owners of these buffers"""
    return entry_point(*arguments, output_buffers)


class GreedyTensors:
    """Tensors of `GreedyBuffers`, and their conversion to hypotheses."""

    def __init__(self, request: SearchRequest) -> None:
        self.request = request
        shape = len(request.max_lengths), max(request.max_lengths, default=0)
        # The rows of a search over blocks hold proposals behind their outputs.
        self.row_ids_BM, self.tokens_BM = torch.zeros(shape, **I32_OPTIONS), torch.empty(shape, **I32_OPTIONS)
        self.log_probs_BM = torch.empty(shape, **F32_OPTIONS)
        self.length_B, self.is_repetition_B = torch.empty(shape[0], **I64_OPTIONS), torch.empty(shape[0], **I64_OPTIONS)
        tensors = self.row_ids_BM, self.tokens_BM, self.log_probs_BM, self.length_B, self.is_repetition_B
        self.buffers = GreedyBuffers(*(tensor.data_ptr() for tensor in tensors))

    def to_hypotheses(self) -> list[Hypothesis]:
        """Return the outputs of a finished search."""
        max_length = int(self.length_B.max())
        columns = self.tokens_BM[:, :max_length], self.log_probs_BM[:, :max_length], self.length_B, self.is_repetition_B
        return [
            to_hypothesis(
                tokens[:length],
                log_probs[:length],
                bool(is_repetition),
                end_id=self.request.end_id,
                length_penalty=self.request.length_penalty,
            )
            for tokens, log_probs, length, is_repetition in zip(*(tensor.tolist() for tensor in columns), strict=True)
        ]


@dataclass(frozen=True)
class _NativeHistory:
    """Candidates of each step that a beam kernel has written. Every sentence keeps its row, unlike in `BeamHistory`.

    parent_MBX, token_MBX, log_prob_MBX: candidates of each sentence
    alive_MBR: columns of the candidates that stay in the beam
    """

    parent_MBX: NDArray[np.int32]
    token_MBX: NDArray[np.int32]
    log_prob_MBX: NDArray[np.float32]
    alive_MBR: NDArray[np.int32]

    @property
    def num_columns(self) -> int:
        return int(self.token_MBX.shape[2])

    def trace_back(self, nodes: Sequence[NodeRef]) -> list[tuple[list[int], list[float]]]:
        """Return the tokens of each node, and their log-probabilities."""
        return [self._trace_node(node) for node in nodes]

    def _trace_node(self, node: NodeRef) -> tuple[list[int], list[float]]:
        sentence, column = node.sentence, node.column
        tokens, log_probs = [0] * node.length, [0.0] * node.length
        for step in range(node.length - 1, -1, -1):
            tokens[step] = self.token_MBX.item(step, sentence, column)
            log_probs[step] = self.log_prob_MBX.item(step, sentence, column)
            if step:
                rank = self.parent_MBX.item(step, sentence, column)
                column = self.alive_MBR.item(step - 1, sentence, rank)
        return tokens, log_probs


class _BeamTensors:
    """Tensors of `BeamBuffers`, and their conversion to hypotheses."""

    def __init__(self, request: SearchRequest, beam_size: int) -> None:
        self.request, self.beam_size = request, beam_size
        num_sentences, max_length, num_columns = len(request.max_lengths), max(request.max_lengths), 2 * beam_size
        lengths_M = torch.arange(max_length + 1, dtype=torch.float64, device="cpu").clamp(min=1)
        num_checks = max_length // CHECK_INTERVAL if request.repetition_window else 0
        self.tensors = {
            "lengths": torch.empty(num_sentences, **I64_OPTIONS),
            "alive_scores": torch.full((num_sentences, beam_size), NEG_INF, **F32_OPTIONS),
            "finished_scores": torch.full((num_sentences, beam_size), NEG_INF, **F32_OPTIONS),
            "finished_node_ids": torch.zeros(num_sentences, beam_size, **I64_OPTIONS),
            "max_penalties": request.length_penalty(torch.tensor(request.max_lengths, **F32_OPTIONS)).contiguous(),
            "penalties": (request.length_penalty(lengths_M) * torch.ones_like(lengths_M)).to(**F32_OPTIONS),
            "parents": torch.empty(max_length, num_sentences, num_columns, **I32_OPTIONS),
            "tokens": torch.empty(max_length, num_sentences, num_columns, **I32_OPTIONS),
            "log_probs": torch.empty(max_length, num_sentences, num_columns, **F32_OPTIONS),
            "alive": torch.empty(max_length, num_sentences, beam_size, **I32_OPTIONS),
            "row_ids": torch.empty(num_sentences * beam_size, max_length, **I32_OPTIONS),
            "is_repetition": torch.zeros(num_checks, num_sentences, beam_size, **I64_OPTIONS),
            "repetition_scores": torch.empty(num_checks, num_sentences, beam_size, **F32_OPTIONS),
            "cursors": torch.empty(num_columns, **I64_OPTIONS),
            "candidate_scores": torch.empty(num_columns, **F32_OPTIONS),
            "scratch_ids": torch.empty(beam_size, len(request.prompt) + max_length, **I32_OPTIONS),
        }
        self.tensors["alive_scores"][:, 0] = 0.0

    def to_buffers(self, *, target_rank: int, early_stopping: str) -> BeamBuffers:
        addresses = {name: tensor.data_ptr() for name, tensor in self.tensors.items()}
        return BeamBuffers(
            beam_size=self.beam_size,
            target_rank=target_rank,
            stop_when_full=early_stopping == "beam_full",
            only_best_may_end=early_stopping in ("beam_full", "heuristic"),
            uses_present_length=early_stopping == "heuristic",
            num_sentences=len(self.request.max_lengths),
            **addresses,
        )

    def finalize(self, nbest: int) -> list[list[Hypothesis]]:
        """Return the `nbest` hypotheses of each sentence, best first."""
        num_steps, penalty = int(self.tensors["lengths"].max()), self.request.length_penalty
        history = _NativeHistory(
            *(self.tensors[name][:num_steps].numpy() for name in ("parents", "tokens", "log_probs", "alive"))
        )
        repetitions: list[list[tuple[float, NodeRef]]] = [[] for _ in self.request.max_lengths]
        for check_index, sentence, rank in self.tensors["is_repetition"].nonzero().tolist():
            length = (check_index + 1) * CHECK_INTERVAL
            node = NodeRef(sentence, length, int(self.tensors["alive"][length - 1, sentence, rank]))
            repetitions[sentence].append(
                (float(self.tensors["repetition_scores"][check_index, sentence, rank]) / penalty(float(length)), node)
            )
        length_B = self.tensors["lengths"].tolist()
        alive_BR = [self.tensors["alive"][length - 1, number].tolist() for number, length in enumerate(length_B)]
        columns = (self.tensors[name].tolist() for name in ("finished_scores", "finished_node_ids", "alive_scores"))
        finished_sentences = [
            FinishedSentence(*fields) for fields in zip(length_B, *columns, alive_BR, repetitions, strict=True)
        ]
        return finalize(finished_sentences, history, end_id=self.request.end_id, length_penalty=penalty, nbest=nbest)
