"""What is asked for most, so that a model may search for it by itself, without a step of Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from dragoman.decoding.constraints import Rules, Wish
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.penalty import LengthPenalty


@dataclass(frozen=True)
class Request:
    """Outputs of which nothing is asked but when they end and what is never said.

    limits: longest output of each sentence in tokens, its end token included
    may_loop: the sentences that are not stopped for repeating themselves
    never: tokens that are never said
    min_length, no_repeat_ngram_size, repetition_window: see `Rules`
    """

    limits: Sequence[int]
    may_loop: Sequence[bool]
    start_id: int
    end_id: int
    never: Sequence[int]
    min_length: int
    no_repeat_ngram_size: int
    repetition_window: int
    penalty: LengthPenalty

    def some(self, sentences: slice) -> Request:
        """The same of these alone."""
        return replace(self, limits=self.limits[sentences], may_loop=self.may_loop[sentences])


class Searcher(Protocol):
    """Finds what `one_by_one` and `beam_search` find by the same model's steps, but for ties that rounding makes."""

    @property
    def widest(self) -> int:
        """Beams of more hypotheses are searched faster by those."""
        ...

    def greedy(self, source_BS: Tensor, request: Request) -> list[Hypothesis]:
        """One output of each source, padded on the right: the likeliest token each time."""
        ...

    def beam(self, source_BS: Tensor, request: Request, *, beam_size: int, stop: str, nbest: int) -> list[list[Hypothesis]]:
        """The hypotheses of each, best first."""
        ...


def plain_request(
    rules: Rules,
    wishes: Sequence[Wish],
    *,
    limits: Sequence[int],
    forbidden: Sequence[int],
    start_id: int,
    end_id: int,
    penalty: LengthPenalty,
) -> Request | None:
    """The request that these are; none where more is asked."""
    if rules.allow is not None or not all(wish.is_plain for wish in wishes):
        return None
    may_loop = [wish.may_loop for wish in wishes] or [False] * len(limits)
    never = sorted({*forbidden, *rules.suppressed})
    return Request(
        limits,
        may_loop,
        start_id,
        end_id,
        never,
        rules.min_length,
        rules.no_repeat_ngram_size,
        rules.repetition_window,
        penalty,
    )
