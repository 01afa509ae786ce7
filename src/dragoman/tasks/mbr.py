"""Minimum Bayes risk decoding: choose the hypothesis that is most similar to all hypotheses (Kumar and Byrne 2004).

The expected utility of hypothesis h is the sum over hypotheses e of p(e) · utility(h, e). Samples all have the same weight,
because the model drew them (Eikema and Aziz 2020). Hypotheses of a beam are weighted by their probability within the beam.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dragoman.config import DecodingConfig, update_section
from dragoman.decoding.hypothesis import Hypothesis


def build_candidate_search(decoding: DecodingConfig) -> DecodingConfig:
    """Return the decoding settings that produce the candidates for MBR or for the coverage penalty."""
    if decoding.coverage_penalty:
        return update_section(decoding, {"nbest": decoding.beam_size}, where="decoding")
    if decoding.mbr == "none":
        return decoding
    return update_section(
        decoding,
        {"mbr": "none", "mbr_candidates": None, "mbr_model": None, "nbest": decoding.effective_mbr_candidates},
        where="decoding",
    )


UtilityFn = Callable[[int, Sequence[str]], NDArray[np.float64]]
"""(index of a line, distinct texts) → similarity in percent of each text to each other one as its reference. (N, N)"""


def rerank_by_mbr(
    hypotheses: Sequence[Hypothesis],
    texts: Sequence[str],
    decoding: DecodingConfig,
    *,
    bleu_tokenizer: str,
    compute_utility: Callable[[Sequence[str]], NDArray[np.float64]] | None = None,
) -> list[Hypothesis]:
    """Return the `nbest` hypotheses with the highest expected utility, best first, each text once.

    Finished hypotheses rank before unfinished ones.

    texts: text of each hypothesis
    bleu_tokenizer: sacreBLEU's tokenizer, for BLEU
    compute_utility: utility of the distinct texts, for a metric that is neither chrF nor BLEU
    """
    if not hypotheses:
        return []
    # Imported late because it imports sacreBLEU, which few searches need.
    from dragoman.evaluation.pairwise_similarity import pairwise_bleu, pairwise_chrf

    log_weights = np.array([hypothesis.log_prob if decoding.method == "beam" else 0.0 for hypothesis in hypotheses])
    weights = np.exp(log_weights - log_weights.max())
    index_by_text: dict[str, int] = {}
    text_indices = [index_by_text.setdefault(text, len(index_by_text)) for text in texts]
    text_weights = np.bincount(text_indices, weights=weights) / weights.sum()
    unique_texts = list(index_by_text)
    if compute_utility is not None:
        utility = compute_utility(unique_texts)
    elif decoding.mbr == "chrf":
        utility = pairwise_chrf(unique_texts)
    else:
        utility = pairwise_bleu(unique_texts, tokenize=bleu_tokenizer)
    expected_utility = utility @ text_weights
    scored = [
        replace(hypothesis, mbr_score=float(expected_utility[text_index]))
        for hypothesis, text_index in zip(hypotheses, text_indices, strict=True)
    ]
    ranked = sorted(
        range(len(scored)),
        key=lambda index: (-scored[index].finished, -expected_utility[text_indices[index]], -scored[index].score),
    )
    best: dict[str, Hypothesis] = {}
    for index in ranked:  # several tokenizations, finished or not, may have the same text
        best.setdefault(texts[index], scored[index])
    return list(best.values())[: decoding.nbest]
