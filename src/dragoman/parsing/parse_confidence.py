"""Confidence of parses, for the selection of training trees in self-training (section 6.3 of the paper).

The confidence is the mean log-probability of a parse's tokens, including the end token. It does not shrink with the length,
so one threshold fits all sentences.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from dragoman.parsing.sentence_parser import ParseStatus

RejectionReason = Literal["empty", "too_long", "truncated", "repaired", "low_confidence"]
"""Reason why a filter drops a parse: its status, or its confidence."""


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
