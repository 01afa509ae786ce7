"""Which parses a parser is sure of, so that it may learn from them as if they were gold: self-training, as in section 6.3.

How sure is the mean log-probability of a parse's tokens, its end among them. It does not shrink with the length, so one
threshold fits all sentences.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from dragoman.evaluation.evalb import SentenceScore, sum_scores
from dragoman.tasks.parsing import ParseStatus

RejectionReason = Literal["empty", "refused", "truncated", "mended", "unsure"]
"""Why a parse is not kept: what its status says, or its certainty."""
FRACTIONS = (1.0, 0.9, 0.75, 0.5, 0.25, 0.1)


class ScoredParse(Protocol):
    """What is asked of a parse."""

    @property
    def token_log_probs(self) -> Sequence[float]: ...
    @property
    def status(self) -> ParseStatus: ...


@dataclass(frozen=True)
class ConfidenceFilter:
    """What is asked of a parse that is to be learnt from.

    least: the mean log-probability of a token, in natural logs; 0 is certain
    """

    min_mean_log_prob: float

    def find_rejection(self, parse: ScoredParse) -> RejectionReason | None:
        """Why the parse is not kept; none where it is."""
        if parse.status != "ok":
            return parse.status
        return "unsure" if compute_mean_log_prob(parse.token_log_probs) < self.min_mean_log_prob else None


def compute_mean_log_prob(token_log_probs: Collection[float]) -> float:
    """The mean log-probability of a token; that of nothing is that of what cannot be."""
    return sum(token_log_probs) / len(token_log_probs) if token_log_probs else float("-inf")


@dataclass(frozen=True)
class ThresholdResult:
    """What a threshold keeps of parses whose gold trees are known: their share, and their F1. f1_rest: of the others."""

    fraction: float
    min_mean_log_prob: float
    num_sentences: int
    f1: float
    f1_rejected: float


def evaluate_thresholds(
    mean_log_probs: Sequence[float], scores: Sequence[SentenceScore], fractions: Sequence[float] = FRACTIONS
) -> list[ThresholdResult]:
    """For each share of the sentences, the threshold that keeps the surest of them, and what they are worth.

    Sentences of equal certainty are kept together, so more may be kept than was asked for.
    """
    order = sorted(range(len(mean_log_probs)), key=lambda number: -mean_log_probs[number])
    results = []
    for fraction in fractions:
        min_mean_log_prob = mean_log_probs[order[max(1, round(fraction * len(order))) - 1]]
        accepted = [number for number in order if mean_log_probs[number] >= min_mean_log_prob]
        rejected = order[len(accepted) :]
        f1, f1_rejected = (sum_scores([scores[number] for number in numbers]).f1 for numbers in (accepted, rejected))
        results.append(ThresholdResult(len(accepted) / len(order), min_mean_log_prob, len(accepted), f1, f1_rejected))
    return results
