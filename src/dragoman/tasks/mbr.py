"""Minimum Bayes risk: of some hypotheses the one that is most like all of them (Kumar and Byrne 2004).

What is expected of hypothesis h is the sum over hypotheses e of p(e) · utility(h, e). Of samples each counts the same, since
the model drew them (Eikema and Aziz 2020); of a beam each counts by its probability among those that were found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dragoman.config import DecodingConfig, update_section
from dragoman.decoding.hypothesis import Hypothesis


def build_candidate_search(decoding: DecodingConfig) -> DecodingConfig:
    """The search for what is to be compared."""
    if decoding.mbr == "none":
        return decoding
    return update_section(
        decoding, {"mbr": "none", "mbr_candidates": None, "nbest": decoding.effective_mbr_candidates}, where="decoding"
    )


def rerank_by_mbr(
    hypotheses: Sequence[Hypothesis], texts: Sequence[str], decoding: DecodingConfig, *, tokenized: bool
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

    log_weights = np.array([hypothesis.log_prob if decoding.method == "beam" else 0.0 for hypothesis in hypotheses])
    weights = np.exp(log_weights - log_weights.max())
    index_by_text: dict[str, int] = {}
    text_indices = [index_by_text.setdefault(text, len(index_by_text)) for text in texts]
    text_weights = np.bincount(text_indices, weights=weights) / weights.sum()
    unique_texts = list(index_by_text)
    utility = (
        pairwise_chrf(unique_texts)
        if decoding.mbr == "chrf"
        else pairwise_bleu(unique_texts, tokenize="none" if tokenized else "13a")
    )
    expected_utility = utility @ text_weights
    scored = [
        replace(hypothesis, utility=float(expected_utility[text_index]))
        for hypothesis, text_index in zip(hypotheses, text_indices, strict=True)
    ]
    ranked = sorted(
        range(len(scored)),
        key=lambda index: (-scored[index].finished, -expected_utility[text_indices[index]], -scored[index].score),
    )
    best: dict[str, Hypothesis] = {}
    for index in ranked:  # one text may come in several pieces, or cut and whole
        best.setdefault(texts[index], scored[index])
    return list(best.values())[: decoding.nbest]
