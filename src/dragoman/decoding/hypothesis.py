"""Hypotheses, their scores, the length penalty, and forced scoring of given targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LengthT = TypeVar("LengthT", float, Tensor, NDArray[np.float32], NDArray[np.float64])


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
        """Return the penalty of an output of `length` tokens, or of each length in a tensor or an array."""
        result: LengthT = ((self.offset + length) / self.divisor) ** self.alpha
        return result


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


def score_targets(
    logits_BTV: Tensor, targets: Sequence[Sequence[int]], *, end_id: int, length_penalty: LengthPenalty
) -> list[Hypothesis]:
    """Return each target as a hypothesis with the log-probabilities of its tokens and its end token.

    logits_BTV: the model's logits after the start token and each target token (teacher forcing)
    targets: ids without start and end token, at most T − 1 each
    """
    hypotheses = []
    for logits_TV, target in zip(logits_BTV, targets, strict=True):
        ids_T = torch.tensor([*target, end_id], device=logits_BTV.device)
        log_probs_TV = logits_TV[: len(ids_T)].float().log_softmax(dim=-1)
        token_log_probs = log_probs_TV.gather(1, ids_T[:, None])[:, 0].tolist()
        score = sum(token_log_probs) / length_penalty(float(len(ids_T)))
        hypotheses.append(Hypothesis(tuple(target), tuple(token_log_probs), score, True))
    return hypotheses
