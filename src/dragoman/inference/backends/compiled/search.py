"""Native search of a compiled model: allocates its memory, runs the kernels and converts the results to hypotheses.

B sentences    R hypotheses of each    X = 2R candidates    M longest output
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dragoman.decoding.beam_history import FinishedSentence, NodeRef, finalize
from dragoman.decoding.constraints import NEG_INF
from dragoman.decoding.greedy import to_hypothesis
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.native_search import SearchRequest
from dragoman.decoding.repetition import CHECK_INTERVAL, MIN_REPEATS
from dragoman.inference.backends.compiled import entry_points
from dragoman.inference.backends.compiled.arena import F32_BYTES, F64_BYTES, I32_BYTES, I64_BYTES, Arena
from dragoman.inference.backends.compiled.kernels.structs import (
    LOGIT_BLOCK,
    MAX_BEAM_SIZE,
    BeamBuffers,
    GreedyBuffers,
    RowBuffers,
    SearchOptions,
    Workspace,
)
from dragoman.inference.backends.compiled.state import CompiledState
from dragoman.inference.backends.compiled.threads import (
    POOL,
    Canceled,
    WorkerPool,
    WorkerThread,
    get_thread_limit,
    run_all,
)

# Steps of one call. Python handles Ctrl-C between calls.
MAX_STEPS_PER_CALL = 64
# Least number of rows of a thread group, because each group reads all weights.
ROWS_PER_GROUP = 8

ResultT = TypeVar("ResultT")
SearchKernel = Callable[..., int]
"""`entry_points.greedy_search` or `entry_points.beam_search`, without the argument for its results."""


class DecoderWords(NamedTuple):
    """`DecoderWeights` as words of a kernel's arguments. owners: arrays whose addresses they hold, besides the model's"""

    words: array[int]
    owners: tuple[NDArray[Any] | None, ...]


class SearchThreads(NamedTuple):
    """Threads of one group. workers: threads that take part in each step. canceled: set when another group has failed"""

    workers: Sequence[WorkerThread]
    canceled: Event


class SearchBuffers:
    """Memory of `RowBuffers` for the threads of a group.

    Ids of tokens and rows begin as 0. If a thread fails, the others read its unwritten values until they are canceled.
    """

    def __init__(self, num_rows: int, num_candidates: int, num_outputs: int, start_id: int, num_threads: int) -> None:
        num_blocks = -(-num_outputs // LOGIT_BLOCK)
        shared_sizes = {
            "last_ids": num_rows * I64_BYTES,
            "num_active": I64_BYTES,
            "block_max": num_rows * num_blocks * F32_BYTES,
            "block_sum": num_rows * num_blocks * F64_BYTES,
            "logsumexp": num_rows * F64_BYTES,
            "num_filled": num_threads * num_rows * I64_BYTES,
            "candidate_logits": num_threads * num_rows * num_candidates * F32_BYTES,
            "candidate_ids": num_threads * num_rows * num_candidates * I64_BYTES,
        }
        thread_sizes = {
            "input_ids": num_rows * I64_BYTES,
            "position_ids": num_rows * I64_BYTES,
            "logits": num_rows * LOGIT_BLOCK * F32_BYTES,
        }
        self.shared_arena = Arena(shared_sizes, zeros=("num_filled", "candidate_ids"))
        self.thread_arenas = [Arena(thread_sizes) for _ in range(num_threads)]
        self.shared_arena.view("last_ids", np.int64).fill(start_id)
        self.row_buffers = [
            RowBuffers(
                num_rows=num_rows,
                num_candidates=num_candidates,
                **self.shared_arena.addresses,
                **arena.addresses,
            )
            for arena in self.thread_arenas
        ]

    def set_num_active(self, num_active: int) -> None:
        """Set the number of active rows or sentences, which other threads read if the first one fails."""
        ctypes.c_int64.from_address(self.shared_arena.addresses["num_active"]).value = num_active


class SearchableModel(Protocol):
    """Model whose states and weights a native search reads: a `CompiledTransformer`."""

    @property
    def max_threads(self) -> int: ...

    @property
    def num_outputs(self) -> int: ...

    def start(self, source_BS: NDArray[np.int64], workers: Sequence[WorkerThread] = ()) -> CompiledState: ...

    def allocate_self_kv(self, state: CompiledState, num_rows: int) -> CompiledState: ...

    def ensure_workspace(self, state: CompiledState, num_rows: int) -> CompiledState: ...

    def get_decoder_words(self, num_positions: int, vocab_ids_W: NDArray[np.int64] | None = None) -> DecoderWords: ...


@dataclass(frozen=True)
class CompiledSearch:
    """Native search of a compiled model.

    vocab_ids_W: token ids of a restricted output vocabulary, or None
    pool: threads that it borrows
    steps_per_call, rows_per_group: the two constants above
    """

    model: SearchableModel
    vocab_ids_W: NDArray[np.int64] | None = None
    max_beam_size: int = MAX_BEAM_SIZE
    pool: WorkerPool = POOL
    steps_per_call: int = MAX_STEPS_PER_CALL
    rows_per_group: int = ROWS_PER_GROUP

    def greedy(self, source_BS: NDArray[np.int64], request: SearchRequest) -> list[Hypothesis]:
        return self.distribute(source_BS, request, 1, self._search_greedy)

    def _search_greedy(self, source_BS: NDArray[np.int64], request: SearchRequest, threads: SearchThreads) -> list[Hypothesis]:
        results = GreedyMemory(request)
        self._run_steps(
            source_BS,
            request,
            threads,
            1,
            1,
            partial(_call_entry_point, entry_points.greedy_search, results.buffers, results),
        )
        return results.to_hypotheses()

    def beam(
        self, source_BS: NDArray[np.int64], request: SearchRequest, *, beam_size: int, early_stopping: str, nbest: int
    ) -> list[list[Hypothesis]]:
        needs_all_slots = early_stopping in ("exhaustive", "heuristic")
        target_rank = (beam_size if needs_all_slots else min(nbest, beam_size)) - 1

        def search_sentences(
            source_BS: NDArray[np.int64], request: SearchRequest, threads: SearchThreads
        ) -> list[list[Hypothesis]]:
            beam_memory = _BeamMemory(request, beam_size)
            beam_buffers = beam_memory.to_buffers(target_rank=target_rank, early_stopping=early_stopping)
            self._run_steps(
                source_BS,
                request,
                threads,
                beam_size,
                2 * beam_size,
                partial(_call_entry_point, entry_points.beam_search, beam_buffers, beam_memory),
            )
            return beam_memory.finalize(1 if nbest == 1 else beam_size)  # equal texts leave places in an n-best list

        return self.distribute(source_BS, request, beam_size, search_sentences)

    def distribute(
        self,
        source_BS: NDArray[np.int64],
        request: SearchRequest,
        beam_size: int,
        search_fn: Callable[[NDArray[np.int64], SearchRequest, SearchThreads], list[ResultT]],
    ) -> list[ResultT]:
        """Divide the sentences among groups of threads and run all groups. beam_size: R

        Groups take as many threads as the limit allows and other searches leave free.
        """
        num_sentences = len(request.max_lengths)
        if not num_sentences:
            return []
        num_groups = max(1, min(num_sentences, num_sentences * beam_size // self.rows_per_group))
        with self.pool.borrow(min(get_thread_limit(), num_groups * self.model.max_threads) - 1) as workers:
            num_groups, canceled = min(num_groups, len(workers) + 1), Event()
            if num_groups == 1:
                return search_fn(source_BS, request, SearchThreads(workers, canceled))
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
        source_BS: NDArray[np.int64],
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
        options, option_arrays = build_search_options(request)
        while num_active:
            if threads.canceled.is_set():
                raise Canceled
            while num_prompt_tokens + position >= state.ancestors_NT.shape[1]:
                state = state.double_capacity()
            capacity = state.ancestors_NT.shape[1] - num_prompt_tokens
            end_position = min(capacity, max_length, position + self.steps_per_call)
            state = model.ensure_workspace(state, num_rows)
            decoder = model.get_decoder_words(num_prompt_tokens + end_position, self.vocab_ids_W)
            arguments = position, end_position, num_active, decoder.words, state.cross_kv, state.self_kv_cache()
            buffers.set_num_active(num_active)
            keep_alive = model, decoder, state, buffers, option_arrays
            num_active = state.workspace.step_group.run(
                partial(_run_kernel, kernel, arguments, state.workspace.workspaces, buffers.row_buffers, options, keep_alive)
            )
            position = end_position


def build_search_options(request: SearchRequest) -> tuple[SearchOptions, list[array[int]]]:
    """Return the settings of a search, and the arrays whose addresses they hold."""
    limits, allow_repetition, suppressed_ids, prompt_ids = arrays = [
        array("q", values)
        for values in (
            request.max_lengths,
            request.allow_repetition,
            sorted(request.suppress_tokens),
            request.prompt,
        )
    ]
    options = SearchOptions(
        max_lengths=limits.buffer_info()[0],
        allow_repetition=allow_repetition.buffer_info()[0],
        suppressed_ids=suppressed_ids.buffer_info()[0],
        num_suppressed=len(request.suppress_tokens),
        prompt_ids=prompt_ids.buffer_info()[0],
        num_prompt_tokens=len(request.prompt),
        end_id=request.end_id,
        min_length=request.min_length,
        no_repeat_ngram_size=request.no_repeat_ngram_size,
        repetition_window=request.repetition_window,
        min_repeats=MIN_REPEATS,
        check_interval=CHECK_INTERVAL,
        max_length=max(request.max_lengths),
    )
    return options, arrays


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


class GreedyMemory:
    """Memory of `GreedyBuffers`, and the conversion of the results to hypotheses."""

    def __init__(self, request: SearchRequest) -> None:
        self.request, num_sentences = request, len(request.max_lengths)
        num_tokens = num_sentences * max(request.max_lengths, default=0)
        sizes = {
            "row_ids": num_tokens * I32_BYTES,
            "output_ids": num_tokens * I32_BYTES,
            "log_probs": num_tokens * F32_BYTES,
            "lengths": num_sentences * I64_BYTES,
            "is_repetition": num_sentences * I64_BYTES,
        }
        self.arena = Arena(sizes, zeros=("row_ids",))
        self.buffers = GreedyBuffers(**self.arena.addresses)

    def to_hypotheses(self) -> list[Hypothesis]:
        """Return the outputs of a finished search."""
        num_sentences = len(self.request.max_lengths)
        lengths = self.arena.view("lengths", np.int64).tolist()
        tokens_BM = self.arena.view("output_ids", np.int32, num_sentences, -1)[:, : max(lengths)]
        log_probs_BM = self.arena.view("log_probs", np.float32, num_sentences, -1)[:, : max(lengths)]
        is_repetition_B = self.arena.view("is_repetition", np.int64)
        return [
            to_hypothesis(
                tokens[:length],
                log_probs[:length],
                bool(is_repetition),
                end_id=self.request.end_id,
                length_penalty=self.request.length_penalty,
            )
            for tokens, log_probs, length, is_repetition in zip(
                tokens_BM.tolist(), log_probs_BM.tolist(), lengths, is_repetition_B.tolist(), strict=True
            )
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


class _BeamMemory:
    """Memory of `BeamBuffers`, and the conversion of the results to hypotheses."""

    def __init__(self, request: SearchRequest, beam_size: int) -> None:
        self.request, self.beam_size = request, beam_size
        num_sentences, max_length, num_columns = len(request.max_lengths), max(request.max_lengths), 2 * beam_size
        num_checks = max_length // CHECK_INTERVAL if request.repetition_window else 0
        beam_numbers, column_numbers = num_sentences * beam_size, num_sentences * num_columns
        sizes = {
            "lengths": num_sentences * I64_BYTES,
            "alive_scores": beam_numbers * F32_BYTES,
            "finished_scores": beam_numbers * F32_BYTES,
            "finished_node_ids": beam_numbers * I64_BYTES,
            "max_penalties": num_sentences * F32_BYTES,
            "penalties": (max_length + 1) * F32_BYTES,
            "parents": max_length * column_numbers * I32_BYTES,
            "tokens": max_length * column_numbers * I32_BYTES,
            "log_probs": max_length * column_numbers * F32_BYTES,
            "alive": max_length * beam_numbers * I32_BYTES,
            "row_ids": beam_numbers * max_length * I32_BYTES,
            "is_repetition": num_checks * beam_numbers * I64_BYTES,
            "repetition_scores": num_checks * beam_numbers * F32_BYTES,
            "cursors": num_columns * I64_BYTES,
            "candidate_scores": num_columns * F32_BYTES,
            "scratch_ids": beam_size * (len(request.prompt) + max_length) * I32_BYTES,
        }
        self.arena = Arena(sizes, zeros=("finished_node_ids", "is_repetition"))
        self.alive_MBR = self.arena.view("alive", np.int32, max_length, num_sentences, beam_size)
        self.is_repetition_KBR = self.arena.view("is_repetition", np.int64, num_checks, num_sentences, beam_size)
        self._view_scores("alive_scores").fill(NEG_INF)
        self._view_scores("alive_scores")[:, 0] = 0.0
        self._view_scores("finished_scores").fill(NEG_INF)
        penalty, lengths_M = request.length_penalty, np.maximum(np.arange(max_length + 1, dtype=np.float64), 1.0)
        self.arena.view("penalties", np.float32)[:] = penalty(lengths_M)
        self.arena.view("max_penalties", np.float32)[:] = penalty(np.array(request.max_lengths, dtype=np.float32))

    def _view_scores(self, name: str) -> NDArray[np.float32]:
        return self.arena.view(name, np.float32, len(self.request.max_lengths), self.beam_size)

    def to_buffers(self, *, target_rank: int, early_stopping: str) -> BeamBuffers:
        return BeamBuffers(
            beam_size=self.beam_size,
            target_rank=target_rank,
            stop_when_full=early_stopping == "beam_full",
            only_best_may_end=early_stopping in ("beam_full", "heuristic"),
            uses_present_length=early_stopping == "heuristic",
            num_sentences=len(self.request.max_lengths),
            **self.arena.addresses,
        )

    def finalize(self, nbest: int) -> list[list[Hypothesis]]:
        """Return the `nbest` best hypotheses of each sentence, best first."""
        penalty, shape = self.request.length_penalty, (max(self.request.max_lengths), len(self.request.max_lengths), -1)
        history = _NativeHistory(
            self.arena.view("parents", np.int32, *shape),
            self.arena.view("tokens", np.int32, *shape),
            self.arena.view("log_probs", np.float32, *shape),
            self.alive_MBR,
        )
        lengths = self.arena.view("lengths", np.int64).tolist()
        columns = (
            self._view_scores("finished_scores").tolist(),
            self.arena.view("finished_node_ids", np.int64, len(lengths), self.beam_size).tolist(),
            self._view_scores("alive_scores").tolist(),
            [self.alive_MBR[length - 1, number].tolist() for number, length in enumerate(lengths)],
            self._list_repetitions(),
        )
        finished_sentences = [FinishedSentence(*fields) for fields in zip(lengths, *columns, strict=True)]
        return finalize(finished_sentences, history, end_id=self.request.end_id, length_penalty=penalty, nbest=nbest)

    def _list_repetitions(self) -> list[list[tuple[float, NodeRef]]]:
        """Return the scores and the nodes of the repetitions that the search of each sentence has dropped."""
        repetitions: list[list[tuple[float, NodeRef]]] = [[] for _ in self.request.max_lengths]
        if not self.is_repetition_KBR.any():
            return repetitions
        scores_KBR = self.arena.view("repetition_scores", np.float32, *self.is_repetition_KBR.shape)
        for check_index, sentence, rank in np.argwhere(self.is_repetition_KBR).tolist():
            length = (check_index + 1) * CHECK_INTERVAL
            node = NodeRef(sentence, length, int(self.alive_MBR[length - 1, sentence, rank]))
            score = float(scores_KBR[check_index, sentence, rank]) / self.request.length_penalty(float(length))
            repetitions[sentence].append((score, node))
        return repetitions
