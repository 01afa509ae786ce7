"""Results of Table 3: rows over their seeds, and the comparison with the printed order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean, stdev
from typing import Literal

from dragoman.evaluation.bootstrap import SIGNIFICANCE_LEVEL, ResampledScore, compare_resampled
from dragoman.paper.budget import Budget
from dragoman.paper.table3_rows import ACCURACY_ROWS, ROW_SERIES, PaperRow
from dragoman.runtime.counts import format_count
from dragoman.viz.charts import Panel, Series, render_learning_curve

Metric = Literal["perplexity", "bleu", "token_accuracy"]
OrderingOutcome = Literal["held", "reversed", "within deviation", "not significant", "one seed"]
"""Outcome of a printed ordering:

    held                the better printed row is better by more than the standard deviation over the seeds
    reversed            it is worse by more than the standard deviation
    within deviation    the difference is smaller than the standard deviation
    not significant     the paired bootstrap over the sentences finds no difference; only for BLEU
    one seed            one seed has no standard deviation
"""


@dataclass(frozen=True)
class TrainedRow:
    """Results of a row with one seed, from its report."""

    row: str
    seed: int
    perplexity: float
    """Perplexity per subword token of the validation set, without label smoothing."""
    bleu: float
    signature: str
    parameters: int
    steps: int
    seconds: float
    token_accuracy: float | None = None
    """Percentage of the validation set's target tokens; None for a run of an earlier version."""


@dataclass(frozen=True)
class Table3Result:
    """Results of a row over its seeds."""

    paper_row: PaperRow
    trained_rows: Sequence[TrainedRow]
    resampled_bleu: Sequence[ResampledScore] = ()
    """BLEU of each run over the bootstrap samples; empty if a run has no translations."""

    def values(self, name: str) -> list[float]:
        """Return a field of `TrainedRow` for each seed."""
        return [getattr(trained, name) for trained in self.trained_rows]

    def mean(self, name: str) -> float:
        return fmean(self.values(name))

    def std(self, metric: Metric) -> float | None:
        """Return the standard deviation over the seeds, or None for one seed."""
        values = self.values(metric)
        return stdev(values) if len(values) > 1 else None

    def has(self, metric: Metric) -> bool:
        return None not in self.values(metric)

    @property
    def parameters(self) -> int:
        return self.trained_rows[0].parameters


@dataclass(frozen=True)
class Ordering:
    """Two rows of a series, of which one is printed as better, with the measured difference."""

    series: str
    metric: Metric
    better_row: str
    worse_row: str
    paper_margin: float | None
    """Printed difference, above 0; None for token accuracy, of which section 5.4 states the ordering only."""
    measured_margin: float
    """Measured difference; below 0 if the better printed row is worse."""
    margin_std: float | None
    """Standard deviation of the difference: the root of the sum of both rows' variances."""
    p_value: float | None = None
    """p-value of BLEU by paired bootstrap of the sentences, for the mean of the seeds."""
    outcome: OrderingOutcome = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "outcome", self._find_outcome())

    def _find_outcome(self) -> OrderingOutcome:
        if self.p_value is not None and self.p_value >= SIGNIFICANCE_LEVEL:
            return "not significant"
        if self.margin_std is None:
            return "one seed"
        if abs(self.measured_margin) <= self.margin_std:
            return "within deviation"
        return "held" if self.measured_margin > 0 else "reversed"


@dataclass(frozen=True)
class Table3:
    """Results of all rows."""

    corpus: str
    scale: str
    budget: Budget
    seeds: int
    results: Sequence[Table3Result]
    remarks: Sequence[str] = ()
    """Sentences about missing comparisons."""

    @property
    def title(self) -> str:
        """Return the corpus, the scale, the budget and the number of seeds as text."""
        return f"Table 3: {self.corpus}, {self.scale} scale, {self.budget} a row, {format_count(self.seeds, 'seed')}"

    def compare_rows(self, metric: Metric) -> list[Ordering]:
        """Return the orderings of all series by this metric."""
        return [
            ordering
            for series, names in ROW_SERIES.items()
            for ordering in _compare_series(series, names, metric, self.results)
        ]


def _compare_series(series: str, names: Sequence[str], metric: Metric, results: Sequence[Table3Result]) -> Iterator[Ordering]:
    """Yield the ordering of each two trained rows of a series that are not printed as equal."""
    series_results = [result for result in results if result.paper_row.name in names and result.has(metric)]
    sign = -1.0 if metric == "perplexity" else 1.0
    for first, second in combinations(series_results, 2):
        paper_margin: float | None = None
        if metric == "token_accuracy":
            is_stated = (first.paper_row.name, second.paper_row.name) == ACCURACY_ROWS
        else:
            paper_margin = sign * (getattr(first.paper_row, metric) - getattr(second.paper_row, metric))
            is_stated = paper_margin != 0
        if not is_stated:
            continue
        better, worse = (first, second) if paper_margin is None or paper_margin > 0 else (second, first)
        stds = [std for std in (better.std(metric), worse.std(metric)) if std is not None]
        margin_std = math.hypot(*stds) if len(stds) == 2 else None
        measured_margin = sign * (better.mean(metric) - worse.mean(metric))
        p_value = None
        if metric == "bleu" and better.resampled_bleu and worse.resampled_bleu:
            p_value = compare_resampled(better.resampled_bleu, worse.resampled_bleu).p_value
        names = better.paper_row.name, worse.paper_row.name
        printed = None if paper_margin is None else abs(paper_margin)
        yield Ordering(series, metric, *names, printed, measured_margin, margin_std, p_value)


def draw_table3(table: Table3) -> str:
    """Draw measured perplexity and BLEU over printed perplexity as an SVG, with one line for each series."""
    by_name = {result.paper_row.name: result for result in table.results}

    def build_series(metric: Metric) -> list[Series]:
        series_list = []
        for name, rows in ROW_SERIES.items():
            points = sorted((by_name[row].paper_row.perplexity, by_name[row].mean(metric)) for row in rows if row in by_name)
            series_list += [Series(name, points)] if len(points) > 1 else []
        return series_list or [Series("base", [(result.paper_row.perplexity, result.mean(metric)) for result in table.results])]

    return render_learning_curve(
        [Panel("perplexity, measured", build_series("perplexity")), Panel("BLEU, measured", build_series("bleu"))],
        title=table.title,
        x_label="perplexity of the row, as printed",
        panel_height=260,
    )
