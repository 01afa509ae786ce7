"""Forced scoring: how likely the model holds a given translation to be."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.penalty import LengthPenalty


def score_targets(
    logits_BTV: Tensor, targets: Sequence[Sequence[int]], *, end_id: int, length_penalty: LengthPenalty
) -> list[Hypothesis]:
    """Read off the log-probability of each target's tokens and its end token.

    logits_BTV: what the model expects at each place when it has read the start token and the target so far
    targets: ids without start and end token, none longer than T − 1
    """
    hypotheses = []
    for logits_TV, target in zip(logits_BTV, targets, strict=True):
        ids_T = torch.tensor([*target, end_id], device=logits_BTV.device)
        log_probs_TV = logits_TV[: len(ids_T)].float().log_softmax(dim=-1)
        token_log_probs = log_probs_TV.gather(1, ids_T[:, None])[:, 0].tolist()
        score = sum(token_log_probs) / length_penalty(float(len(ids_T)))
        hypotheses.append(Hypothesis(tuple(target), tuple(token_log_probs), score, True))
    return hypotheses
