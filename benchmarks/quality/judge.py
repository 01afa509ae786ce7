"""What the rows are worth: BLEU and chrF of the validation set, and whether what lies between two rows is more than noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from common.results import Ratio, Section, Table

import dragoman
from dragoman.evaluation.bootstrap import ResampledScore, compare_resampled, resample
from dragoman.evaluation.metrics import chrf

from .learn import School
from .rows import PLAIN, Row


@dataclass(frozen=True)
class Judged:
    """A row's translations by each seed, scored. minutes: of one thread, to train one; none where nothing was trained"""

    name: str
    what: str
    over: str
    minutes: float | None
    draws: list[ResampledScore]
    chrf: float


def judge(school: School, rows: Sequence[Row], seeds: int, *, say: Callable[[str], None]) -> Section:
    """Of rows that are all trained."""
    section = Section()
    sources, references = school.corpus.valid("en"), school.corpus.valid("de")
    found = [_judged(school, row, seeds, references) for row in rows if row.over]
    if any(row.name == PLAIN for row in rows):
        say("plain: other ways to decode")
        found += _decoded(school, seeds, sources, references)
    by_name = {one.name: one for one in found}
    table = Table(
        f"{len(references):,} sentences of val, {school.steps:,} steps, {seeds} seed{'s' if seeds > 1 else ''}, beam of 5",
        ["row", "what", "minutes", "BLEU", "chrF", "over", "BLEU more", "95 %", "p", ""],
    )
    for one in found:
        scores = [draws.score.value for draws in one.draws]
        spread = f" ± {stdev(scores):.2f}" if len(scores) > 1 else ""
        minutes = "" if one.minutes is None else f"{one.minutes:.1f}"
        cells = [one.name, one.what, minutes, f"{mean(scores):.2f}{spread}", f"{one.chrf:.2f}"]
        section.figures[one.name] = {"bleu": scores, "chrf": one.chrf, "minutes": one.minutes}
        if one.over == one.name:
            table.rows.append([*cells, "", "", "", "", ""])
            continue
        compared = compare_resampled(one.draws, by_name[one.over].draws)
        low, high = compared.interval
        verdict = "" if compared.is_significant else "under the noise"
        between = [one.over, f"{compared.difference:+.2f}", f"{low:+.2f} to {high:+.2f}", f"{compared.p_value:.3f}", verdict]
        table.rows.append([*cells, *between])
        section.figures[one.name] |= {"over": one.over, "difference": compared.difference, "p": compared.p_value}
        if compared.b.value > 0:  # which it is not of models that have learnt next to nothing
            section.ratios.append(Ratio(f"{one.name}_over_{one.over}", compared.a.value / compared.b.value))
    section.tables.append(table)
    signatures = {draws.score.signature for one in found for draws in one.draws}
    section.remarks.append(f"BLEU: {', '.join(signatures)}; differences by paired bootstrap, 1,000 draws")
    return section


def _judged(school: School, row: Row, seeds: int, references: list[str]) -> Judged:
    said, minutes = [], []
    for seed in range(1, seeds + 1):
        text = (school.run_of(row.name, seed) / "translations.txt").read_text(encoding="utf-8")
        said.append(text.split("\n")[:-1])
        report = school.report(row, seed)
        assert report is not None
        minutes.append(report["seconds"] / 60)
    return _scored(row.name, row.what, row.over, mean(minutes), said, references)


def _scored(name: str, what: str, over: str, minutes: float | None, said: list[list[str]], references: list[str]) -> Judged:
    draws = [resample(lines, [references], tokenize="none") for lines in said]
    return Judged(name, what, over, minutes, draws, mean(chrf(lines, [references]).value for lines in said))


def _decoded(school: School, seeds: int, sources: list[str], references: list[str]) -> list[Judged]:
    """The plain models, asked in other ways."""
    bundles = [school.run_of(PLAIN, seed) / "bundle" for seed in range(1, seeds + 1)]

    def by(*folders: Path, **decoding: object) -> list[str]:
        return [one.text for one in dragoman.load(*folders, precision="float32").translate(sources, **decoding)]

    beam = [by(bundle) for bundle in bundles]
    greedy = [by(bundle, method="greedy") for bundle in bundles]
    risk = [by(bundle, mbr="chrf") for bundle in bundles]
    found = [
        _scored("beam", "plain, as a user has it translate", "beam", None, beam, references),
        _scored("greedy", "plain, searched greedily", "beam", None, greedy, references),
        _scored("risk", "plain, minimum Bayes risk (chrF) of its beam", "beam", None, risk, references),
    ]
    if seeds > 1:
        found.append(_scored("ensemble", f"{seeds} seeds of plain together", "beam", None, [by(*bundles)], references))
    return found
