"""A row of a results table from the reports of runs: mean and spread over seeds, and whether a difference is more than noise.

Runs of one recipe over one text that differ in their seed alone are one row. A row is set against the first one given.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from dragoman.config import Recipe
from dragoman.data.manifest import read_manifest, texts_of
from dragoman.errors import DataError, RunError
from dragoman.evaluation.bootstrap import Comparison, Resampled, compare_resampled, resample
from dragoman.formats.text import read_lines
from dragoman.paper.table3 import MAY_DIFFER, flat
from dragoman.training.monitoring.run_status import read_record
from dragoman.training.report import TRANSLATIONS
from dragoman.training.validation import read_text

# Each with its signature, where the report has it.
SCORES = ("bleu", "paper_bleu", "chrf", "exact_match", "f1")
_OF_A_RUN = (*MAY_DIFFER, "training.seed")


@dataclass(frozen=True)
class Reported:
    """A run that came to its end."""

    folder: Path
    recipe: Recipe
    report: dict[str, Any]
    learnt_from: tuple[str, ...] | None
    """Digests of the files that were prepared; none where what was prepared is gone."""
    test: str | None
    """Digest of the test set as it is now; none where there is none."""


@dataclass(frozen=True)
class Spread:
    """A number over the seeds. `spread` is its standard deviation; none of a single one."""

    mean: float
    spread: float | None
    signature: str = ""

    @classmethod
    def of(cls, values: Sequence[float], signature: str = "") -> Spread:
        return cls(fmean(values), stdev(values) if len(values) > 1 else None, signature)

    def __str__(self) -> str:
        return f"{self.mean:,.2f}" + (f" ± {self.spread:.2f}" if self.spread is not None else "")


@dataclass(frozen=True)
class Row:
    """Runs of one recipe.

    changed: the knobs that differ from the first row's, as `key=value`
    against: BLEU against the first row's, by paired bootstrap of the test set; none of the first row, nor without translations
    """

    name: str
    changed: tuple[str, ...]
    runs: tuple[str, ...]
    seeds: tuple[int, ...]
    scores: dict[str, Spread]
    steps: Spread
    minutes: Spread
    parameters: int
    machines: tuple[str, ...]
    finished: str
    against: Comparison | None

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "significant": None if self.against is None else self.against.significant}


def results(folders: Sequence[Path]) -> list[Row]:
    """The rows of these runs, in the order in which they are given.

    Raises RunError for a folder that holds no finished run, and for two runs of one recipe and seed.
    """
    groups: list[list[Reported]] = []
    for folder in folders:
        one = _reported(folder)
        home = next((runs for runs in groups if _is_alike(one, runs[0])), None)
        if home is None:
            groups.append([one])
        else:
            home.append(one)
    for runs in groups:
        _refuse_twice(runs)
    first, *others = groups
    first_draws = _draws(first) if others else []
    rows = [_row(first, first[0], None)]
    for runs in others:
        draws = _draws(runs)
        compared = compare_resampled(draws, first_draws) if draws and first_draws and _one_test(runs[0], first[0]) else None
        rows.append(_row(runs, first[0], compared))
    return rows


def _reported(folder: Path) -> Reported:
    record = read_record(folder)
    if not record.finished:
        raise RunError(f"{folder}: has not come to its end, so it has no report; `dragoman train` with its recipe goes on")
    try:
        report = json.loads((folder / "report.json").read_bytes())
        if isinstance(report, dict) and {"steps", "seconds", "parameters", "machine", "finished"} <= report.keys():
            prepared = read_manifest(folder / "data")
            learnt_from = None if prepared is None else texts_of(prepared["inputs"])
            return Reported(folder, record.recipe, report, learnt_from, _digest_of_test(record.recipe))
    except (OSError, ValueError, RecursionError):
        pass
    raise RunError(f"{folder / 'report.json'}: cannot be read; `dragoman train` with the run's recipe writes it anew")


def _digest_of_test(recipe: Recipe) -> str | None:
    if recipe.data.test is None:
        return None
    try:
        lines = [f"{pair.source}\t{pair.target}\n" for pair in read_text(recipe.data.test, recipe)]
    except DataError:
        return None
    return sha256("".join(lines).encode()).hexdigest()


def _is_alike(one: Reported, other: Reported) -> bool:
    """Whether they are one recipe over one text, as far as the text is still there."""
    texts = ((one.learnt_from, other.learnt_from), (one.test, other.test))
    return _knobs(one.recipe) == _knobs(other.recipe) and all(None in pair or pair[0] == pair[1] for pair in texts)


def _knobs(recipe: Recipe) -> dict[str, Any]:
    return {key: value for key, value in flat(recipe.model_dump(mode="json")) if key not in _OF_A_RUN}


def _refuse_twice(runs: Sequence[Reported]) -> None:
    seen: dict[int, Path] = {}
    for one in runs:
        before = seen.setdefault(one.recipe.training.seed, one.folder)
        if before != one.folder or sum(one.folder == other.folder for other in runs) > 1:
            raise RunError(f"{one.folder} and {before} are one recipe and seed; a spread is over different seeds")


def _one_test(one: Reported, other: Reported) -> bool:
    return (one.test, one.recipe.task.tokenized) == (other.test, other.recipe.task.tokenized)


def _draws(runs: Sequence[Reported]) -> list[Resampled]:
    """BLEU of each run over the draws of a bootstrap; none where a run is not a translation's, or kept none.

    Raises DataError where the test set is not where the recipe says.
    """
    recipe = runs[0].recipe
    if recipe.data.test is None or any("bleu" not in one.report for one in runs):
        return []
    references = [pair.target for pair in read_text(recipe.data.test, recipe)]
    found = []
    for one in runs:
        try:
            lines = list(read_lines(one.folder / TRANSLATIONS))
        except DataError:
            return []
        if len(lines) != len(references):
            return []
        found.append(resample(lines, [references], tokenize="none" if recipe.task.tokenized else "13a"))
    return found


def _row(runs: Sequence[Reported], first: Reported, against: Comparison | None) -> Row:
    reports = [one.report for one in runs]
    ours, theirs = _knobs(runs[0].recipe), _knobs(first.recipe)
    if ours == theirs and runs[0] is not first:
        ours["data.root"] = runs[0].recipe.data.root
    changed = tuple(f"{key}={_shown(ours.get(key))}" for key in sorted({*ours, *theirs}) if ours.get(key) != theirs.get(key))
    return Row(
        name=runs[0].recipe.name,
        changed=changed,
        runs=tuple(str(one.folder) for one in runs),
        seeds=tuple(one.recipe.training.seed for one in runs),
        scores=dict(_scores(reports)),
        steps=Spread.of([float(one["steps"]) for one in reports]),
        minutes=Spread.of([one["seconds"] / 60 for one in reports]),
        parameters=int(reports[0]["parameters"]),
        machines=tuple(sorted({str(one["machine"]) for one in reports})),
        finished=max(str(one["finished"]) for one in reports),
        against=against,
    )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _scores(reports: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Spread]]:
    """Those that every report has, with one signature: others are no mean of anything."""
    for name in SCORES:
        signatures = {one.get("signatures", {}).get(name, "") for one in reports}
        if all(isinstance(one.get(name), int | float) for one in reports) and len(signatures) == 1:
            yield name, Spread.of([float(one[name]) for one in reports], signatures.pop())


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table for a page, each score with its signature, each difference with its verdict."""
    names = [name for name in SCORES if any(name in row.scores for row in rows)]
    header = ["recipe", "seeds", "steps", "minutes", *(name.replace("_", " ") for name in names), "machine", "date"]
    header += ["against the first"] if len(rows) > 1 else []
    lines = [_line(header), _line(["---"] * len(header))]
    for row in rows:
        recipe = f"`{row.name}`" + "".join(f" `{change}`" for change in row.changed)
        cells = [recipe, " ".join(map(str, row.seeds)), f"{row.steps.mean:,.0f}", f"{row.minutes.mean:,.1f}"]
        cells += [str(row.scores[name]) if name in row.scores else "" for name in names]
        cells += ["; ".join(row.machines), row.finished[:10]]
        if len(rows) > 1:
            cells.append(_verdict(row.against))
        lines.append(_line(cells))
    told = {(name, row.scores[name].signature) for row in rows for name in names if name in row.scores}
    lines += ["", *(f"- {name.replace('_', ' ')}: `{signature}`" for name, signature in sorted(told) if signature)]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _verdict(against: Comparison | None) -> str:
    if against is None:
        return ""
    low, high = against.interval
    what = "" if against.significant else ", under the noise"
    return f"{against.difference:+.2f} ({low:+.2f} to {high:+.2f}), p = {against.p_value:.3f}{what}"
