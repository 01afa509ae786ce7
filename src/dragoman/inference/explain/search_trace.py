"""Trace of a beam search over one sentence: every hypothesis that the search considers, and the path to the best one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
class TracedHypothesis:
    """One hypothesis that the search considered; the fields are those of `dragoman.viz.explanation.BeamNode`."""

    parent: int | None
    step: int
    rank: int
    token: int
    score: float
    status: NodeStatus


@dataclass(frozen=True)
class SearchTrace:
    """All hypotheses that a search considered. `path`: indices of the best one's prefixes, from its first token to its last."""

    hypotheses: tuple[TracedHypothesis, ...]
    path: tuple[int, ...]

    @property
    def ids(self) -> list[int]:
        """Return the tokens of the best hypothesis, its end token included if it is finished."""
        return [self.hypotheses[index].token for index in self.path]

    def to_branches(self, vocabulary: Vocabulary) -> tuple[BeamNode, ...]:
        """Return the hypotheses with the pieces of their tokens."""
        pieces = vocabulary.ids_to_pieces([hypothesis.token for hypothesis in self.hypotheses])
        return tuple(
            BeamNode(traced.parent, traced.step, traced.rank, piece, traced.score, traced.status, is_best=index in self.path)
            for index, (traced, piece) in enumerate(zip(self.hypotheses, pieces, strict=True))
        )


class _TraceRecorder:
    """Hook of a beam search over one sentence that records each step."""

    def __init__(self, length_penalty: LengthPenalty) -> None:
        self.length_penalty = length_penalty
        self.hypotheses: list[TracedHypothesis] = []
        self.alive: list[int | None] = [None]  # index of the hypothesis in each slot of the beam

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
            index_of_column[rank] = len(self.hypotheses)
            self.hypotheses.append(
                TracedHypothesis(
                    self.alive[parents[rank]],
                    step.length - 1,
                    rank,
                    tokens[rank],
                    normalized_scores[rank] if status == "finished" else score,
                    status,
                )
            )
        self.alive = [index_of_column.get(column) for column in columns]

    def find_path(self, output_ids: Sequence[int]) -> tuple[int, ...]:
        """Return the indices of the hypotheses that are the prefixes of this output."""
        index_by_extension = {(hypothesis.parent, hypothesis.token): index for index, hypothesis in enumerate(self.hypotheses)}
        path: list[int] = []
        for token in output_ids:
            path.append(index_by_extension[path[-1] if path else None, token])
        return tuple(path)


def trace_search(
    model: Transformer,
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

    prompt: ids that the decoder reads between the start token and the output
    suppressed_ids: tokens that no output contains
    allowed_tokens_fn: the tokens that may come next, as in `DecodingConstraints`
    """
    inference_model = prompt_decoder(as_inference_model([model]), prompt)
    max_length = -(-len(source) // inference_model.numbers_per_vector) + config.max_extra_tokens
    if inference_model.max_positions is not None:
        max_length = min(max_length, inference_model.max_positions - len(prompt))
    length_penalty = LengthPenalty(config.length_penalty, config.alpha, len(prompt))
    recorder = _TraceRecorder(length_penalty)
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
    return SearchTrace(tuple(recorder.hypotheses), recorder.find_path(best_ids))
