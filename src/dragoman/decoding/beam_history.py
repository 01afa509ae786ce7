"""Beam history: the candidates of each step as back-pointers, and the hypotheses that are read back from them at the end.

No step copies an output. A hypothesis is a node of the history, and `trace_back` follows its parents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman.decoding.arrays import Array, Arrays
from dragoman.decoding.constraints import NEG_INF
from dragoman.decoding.hypothesis import Hypothesis, LengthPenalty

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class NodeRef:
    """Reference to one hypothesis: its sentence, its length in tokens, and its column among the candidates of that step."""

    sentence: int
    length: int
    column: int


class TraceableHistory(Protocol):
    """History whose nodes can be read back."""

    @property
    def num_columns(self) -> int:
        """Number of candidates of each sentence, X."""
        ...

    def trace_back(self, nodes: Sequence[NodeRef]) -> list[tuple[list[int], list[float]]]:
        """Return the tokens of each node, and their log-probabilities."""
        ...


@dataclass
class BeamHistory:
    """Candidates and survivors of each step, for the sentences that are in the batch at that step.

    parents, tokens, log_probs: one (B, X) array a step, for X candidates of each sentence
    alive: one (B, R) array a step, the columns of the candidates that stay in the beam
    batch_rows: one array a step, the row in the batch of each sentence of the whole search
    """

    arrays: Arrays
    parents: list[Array] = field(default_factory=list)
    tokens: list[Array] = field(default_factory=list)
    log_probs: list[Array] = field(default_factory=list)
    alive: list[Array] = field(default_factory=list)
    batch_rows: list[IntArray] = field(default_factory=list)

    @property
    def num_columns(self) -> int:
        """Number of candidates of each sentence, X."""
        return self.tokens[0].shape[1] if self.tokens else 0

    def add(self, parent_BX: Array, token_BX: Array, log_prob_BX: Array, alive_BR: Array, batch_rows: IntArray) -> None:
        """Append one step."""
        self.parents.append(parent_BX)
        self.tokens.append(token_BX)
        self.log_probs.append(log_prob_BX)
        self.alive.append(alive_BR)
        self.batch_rows.append(batch_rows)

    def trace_back(self, nodes: Sequence[NodeRef]) -> list[tuple[list[int], list[float]]]:
        """Return the tokens of each node's hypothesis and their log-probabilities. E counts the nodes."""
        if not nodes:
            return []
        longest = max(node.length for node in nodes)
        order = sorted(range(len(nodes)), key=lambda index: -nodes[index].length)
        length_E, sentence_E, column_E = (
            np.array([getattr(nodes[index], name) for index in order]) for name in ("length", "sentence", "column")
        )
        parents, tokens, log_probs, alive = (
            self.arrays.to_numpy(self.arrays.xp.concat(steps[:longest]))
            for steps in (self.parents, self.tokens, self.log_probs, self.alive)
        )
        step_offset = np.cumsum([0, *(len(token_BX) for token_BX in self.tokens[:longest])])
        # The nodes are in descending order of length, so the nodes that reach a step are a prefix of them.
        num_reached = np.searchsorted(-length_E, -np.arange(longest), side="left").tolist()
        token_ET = np.zeros((len(order), longest), dtype=np.int64)
        log_prob_ET = np.zeros((len(order), longest), dtype=np.float64)
        num_next = 0
        for step in reversed(range(longest)):
            num_now = num_reached[step]
            row_E = self.batch_rows[step][sentence_E[:num_now]] + step_offset[step]
            column_E[:num_next] = alive[row_E[:num_next], column_E[:num_next]]
            now_column_E = column_E[:num_now]
            token_ET[:num_now, step], log_prob_ET[:num_now, step] = tokens[row_E, now_column_E], log_probs[row_E, now_column_E]
            column_E[:num_now] = parents[row_E, now_column_E]
            num_next = num_now
        outputs: list[tuple[list[int], list[float]]] = [([], []) for _ in nodes]
        for row, index in enumerate(order):
            length = nodes[index].length
            outputs[index] = (token_ET[row, :length].tolist(), log_prob_ET[row, :length].tolist())
        return outputs


