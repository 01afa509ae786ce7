"""Minimum Bayes risk: of some hypotheses the one that is most like all of them (Kumar and Byrne 2004).

What is expected of hypothesis h is the sum over hypotheses e of p(e) · utility(h, e). Of samples each counts the same, since
the model drew them (Eikema and Aziz 2020); of a beam each counts by its probability among those that were found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dragoman.config import DecodingConfig, section_with
from dragoman.decoding.hypothesis import Hypothesis


def searched(decoding: DecodingConfig) -> DecodingConfig:
    """The search for what is to be compared."""
    if decoding.mbr == "none":
        return decoding
    return section_with(decoding, {"mbr": "none", "mbr_candidates": None, "nbest": decoding.compared}, where="decoding")


def most_alike(
    hypotheses: Sequence[Hypothesis], texts: Sequence[str], decoding: DecodingConfig, *, tokenised: bool
) -> list[Hypothesis]:
    """The `nbest` hypotheses of which most is expected, best first, each text once; those that came to no end stand behind.

    texts: those of the hypotheses
    tokenised: BLEU counts their tokens as they stand
    """
    if not hypotheses:
        return []
    from dragoman.evaluation.pairwise_similarity import (  # and with it sacreBLEU, which few searches need
        pairwise_bleu,
        pairwise_chrf,
    )

    logarithms = np.array([one.log_prob if decoding.method == "beam" else 0.0 for one in hypotheses])
    weights = np.exp(logarithms - logarithms.max())
    first: dict[str, int] = {}
    place = [first.setdefault(text, len(first)) for text in texts]
    weight = np.bincount(place, weights=weights) / weights.sum()
    different = list(first)
    utility = (
        pairwise_chrf(different)
        if decoding.mbr == "chrf"
        else pairwise_bleu(different, tokenize="none" if tokenised else "13a")
    )
    expected = utility @ weight
    valued = [replace(one, utility=float(expected[at])) for one, at in zip(hypotheses, place, strict=True)]
    ranked = sorted(range(len(valued)), key=lambda at: (-valued[at].finished, -expected[place[at]], -valued[at].score))
    best: dict[str, Hypothesis] = {}
    for at in ranked:  # one text may come in several pieces, or cut and whole
        best.setdefault(texts[at], valued[at])
    return list(best.values())[: decoding.nbest]
