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
from dragoman.evaluation.bootstrap import LEVEL, Resampled, compare_resampled
from dragoman.paper.table3_rows import SERIES, PaperRow
from dragoman.viz import Panel, Series, learning_curve

Metric = Literal["perplexity", "bleu"]
Outcome = Literal["held", "reversed", "within the spread", "under the noise", "one seed"]
"""What came of a printed ordering:

    held                 the row that is printed as the better was better, beyond the spread of the seeds
    reversed             it was worse, beyond the spread
    within the spread    other seeds might have turned it round
    under the noise      other sentences might have: by paired bootstrap, which only BLEU has
    one seed             there is no spread to tell it from chance
"""

_MOST_STEPS = 2**31 - 1


@dataclass(frozen=True)
class Budget:
    """What each row may spend: updates, or minutes of training."""

    steps: int | None = None
    minutes: float | None = None

    def knobs(self) -> dict[str, Any]:
        return {"max_steps": self.steps or _MOST_STEPS, "max_minutes": self.minutes}

    def __str__(self) -> str:
        return f"{self.steps:,} steps" if self.steps is not None else f"{self.minutes:g} min"


def read_budget(text: str) -> Budget:
    """Such as 2000, 2000steps or 10min. Raises RecipeError for anything else, and for one too small to train one step."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(steps?|min(?:utes?)?|)\s*", text)
    if found is None:
        raise RecipeError(f"--budget {text!r}: give steps, such as 2000, or minutes, such as 10min")
    number, unit = float(found[1]), found[2]
    if unit.startswith("min"):
        if number == 0:
            raise RecipeError(f"--budget {text!r} is too small to train one step; give more minutes")
        return Budget(minutes=number)
    if not number.is_integer() or not 1 <= number <= _MOST_STEPS:
        what = "is too small to train one step" if number < 1 else "is no number of steps"
        raise RecipeError(f"--budget {text!r} {what}; give a whole number from 1, or minutes, such as 10min")
    return Budget(steps=int(number))


@dataclass(frozen=True)
class Trained:
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
class Result:
    """A row over its seeds."""

    printed: PaperRow
    trained: Sequence[Trained]
    resampled: Sequence[Resampled] = ()
    """BLEU of each run over the draws of a bootstrap; none where not every run kept its translations."""

    def values(self, metric: Metric) -> list[float]:
        return [getattr(one, metric) for one in self.trained]

    def mean(self, metric: Metric) -> float:
        return fmean(self.values(metric))

    def spread(self, metric: Metric) -> float | None:
        """Standard deviation over the seeds; none of a single one."""
        values = self.values(metric)
        return stdev(values) if len(values) > 1 else None

    @property
    def parameters(self) -> int:
        return self.trained[0].parameters

    @property
    def steps(self) -> float:
        """Of the mean seed."""
        return fmean(one.steps for one in self.trained)

    @property
    def seconds(self) -> float:
        """Of the mean seed."""
        return fmean(one.seconds for one in self.trained)


@dataclass(frozen=True)
class Ordering:
    """Two rows of a series of which one is printed as the better, and what came out."""

    series: str
    metric: Metric
    better: str
    worse: str
    printed: float
    """By how much, as printed; above 0."""
    measured: float
    """By how much the one printed as better was better; below 0 where it was worse."""
    spread: float | None
    """Of that difference: the root of the sum of both rows' squared standard deviations."""
    p_value: float | None = None
    """Of BLEU, by paired bootstrap of the sentences, over the mean of the seeds."""

    @property
    def outcome(self) -> Outcome:
        if self.p_value is not None and self.p_value >= LEVEL:
            return "under the noise"
        if self.spread is None:
            return "one seed"
        if abs(self.measured) <= self.spread:
            return "within the spread"
        return "held" if self.measured > 0 else "reversed"


@dataclass(frozen=True)
class Table3:
    """The whole table."""

    corpus: str
    scale: str
    budget: Budget
    seeds: int
    results: Sequence[Result]
    remarks: Sequence[str] = ()
    """What a reader should know of how it came about."""

    @property
    def title(self) -> str:
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return f"Table 3: {self.corpus}, {self.scale} scale, {self.budget} a row, {seeds}"

    def orderings(self, metric: Metric) -> list[Ordering]:
        return [one for series, names in SERIES.items() for one in _orderings(series, names, metric, self.results)]

    def as_json(self) -> dict[str, Any]:
        return {
            "table": 3,
            "corpus": self.corpus,
            "scale": self.scale,
            "budget": str(self.budget),
            "seeds": self.seeds,
            "rows": [
                {
                    "printed": asdict(one.printed),
                    "parameters": one.parameters,
                    **{name: {"mean": one.mean(name), "spread": one.spread(name)} for name in ("perplexity", "bleu")},
                    "runs": [asdict(each) for each in one.trained],
                }
                for one in self.results
            ],
            "orderings": [
                {**asdict(one), "outcome": one.outcome} for metric in ("perplexity", "bleu") for one in self.orderings(metric)
            ],
            "remarks": list(self.remarks),
        }


def _orderings(series: str, names: Sequence[str], metric: Metric, results: Sequence[Result]) -> Iterator[Ordering]:
    """Of every two rows of a series that were trained and are not printed as equal."""
    known = [one for one in results if one.printed.name in names]
    sign = -1.0 if metric == "perplexity" else 1.0
    for first, second in combinations(known, 2):
        printed = sign * (getattr(first.printed, metric) - getattr(second.printed, metric))
        if printed == 0:
            continue
        better, worse = (first, second) if printed > 0 else (second, first)
        spreads = [one for one in (better.spread(metric), worse.spread(metric)) if one is not None]
        spread = math.hypot(*spreads) if len(spreads) == 2 else None
        measured = sign * (better.mean(metric) - worse.mean(metric))
        p_value = None
        if metric == "bleu" and better.resampled and worse.resampled:
            p_value = compare_resampled(better.resampled, worse.resampled).p_value
        yield Ordering(series, metric, better.printed.name, worse.printed.name, abs(printed), measured, spread, p_value)


def picture(table: Table3) -> str:
    """Every row's perplexity and BLEU over the printed ones, a line for each series, as an SVG."""
    by_name = {one.printed.name: one for one in table.results}

    def series(metric: Metric) -> list[Series]:
        found = []
        for name, rows in SERIES.items():
            points = sorted((by_name[row].printed.perplexity, by_name[row].mean(metric)) for row in rows if row in by_name)
            found += [Series(name, points)] if len(points) > 1 else []
        return found or [Series("base", [(one.printed.perplexity, one.mean(metric)) for one in table.results])]

    return learning_curve(
        [Panel("perplexity, measured", series("perplexity")), Panel("BLEU, measured", series("bleu"))],
        title=table.title,
        x_label="perplexity of the row, as printed",
        panel_height=260,
    )
