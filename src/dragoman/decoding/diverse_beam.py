"""Beams in groups: diverse beam search (Vijayakumar et al. 2018), and alternatives that differ in one token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from dragoman.decoding.arrays import Array, Arrays
from dragoman.decoding.constraints import NEG_INF
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.topk import Candidates, TopK, find_best_candidates


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
    logits_BGRV: Array,
    log_sum_BGR: Array,
    score_BGR: Array,
    count: int,
    *,
    diversity_penalty: float,
    end_id: int,
    topk_impl: TopK,
    arrays: Arrays,
) -> Candidates:
    """Return the best extensions of each group, ranked with the penalty for tokens of earlier groups. → (B · G, X)"""
    xp, (num_sentences, num_groups, group_size, _) = arrays.xp, logits_BGRV.shape
    token_BM, cost_BM = (arrays.full((num_sentences, 0), 0, dtype) for dtype in (xp.int64, xp.float32))
    group_candidates = []
    for group in range(num_groups):
        logits_BRV = logits_BGRV[:, group]
        shape = num_sentences, group_size, token_BM.shape[1]
        token_BRM, cost_BRM = (xp.broadcast_to(array_BM[:, None], shape) for array_BM in (token_BM, cost_BM))
        arrays.reduce_at(logits_BRV, token_BRM, -cost_BRM, "add")
        candidates = find_best_candidates(
            logits_BRV, log_sum_BGR[:, group], score_BGR[:, group], count, topk_impl=topk_impl, arrays=arrays
        )
        cost_BX = ((candidates.token_BX[:, :, None] == token_BM[:, None]) * cost_BM[:, None]).sum(-1)
        candidates = replace(candidates, log_prob_BX=candidates.log_prob_BX + cost_BX, score_BX=candidates.score_BX + cost_BX)
        priority_BX = xp.where(candidates.token_BX == end_id, NEG_INF, candidates.priority_BX)
        alive_BR = arrays.topk(priority_BX, group_size)
        token_BM = xp.concat([token_BM, arrays.take(candidates.token_BX, alive_BR)], axis=1)
        is_alive_BR = arrays.cast(arrays.take(priority_BX, alive_BR) > NEG_INF, xp.float32)
        cost_BM = xp.concat([cost_BM, is_alive_BR * diversity_penalty], axis=1)
        group_candidates.append(candidates)
    return Candidates(
        *(
            xp.stack(parts, axis=1).reshape(num_sentences * num_groups, -1)
            for parts in zip(*(vars(candidates).values() for candidates in group_candidates), strict=True)
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
