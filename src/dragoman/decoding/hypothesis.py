"""What a search finds: tokens, and how likely the model held them to be."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Hypothesis:
    """One output.

    tokens: ids without start and end token
    token_log_probs: natural log-probability of each token, the end token's last if the output ended by itself
    score: their sum divided by the length penalty; higher is better
    finished: false where the longest allowed length cut the output
    """

    tokens: tuple[int, ...]
    token_log_probs: tuple[float, ...]
    score: float
    finished: bool

    @property
    def log_prob(self) -> float:
        return sum(self.token_log_probs)


def hypothesis_from_rows(tokens_T: Tensor, log_probs_T: Tensor, length: int, *, score: float, end_id: int) -> Hypothesis:
    """Cut a padded row at its length and take off the end token."""
    tokens: list[int] = tokens_T[:length].tolist()
    log_probs: list[float] = log_probs_T[:length].tolist()
    finished = bool(tokens) and tokens[-1] == end_id
    return Hypothesis(tuple(tokens[:-1] if finished else tokens), tuple(log_probs), score, finished)
