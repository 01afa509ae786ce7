"""Beams in groups: diverse beam search (Vijayakumar et al. 2018), and alternatives that differ in one token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from dragoman.decoding.constraints import NEG_INF
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.topk import Candidates, find_best_candidates


@dataclass(frozen=True)
class BeamGroups:
    """Division of a beam into groups, and the rule that makes the groups differ.

    diversity_penalty: penalty in nats on a token for each hypothesis of an earlier group with the same token at the same step
        (Vijayakumar et al., equation 5 with Hamming diversity). It affects the ranking; scores stay the model's own
    return_alternatives: instead, each group starts with a different one of the most probable tokens after the prefix
    """

    num_groups: int = 1
    diversity_penalty: float = 0.0
    return_alternatives: bool = False


SINGLE_GROUP = BeamGroups()


def diverse_candidates(
    logits_BGRV: Tensor, log_sum_BGR: Tensor, score_BGR: Tensor, count: int, *, diversity_penalty: float, end_id: int
) -> Candidates:
    """Return the best extensions of each group, ranked with the penalty for tokens of earlier groups. → (B · G, X)"""
    num_sentences, num_groups, group_size, _ = logits_BGRV.shape
    token_BM = torch.empty(num_sentences, 0, dtype=torch.long, device=logits_BGRV.device)
    cost_BM = torch.empty(num_sentences, 0, device=logits_BGRV.device)
    group_candidates = []
    for group in range(num_groups):
        logits_BRV = logits_BGRV[:, group]
        token_BRM, cost_BRM = (tensor_BM[:, None].expand(-1, group_size, -1) for tensor_BM in (token_BM, cost_BM))
        logits_BRV.scatter_add_(2, token_BRM, -cost_BRM)
        candidates = find_best_candidates(logits_BRV, log_sum_BGR[:, group], score_BGR[:, group], count)
        cost_BX = ((candidates.token_BX[:, :, None] == token_BM[:, None]) * cost_BM[:, None]).sum(-1)
        candidates = replace(candidates, log_prob_BX=candidates.log_prob_BX + cost_BX, score_BX=candidates.score_BX + cost_BX)
        alive = candidates.priority_BX.masked_fill(candidates.token_BX == end_id, NEG_INF).topk(group_size, dim=1)
        token_BM = torch.cat([token_BM, candidates.token_BX.gather(1, alive.indices)], dim=1)
        cost_BM = torch.cat([cost_BM, (alive.values > NEG_INF) * diversity_penalty], dim=1)
        group_candidates.append(candidates)
    return Candidates(
        *(
            torch.stack(tensors, dim=1).flatten(0, 1)
            for tensors in zip(*(vars(candidates).values() for candidates in group_candidates), strict=True)
        )
    )


def merge_groups(groups: Sequence[Sequence[Hypothesis]], *, return_alternatives: bool) -> list[Hypothesis]:
    """Return the hypotheses of one sentence from those of its groups, without duplicates.

    With `return_alternatives`: the best of each group, in order of the probability of its first token after the prefix.
    Otherwise: the best of each group, then the remaining ones. Both parts are in order of score, finished hypotheses first.
    """
    best = [hypotheses[0] for hypotheses in groups if hypotheses]
    if return_alternatives:
        return best
    remaining = [hypothesis for hypotheses in groups for hypothesis in hypotheses[1:]]
    ranked = [
        sorted(hypotheses, key=lambda hypothesis: (not hypothesis.finished, -hypothesis.score))
        for hypotheses in (best, remaining)
    ]
    distinct: dict[tuple[tuple[int, ...], bool], Hypothesis] = {}
    for hypothesis in chain(*ranked):
        distinct.setdefault((hypothesis.tokens, hypothesis.finished), hypothesis)
    return list(distinct.values())
