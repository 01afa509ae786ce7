"""Protocol of models that run a whole search in native code, and the requests that they support."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman.decoding.constraints import SentenceConstraints
from dragoman.decoding.hypothesis import Hypothesis, LengthPenalty
from dragoman.decoding.interface import SearchSettings


@dataclass(frozen=True)
class SearchRequest:
    """Search without sentence constraints and without an automaton.

    max_lengths: maximum output length of each sentence in tokens, the end token included
    allow_repetition: whether each sentence's output may contain a degenerate repetition
    prompt: tokens that the decoder reads between its start token and each output
    suppress_tokens: tokens that no output contains
    min_length, no_repeat_ngram_size, repetition_window: see `DecodingConstraints`
    """

    max_lengths: Sequence[int]
    allow_repetition: Sequence[bool]
    start_id: int
    prompt: Sequence[int]
    end_id: int
    suppress_tokens: Sequence[int]
    min_length: int
    no_repeat_ngram_size: int
    repetition_window: int
    length_penalty: LengthPenalty

    def select(self, sentences: slice) -> SearchRequest:
        """Return the request for these sentences alone."""
        return replace(self, max_lengths=self.max_lengths[sentences], allow_repetition=self.allow_repetition[sentences])


class NativeSearch(Protocol):
    """Search that returns the same hypotheses as `decode_tokens` and `beam_search`, except for ties by rounding."""

    @property
    def max_beam_size(self) -> int:
        """Return the largest beam that this search decodes faster than `beam_search` does."""
        ...

    def greedy(self, source_BS: NDArray[np.int64], request: SearchRequest) -> list[Hypothesis]:
        """Return the greedy output of each source; sources are padded on the right."""
        ...

    def beam(
        self, source_BS: NDArray[np.int64], request: SearchRequest, *, beam_size: int, early_stopping: str, nbest: int
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of each source, best first."""
        ...


def build_request(
    settings: SearchSettings,
    constraints: Sequence[SentenceConstraints],
    *,
    max_lengths: Sequence[int],
    prompt: Sequence[int] = (),
) -> SearchRequest | None:
    """Return the request for a native search, or None if native searches do not support the constraints."""
    decoding_constraints = settings.decoding_constraints
    if decoding_constraints.allowed_tokens_fn is not None or not all(sentence.is_supported for sentence in constraints):
        return None
    return SearchRequest(
        max_lengths=max_lengths,
        allow_repetition=[sentence.allow_repetition for sentence in constraints] or [False] * len(max_lengths),
        start_id=settings.start_id,
        prompt=prompt,
        end_id=settings.end_id,
        suppress_tokens=sorted({*settings.forbidden_ids, *decoding_constraints.suppress_tokens}),
        min_length=decoding_constraints.min_length,
        no_repeat_ngram_size=decoding_constraints.no_repeat_ngram_size,
        repetition_window=decoding_constraints.repetition_window,
        length_penalty=settings.length_penalty,
    )
