"""Paired bootstrap resampling: the significance of the difference between two systems on one test set.

Each resample draws as many sentences as the test set has, with replacement, and scores both systems on them (Koehn 2004,
"Statistical Significance Tests for Machine Translation Evaluation"). sacreBLEU's own paired test reads its seed from the
environment and has no interval of the difference. It also reports a significant difference between a system and itself
(p = 1 / (resamples + 1)).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DataError, RecipeError
from dragoman.evaluation.metrics import Score, bleu_metric, check_lines, ter_metric, to_score, tokenized_bleu_metric

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

SIGNIFICANCE_LEVEL = 0.05
SMALL_TEST_SET = 300
"""Number of sentences in the smallest test sets of Koehn's study."""
MIN_RESAMPLES = 40  # the smallest p-value is 2 / (resamples + 1), which must be below SIGNIFICANCE_LEVEL


@dataclass(frozen=True, slots=True)
class SystemComparison:
    """Comparison of two systems on one test set.

    a, b: scores of the two systems
    difference: a − b
    interval: the central 95 % of the differences over the resamples
    p_value: two-sided
    """

    a: Score
    b: Score
    difference: float
    interval: tuple[float, float]
    p_value: float
    resamples: int
    seed: int
    signature: str
    lower_is_better: bool

    @property
    def is_significant(self) -> bool:
        """Return whether the p-value is below `SIGNIFICANCE_LEVEL`."""
        return self.p_value < SIGNIFICANCE_LEVEL

    def describe(self, a: str = "A", b: str = "B") -> str:
        """Return the comparison as one sentence that names the systems `a` and `b`."""
        better, worse = (a, b) if (self.difference < 0) == self.lower_is_better else (b, a)
        claim = f"{better} is better than {worse}" if self.is_significant else "The difference is not significant"
        low, high = self.interval
        return (
            f"{claim}: {self.a.name} of {a} {self.a.value:.2f}, of {b} {self.b.value:.2f}, difference "
            f"{self.difference:+.2f} (95 % interval {low:+.2f} to {high:+.2f}), p = {self.p_value:.3f}."
        )


def paired_bootstrap(
    hypotheses_a: Sequence[str],
    hypotheses_b: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    metric: str = "bleu",
    tokenize: str = "13a",
    splits_characters: bool = False,
    resamples: int = 1000,
    seed: int = 1,
) -> SystemComparison:
    """Compare two systems by a metric.

    metric: "bleu" (with `tokenize`), "chrf", "chrf++" or "ter"
    tokenize: sacreBLEU's tokenizer for BLEU. "none" scores as `tokenized_bleu` does; for Moses tokens, pass the lines through
        `moses_tokenize` first
    splits_characters: TER counts each Chinese character and kana as a token

    The p-value is two-sided, because no direction is fixed in advance. It is twice the fraction of resamples in which the
    better system is not ahead, the number that Koehn reports (Efron and Tibshirani 1993, chapter 15). So p < 0.05 if the
    interval excludes zero, up to rounding, and equal systems have p = 1. One is added to the count and to the number of
    resamples, so that p is never zero (Phipson and Smyth 2010).

    The p-values are too small for a test set of fewer than `SMALL_TEST_SET` sentences. Raises DataError for one sentence.
    """
    if len(hypotheses_a) == 1:
        raise DataError("paired bootstrap: the test set has 1 sentence; use a test set of several hundred sentences")
    check_lines(hypotheses_a, references, "system A: ")
    check_lines(hypotheses_b, references, "system B: ")
    a, b = (
        resample(
            lines,
            references,
            metric=metric,
            tokenize=tokenize,
            splits_characters=splits_characters,
            resamples=resamples,
            seed=seed,
        )
        for lines in (hypotheses_a, hypotheses_b)
    )
    return compare_resampled([a], [b])


@dataclass(frozen=True, slots=True, eq=False)
class ResampledScore:
    """Score of one system, and its scores on the resamples; all systems on a test set have the same resamples."""

    score: Score
    resampled_values: NDArray[np.float64]
    seed: int
    lower_is_better: bool


