"""Interface between a search and a model: a decoding step, its state, and the settings that all searches share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from dragoman.decoding.arrays import Array, Arrays
from dragoman.decoding.constraints import NO_DECODING_CONSTRAINTS, DecodingConstraints
from dragoman.decoding.hypothesis import NO_LENGTH_PENALTY, LengthPenalty


class SearchState(Protocol):
    """State that a step passes to the next one; its rows are in order of sentences."""

    def reorder(self, rows_N: Array) -> Self:
        """Return the state in which row i is the former row rows_N[i]; rows stay within their sentence."""
        ...

    def select_sentences(self, sentences_B: Array) -> Self:
        """Return the state of these sentences alone, with all their rows."""
        ...


StepFn = Callable[[Array, Any], tuple[Array, Any]]
"""(tokens_N, state) → (logits_NV of the next token, state after it), for the state type of the model, in arrays of its library.

A search may overwrite the logits until the next step.
"""


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Settings that greedy search, sampling and beam search share.

    start_id: the decoder's first input
    end_id: the token that ends an output
    forbidden_ids: tokens that no output contains, such as padding
    length_penalty: the divisor of log-probabilities
    decoding_constraints: limits on the outputs of all sentences
    repetition_penalty: divisor of the logits of tokens that the output has already; 1 changes nothing
    compaction_threshold: finished sentences leave the batch once they make up this fraction of it; with 0 each leaves at once,
        with 1 all stay until the end
    """

    start_id: int
    end_id: int
    forbidden_ids: tuple[int, ...] = ()
    length_penalty: LengthPenalty = NO_LENGTH_PENALTY
    decoding_constraints: DecodingConstraints = NO_DECODING_CONSTRAINTS
    repetition_penalty: float = 1.0
    compaction_threshold: float = 0.0


@dataclass(frozen=True)
class EnsembleState:
    """States of several models that decode the same sentences."""

    members: tuple[SearchState, ...]

    def reorder(self, rows_N: Array) -> EnsembleState:
        """Reorder the rows of every member."""
        return EnsembleState(tuple(member.reorder(rows_N) for member in self.members))

    def select_sentences(self, sentences_B: Array) -> EnsembleState:
        """Select these sentences in every member."""
        return EnsembleState(tuple(member.select_sentences(sentences_B) for member in self.members))


def ensemble_step(steps: Sequence[StepFn], arrays: Arrays) -> StepFn:
    """Return a step whose probabilities are the arithmetic mean of those of its members."""

    def step(tokens_N: Array, state: EnsembleState) -> tuple[Array, EnsembleState]:
        results = [member(tokens_N, member_state) for member, member_state in zip(steps, state.members, strict=True)]
        log_probs = [arrays.log_softmax(arrays.cast(logits_NV, arrays.xp.float32)) for logits_NV, _ in results]
        log_prob_NV = arrays.logsumexp(arrays.xp.stack(log_probs), 0) - math.log(len(steps))
        return log_prob_NV, EnsembleState(tuple(new_state for _, new_state in results))

    return step
