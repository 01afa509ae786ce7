"""What is asked for most, so that a model may search for it by itself, without a step of Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from dragoman.decoding.constraints import DecodingConstraints, SentenceConstraints
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.penalty import LengthPenalty


@dataclass(frozen=True)
class SearchRequest:
    """Outputs of which nothing is asked but when they end and what is never said.

    limits: longest output of each sentence in tokens, its end token included
    may_loop: the sentences that are not stopped for repeating themselves
    never: tokens that are never said
    min_length, no_repeat_ngram_size, repetition_window: see `Rules`
    """

    max_lengths: Sequence[int]
    allow_repetition: Sequence[bool]
    start_id: int
    end_id: int
    suppress_tokens: Sequence[int]
    min_length: int
    no_repeat_ngram_size: int
    repetition_window: int
    length_penalty: LengthPenalty

    def select(self, sentences: slice) -> SearchRequest:
        """The same of these alone."""
        return replace(self, limits=self.max_lengths[sentences], may_loop=self.allow_repetition[sentences])


class NativeSearch(Protocol):
    """Finds what `one_by_one` and `beam_search` find by the same model's steps, but for ties that rounding makes."""

    @property
    def max_beam_size(self) -> int:
        """Beams of more hypotheses are searched faster by those."""
        ...

    def greedy(self, source_BS: Tensor, request: SearchRequest) -> list[Hypothesis]:
        """One output of each source, padded on the right: the likeliest token each time."""
        ...

    def beam(
        self, source_BS: Tensor, request: SearchRequest, *, beam_size: int, early_stopping: str, nbest: int
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each, best first."""
        ...


def build_request(
    decoding_constraints: DecodingConstraints,
    constraints: Sequence[SentenceConstraints],
    *,
    max_lengths: Sequence[int],
    forbidden_ids: Sequence[int],
    start_id: int,
    end_id: int,
    length_penalty: LengthPenalty,
) -> SearchRequest | None:
    """The request that these are; none where more is asked."""
    if decoding_constraints.allowed_tokens_fn is not None or not all(wish.is_supported for wish in constraints):
        return None
    allow_repetition = [wish.allow_repetition for wish in constraints] or [False] * len(max_lengths)
    suppress_tokens = sorted({*forbidden_ids, *decoding_constraints.suppress_tokens})
    return SearchRequest(
        max_lengths,
        allow_repetition,
        start_id,
        end_id,
        suppress_tokens,
        decoding_constraints.min_length,
        decoding_constraints.no_repeat_ngram_size,
        decoding_constraints.repetition_window,
        length_penalty,
    )
