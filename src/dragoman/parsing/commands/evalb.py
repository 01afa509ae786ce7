"""Command `evalb`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from dragoman.console.options import PATH_TYPE, json_option
from dragoman.io.json_fields import OPTIONAL
from dragoman.parsing.evalb.scorer import EvalbTotals, SentenceScore

if TYPE_CHECKING:
    from dragoman.parsing.evalb.params import EvalbParams

_MAX_SHOWN_FAILURES = 5


@dataclass(frozen=True)
class EvalbFailure:
    """Sentence without a score. Lines count from 1."""

    line: int
    reason: str


@dataclass(frozen=True)
class EvalbOutput:
    """Output of `dragoman tree evalb --json`. The totals have the keys `all` and `length<=N`.

    parameters: COLLINS, or the parameter file
    failures_zero: totals in which a failure counts as zero
    failures_dropped: totals without the failures, as EVALB prints them
    sentences: each sentence, with --sentences
    """

    gold: str
    test: str
    parameters: str
    failures: Sequence[EvalbFailure]
    failures_zero: Mapping[str, EvalbTotals]
    failures_dropped: Mapping[str, EvalbTotals]
    sentences: Annotated[Sequence[SentenceScore] | None, OPTIONAL] = None


@click.command()
@click.argument("gold", type=PATH_TYPE)
@click.argument("test", type=PATH_TYPE)
@click.option("--prm", type=PATH_TYPE, help="Parameter file of EVALB.  [default: the rules of COLLINS.prm]")
@click.option("--gold-tags", is_flag=True, help="Give the words of TEST the tags of GOLD if the words are equal.")
@click.option("--sentences", is_flag=True, help="List each sentence, in the format of the C program or as JSON.")
@json_option()
def evalb(gold: Path, test: Path, prm: Path | None, gold_tags: bool, sentences: bool, as_json: bool) -> None:
    """Score the trees in TEST against those in GOLD by labeled brackets, as the C program EVALB counts them.

    Each file has one tree in brackets on each line. A sentence counts as zero if its words differ or if it has no tree. EVALB
    drops such sentences, so its numbers are printed as well.

    \b
    Example:  dragoman tree evalb gold.mrg parsed.mrg --prm new.prm
    """
    from dragoman.console.terminal import print_json, progress_bar, stderr_console
    from dragoman.parsing.evalb.params import COLLINS, read_params
    from dragoman.parsing.evalb.report import format_report
    from dragoman.parsing.evalb.scorer import score_files, sum_scores

    rules = COLLINS if prm is None else read_params(prm)
    with progress_bar(stderr_console(), "scoring", None) as bar:
        scores = score_files(gold, test, rules, gold_tags=gold_tags, on_progress=bar.advance)
    if as_json:
        lengths = {"all": None, f"length<={rules.cutoff_length}": rules.cutoff_length}
        print_json(
            EvalbOutput(
                gold=str(gold),
                test=str(test),
                parameters="COLLINS" if prm is None else str(prm),
                failures=[EvalbFailure(score.line, score.reason) for score in scores if score.is_failed],
                failures_zero={name: sum_scores(scores, "zero", max_length=longest) for name, longest in lengths.items()},
                failures_dropped={name: sum_scores(scores, "dropped", max_length=longest) for name, longest in lengths.items()},
                sentences=scores if sentences else None,
            )
        )
        return
    if sentences:
        click.echo(format_report(scores, rules.cutoff_length), nl=False)
    else:
        _print_totals(f"{test} against {gold}", scores, rules)
    _print_failures(test, scores, gold_tags)


def _print_totals(title: str, scores: Sequence[SentenceScore], rules: EvalbParams) -> None:
    from dragoman.console.terminal import print_table
    from dragoman.parsing.evalb.scorer import sum_scores

    column_totals = [
        sum_scores(scores, failures, max_length=longest)
        for longest in (None, rules.cutoff_length)
        for failures in ("zero", "dropped")
    ]
    count_labels = {"sentences": "sentences", "errors": "words differ", "skipped": "no words", "scored": "scored"}
    score_labels = {
        "recall": "recall",
        "precision": "precision",
        "f1": "F1",
        "complete_match": "complete match",
        "average_crossing": "average crossing",
        "no_crossing": "no crossing",
        "two_or_less_crossing": "2 or less crossing",
        "tagging_accuracy": "tagging accuracy",
    }
    if not rules.labeled:
        title += ", labels ignored"
    rows = [[label, *(str(getattr(totals, name)) for totals in column_totals)] for name, label in count_labels.items()]
    rows += [[label, *(f"{getattr(totals, name):.2f}" for totals in column_totals)] for name, label in score_labels.items()]
    short_label = f"up to {rules.cutoff_length} words"
    print_table(title, ["", "all", "all, as EVALB", short_label, f"{short_label}, as EVALB"], rows)


def _print_failures(test: Path, scores: Sequence[SentenceScore], gold_tags: bool) -> None:
    """Print the first failed sentences, and the number of the others."""
    failed = [score for score in scores if score.is_failed]
    for score in failed[:_MAX_SHOWN_FAILURES]:
        click.echo(f"{test}, line {score.line}: counts as zero: {score.reason}", err=True)
    if len(failed) > _MAX_SHOWN_FAILURES:
        click.echo(f"{len(failed) - _MAX_SHOWN_FAILURES:,} more count as zero; --json lists them all", err=True)
    if failed and not gold_tags:
        click.echo("if only the tags of punctuation differ, --gold-tags scores a sentence", err=True)
