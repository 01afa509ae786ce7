"""More to learn from: `augment back-translate`, `self-train`, `distil`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource

from dragoman.cli.options import check_output_paths, treat_termination_as_interrupt

if TYPE_CHECKING:
    from dragoman.config import TaskConfig
    from dragoman.formats.pair import Pair
    from dragoman.tasks.synthetic_data import Augmentation, PairFileFormat

PATH_TYPE = click.Path(path_type=Path)
CommandT = TypeVar("Command", bound=Callable[..., Any])
DROP_REASONS = {
    "blank": "without text",
    "truncated": "cut",
    "looped": "that went round in circles",
    "copied": "that came out as they went in",
    "empty": "of which nothing came",
    "refused": "longer than the model reads",
}
TAG_OPTION = click.option("--tag", default="", help="A word that stands before each source, such as <BT>.")


def augment_options(command: CommandT) -> CommandT:
    """What all three take."""
    for option in reversed(
        [
            click.option("-o", "--output", type=PATH_TYPE, required=True, help="Write here: a .tsv or a .jsonl."),
            click.option("--overwrite", is_flag=True, help="Replace what is there, and what was begun with other settings."),
            click.option("--with", "others", multiple=True, type=PATH_TYPE, help="One more bundle for an ensemble."),
            click.option(
                "--keep",
                multiple=True,
                type=click.Choice(["truncated", "looped", "copied"]),
                help="Write such pairs, too; they are dropped otherwise.",
            ),
            click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, …"),
            click.option("--precision", default="auto", show_default=True, help="float32, bfloat16, int8."),
            click.option("--json", "as_json", is_flag=True, help="Print what became of the lines as JSON."),
        ]
    ):
        command = option(command)
    return command


@click.group()
def augment() -> None:
    """Make more to learn from with models that are there, as a corpus for a recipe's mixture. Each has --json.

    Lines are read as a stream; interrupted, the same command goes on where it stopped. Every line is written, or counted with
    the reason why not; the exit code is 3 where no line gave a pair. A .jsonl also tells the origin of each pair, and how sure
    the model was.

    \b
    Example:  dragoman augment back-translate runs/multi30k-ende/bundle news.en -o news.jsonl --tag "<BT>" method=sample
              dragoman augment distil runs/wmt14-ende-big/bundle train.en train.de -o distilled.tsv --best-of 5
    """


@augment.command("back-translate")
@click.argument("bundle", type=PATH_TYPE)
@click.argument("words", nargs=-1, required=True, metavar="FILE [KEY=VALUE]...")
@TAG_OPTION
@augment_options
def back_translate(bundle: Path, arguments: tuple[str, ...], tag: str, keep_statuses: tuple[str, ...], **options: Any) -> None:
    """Pairs of the lines of FILE, in the target language, and sources that BUNDLE writes for them.

    BUNDLE translates from the target language into the source language. KEY=VALUE changes a knob of its recipe's [decoding].

    \b
    Example:  dragoman augment back-translate runs/multi30k-ende/bundle news.en -o news.jsonl --tag "<BT>" method=sample
    """
    from dragoman.tasks.synthetic_data import Augmentation

    files, decoding = _split_arguments(arguments, 1)
    augmentation = Augmentation("back-translate", tag=_check_tag(tag), keep_statuses=frozenset(keep_statuses))
    _translate_and_write(augmentation, bundle, files, decoding, **options)


@augment.command("self-train")
@click.argument("bundle", type=PATH_TYPE)
@click.argument("words", nargs=-1, required=True, metavar="FILE [KEY=VALUE]...")
@TAG_OPTION
@augment_options
def self_train(bundle: Path, arguments: tuple[str, ...], tag: str, keep_statuses: tuple[str, ...], **options: Any) -> None:
    """Pairs of the lines of FILE, in the source language, and targets that BUNDLE writes for them.

    \b
    Example:  dragoman augment self-train runs/multi30k-ende/bundle news.en -o news.jsonl beam_size=5
    """
    from dragoman.tasks.synthetic_data import Augmentation

    files, decoding = _split_arguments(arguments, 1)
    augmentation = Augmentation("self-train", tag=_check_tag(tag), keep_statuses=frozenset(keep_statuses))
    _translate_and_write(augmentation, bundle, files, decoding, **options)


@augment.command()
@click.argument("bundle", type=PATH_TYPE)
@click.argument("words", nargs=-1, required=True, metavar="SOURCE TARGET [KEY=VALUE]...")
@click.option("--best-of", type=click.IntRange(1, 1000), help="Of so many outputs, take the one most like the pair's target.")
@click.option("--by", type=click.Choice(["bleu", "chrf"]), default="bleu", show_default=True, help="With --best-of.")
@click.option("--original", is_flag=True, help="Where no output can be used, write the pair as it was.")
@augment_options
def distil(
    bundle: Path,
    arguments: tuple[str, ...],
    best_of: int | None,
    similarity: str,
    fallback_to_reference: bool,
    keep_statuses: tuple[str, ...],
    **options: Any,
) -> None:
    """The pairs of SOURCE and TARGET (or of one file that holds both) with the targets that BUNDLE, the teacher, writes.

    \b
    Example:  dragoman augment distil runs/wmt14-ende-big/bundle train.en train.de -o distilled.tsv --best-of 5 --original
    """
    from dragoman.tasks.synthetic_data import Augmentation

    files, decoding = _split_arguments(arguments, 2)
    context = click.get_current_context()
    if best_of is None and context.get_parameter_source("by") is ParameterSource.COMMANDLINE:
        raise click.UsageError(f"--by {similarity} says how --best-of chooses, which is not given", ctx=context)
    if best_of is not None and "nbest" in decoding:
        raise click.UsageError(f"--best-of {best_of} and nbest={decoding['nbest']} both say how many: give one", ctx=context)
    augmentation = Augmentation(
        "distil",
        keep_statuses=frozenset(keep_statuses),
        similarity=cast("Any", similarity),
        fallback_to_reference=fallback_to_reference,
    )
    _translate_and_write(augmentation, bundle, files, decoding, best_of=best_of, **options)


def _translate_and_write(
    augmentation: Augmentation,
    bundle: Path,
    files: Sequence[Path],
    decoding: dict[str, Any],
    *,
    output: Path,
    overwrite: bool,
    ensemble: tuple[Path, ...],
    device: str,
    precision: str,
    as_json: bool,
    best_of: int | None = None,
) -> None:
    """Translate and write."""
    from dataclasses import replace

    from dragoman.cli.console import progress_bar, stderr_console
    from dragoman.errors import DataError, InterruptedRun, RecipeError
    from dragoman.formats.resumable import resumable_file
    from dragoman.inference.translator import load_translator
    from dragoman.tasks.synthetic_data import augment as write_pairs
    from dragoman.tasks.synthetic_data import describe_request

    output_format = _get_output_format(output)
    check_output_paths(output, overwrite=overwrite, input_paths=[*files, bundle, *ensemble])
    translator = load_translator(bundle, *ensemble, device=device, precision=precision)
    task = translator.recipe.task
    if best_of is not None:
        decoding = {"nbest": best_of, **decoding}
        if translator.resolve_decoding({**decoding, "nbest": 1}).method == "beam":
            decoding = {"beam_size": max(best_of, translator.recipe.decoding.beam_size), **decoding}
    try:
        config = translator.resolve_decoding(decoding)
    except RecipeError as error:
        raise error if best_of is None else RecipeError(f"--best-of {best_of} asks for nbest = {best_of}: {error}") from None
    augmentation = replace(augmentation, tokenised=task.tokenized)
    request = describe_request(
        augmentation, output_format, [bundle, *ensemble], files, config, precision=str(translator.precision)
    )
    total_lines = sum(1 for _ in _read_input_pairs(augmentation, files, task))
    if not total_lines:
        raise DataError(f"{files[0]}: is empty; there is nothing to make pairs of")
    start_time = time.monotonic()
    treat_termination_as_interrupt()
    with (
        resumable_file(output, request, overwrite=overwrite) as output_file,
        progress_bar(stderr_console(), "translating", total_lines) as bar,
    ):
        resumed_lines = output_file.num_read
        try:
            status_counts = write_pairs(
                _read_input_pairs(augmentation, files, task),
                augmentation,
                lambda lines, start_index: translator.translate(lines, start_index=start_index, **decoding),
                output_file,
                file_format=output_format,
                on_progress=lambda count: bar.advance(bar.task_ids[0], count),
            )
        except KeyboardInterrupt:
            resume_hint = f"{output_file.num_read:,} of {total_lines:,} lines are kept in {output_file.folder}; the same command goes on from there"
            raise InterruptedRun(f"interrupted: {resume_hint}") from None
    run_fields = {"output": str(output), "from_before": resumed_lines, "seconds": time.monotonic() - start_time}
    _print_summary(
        f"{bundle} ({task.source_language} → {task.target_language})", total_lines, status_counts, run_fields, as_json=as_json
    )
    if not status_counts.get("written", 0) + status_counts.get("original", 0):
        sys.exit(3)


def _print_summary(
    model_description: str, total_lines: int, status_counts: Mapping[str, int], run_fields: dict[str, Any], *, as_json: bool
) -> None:
    """What became of the lines, and nothing of those of which there are none."""
    from dragoman.cli.console import print_json
    from dragoman.tasks.synthetic_data import TABS

    reference_pairs, pairs_with_tabs = status_counts.get("original", 0), status_counts.get(TABS, 0)
    written_pairs = status_counts.get("written", 0) + reference_pairs
    dropped_counts = {status: count for status, count in status_counts.items() if status in DROP_REASONS}
    if as_json:
        pair_fields = {
            "pairs": written_pairs,
            "original": reference_pairs,
            "tabs_replaced": pairs_with_tabs,
            "dropped": dropped_counts,
        }
        print_json({**run_fields, "lines": total_lines, **pair_fields})
        return
    click.echo(f"{run_fields['output']}: {written_pairs:,} pairs of {total_lines:,} lines, by {model_description}")
    if reference_pairs:
        click.echo(f"pairs written as they were: {reference_pairs:,}", err=True)
    if pairs_with_tabs:
        click.echo(f"pairs whose tabs are spaces now, since a .tsv has them between its columns: {pairs_with_tabs:,}", err=True)
    for status, count in dropped_counts.items():
        click.echo(f"lines {DROP_REASONS[status]}, dropped: {count:,}", err=True)


def _get_output_format(output: Path) -> PairFileFormat:
    if output.suffix not in (".tsv", ".jsonl"):
        raise click.UsageError(f"{output}: its ending has to be .tsv or .jsonl", ctx=click.get_current_context())
    return "tsv" if output.suffix == ".tsv" else "jsonl"


def _split_arguments(arguments: Sequence[str], max_files: int) -> tuple[list[Path], dict[str, Any]]:
    """The files and the decoding knobs, told apart by their equals sign."""
    from dragoman.config import parse_setting

    files = [Path(argument) for argument in arguments if "=" not in argument or Path(argument).exists()]
    settings = map(parse_setting, (argument for argument in arguments if Path(argument) not in files))
    if not 1 <= len(files) <= max_files:
        allowed = "one file" if max_files == 1 else "SOURCE and TARGET, or one file that holds both"
        raise click.UsageError(f"{len(files)} files are given; allowed: {allowed}", ctx=click.get_current_context())
    return files, {key.removeprefix("decoding."): value for key, value in settings}


def _check_tag(tag: str) -> str:
    if any(letter.isspace() for letter in tag):
        raise click.UsageError(f"--tag {tag!r}: has to be one word", ctx=click.get_current_context())
    return tag


def _read_input_pairs(augmentation: Augmentation, files: Sequence[Path], task: TaskConfig) -> Iterator[Pair]:
    """What there is: lines of one language, or the pairs of two files, or those of one that holds both sides."""
    from dragoman.errors import DataError
    from dragoman.formats.pair import Pair
    from dragoman.formats.readers import SUFFIX_FORMATS, detect_format, get_format_suffix, read_file, read_sides
    from dragoman.formats.text import read_lines

    if augmentation.method != "distil":
        return (Pair(line, "", f"{files[0]}:{line_number}") for line_number, line in enumerate(read_lines(files[0]), start=1))
    if len(files) == 2:
        return read_sides(files[0], files[1])
    if get_format_suffix(files[0]) not in SUFFIX_FORMATS:
        raise DataError(f"{files[0]}: holds one side; give SOURCE and TARGET, or one file that holds both, such as a .tsv")
    languages = {"source_language": task.source_language, "target_language": task.target_language}
    return read_file(files[0], detect_format(files[0]), **languages)
