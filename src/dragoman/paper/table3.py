"""Table 3 at any budget: every row trained alike over several seeds, and which of the printed orderings came out.

    FOLDER/base-seed1/  A-h1-seed1/  …      each a run folder as `dragoman train` makes it

A row that is done is not done again, one that was interrupted goes on, and a folder that was begun with another recipe or
another budget is refused before anything trains.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from dragoman.config import Recipe
from dragoman.data.prepare import MANIFEST
from dragoman.errors import OutputError, RecipeError, RunError
from dragoman.paper.rows import SERIES, PaperRow, Scale, row_recipe
from dragoman.storage import cannot_write
from dragoman.training.finish import train
from dragoman.training.listener import Listener
from dragoman.training.record import read_record
from dragoman.views import Panel, Series, learning_curve

Metric = Literal["perplexity", "bleu"]
Outcome = Literal["held", "reversed", "within the spread", "one seed"]

# What a row that stands there may differ in from the one that is asked for: where things are, and how much is told.
MAY_DIFFER = ("name", "run", "data.root", "data.processes", "data.loaders", "training.log_every_steps")
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

    @property
    def outcome(self) -> Outcome:
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
        yield Ordering(series, metric, better.printed.name, worse.printed.name, abs(printed), measured, spread)


def table3(
    plain: Recipe,
    *,
    rows: Sequence[PaperRow],
    scale_name: str,
    scale: Scale,
    budget: Budget,
    seeds: int,
    folder: Path,
    listener: Callable[[str], Listener],
) -> Table3:
    """Train what is not done yet, and put the table together.

    Raises RecipeError where the recipe or the budget is of no use, RunError where a row's folder was begun with another recipe.

    plain: the corpus's recipe
    listener: for the run that is told, such as "C-n2, seed 1 (8 of 60)"
    """
    wanted = [(row, seed) for seed in range(1, seeds + 1) for row in rows]
    recipes = {
        (row.name, seed): row_recipe(
            plain, row, scale=scale, seed=seed, budget=budget.knobs(), run=folder / f"{row.name}-seed{seed}"
        )
        for row, seed in wanted
    }
    for recipe in recipes.values():
        _refuse_another(recipe)
    done: dict[str, list[Trained]] = {row.name: [] for row in rows}
    for number, (row, seed) in enumerate(wanted, start=1):
        recipe = recipes[row.name, seed]
        report = _finished(Path(recipe.run))
        if report is None:
            _share_data(recipe, [Path(one.run) for (_, other), one in recipes.items() if other == seed])
            report = train(recipe, listener(f"{row.name}, seed {seed} ({number} of {len(wanted)})"))
        done[row.name].append(_trained(row.name, seed, report, budget))
    return Table3(plain.name, scale_name, budget, seeds, [Result(row, done[row.name]) for row in rows])


def _refuse_another(recipe: Recipe) -> None:
    """Raise RunError where the run's folder holds a run of another recipe, which would then be taken for this one."""
    folder = Path(recipe.run)
    if not (folder / "recipe.json").exists():
        return
    before, now = (dict(_flat(one.model_dump(mode="json"))) for one in (read_record(folder).recipe, recipe))
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key) and key not in MAY_DIFFER:
            raise RunError(
                f"{folder} was begun with another recipe: {key} was {before.get(key)!r} and is {now.get(key)!r}. Set it back, "
                "or start another table with --folder"
            )


def _flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _finished(folder: Path) -> dict[str, Any] | None:
    """The report of a run that came to its end; none of one that has to be trained, or trained on."""
    if not (folder / "recipe.json").exists() or not read_record(folder).finished:
        return None
    with suppress(OSError, ValueError, RecursionError):
        report = json.loads((folder / "report.json").read_bytes())
        if isinstance(report, dict) and {"valid", "bleu", "parameters", "steps", "seconds"} <= report.keys():
            return report
    return None


def _share_data(recipe: Recipe, others: Sequence[Path]) -> None:
    """Begin with what another row of this seed has prepared, which the run checks as if it were its own."""
    data = Path(recipe.run) / "data"
    prepared = next((one / "data" for one in others if (one / "data" / MANIFEST).is_file()), None)
    if prepared is None or data.exists():
        return
    partial = data.with_name(".data.copy")
    try:
        data.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(prepared, partial, copy_function=_linked)
        partial.rename(data)
    except OSError as error:
        raise OutputError(cannot_write(data, error)) from None


def _linked(source: str, target: str) -> None:
    """A second name for a file, which preparing replaces and never changes; a copy where the file system has no such thing."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _trained(row: str, seed: int, report: Mapping[str, Any], budget: Budget) -> Trained:
    seconds, steps = float(report["seconds"]), int(report["steps"])
    if budget.minutes is not None and steps <= 1 and seconds > 60.0 * budget.minutes:
        raise RecipeError(
            f"--budget {budget} is too small to train one step of {row}, which took {seconds:.1f} seconds; give more, and "
            "another --folder"
        )
    signature = report.get("signatures", {}).get("bleu", "")
    valid = float(report["valid"]["perplexity"])
    return Trained(row, seed, valid, float(report["bleu"]), signature, int(report["parameters"]), steps, seconds)


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
