"""Coverage penalty (Wu et al. 2016, equation 14): finished hypotheses lose score for source tokens without attention.

    s(Y, X) = log P(Y|X) / lp(Y) + cp(X; Y),    cp(X; Y) = β Σ_i log(min(Σ_j p_ij, 1))

p_ij is the attention of output token j to source token i: the mean over the heads of the last decoder layer. The penalty ranks
the hypotheses at the end of the search, so each back end searches as fast as without it. The cost is one forced decoding of
each hypothesis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import ArrayLike

from dragoman.config import DecodingConfig
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.tasks.forced_decoding import ForcedDecoder, compute_cross_attentions

MIN_COVERAGE = 1e-9
"""Smallest attention of a source token, so that the logarithm is finite."""


def compute_coverage_penalty(weights_TS: ArrayLike, beta: float) -> float:
    """Return cp(X; Y) for the attention of each output token to each source token."""
    coverage_S = np.asarray(weights_TS, dtype=np.float64).sum(axis=0)
    return beta * float(np.log(coverage_S.clip(MIN_COVERAGE, 1.0)).sum())


def rerank_by_coverage(
    decoder: ForcedDecoder,
    sources: Sequence[Sequence[int]],
    hypotheses: Sequence[Sequence[Hypothesis]],
    decoding: DecodingConfig,
    *,
    start_id: int,
    prompt: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """Return the `nbest` hypotheses of each source with the highest penalized score, which replaces their score.

    Finished hypotheses rank before unfinished ones.
    """
    outputs = [
        (source, hypothesis) for source, candidates in zip(sources, hypotheses, strict=True) for hypothesis in candidates
    ]
    penalties = iter(
        compute_cross_attentions(
            decoder,
            [source for source, _ in outputs],
            [hypothesis.tokens for _, hypothesis in outputs],
            start_id=start_id,
            prompt=prompt,
            finished=[hypothesis.finished for _, hypothesis in outputs],
            batch_tokens=decoding.batch_tokens,
            transform=lambda weights_LHTS: np.array(
                compute_coverage_penalty(weights_LHTS[-1].mean(0), decoding.coverage_penalty), dtype=np.float32
            ),
        )
    )
    return [
        sorted(
            (
                replace(hypothesis, score=hypothesis.score + float(penalty))
                for hypothesis, penalty in zip(candidates, islice(penalties, len(candidates)), strict=True)
            ),
            key=lambda hypothesis: (not hypothesis.finished, -hypothesis.score),
        )[: decoding.nbest]
        for candidates in hypotheses
    ]
