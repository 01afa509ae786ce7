"""Hypotheses, their scores, and the length penalty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, cast

LengthT = TypeVar("LengthT")


class LengthPenalty:
    """The divisor lp(Y) of a hypothesis's log-probability, without which short outputs win.

    form:
        `gnmt`: ((5 + |Y|) / 6)^α (Wu et al. 2016, equation 14)
        `power`: |Y|^α
        `none`: 1
    alpha: α ≥ 0, so that the penalty never falls as |Y| grows; early stopping relies on that

    num_prompt_tokens: tokens that the decoder reads between its start token and the output

    |Y| counts the end token and the prompt. The same α has different effects in the two forms.
    """

    def __init__(self, form: str, alpha: float, num_prompt_tokens: int = 0) -> None:
        offset, self.divisor, self.alpha = {
            "gnmt": (5.0, 6.0, alpha),
            "power": (0.0, 1.0, alpha),
            "none": (0.0, 1.0, 0.0),
        }[form]
        self.offset = offset + num_prompt_tokens

    def __call__(self, length: LengthT) -> LengthT:
        """Return the penalty of an output of `length` tokens, or of each length in an array."""
        return cast(LengthT, ((self.offset + cast(Any, length)) / self.divisor) ** self.alpha)


NO_LENGTH_PENALTY = LengthPenalty("none", 0.0)


@dataclass(frozen=True)
class Hypothesis:
    """One output of a search.

    tokens: ids without start and end token
    token_log_probs: natural log-probability of each token; the end token's comes last if the output is finished. These are
        always the model's own values: masked and forced tokens do not change them
    score: their sum divided by the length penalty; higher is better. Beam search adds its repetition and coverage penalties
    finished: whether the output ends with the end token. It does not if the search reached the length limit, if the search
        stopped a repetition, or if no token was allowed
    has_repetition: whether the search stopped the output because of a degenerate repetition
    mbr_score: mean similarity to the other candidates in percent, if minimum Bayes risk decoding selected the output
    """

    tokens: tuple[int, ...]
    token_log_probs: tuple[float, ...]
    score: float
    finished: bool
    has_repetition: bool = False
    mbr_score: float | None = None

    @property
    def log_prob(self) -> float:
        """Return the log-probability of the whole output."""
        return sum(self.token_log_probs)
