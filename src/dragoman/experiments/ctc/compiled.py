"""CTC model of the compiled back end, in int8 or float32, without PyTorch.

The encoder, the layers and the output matrix are those of `CompiledTransformer`. The upsampling is one more product, and the
kernel `predict_frames` computes all positions of a block of sentences.

B sentences    N positions of a block of sentences    K best predictions of a position    D width in whole vectors
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.config import ModelConfig
from dragoman.decoding.arrays import NUMPY
from dragoman.errors import refuse_steps
from dragoman.experiments.ctc.search import CtcSearch, FramePredictions
from dragoman.inference.backends.compiled import entry_points
from dragoman.inference.backends.compiled.arena import get_address
from dragoman.inference.backends.compiled.kernels.structs import STORE, FrameBatch, LinearWeights, SearchOptions
from dragoman.inference.backends.compiled.model import CompiledTransformer, iter_token_blocks
from dragoman.inference.backends.compiled.pack import compile_model
from dragoman.inference.backends.compiled.search import SearchBuffers
from dragoman.inference.backends.compiled.state import CompiledState, WorkspaceMemory
from dragoman.inference.backends.compiled.threads import POOL, WorkerThread, get_thread_limit
from dragoman.inference.backends.compiled.weights import (
    CompiledPrecision,
    Int8Rows,
    Matrix,
    WeightLoader,
    WeightPacker,
    load_matrix,
    pad_axis,
    round_up,
)
from dragoman.model_weights import ModelWeights, Shape
from dragoman.tasks.inference_model import InferenceModel

UPSAMPLE = "decoder.upsample"


@dataclass(frozen=True)
class CompiledCtc:
    """Compiled CTC model: a `PreparedModel` whose inference model has a search of its own, and no steps.

    upsample: the product that makes `upsampling` vectors of each source token
    owned_arrays: arrays whose addresses `upsample` holds
    """

    transformer: CompiledTransformer
    upsample: LinearWeights
    upsampling: int
    owned_arrays: Sequence[NDArray[Any]]

    def build_inference_model(self, vocab_ids_W: NDArray[np.int64] | None = None) -> InferenceModel:
        """Return the inference model; its predictions are numbers of `vocab_ids_W`, if it is given."""

        def refuse(*_: object) -> Any:
            refuse_steps("this")

        return InferenceModel(refuse, refuse, NUMPY, self.transformer.weights.max_positions, own_search=CtcSearch(self.predict))

    def restrict_output(self, vocab_ids_W: NDArray[np.int64]) -> CompiledCtc:
        return replace(self, transformer=self.transformer.restrict_output(vocab_ids_W))

    def predict(self, source_BS: NDArray[np.int64], suppressed: Sequence[int], count: int) -> list[FramePredictions]:
        """Return the `count` likeliest predictions at each position, for each source."""
        with POOL.borrow(min(get_thread_limit(), self.transformer.max_threads) - 1) as workers:
            state, memory_ND = self.transformer.encode(source_BS, workers, keeps_memory=True)
            return self._predict_blocks(state, memory_ND, suppressed, count, workers)

    def _predict_blocks(
        self,
        state: CompiledState,
        memory_ND: NDArray[np.float32],
        suppressed: Sequence[int],
        count: int,
        workers: Sequence[WorkerThread],
    ) -> list[FramePredictions]:
        """Run the decoder on one block of sentences after the other."""
        lengths: list[int] = state.length_B.tolist()
        num_frames = [length * self.upsampling for length in lengths]
        longest = max(num_frames)
        blocks = list(iter_token_blocks(num_frames))
        max_rows = max(sum(num_frames[first:after]) for first, after in blocks)
        workspace = self.transformer.allocate_workspace(max_rows, longest, workers)
        count = min(count, self.transformer.num_outputs)
        buffers = SearchBuffers(max_rows, count, self.transformer.num_outputs, 0, len(workspace.workspaces))
        predictions: list[FramePredictions] = []
        num_tokens = 0
        for first, after in blocks:
            block_lengths = lengths[first:after]
            block_memory_ND = memory_ND[num_tokens : num_tokens + sum(block_lengths)]
            self._predict_block(first, block_lengths, block_memory_ND, longest, state, workspace, buffers, suppressed)
            predictions += _read_predictions(buffers, num_frames[first:after], count)
            num_tokens += len(block_memory_ND)
        return predictions

    def _predict_block(
        self,
        first: int,
        lengths: Sequence[int],
        memory_ND: NDArray[np.float32],
        longest: int,
        state: CompiledState,
        workspace: WorkspaceMemory,
        buffers: SearchBuffers,
        suppressed: Sequence[int],
    ) -> None:
        """Write the best predictions of some sentences into the buffers.

        first: index of the first sentence in the batch
        lengths: source tokens of each sentence
        longest: greatest number of positions of a sentence in the batch
        """
        num_frames = np.array(lengths) * self.upsampling
        starts = np.array([0, *accumulate(num_frames.tolist())], np.int64)
        position_N = np.concatenate([np.arange(count) for count in num_frames])
        sentence_N = np.repeat(np.arange(first, first + len(lengths), dtype=np.int32), num_frames)
        batch = FrameBatch(
            memory=get_address(memory_ND),
            num_tokens=len(memory_ND),
            num_rows=len(position_N),
            position_ids=get_address(position_N),
            row_sentence_ids=get_address(sentence_N),
            sentence_starts=get_address(starts),
            num_sentences=len(lengths),
        )
        decoder = self.transformer.get_decoder_words(longest)
        suppressed_ids = array("q", sorted(suppressed))
        options = NO_SEARCH_OPTIONS._replace(suppressed_ids=suppressed_ids.buffer_info()[0], num_suppressed=len(suppressed_ids))
        workspace.step_group.run(
            lambda thread_index: entry_points.predict_frames(
                batch,
                self.upsample,
                decoder.words,
                state.cross_kv,
                workspace.workspaces[thread_index],
                buffers.row_buffers[thread_index],
                options,
            )
        )


NO_SEARCH_OPTIONS = SearchOptions(*[0] * len(SearchOptions._fields))
"""Options that `predict_frames` ignores, apart from the suppressed tokens."""


def _read_predictions(buffers: SearchBuffers, num_frames: Sequence[int], count: int) -> list[FramePredictions]:
    """Return the predictions of each sentence of a block. num_frames: positions of each sentence"""
    num_rows, arena = sum(num_frames), buffers.shared_arena
    tokens_NK, logits_NK = (
        arena.view(name, dtype)[: num_rows * count].reshape(num_rows, count)
        for name, dtype in (("candidate_ids", np.int64), ("candidate_logits", np.float32))
    )
    is_filled_NK = np.arange(count) < arena.view("num_filled", np.int64)[:num_rows, None]
    log_probs_NK = np.where(is_filled_NK, logits_NK - arena.view("logsumexp", np.float64)[:num_rows, None], -np.inf)
    starts = [0, *accumulate(num_frames)]
    return [
        FramePredictions(tokens_NK[start:end].tolist(), log_probs_NK[start:end].tolist()) for start, end in pairwise(starts)
    ]


def compile_ctc(weights: ModelWeights, upsampling: int, precision: CompiledPrecision) -> CompiledCtc:
    """Return the compiled model. The weights must not change, because embeddings are read in place."""
    width = weights.config.d_model
    packer, name = WeightPacker(precision), f"{UPSAMPLE}.weight"

    def pad(rows: NDArray[Any]) -> NDArray[Any]:
        """Return the rows of each of the vectors with zeros up to whole vectors of the kernels."""
        return pad_axis(rows.reshape(upsampling, width, -1), round_up(width), axis=1).reshape(-1, *rows.shape[1:])

    def load() -> Matrix:
        matrix = load_matrix(weights, name, precision)
        if isinstance(matrix, Int8Rows):
            return Int8Rows(pad(matrix.int8_OI), pad(matrix.steps_O), pad(matrix.factors_O))
        return pad(matrix)

    loader = WeightLoader(load, (upsampling * round_up(width), width), weights.release)
    bias_O = pad(weights.arrays[f"{UPSAMPLE}.bias"])
    upsample = packer.pack([loader], [bias_O], STORE, [weights.get_input_step(name)])
    return CompiledCtc(compile_model(weights, precision), upsample, upsampling, packer.arrays)


def list_ctc_shapes(config: ModelConfig, upsampling: int, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return the names and shapes of the weights, for those of a Transformer with the same config."""
    num_outputs = upsampling * config.d_model
    return {**shapes, f"{UPSAMPLE}.weight": (num_outputs, config.d_model), f"{UPSAMPLE}.bias": (num_outputs,)}
