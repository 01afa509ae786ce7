"""What a search finds: tokens, and how likely the model held them to be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """One output.

    tokens: ids without start and end token
    token_log_probs: natural log-probability of each token, the end token's last if the output ended by itself; always the
        model's own, whatever was ruled out or forced
    score: their sum divided by the length penalty; higher is better
    finished: false where the longest allowed length cut it, where it was stopped, or where nothing was allowed to follow
    looped: it was stopped because it repeated itself
    missing: of the phrases that were asked for, those that it does not hold
    utility: how like the other hypotheses it is, in percent, where it was chosen by that
    """

    tokens: tuple[int, ...]
    token_log_probs: tuple[float, ...]
    score: float
    finished: bool
    has_repetition: bool = False
    unmet_constraints: tuple[tuple[int, ...], ...] = ()
    mbr_score: float | None = None

    @property
    def log_prob(self) -> float:
        return sum(self.token_log_probs)
