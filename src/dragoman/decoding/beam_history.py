"""What a beam has come to: the hypotheses of each sentence, read back from its history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.decoding.constraints import NEG_INF, Phrase, contains_phrase
from dragoman.decoding.history import BeamHistory, NodeRef
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.penalty import LengthPenalty


@dataclass(frozen=True)
class FinishedSentence:
    """What one sentence had come to when it was done.

    length: tokens at which it was
    finished, codes: score over penalty of each finished place, and which it is: length · X + column, X being the number of
        candidates at each step; -inf marks an empty place
    score, living: log-probability of those alive, and their columns; -inf likewise
    looped: those that went round in circles, and their scores over penalty
    partial: the code of the best that ended without all of its phrases
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
    """One hypothesis before it is read. score: none yet for one that lacks phrases"""

    score: float | None
    node: NodeRef
    has_repetition: bool = False


def finalize(
    finished_sentences: Sequence[FinishedSentence],
    history: BeamHistory,
    *,
    end_id: int,
    length_penalty: LengthPenalty,
    phrases: Sequence[Sequence[Phrase]] = (),
) -> list[list[Hypothesis]]:
    """As many hypotheses of each sentence as it had places, best first; unfinished ones stand after the finished.

    phrases: those that each sentence was to hold, or none at all
    """
    num_columns = history.tokens[0].shape[1] if history.tokens else 0
    ranked_nodes = [
        one
        for number, ending in enumerate(finished_sentences)
        for one in _rank_nodes(number, ending, num_columns, length_penalty)
    ]
    hypotheses: list[list[Hypothesis]] = [[] for _ in finished_sentences]
    for one, (tokens, log_probs) in zip(ranked_nodes, history.trace_back([one.node for one in ranked_nodes]), strict=True):
        finished = tokens[-1] == end_id
        output_ids = tuple(tokens[:-1] if finished else tokens)
        score = sum(log_probs) / length_penalty(float(one.node.length)) if one.score is None else one.score
        required_phrases = phrases[one.node.sentence] if phrases else ()
        unmet_constraints = tuple(phrase for phrase in required_phrases if not contains_phrase(output_ids, phrase))
        hypotheses[one.node.sentence].append(
            Hypothesis(output_ids, tuple(log_probs), score, finished, one.has_repetition, unmet_constraints)
        )
    return hypotheses


def _rank_nodes(
    sentence: int, finished_sentence: FinishedSentence, num_columns: int, length_penalty: LengthPenalty
) -> list[_RankedNode]:
    """The finished, and what looped among them; if none finished, the best that lacks phrases; then those that were cut."""
    scored_ids = zip(finished_sentence.finished_scores, finished_sentence.finished_node_ids, strict=True)
    finished = [(score, NodeRef(sentence, *divmod(code, num_columns)), False) for score, code in scored_ids if score > NEG_INF]
    repetitions = [(score, entry, True) for score, entry in finished_sentence.repetition_nodes]
    ranked = [_RankedNode(*one) for one in sorted(finished + repetitions, key=lambda one: -one[0])]
    if not finished and finished_sentence.partial_node_id is not None:
        ranked.append(_RankedNode(None, NodeRef(sentence, *divmod(finished_sentence.partial_node_id, num_columns))))
    unfinished = [
        one for one in zip(finished_sentence.alive_scores, finished_sentence.alive_columns, strict=True) if one[0] > NEG_INF
    ]
    divisor = length_penalty(float(finished_sentence.length))
    for score, column in sorted(unfinished, key=lambda one: -one[0]):
        ranked.append(_RankedNode(score / divisor, NodeRef(sentence, finished_sentence.length, column)))
    return ranked[: len(finished_sentence.alive_scores)]
