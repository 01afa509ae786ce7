"""Scores on each test set, for a fine-tuned model beside those of the initial model, with paired bootstrap.

Both models translate with the decoding settings of the recipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.config import TaskConfig, TokenizerConfig
from dragoman.evaluation.bleu_tokenizer import get_task_bleu_tokenizer
from dragoman.evaluation.bootstrap import SIGNIFICANCE_LEVEL, SMALL_TEST_SET, paired_bootstrap
from dragoman.formats.pair import Pair
from dragoman.training.validation import EvaluationResult, get_references, with_pair_languages

COMPARED_METRICS = ("bleu", "chrf")


@dataclass(frozen=True)
class ScoreChange:
    """Difference of a score between the fine-tuned model and the initial one; see `SystemComparison`."""

    before: float
    after: float
    difference: float
    low: float
    high: float
    p_value: float

    def describe(self) -> str:
        """Return the change on one line."""
        claim = "" if self.p_value < SIGNIFICANCE_LEVEL else ", not significant"
        return (
            f"{self.before:.2f} → {self.after:.2f} ({self.difference:+.2f}, 95 % interval {self.low:+.2f} to {self.high:+.2f}, "
            f"p = {self.p_value:.3f}{claim})"
        )


@dataclass(frozen=True)
class TestSetReport:
    """Scores on one test set in percent.

    scores: scores of the model by metric
    changes: comparison with the initial model by metric; None for a run without one, for a parser, and for one sentence
    is_small: the p-values are too small, because the set has fewer than `SMALL_TEST_SET` sentences
    """

    __test__ = False  # for pytest

    sentences: int
    scores: dict[str, float]
    changes: dict[str, ScoreChange] | None = None
    is_small: bool = False


def build_test_set_report(
    task: TaskConfig,
    tokenizer: TokenizerConfig,
    pairs: Sequence[Pair],
    after: EvaluationResult,
    before: EvaluationResult | None,
) -> TestSetReport:
    """Return the report of one test set.

    after, before: results of the model and of the initial model
    """
    task = with_pair_languages(task, pairs)
    scores = {name: round(score.value, 2) for name, score in after.scores.items()}
    if before is None or not task.has_text_target or len(pairs) < 2:
        return TestSetReport(len(pairs), scores)
    references = [get_references(pairs, tokenizer)]
    new, old = ([sample.translation for sample in result.samples] for result in (after, before))
    changes = {}
    for metric in COMPARED_METRICS:
        comparison = paired_bootstrap(new, old, references, metric=metric, tokenize=get_task_bleu_tokenizer(task))
        changes[metric] = ScoreChange(
            before=round(comparison.b.value, 2),
            after=round(comparison.a.value, 2),
            difference=round(comparison.difference, 2),
            low=round(comparison.interval[0], 2),
            high=round(comparison.interval[1], 2),
            p_value=round(comparison.p_value, 4),
        )
    return TestSetReport(len(pairs), scores, changes, is_small=len(pairs) < SMALL_TEST_SET)
