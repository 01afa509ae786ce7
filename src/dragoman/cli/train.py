"""From a recipe to a bundle: `train`, `average`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.options import check_output_paths

if TYPE_CHECKING:
    from dragoman.config import Recipe

RECIPE_ARGUMENT = click.argument("recipe", type=click.Path(path_type=Path))
OVERRIDES_ARGUMENT = click.argument("changes", nargs=-1, metavar="[KEY=VALUE]...")
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@click.command()
@RECIPE_ARGUMENT
@OVERRIDES_ARGUMENT
@click.option("--devices", type=click.IntRange(1, 1024), help="Train on so many GPUs, or processes where there are none.")
@click.option("--max-restarts", type=click.IntRange(min=0), default=0, help="With --devices: go on so often after one died.")
@JSON_OPTION
def train(recipe: Path, overrides: tuple[str, ...], devices: int | None, max_restarts: int, as_json: bool) -> None:
    """Train RECIPE and write a run folder with the bundle and a report.

    The same command again goes on where the run stopped. KEY=VALUE changes a knob of the recipe. Over several devices,
    training.batches_per_update counts the batches of a step on all of them together. Under torchrun, Slurm or Kubernetes' PyTorchJob
    each process joins the others by itself.

    \b
    Example:  dragoman train multi30k-ende training.max_minutes=20 run=runs/short
              dragoman train wmt14-ende-big training.batches_per_update=8 --devices 8
    """
    from dragoman.config import read_recipe

    settings = read_recipe(recipe, overrides)
    if max_restarts and (devices or 1) == 1:
        raise click.UsageError("--max-restarts goes with --devices: a process by itself is started again by the same command")
    if devices is not None and devices > 1:
        launch_processes(settings, [str(recipe), *overrides, *(["--json"] if as_json else [])], devices, max_restarts)
        return
    report = run_recipe(settings)
    if report:
        print_report(report, as_json)


def launch_processes(recipe: Recipe, arguments: list[str], devices: int, max_restarts: int) -> None:
    """The same command once a device; ends with the exit code of those."""
    from dragoman.training.distributed.launch import launch
    from dragoman.training.distributed.process_group import DistributedContext, check_even_split

    if "RANK" in os.environ:
        raise click.UsageError("--devices starts processes, but a launcher has started this one; leave it out")
    check_even_split(recipe, DistributedContext(world_size=devices))
    timeout_minutes = recipe.training.distributed_timeout_minutes
    sys.exit(launch(["train", *arguments], devices=devices, max_restarts=max_restarts, timeout_minutes=timeout_minutes))


def run_recipe(recipe: Recipe, *, attention_source: str | None = None) -> dict[str, Any]:
    """Train with a bar and the header that says where the recipe departs from the paper; of several ranks, the first tells."""
    from dragoman.cli.console import TrainingProgressBar, stderr_console
    from dragoman.config.paper_settings import find_deviations
    from dragoman.errors import DragomanError, OutOfMemoryError, RankError, RankZeroError, WorkerLostError
    from dragoman.training.distributed.exit_status import exit_with_launcher, write_exit_status
    from dragoman.training.distributed.process_group import context_from_environment
    from dragoman.training.run import train as train_recipe

    is_rank_zero = context_from_environment(
        os.environ, timeout_minutes=recipe.training.distributed_timeout_minutes
    ).is_rank_zero
    try:
        exit_with_launcher()
        if not is_rank_zero:
            return train_recipe(recipe)
    except DragomanError as error:
        write_exit_status(error)
        if isinstance(error, WorkerLostError | OutOfMemoryError | RankError):
            raise
        raise RankZeroError(error.exit_code) from None  # the first rank tells what is told to all
    console = stderr_console()
    console.print(f"{recipe.name}: {recipe.preset}, {recipe.size}, into {recipe.run}", style="bold", markup=False)
    for deviation in find_deviations(recipe.model_dump(mode="json")):
        console.print(f"  {deviation.describe()}", style="dim", markup=False)
    progress_bar = TrainingProgressBar(console)
    try:
        return train_recipe(recipe, progress_bar, attention_source=attention_source)
    except DragomanError as error:
        write_exit_status(error)
        raise
    finally:
        progress_bar.close()


def print_report(report: dict[str, Any], as_json: bool) -> None:
    """The result of a run: JSON for machines, a table for people."""
    from dragoman.cli.console import print_facts, print_json

    if as_json:
        print_json(report)
        return
    fields = (
        "bundle",
        "steps",
        "epochs",
        "seconds",
        "target_tokens_per_second",
        "bleu",
        "chrf",
        "exact_match",
        "f1",
        "tagging",
    )
    facts = {name.replace("_", " "): report[name] for name in fields if name in report}
    if "valid" in report:
        facts["validation perplexity"] = round(report["valid"]["perplexity"], 3)
    for name, signature in report.get("signatures", {}).items():
        facts[f"{name} signature"] = signature
    print_facts(report["name"], facts)


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The bundle to write.")
@click.option("--last", type=click.IntRange(min=1), help="Average the newest N checkpoints.")
@click.option("--best", type=click.IntRange(min=1), help="Average the N checkpoints that validated best.")
@click.option("--overwrite", is_flag=True, help="Replace a bundle that stands there.")
@JSON_OPTION
def average(run: Path, output: Path, last: int | None, best: int | None, overwrite: bool, as_json: bool) -> None:
    """Average checkpoints of the run folder RUN into a bundle of their own.

    \b
    Example:  dragoman average runs/multi30k-ende --last 3 -o runs/last3
    """
    from dragoman.cli.console import print_facts, print_json
    from dragoman.training.run import average_run

    if (last is None) == (best is None):
        raise click.UsageError("give either --last N or --best N", ctx=click.get_current_context())
    check_output_paths(output, overwrite=True)
    metadata = average_run(run, output, averaging="last" if last else "best", count=last or best or 1, overwrite=overwrite)
    result = {"bundle": str(output), "averaged": metadata["averaged"]}
    if as_json:
        print_json(result)
    else:
        print_facts("averaged", {"bundle": output, "checkpoints": ", ".join(metadata["averaged"])})
