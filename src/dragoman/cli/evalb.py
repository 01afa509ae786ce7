"""How good are the brackets: `evalb`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dragoman.evaluation.evalb import SentenceScore
    from dragoman.evaluation.evalb_params import Rules

PATH = click.Path(path_type=Path)
_SHOWN = 5
"""Failures that are named one by one."""


@click.command()
@click.argument("gold", type=PATH)
@click.argument("test", type=PATH)
@click.option("--prm", type=PATH, help="A parameter file of EVALB's; COLLINS.prm's rules if not given.")
@click.option("--gold-tags", is_flag=True, help="Give the words of TEST the tags of GOLD, where the words are the same.")
@click.option("--sentences", is_flag=True, help="List each sentence: what the C program prints, or more with --json.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def evalb(gold: Path, test: Path, prm: Path | None, gold_tags: bool, sentences: bool, as_json: bool) -> None:
    """Score the trees in TEST against those in GOLD: labelled brackets, as the C program EVALB counts them.

    Each file has one tree a line, in brackets. A sentence whose words differ, or that has no tree, counts as zero; EVALB
    leaves it out, and what it prints then stands beside.

    \b
    Example:  dragoman evalb gold.mrg parsed.mrg --prm new.prm
    """
    from dragoman.cli.console import counting_bar, people, print_json
    from dragoman.evaluation.evalb import score_files, total
    from dragoman.evaluation.evalb_params import COLLINS, read_rules
    from dragoman.evaluation.evalb_report import listing

    rules = COLLINS if prm is None else read_rules(prm)
    with counting_bar(people(), "scoring", None) as bar:
        scores = score_files(gold, test, rules, gold_tags=gold_tags, advance=lambda count: bar.advance(bar.task_ids[0], count))
    if as_json:
        lengths = {"all": None, f"length<={rules.cutoff}": rules.cutoff}
        document = {
            "gold": str(gold),
            "test": str(test),
            "parameters": "COLLINS" if prm is None else str(prm),
            "failures": [{"line": one.line, "reason": one.reason} for one in scores if one.failed],
            **{
                f"failures_{failures}": {
                    name: asdict(total(scores, failures, longest=longest)) for name, longest in lengths.items()
                }
                for failures in ("zero", "dropped")
            },
        }
        print_json({**document, "sentences": [asdict(one) for one in scores]} if sentences else document)
        return
    if sentences:
        click.echo(listing(scores, rules.cutoff), nl=False)
    else:
        _print_totals(f"{test} against {gold}", scores, rules)
    _tell_failures(test, scores, gold_tags)


def _print_totals(title: str, scores: Sequence[SentenceScore], rules: Rules) -> None:
    from dragoman.cli.console import print_table
    from dragoman.evaluation.evalb import total

    columns = [total(scores, failures, longest=longest) for longest in (None, rules.cutoff) for failures in ("zero", "dropped")]
    counts = {"sentences": "sentences", "errors": "words differ", "skipped": "no words", "scored": "scored"}
    shares = {
        "recall": "recall",
        "precision": "precision",
        "f1": "F1",
        "complete": "complete match",
        "average_crossing": "average crossing",
        "no_crossing": "no crossing",
        "two_or_less_crossing": "2 or less crossing",
        "tagging": "tagging accuracy",
    }
    if not rules.labelled:
        title += ", labels left aside"
    rows = [[told, *(str(getattr(one, name)) for one in columns)] for name, told in counts.items()]
    rows += [[told, *(f"{getattr(one, name):.2f}" for one in columns)] for name, told in shares.items()]
    short = f"up to {rules.cutoff} words"
    print_table(title, ["", "all", "all, as EVALB", short, f"{short}, as EVALB"], rows)


def _tell_failures(test: Path, scores: Sequence[SentenceScore], gold_tags: bool) -> None:
    """A line for each of the first that failed, and how many more there are."""
    failed = [one for one in scores if one.failed]
    for one in failed[:_SHOWN]:
        click.echo(f"{test}, line {one.line}: counts as zero: {one.reason}", err=True)
    if len(failed) > _SHOWN:
        click.echo(f"{len(failed) - _SHOWN:,} more count as zero; --json lists them all", err=True)
    if failed and not gold_tags:
        click.echo("where only the tags of punctuation differ, --gold-tags has a sentence scored", err=True)
