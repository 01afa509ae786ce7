"""Which parses a parser is sure of, so that it may learn from them as if they were gold: self-training, as in section 6.3.

How sure is the mean log-probability of a parse's tokens, its end among them. It does not shrink with the length, so one
threshold fits all sentences.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from dragoman.evaluation.evalb import SentenceScore, total
from dragoman.tasks.parsing import Status

Doubt = Literal["empty", "refused", "truncated", "mended", "unsure"]
"""Why a parse is not kept: what its status says, or its certainty."""
SHARES = (1.0, 0.9, 0.75, 0.5, 0.25, 0.1)


class Told(Protocol):
    """What is asked of a parse."""

    @property
    def token_log_probs(self) -> Sequence[float]: ...
    @property
    def status(self) -> Status: ...


@dataclass(frozen=True)
class Confidence:
    """What is asked of a parse that is to be learnt from.

    least: the mean log-probability of a token, in natural logs; 0 is certain
    """

    least: float

    def doubt(self, parse: Told) -> Doubt | None:
        """Why the parse is not kept; none where it is."""
        if parse.status != "ok":
            return parse.status
        return "unsure" if certainty(parse.token_log_probs) < self.least else None


def certainty(token_log_probs: Collection[float]) -> float:
    """The mean log-probability of a token; that of nothing is that of what cannot be."""
    return sum(token_log_probs) / len(token_log_probs) if token_log_probs else float("-inf")


@dataclass(frozen=True)
class Kept:
    """What a threshold keeps of parses whose gold trees are known: their share, and their F1. f1_rest: of the others."""

    share: float
    least: float
    sentences: int
    f1: float
    f1_rest: float


def thresholds(certainties: Sequence[float], scores: Sequence[SentenceScore], shares: Sequence[float] = SHARES) -> list[Kept]:
    """For each share of the sentences, the threshold that keeps the surest of them, and what they are worth.

    Sentences of equal certainty are kept together, so more may be kept than was asked for.
    """
    order = sorted(range(len(certainties)), key=lambda number: -certainties[number])
    found = []
    for share in shares:
        least = certainties[order[max(1, round(share * len(order))) - 1]]
        kept = [number for number in order if certainties[number] >= least]
        rest = order[len(kept) :]
        f1, f1_rest = (total([scores[number] for number in numbers]).f1 for numbers in (kept, rest))
        found.append(Kept(len(kept) / len(order), least, len(kept), f1, f1_rest))
    return found
