"""Commands `train` and `average`."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from dragoman.config import DataConfig, TokenizerConfig, TrainingConfig
from dragoman.console.options import (
    BUNDLE_TYPE,
    PATH_TYPE,
    check_output_paths,
    json_option,
    output_path_option,
    overrides_argument,
    overwrite_option,
    print_note,
    recipe_argument,
    usage_error,
)
from dragoman.io.json_fields import OPTIONAL
from dragoman.languages import to_language_code

if TYPE_CHECKING:
    from dragoman.config import Recipe


@dataclass(frozen=True)
class AverageOutput:
    """Output of `dragoman model average --json`.

    averaged_checkpoints: names of the checkpoints of a run
    interpolated_bundles: share of each bundle
    """

    bundle: str
    averaged_checkpoints: Annotated[Sequence[str] | None, OPTIONAL] = None
    interpolated_bundles: Annotated[Mapping[str, float] | None, OPTIONAL] = None


@click.command()
@recipe_argument
@overrides_argument
@click.option("--devices", type=click.IntRange(1, 1024), help="Number of GPUs, or of processes on a machine without GPUs.")
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="With --devices: restarts after a process has died.",
)
@json_option()
def train(recipe: Path, overrides: tuple[str, ...], devices: int | None, max_restarts: int, as_json: bool) -> None:
    """Train RECIPE and write a run folder with the bundle and a report.

    The same command resumes a run that has stopped. KEY=VALUE changes a key of the recipe. With preset = "modern", what the
    recipe leaves out follows from its corpora. `dragoman -v train` lists what differs from the paper's text.

    On several devices, training.batches_per_update counts the batches of all devices together. The launchers torchrun, Slurm
    and Kubernetes' PyTorchJob need no option.

    \b
    Example:  dragoman train multi30k-ende training.max_minutes=20 run=runs/short
              dragoman train wmt14-ende-big training.batches_per_update=8 --devices 8
    """
    from dragoman.data.data_defaults import read_training_recipe

    settings, choice, _ = read_training_recipe(recipe, overrides)
    if choice is not None and (languages := _ask_languages(settings)):
        overrides += languages
        settings, choice, _ = read_training_recipe(recipe, overrides)
    if max_restarts and (devices or 1) == 1:
        raise usage_error("--max-restarts goes with --devices; a single process is resumed by the same command")
    if devices is not None and devices > 1:
        launch_processes(
            settings.data,
            settings.tokenizer,
            settings.training,
            [str(recipe), *overrides, *(["--json"] if as_json else [])],
            devices,
            max_restarts,
        )
        return
    report = run_recipe(settings, notes=[note for note in (choice, describe_missing_export(settings)) if note])
    if report:
        print_report(report, as_json)
    if report and not as_json and settings.task.kind == "translation":
        bundle, page = (shlex.quote(str(Path(settings.run) / name)) for name in ("bundle", "report.html"))
        click.echo(f"Try next:\n  dragoman translate {bundle} FILE\n  dragoman serve {bundle}\nThe report: {page}")


def _ask_languages(recipe: Recipe) -> tuple[str, ...]:
    """Return settings with the languages of a new run whose recipe states none, as a terminal answers. Without one, say so."""
    if (
        recipe.task.kind != "translation"
        or any(map(any, recipe.language_pairs))
        or os.path.exists(recipe.run)
        or "RANK" in os.environ
    ):
        return ()
    if not sys.stdin.isatty():
        print_note("the recipe states no languages, which cleaning and servers need: add task.source_language=en, for example")
        return ()
    sides = ("source", "target")
    codes = [click.prompt(f"{side.capitalize()} language, such as en", err=True, value_proc=to_language_code) for side in sides]
    return tuple(f"task.{side}_language={code}" for side, code in zip(sides, codes, strict=True))


def launch_processes(
    data: DataConfig,
    tokenizer: TokenizerConfig,
    training: TrainingConfig,
    arguments: list[str],
    devices: int,
    max_restarts: int,
) -> None:
    """Run the same command in one process for each device, and exit with their exit status."""
    from dragoman.training.distributed.launch import launch
    from dragoman.training.distributed.process_group import DistributedContext, check_even_split

    if "RANK" in os.environ:
        raise usage_error("--devices: a launcher has started this process; leave the option out")
    check_even_split(data, tokenizer, training, DistributedContext(world_size=devices))
    timeout_minutes = training.distributed_timeout_minutes
    sys.exit(launch(["train", *arguments], devices=devices, max_restarts=max_restarts, timeout_minutes=timeout_minutes))


def run_recipe(recipe: Recipe, *, attention_source: str | None = None, notes: Sequence[str] = ()) -> dict[str, Any]:
    """Train with a progress bar, after a line about the recipe.

    notes: further lines about it

    Only rank 0 prints.
    """
    from dragoman.config.paper_settings import find_deviations
    from dragoman.console.terminal import rich_console
    from dragoman.data.data_defaults import DERIVING_PRESET
    from dragoman.errors import DragomanError, OutOfMemoryError, RankError, RankZeroError, WorkerLostError
    from dragoman.runtime.progress import Heartbeat
    from dragoman.training.commands.progress_bar import TrainingProgressBar
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
        raise RankZeroError(error.exit_code) from None  # rank 0 prints the error of all ranks
    console = rich_console()
    kind = "" if recipe.training.init_from else f": {recipe.preset}, {recipe.size}"  # the initial bundle has a size of its own
    console.print(f"{recipe.name}{kind}, into {recipe.run}", style="bold", markup=False)
    for note in notes:
        console.print(note, markup=False)
    deviations = find_deviations(recipe.model_dump())
    if deviations and recipe.preset != DERIVING_PRESET:
        keys = ", ".join(deviation.key for deviation in deviations)
        console.print(f"not as the paper: {keys}; dragoman -v train has the values", style="dim", markup=False)
    for deviation in deviations:
        logging.getLogger(__name__).debug(deviation.describe())
    progress_bar = TrainingProgressBar(console)
    try:
        with Heartbeat(progress_bar.write_if_due):
            return train_recipe(recipe, progress_bar, attention_source=attention_source)
    except DragomanError as error:
        write_exit_status(error)
        raise
    finally:
        progress_bar.close()


def describe_missing_export(recipe: Recipe) -> str | None:
    """Return the setting with which `export --to huggingface` refuses a new translation model; others refuse none."""
    from dragoman.data.data_defaults import DERIVING_PRESET
    from dragoman.errors import BundleError
    from dragoman.export.huggingface import check_model
    from dragoman.export.huggingface_t5 import is_t5

    try:
        if (
            recipe.preset == DERIVING_PRESET
            and recipe.task.kind == "translation"
            and not recipe.training.init_from
            and not is_t5(recipe.model)
        ):
            check_model(recipe.model)
    except BundleError as error:
        return f"no export to huggingface: {error}"
    return None


def print_report(report: dict[str, Any], as_json: bool) -> None:
    """Print the report of a run as JSON or as a table."""
    from dragoman.console.terminal import print_facts, print_json
    from dragoman.runtime.counts import format_perplexity
    from dragoman.runtime.facts import format_facts
    from dragoman.training.adapt_recipe import METRIC_NAMES
    from dragoman.training.test_sets import ScoreChange

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
    facts = dict(format_facts({name: report[name] for name in fields if name in report}))
    if "valid" in report:
        facts["validation perplexity"] = format_perplexity(report["valid"]["perplexity"])
    for name, test_set in report.get("test_sets", {}).items():
        for metric, change in test_set.get("changes", {}).items():
            facts[f"{METRIC_NAMES[metric]} on {name}"] = ScoreChange(**change).describe()
    for name, signature in report.get("signatures", {}).items():
        facts[f"{METRIC_NAMES.get(name, name.replace('_', ' '))} signature"] = signature
    print_facts(report["name"], facts)


class AverageCommand(click.Command):
    """Command whose option --weights takes any number of values, which click's options do not."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Join the numbers after --weights to one value before the arguments are parsed."""
        return super().parse_args(ctx, join_numbers(args, "--weights"))


