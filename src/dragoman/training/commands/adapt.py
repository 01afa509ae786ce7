"""Command `adapt`: fine-tune a bundle on a translation memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dragoman.console.options import BUNDLE_TYPE, PATH_TYPE, json_option, overrides_argument


@click.command()
@click.argument("bundle", type=BUNDLE_TYPE)
@click.argument("file", type=PATH_TYPE)
@overrides_argument
@click.option("--run", type=PATH_TYPE, help="Run folder; it will hold the new bundle.  [default: runs/adapted-FILE]")
@click.option("--general", type=PATH_TYPE, help="Pairs of other text, which the new bundle must still translate well.")
@json_option()
def adapt(bundle: Path, file: Path, overrides: tuple[str, ...], run: Path | None, general: Path | None, as_json: bool) -> None:
    """Fine-tune BUNDLE on the pairs of FILE: a translation memory in TMX, XLIFF, PO, TSV, JSON lines or Parquet.

    Every tenth pair is held out. At the end, the old and the new bundle translate these pairs, and a paired bootstrap
    decides which is better. Another twentieth chooses the best step; if none is better than the start, the new bundle has
    the weights of the old one. The same command resumes a run that has stopped. KEY=VALUE changes a key of the recipe.

    \b
    Example:  dragoman adapt runs/general-ende/bundle own.tmx --general news.tsv --run own
    """
    from dragoman.console.terminal import print_json, stderr_console
    from dragoman.training.adapt_recipe import prepare_adaptation
    from dragoman.training.commands.train import run_recipe

    folder = run or Path("runs") / f"adapted-{file.name.split('.')[0]}"
    adaptation = prepare_adaptation(bundle, file, folder, general=general, changes=overrides)
    message = f"{file}: {adaptation.num_training_pairs:,} pairs to train on, {adaptation.num_held_out_pairs:,} held out"
    stderr_console().print(message, style="dim", markup=False)
    report = run_recipe(adaptation.recipe)
    if as_json:
        print_json(report)
    else:
        _print_result(report)


def _print_result(report: dict[str, Any]) -> None:
    from dragoman.console.terminal import print_facts
    from dragoman.training.adapt_recipe import describe_result
    from dragoman.training.test_sets import ScoreChange

    facts = {"bundle": report["bundle"], "steps": f"{report['steps']:,}", "training": f"{report['seconds']:.0f} s"}
    for name, test_set in report["test_sets"].items():
        for metric, change in test_set.get("changes", {}).items():
            facts[f"{metric}, {name}"] = ScoreChange(**change).describe()
    print_facts(report["name"], facts)
    for sentence in describe_result(report):
        click.echo(sentence)
