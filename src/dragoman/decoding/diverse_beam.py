"""A beam in groups that keep apart: diverse beam search (Vijayakumar et al. 2018), and alternatives that part at one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from dragoman.decoding.constraints import DEAD
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.topk import Candidates, best_candidates


@dataclass(frozen=True)
class Groups:
    """How many groups a beam is divided into, and what keeps them apart.

    strength: a group's token is ranked so much lower, in natural logarithms, for each hypothesis of an earlier group that says
        it at the same step (their equation 5 with Hamming diversity); scores stay the model's own
    branching: instead, each group goes its own way from one of the likeliest tokens after the sentence's prefix
    """

    count: int = 1
    strength: float = 0.0
    branching: bool = False


ONE_GROUP = Groups()


def diverse_candidates(
    logits_BGRV: Tensor, log_sum_BGR: Tensor, score_BGR: Tensor, count: int, *, strength: float, end_id: int
) -> Candidates:
    """Group by group the best extensions, each group's ranked lower where an earlier one says the same. → (B · G, X)"""
    sentences, groups, rows, _ = logits_BGRV.shape
    said_BM = torch.empty(sentences, 0, dtype=torch.long, device=logits_BGRV.device)
    cost_BM = torch.empty(sentences, 0, device=logits_BGRV.device)
    found = []
    for group in range(groups):
        logits_BRV = logits_BGRV[:, group]
        said_BRM, cost_BRM = (tensor_BM[:, None].expand(-1, rows, -1) for tensor_BM in (said_BM, cost_BM))
        logits_BRV.scatter_add_(2, said_BRM, -cost_BRM)
        some = best_candidates(logits_BRV, log_sum_BGR[:, group], score_BGR[:, group], count)
        cost_BX = ((some.token_BX[:, :, None] == said_BM[:, None]) * cost_BM[:, None]).sum(-1)
        some = replace(some, log_prob_BX=some.log_prob_BX + cost_BX, score_BX=some.score_BX + cost_BX)
        living = some.rank_BX.masked_fill(some.token_BX == end_id, DEAD).topk(rows, dim=1)
        said_BM = torch.cat([said_BM, some.token_BX.gather(1, living.indices)], dim=1)
        cost_BM = torch.cat([cost_BM, (living.values > DEAD) * strength], dim=1)
        found.append(some)
    return Candidates(
        *(torch.stack(parts, dim=1).flatten(0, 1) for parts in zip(*(vars(one).values() for one in found), strict=True))
    )


def merged(groups: Sequence[Sequence[Hypothesis]], *, branching: bool) -> list[Hypothesis]:
    """What the groups of one sentence found.

    Alternatives: the best of each, in order of the tokens they part with. Otherwise the best of each, then what else they
    found, both in order of score, the finished first; what several groups found stands there once.
    """
    if branching:
        return [found[0] for found in groups if found]
    ranked = [
        sorted(some, key=lambda hypothesis: (not hypothesis.finished, -hypothesis.score))
        for some in ([found[0] for found in groups if found], [one for found in groups for one in found[1:]])
    ]
    distinct: dict[tuple[tuple[int, ...], bool], Hypothesis] = {}
    for one in chain(*ranked):
        distinct.setdefault((one.tokens, one.finished), one)
    return list(distinct.values())
