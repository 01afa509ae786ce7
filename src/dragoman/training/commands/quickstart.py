"""Command `quickstart`: train a small translation model on a generated corpus in a few minutes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.console.options import PATH_TYPE, json_option, overrides_argument

if TYPE_CHECKING:
    from dragoman.config import TrainingConfig


@click.command()
@overrides_argument
@click.option("--to", "language", default="de", show_default=True, help="Target language: de, fr, es, … (--to ? lists them).")
@click.option("--run", type=PATH_TYPE, help="Run folder.  [default: runs/quickstart-LANGUAGE]")
@click.option("--seed", default=1, show_default=True, help="Seed of the corpus, the weights and the batch order.")
@json_option()
def quickstart(overrides: tuple[str, ...], language: str, run: Path | None, seed: int, as_json: bool) -> None:
    """Generate a parallel corpus of dates, prices and similar phrases, train a small Transformer on it, and test it.

    Nothing is downloaded. The test phrases hold values that are not in the training data. The command takes a few minutes on
    two cores. KEY=VALUE changes a key of the recipe.

    \b
    Example:  dragoman quickstart --to fr
    """
    from dragoman.console.terminal import print_json, stderr_console
    from dragoman.data.synthetic_corpus import LANGUAGES
    from dragoman.languages import get_language, to_language_code
    from dragoman.training.commands.train import run_recipe
    from dragoman.training.quickstart_recipe import prepare_quickstart

    language = get_language(to_language_code(language))
    if language not in LANGUAGES:
        raise click.BadParameter(f"{language!r} has no phrases; choose one of {', '.join(LANGUAGES)}", param_hint="--to")
    console = stderr_console()
    folder = run or Path(f"runs/quickstart-{language}")
    prepared = prepare_quickstart(
        language, folder, seed=seed, changes=overrides, notice=lambda text: console.print(text, style="dim", markup=False)
    )
    report = run_recipe(prepared.recipe, attention_source=prepared.attention_source)
    if as_json:
        print_json(report)
    else:
        _print_results(report, Path(prepared.recipe.run), Path(prepared.recipe.data.root), language)
        for line in describe_short_training(prepared.recipe.training, report["steps"], language, folder):
            click.echo(line)


def describe_short_training(config: TrainingConfig, num_steps: int, language: str, folder: Path) -> list[str]:
    """Return lines that say that the time ended a training before its steps did, and how to train longer; else none."""
    if num_steps >= config.max_steps or config.max_minutes is None:
        return []
    return [
        f"training.max_minutes = {config.max_minutes:g} ended the training after {num_steps:,} of {config.max_steps:,} steps.",
        "If the translations are bad, go on with:",
        f"  {_get_program_name()} quickstart --to {language} --run {folder} training.max_minutes=30",
    ]


def _print_results(report: dict[str, Any], folder: Path, data_dir: Path, language: str) -> None:
    from dragoman.console.terminal import print_facts, print_table

    samples = report["samples"]
    rows = [(sample["source"], sample["translation"], _describe_match(sample)) for sample in samples]
    print_table("Ten phrases that are not in the training data", ["English", "translation", "correct"], rows)
    facts = {
        "exact match": f"{report['exact_match']:.1f} % of {report['test_sentences']} held-out phrases",
        "BLEU": report["bleu"],
        "chrF": report["chrf"],
        "training": f"{report['seconds']:.0f} s, {report['steps']:,} steps, "
        f"{report['target_tokens_per_second']:,} target tokens/s on {report['machine']}",
        "parameters": f"{report['parameters']:,}",
        "report": folder / "report.html",
    }
    print_facts(report["name"], facts)
    program = _get_program_name()
    click.echo("Try next:")
    click.echo(f'  echo "May 17, 2031" | {program} translate {folder}/bundle')
    click.echo(f'  {program} explain {folder}/bundle "May 17, 2031"')
    click.echo(f"  {program} evaluate {folder}/bundle --src {data_dir}/test.en --ref {data_dir}/test.{language}")


def _get_program_name() -> str:
    """Return the command name, with its path if the shell does not find it."""
    program_path = Path(sys.argv[0])
    return str(program_path) if program_path.name == "dragoman" and shutil.which("dragoman") is None else "dragoman"


def _describe_match(sample: dict[str, str]) -> str:
    return "yes" if sample["translation"] == sample["reference"] else f"no: {sample['reference']}"