def join_numbers(arguments: list[str], option: str) -> list[str]:
    """Return the arguments with the numbers that follow an option joined by commas: --weights 0.7 0.3 → --weights 0.7,0.3."""
    if option not in arguments:
        return arguments
    start = arguments.index(option) + 1
    end = start
    while end < len(arguments) and re.fullmatch(r"[-+]?[0-9.][0-9.,e+-]*", arguments[end]):
        end += 1
    return [*arguments[:start], *([",".join(arguments[start:end])] if end > start else []), *arguments[end:]]


@click.command(cls=AverageCommand)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=PATH_TYPE)
@output_path_option("Bundle to write.", required=True)
@click.option("--last", type=click.IntRange(min=1), help="Average the newest N checkpoints.")
@click.option("--best", type=click.IntRange(min=1), help="Average the N checkpoints with the best validation score.")
@click.option("--weights", metavar="NUMBER...", help="Share of each bundle, such as 0.7 0.3; equal by default.")
@overwrite_option("Replace a bundle that exists.")
@json_option()
def average(
    paths: tuple[Path, ...],
    output: Path,
    last: int | None,
    best: int | None,
    weights: str | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Average checkpoints of one run folder, or the weights of several bundles, into a new bundle.

    With --last or --best, PATH is a run folder. With two or more bundles of one structure, such as a bundle and its fine-tuned
    version, the new bundle is their weighted mean.

    \b
    Example:  dragoman model average runs/multi30k-ende --last 3 -o runs/last3
              dragoman model average runs/general-ende/bundle own/bundle --weights 0.7 0.3 -o both
    """
    if len(paths) > 1 and last is None and best is None:
        _interpolate(paths, output, weights, overwrite=overwrite, as_json=as_json)
        return
    if len(paths) > 1 or (last is None) == (best is None):
        raise usage_error("give either --last N or --best N for one run folder, or two or more bundles")
    if weights is not None:
        raise usage_error("--weights goes with two or more bundles; checkpoints have equal weights")
    _average_run(paths[0], output, last, best, overwrite=overwrite, as_json=as_json)


def _interpolate(paths: tuple[Path, ...], output: Path, weights: str | None, *, overwrite: bool, as_json: bool) -> None:
    from dragoman.console.terminal import print_facts, print_json
    from dragoman.interpolation import interpolate_bundles

    try:
        shares = None if weights is None else [float(number) for number in weights.split(",")]
    except ValueError:
        raise usage_error(f"--weights {weights}: needs numbers, such as 0.7 0.3") from None
    paths = tuple(BUNDLE_TYPE.convert(path, None, None) for path in paths)
    check_output_paths(output, input_paths=paths, overwrite=True)
    share_by_path = interpolate_bundles(paths, output, shares=shares, overwrite=overwrite, notify=print_note)
    if as_json:
        print_json(AverageOutput(str(output), interpolated_bundles=share_by_path))
    else:
        print_facts("average", {"bundle": output, **{path: f"{share:.3g}" for path, share in share_by_path.items()}})


def _average_run(run: Path, output: Path, last: int | None, best: int | None, *, overwrite: bool, as_json: bool) -> None:
    from dragoman.console.terminal import print_facts, print_json
    from dragoman.training.finalize import average_run

    check_output_paths(output, overwrite=True)
    averaging = "last" if last else "best"
    metadata = average_run(run, output, averaging=averaging, count=last or best or 1, overwrite=overwrite, notify=print_note)
    checkpoint_names = metadata["averaged_checkpoints"]
    if as_json:
        print_json(AverageOutput(str(output), averaged_checkpoints=checkpoint_names))
    else:
        print_facts("average", {"bundle": output, "checkpoints": ", ".join(checkpoint_names)})
