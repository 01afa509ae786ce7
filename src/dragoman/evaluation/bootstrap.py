"""Is one system better than another, or is the difference an accident of this test set?

Paired bootstrap resampling (Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation"): draw as
many sentences as the test set has, with replacement, score both systems on the draw, and repeat. sacreBLEU's own paired
test is not used: it takes its seed from the environment, gives no interval of the difference, and finds a system
significantly different from itself (p = 1 / (resamples + 1)).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from dragoman.errors import DataError, RecipeError
from dragoman.evaluation.metrics import Score, bleu_metric, check_lines, tokenized_bleu_metric

SIGNIFICANCE_LEVEL = 0.05
SMALL_TEST_SET = 300
"""Sentences of the smallest test sets that Koehn looked at."""
MIN_RESAMPLES = 40  # the smallest p-value is 2 / (resamples + 1): with fewer, none could be under LEVEL


@dataclass(frozen=True, slots=True)
class SystemComparison:
    """Two systems on one test set. `difference` is a - b; `interval` holds the middle 95 % of it over the resamples."""

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
        return self.p_value < SIGNIFICANCE_LEVEL

    def describe(self, a: str = "A", b: str = "B") -> str:
        """One sentence for people, with the systems called `a` and `b`."""
        better, worse = (a, b) if (self.difference < 0) == self.lower_is_better else (b, a)
        claim = f"{better} is better than {worse}" if self.is_significant else "The difference is under the noise"
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
    resamples: int = 1000,
    seed: int = 1,
) -> SystemComparison:
    """Compare two systems by `metric`: "bleu" (with `tokenize`), "chrf", "chrf++" or "ter".

    The p-value is two-sided, for nobody said beforehand which system would win: the share of resamples in which the
    leader does not lead, which Koehn reports, doubled (Efron and Tibshirani 1993, chapter 15). So p < 0.05 where the
    interval leaves out zero, but for rounding, and equal systems have p = 1. One is added to the count and to the
    resamples, so that p is never zero (Phipson and Smyth 2010).

    A test set of fewer than `FEW` sentences makes any bootstrap too sure; of one, each draw is the same, and DataError is
    raised. `tokenize="none"` counts as `tokenised_bleu` does: for Moses tokens, pass the lines through `moses_tokenise`.
    """
    if len(hypotheses_a) == 1:
        raise DataError("one sentence alone cannot be drawn from: a difference takes a test set, of some hundreds at best")
    check_lines(hypotheses_a, references, "system A: ")
    check_lines(hypotheses_b, references, "system B: ")
    a, b = (
        resample(lines, references, metric=metric, tokenize=tokenize, resamples=resamples, seed=seed)
        for lines in (hypotheses_a, hypotheses_b)
    )
    return compare_resampled([a], [b])


@dataclass(frozen=True, slots=True, eq=False)
class ResampledScore:
    """A system's score, and its scores over the draws of a bootstrap: the same draws for every system of a test set."""

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
    resamples: int = 1000,
    seed: int = 1,
) -> ResampledScore:
    """Score a system's lines, and that many draws of them; see `paired_bootstrap`."""
    if resamples < MIN_RESAMPLES:
        raise RecipeError(f"{resamples} resamples cannot show p < {SIGNIFICANCE_LEVEL}: ask for {MIN_RESAMPLES} or more")
    check_lines(hypotheses, references)
    scorer = _build_metric(metric, tokenize)
    # Only these two methods give and take a sentence's counts; sacreBLEU's own paired test stands on them too.
    counts = np.array(scorer._extract_corpus_statistics(hypotheses, references), dtype=np.float64)

    def compute_score(sums: NDArray[np.float64]) -> Score:
        result = scorer._compute_score_from_stats(sums.tolist())
        return Score(result.name, result.score, str(scorer.get_signature()))

    num_sentences = len(hypotheses)
    generator = np.random.default_rng(seed)
    draws = (generator.integers(num_sentences, size=num_sentences) for _ in range(resamples))
    return ResampledScore(
        compute_score(counts.sum(axis=0)),
        np.array([compute_score(counts[draw].sum(axis=0)).value for draw in draws]),
        seed,
        lower_is_better=metric == "ter",
    )


def compare_resampled(runs_a: Sequence[ResampledScore], runs_b: Sequence[ResampledScore]) -> SystemComparison:
    """Compare two systems by the mean of their runs, of several seeds for instance, each of one or more.

    What is drawn is sentences alone: whether other seeds would say the same, their spread tells.
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


def _build_metric(metric: str, tokenize: str) -> Metric:
    match metric:
        case "bleu":
            return tokenized_bleu_metric() if tokenize == "none" else bleu_metric(tokenize)
        case "chrf":
            return CHRF()
        case "chrf++":
            return CHRF(word_order=2)
        case "ter":
            return TER()
        case _:
            raise RecipeError(f"unknown metric {metric!r}: allowed are bleu, chrf, chrf++, ter")
