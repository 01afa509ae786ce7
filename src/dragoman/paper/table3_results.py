"""What Table 3 came to: rows over their seeds, and which of the printed orderings came out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import fmean, stdev
from typing import Any, Literal

from dragoman.errors import RecipeError
from dragoman.evaluation.bootstrap import SIGNIFICANCE_LEVEL, ResampledScore, compare_resampled
from dragoman.paper.table3_rows import ROW_SERIES, PaperRow
from dragoman.viz import Panel, Series, render_learning_curve

Metric = Literal["perplexity", "bleu"]
OrderingOutcome = Literal["held", "reversed", "within the spread", "under the noise", "one seed"]
"""What came of a printed ordering:

    held                 the row that is printed as the better was better, beyond the spread of the seeds
    reversed             it was worse, beyond the spread
    within the spread    other seeds might have turned it round
    under the noise      other sentences might have: by paired bootstrap, which only BLEU has
    one seed             there is no spread to tell it from chance
"""

_MAX_STEPS = 2**31 - 1


@dataclass(frozen=True)
class Budget:
    """What each row may spend: updates, or minutes of training."""

    steps: int | None = None
    minutes: float | None = None

    def to_training_settings(self) -> dict[str, Any]:
        return {"max_steps": self.steps or _MAX_STEPS, "max_minutes": self.minutes}

    def __str__(self) -> str:
        return f"{self.steps:,} steps" if self.steps is not None else f"{self.minutes:g} min"


def parse_budget(text: str) -> Budget:
    """Such as 2000, 2000steps or 10min. Raises RecipeError for anything else, and for one too small to train one step."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(steps?|min(?:utes?)?|)\s*", text)
    if match is None:
        raise RecipeError(f"--budget {text!r}: give steps, such as 2000, or minutes, such as 10min")
    amount, unit = float(match[1]), match[2]
    if unit.startswith("min"):
        if amount == 0:
            raise RecipeError(f"--budget {text!r} is too small to train one step; give more minutes")
        return Budget(minutes=amount)
    if not amount.is_integer() or not 1 <= amount <= _MAX_STEPS:
        problem = "is too small to train one step" if amount < 1 else "is no number of steps"
        raise RecipeError(f"--budget {text!r} {problem}; give a whole number from 1, or minutes, such as 10min")
    return Budget(steps=int(amount))


@dataclass(frozen=True)
class TrainedRow:
    """A row with one seed, as its report tells it."""

    row: str
    seed: int
    perplexity: float
    """Per word-piece of the validation set, un-smoothed."""
    bleu: float
    signature: str
    parameters: int
    steps: int
    seconds: float


@dataclass(frozen=True)
class Table3Result:
    """A row over its seeds."""

    paper_row: PaperRow
    trained_rows: Sequence[TrainedRow]
    resampled_bleu: Sequence[ResampledScore] = ()
    """BLEU of each run over the draws of a bootstrap; none where not every run kept its translations."""

    def values(self, metric: Metric) -> list[float]:
        return [getattr(trained, metric) for trained in self.trained_rows]

    def mean(self, metric: Metric) -> float:
        return fmean(self.values(metric))

    def std(self, metric: Metric) -> float | None:
        """Standard deviation over the seeds; none of a single one."""
        values = self.values(metric)
        return stdev(values) if len(values) > 1 else None

    @property
    def parameters(self) -> int:
        return self.trained_rows[0].parameters

    @property
    def steps(self) -> float:
        """Of the mean seed."""
        return fmean(trained.steps for trained in self.trained_rows)

    @property
    def seconds(self) -> float:
        """Of the mean seed."""
        return fmean(trained.seconds for trained in self.trained_rows)


@dataclass(frozen=True)
class Ordering:
    """Two rows of a series of which one is printed as the better, and what came out."""

    series: str
    metric: Metric
    better_row: str
    worse_row: str
    paper_margin: float
    """By how much, as printed; above 0."""
    measured_margin: float
    """By how much the one printed as better was better; below 0 where it was worse."""
    margin_std: float | None
    """Of that difference: the root of the sum of both rows' squared standard deviations."""
    p_value: float | None = None
    """Of BLEU, by paired bootstrap of the sentences, over the mean of the seeds."""

    @property
    def outcome(self) -> OrderingOutcome:
        if self.p_value is not None and self.p_value >= SIGNIFICANCE_LEVEL:
            return "under the noise"
        if self.margin_std is None:
            return "one seed"
        if abs(self.measured_margin) <= self.margin_std:
            return "within the spread"
        return "held" if self.measured_margin > 0 else "reversed"


@dataclass(frozen=True)
class Table3:
    """The whole table."""

    corpus: str
    scale: str
    budget: Budget
    seeds: int
    results: Sequence[Table3Result]
    remarks: Sequence[str] = ()
    """What a reader should know of how it came about."""

    @property
    def title(self) -> str:
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return f"Table 3: {self.corpus}, {self.scale} scale, {self.budget} a row, {seeds}"

    def compare_rows(self, metric: Metric) -> list[Ordering]:
        return [
            ordering
            for series, names in ROW_SERIES.items()
            for ordering in _compare_series(series, names, metric, self.results)
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "table": 3,
            "corpus": self.corpus,
            "scale": self.scale,
            "budget": str(self.budget),
            "seeds": self.seeds,
            "rows": [
                {
                    "printed": asdict(result.paper_row),
                    "parameters": result.parameters,
                    **{name: {"mean": result.mean(name), "spread": result.std(name)} for name in ("perplexity", "bleu")},
                    "runs": [asdict(trained) for trained in result.trained_rows],
                }
                for result in self.results
            ],
            "orderings": [
                {**asdict(ordering), "outcome": ordering.outcome}
                for metric in ("perplexity", "bleu")
                for ordering in self.compare_rows(metric)
            ],
            "remarks": list(self.remarks),
        }


def _compare_series(series: str, names: Sequence[str], metric: Metric, results: Sequence[Table3Result]) -> Iterator[Ordering]:
    """Of every two rows of a series that were trained and are not printed as equal."""
    series_results = [result for result in results if result.paper_row.name in names]
    sign = -1.0 if metric == "perplexity" else 1.0
    for first, second in combinations(series_results, 2):
        paper_margin = sign * (getattr(first.paper_row, metric) - getattr(second.paper_row, metric))
        if paper_margin == 0:
            continue
        better, worse = (first, second) if paper_margin > 0 else (second, first)
        stds = [std for std in (better.std(metric), worse.std(metric)) if std is not None]
        margin_std = math.hypot(*stds) if len(stds) == 2 else None
        measured_margin = sign * (better.mean(metric) - worse.mean(metric))
        p_value = None
        if metric == "bleu" and better.resampled_bleu and worse.resampled_bleu:
            p_value = compare_resampled(better.resampled_bleu, worse.resampled_bleu).p_value
        yield Ordering(
            series, metric, better.paper_row.name, worse.paper_row.name, abs(paper_margin), measured_margin, margin_std, p_value
        )


def draw_table3(table: Table3) -> str:
    """Every row's perplexity and BLEU over the printed ones, a line for each series, as an SVG."""
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
