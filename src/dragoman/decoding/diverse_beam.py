"""A beam in groups that keep apart: diverse beam search (Vijayakumar et al. 2018), and alternatives that part at one place."""

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
    """How many groups a beam is divided into, and what keeps them apart.

    strength: a group's token is ranked so much lower, in natural logarithms, for each hypothesis of an earlier group that says
        it at the same step (their equation 5 with Hamming diversity); scores stay the model's own
    branching: instead, each group goes its own way from one of the likeliest tokens after the sentence's prefix
    """

    num_groups: int = 1
    diversity_penalty: float = 0.0
    return_alternatives: bool = False


SINGLE_GROUP = BeamGroups()


def diverse_candidates(
    logits_BGRV: Tensor, log_sum_BGR: Tensor, score_BGR: Tensor, count: int, *, diversity_penalty: float, end_id: int
) -> Candidates:
    """Group by group the best extensions, each group's ranked lower where an earlier one says the same. → (B · G, X)"""
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
            torch.stack(parts, dim=1).flatten(0, 1)
            for parts in zip(*(vars(group_result).values() for group_result in group_candidates), strict=True)
        )
    )


def merge_groups(groups: Sequence[Sequence[Hypothesis]], *, return_alternatives: bool) -> list[Hypothesis]:
    """What the groups of one sentence found.

    Alternatives: the best of each, in order of the tokens they part with. Otherwise the best of each, then what else they
    found, both in order of score, the finished first; what several groups found stands there once.
    """
    if return_alternatives:
        return [found[0] for found in groups if found]
    ranked_parts = [
        sorted(some, key=lambda hypothesis: (not hypothesis.finished, -hypothesis.score))
        for some in ([found[0] for found in groups if found], [one for found in groups for one in found[1:]])
    ]
    distinct: dict[tuple[tuple[int, ...], bool], Hypothesis] = {}
    for one in chain(*ranked_parts):
        distinct.setdefault((one.tokens, one.finished), one)
    return list(distinct.values())
