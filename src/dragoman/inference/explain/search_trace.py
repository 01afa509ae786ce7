"""Trace of a beam search over one sentence: every hypothesis that the search considers, and the path to the best one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dragoman.config import DecodingConfig
from dragoman.data.tokenization.special_tokens import END_ID
from dragoman.data.tokenization.vocabulary import Vocabulary
from dragoman.decoding.beam_search import BeamSearchOptions, BeamStep, beam_search
from dragoman.decoding.constraints import NEG_INF, AllowedTokensFn, DecodingConstraints
from dragoman.decoding.hypothesis import LengthPenalty
from dragoman.decoding.interface import SearchSettings
from dragoman.model.transformer import Transformer
from dragoman.tasks.generation import FORBIDDEN_IDS
from dragoman.tasks.inference_model import prompt_decoder
from dragoman.torch_engine.inference_model import as_inference_model
from dragoman.viz.explanation import BeamNode, NodeStatus


@dataclass(frozen=True)
class SearchTrace:
    """All hypotheses that a search considered, and the tokens of the best one, its end token included if it is finished."""

    nodes: tuple[BeamNode, ...]
    ids: tuple[int, ...]


class _TraceRecorder:
    """Hook of a beam search over one sentence that records each step."""

    def __init__(self, vocabulary: Vocabulary, length_penalty: LengthPenalty) -> None:
        self.vocabulary = vocabulary
        self.length_penalty = length_penalty
        self.nodes: list[BeamNode] = []
        self.index_by_extension: dict[tuple[int | None, int], int] = {}  # by the index of the parent, and the token
        self.alive: list[int | None] = [None]  # index of the node in each slot of the beam

    def __call__(self, step: BeamStep) -> None:
        candidates, penalty = step.candidates, self.length_penalty(float(step.length))
        parents, tokens, scores, normalized_scores, ends, columns, alive_scores = (
            array[0].tolist()
            for array in (
                candidates.parent_BX,
                candidates.token_BX,
                candidates.score_BX,
                candidates.score_BX / penalty,
                step.ends_BX,
                step.alive_BR,
                step.alive_score_BR,
            )
        )
        kept_columns = {column for column, score in zip(columns, alive_scores, strict=True) if score > NEG_INF}
        index_of_column: dict[int, int] = {}
        for rank, score in enumerate(scores):
            if score == NEG_INF:
                continue
            status: NodeStatus = "finished" if ends[rank] else "kept" if rank in kept_columns else "pruned"
            index_of_column[rank] = len(self.nodes)
            parent = self.alive[parents[rank]]
            self.index_by_extension[parent, tokens[rank]] = len(self.nodes)
            (piece,) = self.vocabulary.ids_to_pieces([tokens[rank]])
            node_score = normalized_scores[rank] if status == "finished" else score
            self.nodes.append(BeamNode(parent, step.length - 1, rank, piece, node_score, status))
        self.alive = [index_of_column.get(column) for column in columns]

    def mark_best(self, output_ids: Sequence[int]) -> None:
        """Mark the nodes that are the prefixes of this output."""
        index: int | None = None
        for token in output_ids:
            index = self.index_by_extension[index, token]
            self.nodes[index] = replace(self.nodes[index], is_best=True)


def trace_search(
    model: Transformer,
    vocabulary: Vocabulary,
    source: Sequence[int],
    config: DecodingConfig,
    *,
    start_id: int,
    prompt: Sequence[int] = (),
    suppressed_ids: Sequence[int] = FORBIDDEN_IDS,
    allowed_tokens_fn: AllowedTokensFn | None = None,
) -> SearchTrace:
    """Run beam search over one sentence and return all hypotheses that it considers.

    Greedy search is a beam of one.

    vocabulary: names the output tokens
    prompt: ids that the decoder reads between the start token and the output
    suppressed_ids: tokens that no output contains
    allowed_tokens_fn: the tokens that may come next, as in `DecodingConstraints`
    """
    inference_model = prompt_decoder(as_inference_model([model]), prompt)
    max_length = -(-len(source) // inference_model.numbers_per_vector) + config.max_extra_tokens
    if inference_model.max_positions is not None:
        max_length = min(max_length, inference_model.max_positions - len(prompt))
    length_penalty = LengthPenalty(config.length_penalty, config.alpha, len(prompt))
    recorder = _TraceRecorder(vocabulary, length_penalty)
    [hypotheses] = beam_search(
        inference_model.step,
        inference_model.start(np.array([source], dtype=np.int64)),
        max_lengths=[max_length],
        settings=SearchSettings(
            start_id=start_id,
            end_id=END_ID,
            forbidden_ids=tuple(suppressed_ids),
            length_penalty=length_penalty,
            decoding_constraints=DecodingConstraints(allowed_tokens_fn=allowed_tokens_fn),
            repetition_penalty=config.repetition_penalty,
        ),
        options=BeamSearchOptions(
            beam_size=config.beam_size if config.method == "beam" else 1,
            nbest=config.nbest,
            early_stopping=config.early_stopping,
        ),
        arrays=inference_model.arrays,
        on_step=recorder,
    )
    best_ids: tuple[int, ...] = ()
    if hypotheses:
        best = hypotheses[0]
        best_ids = (*best.tokens, END_ID) if best.finished else best.tokens
    recorder.mark_best(best_ids)
    return SearchTrace(tuple(recorder.nodes), best_ids)
