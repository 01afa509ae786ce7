"""Command `adapt`: fine-tune a bundle on a translation memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dragoman.console.options import BUNDLE_TYPE, PATH_TYPE, json_option, split_files_and_settings, usage_error


@click.command()
@click.argument("bundle", type=BUNDLE_TYPE)
@click.argument("arguments", nargs=-1, required=True, metavar="FILE... [KEY=VALUE]...")
@click.option("--run", type=PATH_TYPE, help="Run folder; it will hold the new bundle.  [default: runs/adapted-FILE]")
@click.option("--general", type=PATH_TYPE, help="Pairs of other text, which the new bundle must still translate well.")
@json_option()
def adapt(bundle: Path, arguments: tuple[str, ...], run: Path | None, general: Path | None, as_json: bool) -> None:
    """Fine-tune BUNDLE on the pairs of each FILE: translation memories in TMX, XLIFF, PO, CSV, TSV, JSONL or Parquet.

    Every tenth pair is held out. At the end, the old and the new bundle translate these pairs, and a paired bootstrap
    decides which is better. Another twentieth chooses the best step; if none is better than the start, the new bundle has
    the weights of the old one. The same command resumes a run that has stopped. KEY=VALUE changes a key of the recipe.

    \b
    Example:  dragoman adapt en-de own.tmx --general news.tsv --run own
    """
    from dragoman.console.terminal import print_json, stderr_console
    from dragoman.training.adapt_recipe import prepare_adaptation
    from dragoman.training.commands.train import run_recipe
    from dragoman.training.time_estimate import describe_minutes, estimate_recipe_minutes

    files, changes = split_files_and_settings(arguments)
    if not files:
        raise usage_error("no FILE is given; name a translation memory, such as own.tmx")
    folder = run or Path("runs") / f"adapted-{files[0].name.split('.')[0]}"
    adaptation = prepare_adaptation(bundle, files, folder, general=general, changes=changes)
    names = ", ".join(map(str, files))
    counts = [f"{adaptation.num_training_pairs:,} pairs to train on", f"{adaptation.num_held_out_pairs:,} held out"]
    if adaptation.num_untranslated_pairs:
        counts.append(f"{adaptation.num_untranslated_pairs:,} without a translation left out")
    message = f"{names}: {', '.join(counts)}"
    stderr_console().print(message, style="dim", markup=False)
    if not (folder / "checkpoints").exists():
        minutes = estimate_recipe_minutes(adaptation.recipe)
        stderr_console().print(describe_minutes(minutes), style="dim", markup=False)
    report = run_recipe(adaptation.recipe)
    if as_json:
        print_json(report)
    else:
        _print_result(report)


def _print_result(report: dict[str, Any]) -> None:
    from dragoman.console.terminal import print_facts
    from dragoman.training.adapt_recipe import METRIC_NAMES, describe_result
    from dragoman.training.test_sets import ScoreChange

    facts = {"bundle": report["bundle"], "steps": f"{report['steps']:,}", "training": f"{report['seconds']:.0f} s"}
    for name, test_set in report["test_sets"].items():
        for metric, change in test_set.get("changes", {}).items():
            facts[f"{METRIC_NAMES[metric]}, {name}"] = ScoreChange(**change).describe()
    print_facts(report["name"], facts)
    for sentence in describe_result(report):
        click.echo(sentence)
