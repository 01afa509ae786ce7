"""BLEU and chrF of all rows on the validation set, and the significance of differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from common.results import Ratio, Section, Table

import dragoman
from dragoman.evaluation.bootstrap import ResampledScore, compare_resampled, resample
from dragoman.evaluation.metrics import chrf

from .experiment import Experiment
from .rows import PLAIN, ExperimentRow


@dataclass(frozen=True)
class ScoredRow:
    """Scores of a row's translations by each seed.

    minutes: training time of one model with one thread; None if no model was trained
    """

    name: str
    description: str
    baseline: str
    minutes: float | None
    draws: list[ResampledScore]
    chrf: float


def evaluate_rows(
    experiment: Experiment, rows: Sequence[ExperimentRow], seeds: int, *, on_progress: Callable[[str], None]
) -> Section:
    """Score the rows, whose models must be trained, and compare each with its baseline."""
    section = Section()
    sources, references = experiment.corpus.valid("en"), experiment.corpus.valid("de")
    scored_rows = [_evaluate_row(experiment, row, seeds, references) for row in rows if row.baseline]
    if any(row.name == PLAIN for row in rows):
        on_progress("plain: other decoding options")
        scored_rows += _evaluate_decoding(experiment, seeds, sources, references)
    by_name = {row_score.name: row_score for row_score in scored_rows}
    table = Table(
        f"{len(references):,} sentences of val, {experiment.steps:,} steps, {seeds} seed{'s' if seeds > 1 else ''}, beam of 5",
        ["row", "description", "minutes", "BLEU", "chrF", "baseline", "BLEU difference", "95 %", "p", ""],
    )
    for row_score in scored_rows:
        scores = [draws.score.value for draws in row_score.draws]
        spread = f" ± {stdev(scores):.2f}" if len(scores) > 1 else ""
        minutes = "" if row_score.minutes is None else f"{row_score.minutes:.1f}"
        cells = [row_score.name, row_score.description, minutes, f"{mean(scores):.2f}{spread}", f"{row_score.chrf:.2f}"]
        section.figures[row_score.name] = {"bleu": scores, "chrf": row_score.chrf, "minutes": row_score.minutes}
        if row_score.baseline == row_score.name:
            table.rows.append([*cells, "", "", "", "", ""])
            continue
        compared = compare_resampled(row_score.draws, by_name[row_score.baseline].draws)
        low, high = compared.interval
        significance = "" if compared.is_significant else "not significant"
        comparison_cells = [
            row_score.baseline,
            f"{compared.difference:+.2f}",
            f"{low:+.2f} to {high:+.2f}",
            f"{compared.p_value:.3f}",
            significance,
        ]
        table.rows.append([*cells, *comparison_cells])
        section.figures[row_score.name] |= {
            "baseline": row_score.baseline,
            "difference": compared.difference,
            "p": compared.p_value,
        }
        if compared.b.value > 0:  # a model without training may have a BLEU of 0
            section.ratios.append(Ratio(f"{row_score.name}_over_{row_score.baseline}", compared.a.value / compared.b.value))
    section.tables.append(table)
    signatures = {draws.score.signature for row_score in scored_rows for draws in row_score.draws}
    section.notes.append(f"BLEU: {', '.join(signatures)}; differences by paired bootstrap, 1,000 draws")
    return section


def _evaluate_row(experiment: Experiment, row: ExperimentRow, seeds: int, references: list[str]) -> ScoredRow:
    outputs, minutes = [], []
    for seed in range(1, seeds + 1):
        text = (experiment.get_run_path(row.name, seed) / "translations.txt").read_text(encoding="utf-8")
        outputs.append(text.split("\n")[:-1])
        report = experiment.read_report(row, seed)
        assert report is not None
        minutes.append(report["seconds"] / 60)
    return _score(row.name, row.description, row.baseline, mean(minutes), outputs, references)


def _score(
    name: str, description: str, baseline: str, minutes: float | None, outputs: list[list[str]], references: list[str]
) -> ScoredRow:
    draws = [resample(lines, [references], tokenize="none") for lines in outputs]
    return ScoredRow(name, description, baseline, minutes, draws, mean(chrf(lines, [references]).value for lines in outputs))


def _evaluate_decoding(experiment: Experiment, seeds: int, sources: list[str], references: list[str]) -> list[ScoredRow]:
    """Score the plain models with other decoding options."""
    bundles = [experiment.get_run_path(PLAIN, seed) / "bundle" for seed in range(1, seeds + 1)]

    def translate(*bundle_paths: Path, **decoding: Any) -> list[str]:
        translator = dragoman.load(*bundle_paths, task="translation", precision="float32")
        return [translation.text for translation in translator.translate(sources, **decoding)]

    beam = [translate(bundle) for bundle in bundles]
    greedy = [translate(bundle, method="greedy") for bundle in bundles]
    mbr = [translate(bundle, mbr="chrf") for bundle in bundles]
    scored_rows = [
        _score("beam", "plain, beam search", "beam", None, beam, references),
        _score("greedy", "plain, greedy search", "beam", None, greedy, references),
        _score("mbr", "plain, minimum Bayes risk (chrF) of its beam", "beam", None, mbr, references),
    ]
    if seeds > 1:
        scored_rows.append(
            _score("ensemble", f"{seeds} seeds of plain together", "beam", None, [translate(*bundles)], references)
        )
    return scored_rows
