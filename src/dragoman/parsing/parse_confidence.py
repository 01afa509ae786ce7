"""Confidence of parses, for the selection of training trees in self-training (section 6.3 of the paper).

The confidence is the mean log-probability of a parse's tokens, including the end token. It does not shrink with the length,
so one threshold fits all sentences.
"""

from __future__ import annotations

from collections.abc import Collection

from dragoman.parsing.parse_result import Parse


def is_confident(parse: Parse, min_score: float) -> bool:
    """Return whether a parse can be training data: it is whole, not repaired, and its tokens have this mean log-probability."""
    return parse.status == "ok" and compute_mean_log_prob(parse.token_log_probs) >= min_score


def compute_mean_log_prob(token_log_probs: Collection[float]) -> float:
    """Return the mean log-probability of a token, in natural logarithms; -inf for no tokens."""
    return sum(token_log_probs) / len(token_log_probs) if token_log_probs else float("-inf")