@dataclass(frozen=True)
class FinishedSentence:
    """State of one sentence's beam at the step that ends its search.

    length: number of tokens at that step
    finished_scores: score of each finished hypothesis; -inf marks an empty slot
    finished_node_ids: node id of each, which is length · X + column for X candidates a step
    alive_scores: log-probability of each hypothesis in the beam; -inf marks an empty slot
    alive_columns: their columns among the candidates of that step
    repetition_nodes: score and node of each hypothesis that was stopped because of a degenerate repetition
    partial_node_id: node id of the best hypothesis that ended without all required phrases
    """

    length: int
    finished_scores: Sequence[float]
    finished_node_ids: Sequence[int]
    alive_scores: Sequence[float]
    alive_columns: Sequence[int]
    repetition_nodes: Sequence[tuple[float, NodeRef]] = ()
    partial_node_id: int | None = None


@dataclass(frozen=True)
class _RankedNode:
    """Node of one hypothesis. score: None if it must be computed from the token log-probabilities"""

    score: float | None
    node: NodeRef
    has_repetition: bool = False


def finalize(
    finished_sentences: Sequence[FinishedSentence],
    history: TraceableHistory,
    *,
    end_id: int,
    length_penalty: LengthPenalty,
    nbest: int | None = None,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each sentence, best first, at most one for each slot of its beam.

    Unfinished hypotheses follow the finished ones.

    nbest: most hypotheses of a sentence to return; None for all. Only these are read back from the history.
    """
    ranked_nodes = [
        ranked_node
        for sentence, finished_sentence in enumerate(finished_sentences)
        for ranked_node in _rank_nodes(sentence, finished_sentence, history.num_columns, length_penalty)[:nbest]
    ]
    outputs = history.trace_back([ranked_node.node for ranked_node in ranked_nodes])
    hypotheses: list[list[Hypothesis]] = [[] for _ in finished_sentences]
    for ranked_node, (tokens, log_probs) in zip(ranked_nodes, outputs, strict=True):
        node, score = ranked_node.node, ranked_node.score
        finished = tokens[-1] == end_id
        output_ids = tuple(tokens[:-1] if finished else tokens)
        if score is None:
            score = sum(log_probs) / length_penalty(float(node.length))
        hypotheses[node.sentence].append(Hypothesis(output_ids, tuple(log_probs), score, finished, ranked_node.has_repetition))
    return hypotheses


def _rank_nodes(
    sentence: int, finished_sentence: FinishedSentence, num_columns: int, length_penalty: LengthPenalty
) -> list[_RankedNode]:
    """Rank finished and repeating hypotheses by score, then the best partial one if none is finished, then the unfinished."""
    scored_ids = zip(finished_sentence.finished_scores, finished_sentence.finished_node_ids, strict=True)
    finished = [
        _RankedNode(score, NodeRef(sentence, *divmod(node_id, num_columns))) for score, node_id in scored_ids if score > NEG_INF
    ]
    repeating = [_RankedNode(score, node, has_repetition=True) for score, node in finished_sentence.repetition_nodes]
    ranked = sorted(finished + repeating, key=lambda ranked_node: -(ranked_node.score or 0.0))
    if not finished and finished_sentence.partial_node_id is not None:
        ranked.append(_RankedNode(None, NodeRef(sentence, *divmod(finished_sentence.partial_node_id, num_columns))))
    scored_columns = zip(finished_sentence.alive_scores, finished_sentence.alive_columns, strict=True)
    unfinished = [(score, column) for score, column in scored_columns if score > NEG_INF]
    divisor = length_penalty(float(finished_sentence.length))
    for score, column in sorted(unfinished, key=lambda scored_column: -scored_column[0]):
        ranked.append(_RankedNode(score / divisor, NodeRef(sentence, finished_sentence.length, column)))
    return ranked[: len(finished_sentence.alive_scores)]
