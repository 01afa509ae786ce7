"""Commands `augment back-translate`, `augment self-train` and `augment distill`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import click
from click.core import ParameterSource

from dragoman.console.options import (
    INCOMPLETE_LINES,
    SuggestingGroup,
    bleu_tokenizer_option,
    bundle_argument,
    cluster_option,
    device_option,
    ensemble_option,
    json_option,
    option,
    output_path_option,
    overwrite_option,
    parse_decoding_overrides,
    precision_option,
    shared,
    treat_termination_as_interrupt,
    usage_error,
    with_options,
)
from dragoman.runtime.counts import format_count

if TYPE_CHECKING:
    from dragoman.cli.store_files import InputFile
    from dragoman.config import TaskConfig
    from dragoman.formats.pair import Pair
    from dragoman.inference.synthetic_data import Augmentation, PairFileFormat, TranslateFn
    from dragoman.inference.translator import Translator
    from dragoman.runtime.device_options import DeviceOptions

DROP_REASONS = {
    "blank": "without text",
    "truncated": "whose output was cut",
    "short": "whose output is far shorter than the input",
    "repetition": "whose output is a degenerate repetition",
    "copied": "whose output is a copy of the input",
    "empty": "whose output is empty",
    "too_long": "longer than the model reads",
}
tag_option = click.option("--tag", default="", help="Word before each source, such as <BT>.")


@dataclass(frozen=True)
class AugmentOutput:
    """Output of `dragoman augment … --json`.

    resumed_lines: lines that an interrupted command had done
    reference_pairs: pairs that kept their reference, by --fallback-to-reference
    tabs_replaced: pairs whose tabs became spaces
    dropped: number of lines for each reason
    """

    output: str
    resumed_lines: int
    seconds: float
    lines: int
    pairs: int
    reference_pairs: int
    tabs_replaced: int
    dropped: Mapping[str, int]


@dataclass(frozen=True)
class AugmentOptions:
    """Options of all three methods."""

    output: Path = shared(output_path_option("File to write: a .tsv or a .jsonl.", required=True))
    overwrite: bool = shared(overwrite_option("Replace the output, and a partial output of other settings."))
    ensemble: tuple[Path, ...] = shared(ensemble_option)
    keep_statuses: tuple[str, ...] = option(
        "--keep-status",
        "keep_statuses",
        multiple=True,
        type=click.Choice(["truncated", "short", "repetition", "copied"]),
        help="Keep pairs of this status, which are dropped otherwise. Repeat it for several statuses.",
    )
    device: str = shared(device_option)
    precision: str = shared(precision_option())
    cluster: str | None = shared(cluster_option)
    as_json: bool = shared(json_option("Print the counts of the lines as JSON."))


@click.group(cls=SuggestingGroup)
def augment() -> None:
    """Make synthetic pairs with trained models, as a corpus for the mixture of a recipe. Each method has --json.

    After an interruption, the same command resumes. Every line is written, or counted with the reason for its loss. The exit
    status is 3 if no line gives a pair. A .jsonl also holds the origin of each pair and the score of the model.

    Files, bundle and -o may be URLs of an object store, such as s3://bucket/name.jsonl. With --cluster, the workers need the
    bundle under the same path, or its URL.

    \b
    Example:  dragoman augment back-translate runs/multi30k-ende/bundle news.en -o news.jsonl --tag "<BT>" method=sample
              dragoman augment distill runs/wmt14-ende-big/bundle train.en train.de -o distilled.tsv --best-of 5
    """


@augment.command("back-translate")
@bundle_argument
@click.argument("arguments", nargs=-1, required=True, metavar="FILE [KEY=VALUE]...")
@tag_option
@with_options(AugmentOptions)
def back_translate(args: AugmentOptions, bundle: Path, arguments: tuple[str, ...], tag: str) -> None:
    """Make pairs of the lines of FILE, in the target language, and of sources that BUNDLE generates.

    BUNDLE translates from the target language into the source language. KEY=VALUE changes a key of its recipe's [decoding]
    section.

    \b
    Example:  dragoman augment back-translate runs/multi30k-ende/bundle news.en -o news.jsonl --tag "<BT>" method=sample
    """
    _augment_lines("back-translate", args, bundle, arguments, tag)


@augment.command("self-train")
@bundle_argument
@click.argument("arguments", nargs=-1, required=True, metavar="FILE [KEY=VALUE]...")
@tag_option
@with_options(AugmentOptions)
def self_train(args: AugmentOptions, bundle: Path, arguments: tuple[str, ...], tag: str) -> None:
    """Make pairs of the lines of FILE, in the source language, and of targets that BUNDLE generates.

    \b
    Example:  dragoman augment self-train runs/multi30k-ende/bundle news.en -o news.jsonl beam_size=5
    """
    _augment_lines("self-train", args, bundle, arguments, tag)


def _augment_lines(
    method: Literal["back-translate", "self-train"],
    args: AugmentOptions,
    bundle: Path,
    arguments: Sequence[str],
    tag: str,
) -> None:
    """Translate the lines of one file, and write them with their translations. Raises UsageError for a tag of several words."""
    from dragoman.inference.synthetic_data import Augmentation

    files, decoding = _split_arguments(arguments, 1)
    if any(letter.isspace() for letter in tag):
        raise usage_error(f"--tag {tag!r}: holds a space; give one word")
    augmentation = Augmentation(method, tag=tag, keep_statuses=frozenset(args.keep_statuses))
    _translate_and_write(augmentation, args, bundle, files, decoding)


@augment.command()
@bundle_argument
@click.argument("arguments", nargs=-1, required=True, metavar="SOURCE TARGET [KEY=VALUE]...")
@click.option(
    "--best-of", type=click.IntRange(1, 1000), help="Take the output that is most similar to the reference, of N outputs."
)
@click.option(
    "--similarity", type=click.Choice(["bleu", "chrf"]), default="bleu", show_default=True, help="Similarity of --best-of."
)
@bleu_tokenizer_option
@click.option("--fallback-to-reference", is_flag=True, help="Write the pair with its reference if no output can be used.")
@with_options(AugmentOptions)
def distill(
    args: AugmentOptions,
    bundle: Path,
    arguments: tuple[str, ...],
    best_of: int | None,
    similarity: str,
    bleu_tokenizer: str,
    fallback_to_reference: bool,
) -> None:
    """Replace the targets of the pairs of SOURCE and TARGET by outputs of BUNDLE, the teacher. One file may hold both sides.

    \b
    Example:  dragoman augment distill runs/wmt14-ende-big/bundle train.en train.de -o distilled.tsv --best-of 5
    """
    from dragoman.inference.synthetic_data import Augmentation

    files, decoding = _split_arguments(arguments, 2)
    context = click.get_current_context()
    for name, value in (("similarity", similarity), ("bleu_tokenizer", bleu_tokenizer)):
        if best_of is None and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise usage_error(f"--{name.replace('_', '-')} {value}: needs --best-of; give both")
    if best_of is not None and "nbest" in decoding:
        raise usage_error(f"--best-of {best_of} and nbest={decoding['nbest']} both set the number of outputs; give one")
    augmentation = Augmentation(
        "distill",
        keep_statuses=frozenset(args.keep_statuses),
        similarity=cast("Any", similarity),
        fallback_to_reference=fallback_to_reference,
    )
    _translate_and_write(augmentation, args, bundle, files, decoding, best_of=best_of, bleu_tokenizer=bleu_tokenizer)


def _translate_and_write(
    augmentation: Augmentation,
    args: AugmentOptions,
    bundle: Path,
    files: Sequence[str],
    decoding: dict[str, Any],
    *,
    best_of: int | None = None,
    bleu_tokenizer: str = "auto",
) -> None:
    """Translate the lines of the files, and write their pairs. Files and output may be URLs."""
    from dataclasses import replace

    from dragoman.cli.store_files import check_output_location, locate_inputs
    from dragoman.errors import DataError
    from dragoman.inference.bundle_store import locate_bundle
    from dragoman.inference.load import load
    from dragoman.inference.synthetic_data import describe_request

    check_output_location(args.output, files, [bundle, *args.ensemble], overwrite=args.overwrite)
    with locate_inputs(files) as inputs:
        output_format = _get_output_format(args.output)
        translator = load(bundle, *args.ensemble, task="translation", device=args.device, precision=args.precision)
        task = translator.recipe.task
        decoding = _set_best_of(translator, decoding, best_of)
        config = translator.resolve_decoding(decoding)
        is_checked = best_of is not None and augmentation.similarity == "bleu"
        tokenizer = _choose_bleu_tokenizer(task, bleu_tokenizer, is_checked=is_checked)
        augmentation = replace(augmentation, bleu_tokenizer=tokenizer)
        bundle_folders = [locate_bundle(path) for path in (bundle, *args.ensemble)]
        paths = [input_file.path for input_file in inputs]
        request = describe_request(
            augmentation, output_format, bundle_folders, paths, config, precision=str(translator.precision)
        )
        total_lines = sum(1 for _ in _read_input_pairs(augmentation, inputs, task))
        if not total_lines:
            raise DataError(f"{inputs[0].name}: is empty; give a file with text")
        pairs = _read_input_pairs(augmentation, inputs, task)
        start_time = time.monotonic()
        treat_termination_as_interrupt()
        job = _AugmentJob(translator, augmentation, decoding, output_format, pairs, total_lines, request)
        resumed_lines, status_counts = _write_pairs(args, bundle, job)
        summary = _summarize(args.output, resumed_lines, time.monotonic() - start_time, total_lines, status_counts)
        _finish(bundle, task, summary, args.as_json)


class _AugmentJob(NamedTuple):
    """Pairs to translate, and what makes the output what it is.

    request: description of the job; an output of another one is not continued
    """

    translator: Translator
    augmentation: Augmentation
    decoding: dict[str, Any]
    output_format: PairFileFormat
    pairs: Iterable[Pair]
    total_lines: int
    request: dict[str, Any]


def _write_pairs(args: AugmentOptions, bundle: Path, job: _AugmentJob) -> tuple[int, Mapping[str, int]]:
    """Translate on this machine or on a cluster.

    Return the number of lines that an interrupted command has done, and the counts by status.
    """
    from dragoman.cli.store_files import resumable_output
    from dragoman.console.terminal import progress_bar, stderr_console
    from dragoman.errors import InterruptedRun
    from dragoman.inference.synthetic_data import augment as write_pairs

    with (
        resumable_output(args.output, job.request, overwrite=args.overwrite) as output_file,
        progress_bar(stderr_console(), "translating", job.total_lines) as bar,
        _open_workers(args, bundle, job) as (translate, map_windows),
    ):
        resumed_lines = output_file.num_read
        try:
            status_counts = write_pairs(
                job.pairs,
                job.augmentation,
                translate,
                output_file,
                file_format=job.output_format,
                map_windows=map_windows,
                on_progress=bar.advance,
            )
        except KeyboardInterrupt:
            resume_hint = f"{output_file.num_read:,} of {job.total_lines:,} lines are kept in {output_file.folder}"
            raise InterruptedRun(f"interrupted: {resume_hint}; run the same command to resume") from None
    return resumed_lines, status_counts


@contextmanager
def _open_workers(
    args: AugmentOptions, bundle: Path, job: _AugmentJob
) -> Iterator[tuple[TranslateFn, Callable[..., Iterable[Any]]]]:
    """Give the function that translates lines, and the one that maps it over windows here or on the workers of a cluster."""
    if args.cluster is None:
        yield lambda lines, start_index: job.translator.translate(lines, start_index=start_index, **job.decoding), map
        return
    from dragoman.cli.cluster_translate import WorkerTranslator, on_one_thread
    from dragoman.cluster.cluster_map import ClusterMap
    from dragoman.cluster.ray_executor import connect
    from dragoman.formats.object_store import normalize_url

    bundles = tuple(normalize_url(path) for path in [bundle, *args.ensemble])
    device_options: DeviceOptions = {"device": args.device, "precision": str(job.translator.precision)}
    with connect(args.cluster) as executor:
        yield WorkerTranslator(bundles, on_one_thread(device_options), job.decoding), ClusterMap(executor)


def _finish(bundle: Path, task: TaskConfig, summary: AugmentOutput, as_json: bool) -> None:
    """Print the counts, and exit with the status of incomplete lines if there is no pair."""
    from dragoman.console.terminal import print_json

    if as_json:
        print_json(summary)
    else:
        _print_summary(f"{bundle} ({task.source_language} → {task.target_language})", summary)
    if not summary.pairs:
        sys.exit(INCOMPLETE_LINES)


def _choose_bleu_tokenizer(task: TaskConfig, requested: str, *, is_checked: bool) -> str:
    """Return the tokenizer of BLEU. With a check, raises RecipeError if it cannot run."""
    from dragoman.evaluation.bleu_tokenizer import choose_bleu_tokenizer
    from dragoman.evaluation.metrics import bleu_metric

    requested = task.bleu_tokenizer if requested == "auto" else requested
    tokenizer = choose_bleu_tokenizer(task.target_language, tokenized=task.tokenized, requested=requested)
    if is_checked:
        bleu_metric(tokenizer)
    return tokenizer


def _set_best_of(translator: Translator, decoding: dict[str, Any], best_of: int | None) -> dict[str, Any]:
    """Return the decoding options with as many outputs as --best-of needs. Raises RecipeError if they do not fit."""
    from dragoman.errors import RecipeError

    if best_of is None:
        return decoding
    decoding = {"nbest": best_of, **decoding}
    if translator.resolve_decoding({**decoding, "nbest": 1}).method == "beam":
        decoding = {"beam_size": max(best_of, translator.recipe.decoding.beam_size), **decoding}
    try:
        translator.resolve_decoding(decoding)
    except RecipeError as error:
        raise RecipeError(f"--best-of {best_of} sets nbest = {best_of}: {error}") from None
    return decoding


def _summarize(
    output: Path, resumed_lines: int, seconds: float, total_lines: int, status_counts: Mapping[str, int]
) -> AugmentOutput:
    from dragoman.formats.object_store import format_location
    from dragoman.inference.synthetic_data import TABS

    reference_pairs = status_counts.get("original", 0)
    return AugmentOutput(
        output=format_location(output),
        resumed_lines=resumed_lines,
        seconds=seconds,
        lines=total_lines,
        pairs=status_counts.get("written", 0) + reference_pairs,
        reference_pairs=reference_pairs,
        tabs_replaced=status_counts.get(TABS, 0),
        dropped={status: count for status, count in status_counts.items() if status in DROP_REASONS},
    )


def _print_summary(model_description: str, summary: AugmentOutput) -> None:
    """Print the number of pairs, and the counts that are not zero."""
    counts = f"{format_count(summary.pairs, 'pair')} of {format_count(summary.lines, 'line')}"
    click.echo(f"{summary.output}: {counts}, by {model_description}")
    if summary.reference_pairs:
        click.echo(f"pairs written with their reference: {summary.reference_pairs:,}", err=True)
    if summary.tabs_replaced:
        click.echo(
            f"pairs whose tabs became spaces, because a .tsv has tabs between columns: {summary.tabs_replaced:,}", err=True
        )
    for status, count in summary.dropped.items():
        click.echo(f"lines {DROP_REASONS[status]}, dropped: {count:,}", err=True)


def _get_output_format(output: Path) -> PairFileFormat:
    if output.suffix not in (".tsv", ".jsonl"):
        raise usage_error(f"{output}: is not a .tsv or .jsonl file; give another name")
    return "tsv" if output.suffix == ".tsv" else "jsonl"


def _split_arguments(arguments: Sequence[str], max_files: int) -> tuple[list[str], dict[str, Any]]:
    """Return files and URLs, and the decoding options. An argument with an equals sign is an option, unless it is a file."""
    from dragoman.cli.cluster_translate import split_urls

    urls, _ = split_urls(arguments)
    files = [argument for argument in arguments if argument in urls or "=" not in argument or Path(argument).exists()]
    decoding = parse_decoding_overrides(argument for argument in arguments if argument not in files)
    if not 1 <= len(files) <= max_files:
        allowed = "one file" if max_files == 1 else "SOURCE and TARGET, or one file that holds both"
        raise usage_error(f"{len(files)} files are given; allowed: {allowed}")
    return files, decoding


def _read_input_pairs(augmentation: Augmentation, inputs: Sequence[InputFile], task: TaskConfig) -> Iterator[Pair]:
    """Return the input with the names of its files as origins."""
    from dragoman.cli.store_files import rename_origins

    return rename_origins(_read_files(augmentation, [input_file.path for input_file in inputs], task), inputs)


def _read_files(augmentation: Augmentation, files: Sequence[Path], task: TaskConfig) -> Iterator[Pair]:
    """Return lines of one language, the pairs of two files, or the pairs of one file that holds both sides."""
    from dragoman.errors import DataError
    from dragoman.formats.pair import Pair
    from dragoman.formats.readers import SUFFIX_FORMATS, detect_format, get_format_suffix, read_file, read_sides
    from dragoman.formats.text import read_lines

    if augmentation.method != "distill":
        return (Pair(line, "", f"{files[0]}:{line_number}") for line_number, line in enumerate(read_lines(files[0]), start=1))
    if len(files) == 2:
        return read_sides(files[0], files[1])
    if get_format_suffix(files[0]) not in SUFFIX_FORMATS:
        raise DataError(f"{files[0]}: holds one side; give SOURCE and TARGET, or one file that holds both, such as a .tsv")
    languages = {"source_language": task.source_language, "target_language": task.target_language}
    return read_file(files[0], detect_format(files[0]), **languages)
