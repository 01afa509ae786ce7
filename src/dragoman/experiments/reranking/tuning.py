"""Tuning of the weights that rerank n-best lists, on the corpus score of the hypotheses that they select."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DataError
from dragoman.evaluation.bootstrap import build_metric

FloatArray = NDArray[np.float64]
MAX_ROUNDS = 10
"""Most passes over all weights; the search ends earlier if no weight improves the score."""


@dataclass(frozen=True)
class TunedWeights:
    """Result of the tuning.

    weights: one for each feature but the first, whose weight is 1
    score: corpus score with these weights
    first_score: corpus score with the first feature alone
    """

    weights: tuple[float, ...]
    score: float
    first_score: float


def select_best(features_CF: FloatArray, weights: Sequence[float]) -> int:
    """Return the candidate with the highest sum of its features, the first with weight 1; the earliest of equal ones."""
    return int(np.argmax(features_CF @ np.array([1.0, *weights])))


def tune_weights(
    candidates: Sequence[Sequence[str]],
    features: Sequence[FloatArray],
    references: Sequence[str],
    grids: Sequence[Sequence[float]],
    *,
    metric: str = "bleu",
    tokenize: str = "13a",
) -> TunedWeights:
    """Return the weights with the highest corpus score: a search over one grid at a time, until no weight improves it.

    candidates: texts of each line
    features: one matrix for each line, a row for each candidate (C, F)
    grids: values of each weight but the first feature's, 0 among them
    metric, tokenize: see `resample`; "ter" counts edits, so the lowest is best

    Raises DataError for a line without candidates, and for unequal numbers of lines.
    """
    if not candidates or not len(candidates) == len(features) == len(references) or not all(candidates):
        raise DataError(
            f"tuning: {len(candidates)} lines of candidates and {len(references)} references; give at least one candidate and "
            "one reference for each line",
            code="length-mismatch",
        )
    scorer, sign = build_metric(metric, tokenize), -1.0 if metric == "ter" else 1.0
    lines = [(text, reference) for texts, reference in zip(candidates, references, strict=True) for text in texts]
    counts = np.array(
        scorer._extract_corpus_statistics([text for text, _ in lines], [[reference for _, reference in lines]]),
        dtype=np.float64,
    )
    offsets = np.cumsum([0, *map(len, candidates)])[:-1]

    def compute_score(weights: Sequence[float]) -> float:
        rows = offsets + [select_best(features_CF, weights) for features_CF in features]
        return float(scorer._compute_score_from_stats(counts[rows].sum(axis=0).tolist()).score)

    weights = [0.0] * len(grids)
    first_score = score = compute_score(weights)
    for _ in range(MAX_ROUNDS):
        previous = score
        for position, grid in enumerate(grids):
            for value in grid:
                trial = [*weights[:position], value, *weights[position + 1 :]]
                if sign * (trial_score := compute_score(trial)) > sign * score:
                    weights, score = trial, trial_score
        if score == previous:
            break
    return TunedWeights(tuple(weights), score, first_score)