def resample(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    metric: str = "bleu",
    tokenize: str = "13a",
    splits_characters: bool = False,
    resamples: int = 1000,
    seed: int = 1,
) -> ResampledScore:
    """Score a system's lines and `resamples` resamples of them; see `paired_bootstrap`."""
    _check_resamples(resamples)
    check_lines(hypotheses, references)
    scorer = build_metric(metric, tokenize, splits_characters=splits_characters)
    # Only these two methods expose the counts of each sentence; sacreBLEU's own paired test calls them, too.
    counts = np.array(scorer._extract_corpus_statistics(hypotheses, references), dtype=np.float64)

    def compute_score(sums: NDArray[np.float64]) -> Score:
        return to_score(scorer, scorer._compute_score_from_stats(sums.tolist()))

    return ResampledScore(
        compute_score(counts.sum(axis=0)),
        np.array([compute_score(counts[draw].sum(axis=0)).value for draw in _draw_resamples(len(hypotheses), resamples, seed)]),
        seed,
        lower_is_better=metric == "ter",
    )


def resample_mean(score: Score, segment_values: Sequence[float], *, resamples: int = 1000, seed: int = 1) -> ResampledScore:
    """Return the resamples of a metric that is the mean of the values of its segments, such as COMET. Higher is better."""
    _check_resamples(resamples)
    values = np.asarray(segment_values, dtype=np.float64)
    draws = _draw_resamples(len(values), resamples, seed)
    return ResampledScore(score, np.array([values[draw].mean() for draw in draws]), seed, lower_is_better=False)


def _check_resamples(resamples: int) -> None:
    if resamples < MIN_RESAMPLES:
        raise RecipeError(
            f"resamples = {resamples}: too few to show p < {SIGNIFICANCE_LEVEL}; use {MIN_RESAMPLES} or more",
            code="invalid-option",
        )


def _draw_resamples(num_sentences: int, resamples: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield the sentences of each resample, the same ones for all systems on a test set."""
    generator = np.random.default_rng(seed)
    return (generator.integers(num_sentences, size=num_sentences) for _ in range(resamples))


def compare_resampled(runs_a: Sequence[ResampledScore], runs_b: Sequence[ResampledScore]) -> SystemComparison:
    """Compare the means over the runs of two systems, such as runs with several seeds.

    The resamples draw sentences only. The variation between seeds is not part of the p-value.
    """
    first_run = runs_a[0]
    a, b = (replace(runs[0].score, value=float(np.mean([run.score.value for run in runs]))) for runs in (runs_a, runs_b))
    differences = np.mean([run.resampled_values for run in runs_a], axis=0) - np.mean(
        [run.resampled_values for run in runs_b], axis=0
    )
    low, high = np.quantile(differences, [SIGNIFICANCE_LEVEL / 2, 1 - SIGNIFICANCE_LEVEL / 2]).tolist()
    num_not_leading = int(min((differences <= 0).sum(), (differences >= 0).sum()))
    resamples = len(differences)
    return SystemComparison(
        a=a,
        b=b,
        difference=a.value - b.value,
        interval=(low, high),
        p_value=min(1.0, 2 * (1 + num_not_leading) / (1 + resamples)),
        resamples=resamples,
        seed=first_run.seed,
        signature=f"{a.signature}|bs:{resamples}|seed:{first_run.seed}|p:two-sided",
        lower_is_better=first_run.lower_is_better,
    )


def build_metric(metric: str, tokenize: str, *, splits_characters: bool = False) -> Metric:
    """Return sacreBLEU's metric of this name; see `paired_bootstrap`. Raises RecipeError for an unknown name."""
    from sacrebleu.metrics.chrf import CHRF  # a server imports this module for its outputs

    match metric:
        case "bleu":
            return tokenized_bleu_metric() if tokenize == "none" else bleu_metric(tokenize)
        case "chrf":
            return CHRF()
        case "chrf++":
            return CHRF(word_order=2)
        case "ter":
            return ter_metric(splits_characters=splits_characters)
        case _:
            raise RecipeError(f"metric = {metric!r}: unknown metric; use bleu, chrf, chrf++ or ter", code="unknown-metric")
