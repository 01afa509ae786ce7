"""Rows of a results table from the reports of runs: mean and standard deviation over seeds, and significance.

Runs of one recipe and one corpus that differ only in their seed are one row. Each further row is compared with the first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from dragoman.config import DataConfig, Recipe, TaskConfig, flatten_settings
from dragoman.data.manifest import list_input_digests, read_manifest
from dragoman.errors import DataError, RunError
from dragoman.evaluation.bleu_tokenizer import get_task_bleu_tokenizer
from dragoman.evaluation.bootstrap import ResampledScore, SystemComparison, compare_resampled
from dragoman.paper.run_grid import KEYS_THAT_MAY_DIFFER, resample_translations
from dragoman.training.monitoring.run_status import read_report, read_run_status
from dragoman.training.validation import get_references, read_eval_pairs

# A report has a signature for each of them.
SCORES = ("bleu", "paper_bleu", "chrf", "exact_match", "f1")
_RUN_SPECIFIC_KEYS = (*KEYS_THAT_MAY_DIFFER, "training.seed")


@dataclass(frozen=True)
class FinishedRun:
    """Finished run with its recipe and its report."""

    folder: Path
    recipe: Recipe
    report: dict[str, Any]
    train_digests: tuple[str, ...] | None
    """Digests of the corpus files; None if the prepared data are deleted."""
    test_digest: str | None
    """Digest of the present test set; None without a test set."""


@dataclass(frozen=True)
class MeanAndStd:
    """Mean and standard deviation over the seeds. The deviation of one seed is None."""

    mean: float
    std: float | None
    signature: str = ""

    @classmethod
    def from_values(cls, values: Sequence[float], signature: str = "") -> MeanAndStd:
        return cls(fmean(values), stdev(values) if len(values) > 1 else None, signature)

    def __str__(self) -> str:
        return f"{self.mean:,.2f}" + (f" ± {self.std:.2f}" if self.std is not None else "")


@dataclass(frozen=True)
class ResultsRow:
    """Row of the runs of one recipe.

    changed_settings: the keys that differ from the first row, as `key=value`
    comparison: BLEU compared with the first row by paired bootstrap of the test set; None for the first row and without
        translations
    significant: whether the comparison finds a difference; None without a comparison
    """

    name: str
    changed_settings: tuple[str, ...]
    runs: tuple[str, ...]
    seeds: tuple[int, ...]
    scores: dict[str, MeanAndStd]
    steps: MeanAndStd
    minutes: MeanAndStd
    parameters: int
    machines: tuple[str, ...]
    finished_at: str
    comparison: SystemComparison | None
    significant: bool | None


def build_rows(folders: Sequence[Path]) -> list[ResultsRow]:
    """Return the rows of the runs, in the order of the folders.

    Raises RunError for a folder without a finished run, and for two runs of one recipe and seed.
    """
    groups: list[list[FinishedRun]] = []
    for folder in folders:
        run = _read_finished_run(folder)
        matching_group = next((group for group in groups if _has_same_setup(run, group[0])), None)
        if matching_group is None:
            groups.append([run])
        else:
            matching_group.append(run)
    for group in groups:
        _check_distinct_seeds(group)
    first_group, *other_groups = groups
    first_resamples = _resample_bleu(first_group) if other_groups else []
    rows = [_build_row(first_group, first_group[0], None)]
    for group in other_groups:
        resamples = _resample_bleu(group)
        comparison = (
            compare_resampled(resamples, first_resamples)
            if resamples and first_resamples and _has_same_test_set(group[0], first_group[0])
            else None
        )
        rows.append(_build_row(group, first_group[0], comparison))
    return rows


def _read_finished_run(folder: Path) -> FinishedRun:
    run_status = read_run_status(folder)
    if not run_status.is_finished:
        raise RunError(
            f"{folder}: is not finished, so it has no report; `dragoman train` with its recipe resumes it",
            code="run-unfinished",
        )
    report = read_report(folder, "steps", "seconds", "parameters", "machine", "finished")
    manifest = read_manifest(folder / "data")
    train_digests = None if manifest is None else list_input_digests(manifest["inputs"])
    return FinishedRun(
        folder, run_status.recipe, report, train_digests, _compute_test_digest(run_status.recipe.data, run_status.recipe.task)
    )


def _compute_test_digest(data: DataConfig, task: TaskConfig) -> str | None:
    if data.test is None:
        return None
    try:
        lines = [f"{pair.source}\t{pair.target}\n" for pair in read_eval_pairs(data.test, data, task)]
    except DataError:
        return None
    return sha256("".join(lines).encode()).hexdigest()


def _has_same_setup(run: FinishedRun, other_run: FinishedRun) -> bool:
    """Return whether two runs have one recipe and one corpus. A deleted corpus counts as equal."""
    digest_pairs = ((run.train_digests, other_run.train_digests), (run.test_digest, other_run.test_digest))
    return _get_comparable_settings(run) == _get_comparable_settings(other_run) and all(
        None in pair or pair[0] == pair[1] for pair in digest_pairs
    )


def _get_comparable_settings(run: FinishedRun) -> dict[str, Any]:
    settings = flatten_settings(run.recipe.model_dump())
    return {key: value for key, value in settings if key not in _RUN_SPECIFIC_KEYS}


def _check_distinct_seeds(runs: Sequence[FinishedRun]) -> None:
    dir_by_seed: dict[int, Path] = {}
    for run in runs:
        earlier_dir = dir_by_seed.setdefault(run.recipe.training.seed, run.folder)
        if earlier_dir != run.folder or sum(run.folder == other_run.folder for other_run in runs) > 1:
            raise RunError(f"{run.folder} and {earlier_dir}: have one recipe and seed; give runs of different seeds")


def _has_same_test_set(run: FinishedRun, other_run: FinishedRun) -> bool:
    first, second = ((each.test_digest, get_task_bleu_tokenizer(each.recipe.task)) for each in (run, other_run))
    return first == second


def _resample_bleu(runs: Sequence[FinishedRun]) -> list[ResampledScore]:
    """Return the BLEU of each run over the bootstrap samples, or nothing if a run has no translations.

    Raises DataError if the test set of the recipe is missing.
    """
    recipe = runs[0].recipe
    if recipe.data.test is None or any("bleu" not in run.report for run in runs):
        return []
    references = get_references(read_eval_pairs(recipe.data.test, recipe.data, recipe.task), recipe.tokenizer)
    try:
        return [resample_translations(run.folder, references, recipe.task) for run in runs]
    except DataError:
        return []


def _build_row(runs: Sequence[FinishedRun], first_run: FinishedRun, comparison: SystemComparison | None) -> ResultsRow:
    reports = [run.report for run in runs]
    settings, first_settings = _get_comparable_settings(runs[0]), _get_comparable_settings(first_run)
    if settings == first_settings and runs[0] is not first_run:
        settings["data.root"] = runs[0].recipe.data.root
    changed_settings = tuple(
        f"{key}={_format_value(settings.get(key))}"
        for key in sorted({*settings, *first_settings})
        if settings.get(key) != first_settings.get(key)
    )
    return ResultsRow(
        name=runs[0].recipe.name,
        changed_settings=changed_settings,
        runs=tuple(str(run.folder) for run in runs),
        seeds=tuple(run.recipe.training.seed for run in runs),
        scores=dict(_aggregate_scores(reports)),
        steps=MeanAndStd.from_values([float(report["steps"]) for report in reports]),
        minutes=MeanAndStd.from_values([report["seconds"] / 60 for report in reports]),
        parameters=int(reports[0]["parameters"]),
        machines=tuple(sorted({str(report["machine"]) for report in reports})),
        finished_at=max(str(report["finished"]) for report in reports),
        comparison=comparison,
        significant=None if comparison is None else comparison.is_significant,
    )


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _aggregate_scores(reports: Sequence[dict[str, Any]]) -> Iterator[tuple[str, MeanAndStd]]:
    """Yield the scores that all reports have with one signature. Scores of different signatures have no mean."""
    for name in SCORES:
        signatures = {report.get("signatures", {}).get(name, "") for report in reports}
        if all(isinstance(report.get(name), int | float) for report in reports) and len(signatures) == 1:
            yield name, MeanAndStd.from_values([float(report[name]) for report in reports], signatures.pop())


def format_markdown(rows: Sequence[ResultsRow]) -> str:
    """Return the rows as a Markdown table, with the signatures of the scores and the significance of the differences."""
    names = [name for name in SCORES if any(name in row.scores for row in rows)]
    header = ["recipe", "seeds", "steps", "minutes", *(name.replace("_", " ") for name in names), "machine", "date"]
    header += ["compared with the first"] if len(rows) > 1 else []
    lines = [_format_line(header), _format_line(["---"] * len(header))]
    for row in rows:
        recipe = f"`{row.name}`" + "".join(f" `{change}`" for change in row.changed_settings)
        cells = [recipe, " ".join(map(str, row.seeds)), f"{row.steps.mean:,.0f}", f"{row.minutes.mean:,.1f}"]
        cells += [str(row.scores[name]) if name in row.scores else "" for name in names]
        cells += ["; ".join(row.machines), row.finished_at[:10]]
        if len(rows) > 1:
            cells.append(_format_comparison(row.comparison))
        lines.append(_format_line(cells))
    signed_names = {(name, row.scores[name].signature) for row in rows for name in names if name in row.scores}
    lines += ["", *(f"- {name.replace('_', ' ')}: `{signature}`" for name, signature in sorted(signed_names) if signature)]
    return "\n".join(lines)


def _format_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _format_comparison(comparison: SystemComparison | None) -> str:
    if comparison is None:
        return ""
    low, high = comparison.interval
    noise_note = "" if comparison.is_significant else ", not significant"
    return f"{comparison.difference:+.2f} ({low:+.2f} to {high:+.2f}), p = {comparison.p_value:.3f}{noise_note}"
