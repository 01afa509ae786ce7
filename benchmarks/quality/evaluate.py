"""BLEU and chrF of all rows on the validation set, and the significance of differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Unpack

from common.results import Ratio, Section, Table

import dragoman
from dragoman.config.decoding_options import DecodingOptions
from dragoman.evaluation.bootstrap import ResampledScore, compare_resampled, resample
from dragoman.evaluation.metrics import chrf

from .experiment import Experiment
from .rows import PLAIN, ExperimentRow


@dataclass(frozen=True)
class ScoredRow:
    """Scores of a row's translations by each seed. minutes: of one thread to train one; None if nothing was trained."""

    name: str
    what: str
    over: str
    minutes: float | None
    draws: list[ResampledScore]
    chrf: float


def evaluate_rows(
    school: Experiment, rows: Sequence[ExperimentRow], seeds: int, *, on_progress: Callable[[str], None]
) -> Section:
    """Score rows that are all trained."""
    section = Section()
    sources, references = school.corpus.valid("en"), school.corpus.valid("de")
    scored_rows = [_evaluate_row(school, row, seeds, references) for row in rows if row.baseline]
    if any(row.name == PLAIN for row in rows):
        on_progress("plain: other ways to decode")
        scored_rows += _evaluate_decoding(school, seeds, sources, references)
    by_name = {row_score.name: row_score for row_score in scored_rows}
    table = Table(
        f"{len(references):,} sentences of val, {school.steps:,} steps, {seeds} seed{'s' if seeds > 1 else ''}, beam of 5",
        ["row", "what", "minutes", "BLEU", "chrF", "over", "BLEU more", "95 %", "p", ""],
    )
    for row_score in scored_rows:
        scores = [draws.score.value for draws in row_score.draws]
        spread = f" ± {stdev(scores):.2f}" if len(scores) > 1 else ""
        minutes = "" if row_score.minutes is None else f"{row_score.minutes:.1f}"
        cells = [row_score.name, row_score.what, minutes, f"{mean(scores):.2f}{spread}", f"{row_score.chrf:.2f}"]
        section.figures[row_score.name] = {"bleu": scores, "chrf": row_score.chrf, "minutes": row_score.minutes}
        if row_score.over == row_score.name:
            table.rows.append([*cells, "", "", "", "", ""])
            continue
        compared = compare_resampled(row_score.draws, by_name[row_score.over].draws)
        low, high = compared.interval
        verdict = "" if compared.is_significant else "under the noise"
        between = [
            row_score.over,
            f"{compared.difference:+.2f}",
            f"{low:+.2f} to {high:+.2f}",
            f"{compared.p_value:.3f}",
            verdict,
        ]
        table.rows.append([*cells, *between])
        section.figures[row_score.name] |= {"over": row_score.over, "difference": compared.difference, "p": compared.p_value}
        if compared.b.value > 0:  # which it is not of models that have learnt next to nothing
            section.ratios.append(Ratio(f"{row_score.name}_over_{row_score.over}", compared.a.value / compared.b.value))
    section.tables.append(table)
    signatures = {draws.score.signature for row_score in scored_rows for draws in row_score.draws}
    section.notes.append(f"BLEU: {', '.join(signatures)}; differences by paired bootstrap, 1,000 draws")
    return section


def _evaluate_row(school: Experiment, row: ExperimentRow, seeds: int, references: list[str]) -> ScoredRow:
    outputs, minutes = [], []
    for seed in range(1, seeds + 1):
        text = (school.get_run_path(row.name, seed) / "translations.txt").read_text(encoding="utf-8")
        outputs.append(text.split("\n")[:-1])
        report = school.read_report(row, seed)
        assert report is not None
        minutes.append(report["seconds"] / 60)
    return _score(row.name, row.description, row.baseline, mean(minutes), outputs, references)


def _score(
    name: str, what: str, over: str, minutes: float | None, outputs: list[list[str]], references: list[str]
) -> ScoredRow:
    draws = [resample(lines, [references], tokenize="none") for lines in outputs]
    return ScoredRow(name, what, over, minutes, draws, mean(chrf(lines, [references]).value for lines in outputs))


def _evaluate_decoding(school: Experiment, seeds: int, sources: list[str], references: list[str]) -> list[ScoredRow]:
    """Score the plain models with other decoding options."""
    bundles = [school.get_run_path(PLAIN, seed) / "bundle" for seed in range(1, seeds + 1)]

    def translate(*folders: Path, **decoding: Unpack[DecodingOptions]) -> list[str]:
        translator = dragoman.load(*folders, task="translation", precision="float32")
        return [translation.text for translation in translator.translate(sources, **decoding)]

    beam = [translate(bundle) for bundle in bundles]
    greedy = [translate(bundle, method="greedy") for bundle in bundles]
    risk = [translate(bundle, mbr="chrf") for bundle in bundles]
    scored_rows = [
        _score("beam", "plain, as a user has it translate", "beam", None, beam, references),
        _score("greedy", "plain, searched greedily", "beam", None, greedy, references),
        _score("risk", "plain, minimum Bayes risk (chrF) of its beam", "beam", None, risk, references),
    ]
    if seeds > 1:
        scored_rows.append(
            _score("ensemble", f"{seeds} seeds of plain together", "beam", None, [translate(*bundles)], references)
        )
    return scored_rows
