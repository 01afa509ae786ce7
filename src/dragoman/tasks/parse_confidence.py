"""Confidence of parses, for the selection of training trees in self-training (section 6.3 of the paper).

The confidence is the mean log-probability of a parse's tokens, including the end token. It does not shrink with the length,
so one threshold fits all sentences.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from dragoman.evaluation.evalb_scorer import SentenceScore, sum_scores
from dragoman.tasks.parsing import ParseStatus

RejectionReason = Literal["empty", "too_long", "truncated", "repaired", "low_confidence"]
"""Reason why a filter drops a parse: its status, or its confidence."""
FRACTIONS = (1.0, 0.9, 0.75, 0.5, 0.25, 0.1)


class ScoredParse(Protocol):
    """Parse with a confidence and a status."""

    @property
    def token_log_probs(self) -> Sequence[float]: ...
    @property
    def status(self) -> ParseStatus: ...


@dataclass(frozen=True)
class ConfidenceFilter:
    """Condition on a parse that becomes training data.

    min_mean_log_prob: lowest allowed mean log-probability of a token, in natural logarithms; 0 is certain
    """

    min_mean_log_prob: float

    def find_rejection(self, parse: ScoredParse) -> RejectionReason | None:
        """Return the reason to drop the parse; None keeps it."""
        if parse.status != "ok":
            return parse.status
        return "low_confidence" if compute_mean_log_prob(parse.token_log_probs) < self.min_mean_log_prob else None


def compute_mean_log_prob(token_log_probs: Collection[float]) -> float:
    """Return the mean log-probability of a token; -inf for no tokens."""
    return sum(token_log_probs) / len(token_log_probs) if token_log_probs else float("-inf")


@dataclass(frozen=True)
class ThresholdResult:
    """Effect of a threshold on parses whose gold trees are known.

    fraction: share of the sentences that the threshold keeps
    f1: F1 of the kept parses
    f1_rejected: F1 of the dropped parses
    """

    fraction: float
    min_mean_log_prob: float
    num_sentences: int
    f1: float
    f1_rejected: float


def evaluate_thresholds(
    mean_log_probs: Sequence[float], scores: Sequence[SentenceScore], fractions: Sequence[float] = FRACTIONS
) -> list[ThresholdResult]:
    """Return, for each fraction of the sentences, the threshold that keeps the most confident of them.

    Sentences of equal confidence are kept together, so a threshold may keep more than its fraction.
    """
    order = sorted(range(len(mean_log_probs)), key=lambda index: -mean_log_probs[index])
    results = []
    for fraction in fractions:
        min_mean_log_prob = mean_log_probs[order[max(1, round(fraction * len(order))) - 1]]
        accepted = [index for index in order if mean_log_probs[index] >= min_mean_log_prob]
        rejected = order[len(accepted) :]
        f1, f1_rejected = (sum_scores([scores[index] for index in indices]).f1 for indices in (accepted, rejected))
        results.append(ThresholdResult(len(accepted) / len(order), min_mean_log_prob, len(accepted), f1, f1_rejected))
    return results
