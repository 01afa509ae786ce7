"""Commands `clean` and `prepare`."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.console.options import (
    check_output_paths,
    cluster_option,
    json_option,
    output_path_option,
    overrides_argument,
    overwrite_option,
    recipe_argument,
    treat_termination_as_interrupt,
    usage_error,
)

if TYPE_CHECKING:
    from dragoman.data.encode import PairStats
    from dragoman.runtime.processes import MapFunction

MAX_LISTED_CHARACTERS = 20
"""Characters of each side in the table of those that the vocabulary cannot write."""


@dataclass(frozen=True)
class CleanOutput:
    """Output of `dragoman clean --json`. The statistics of a corpus are those of `cleaning.json`."""

    folder: str
    corpora: Mapping[str, Any]


@dataclass(frozen=True)
class PrepareOutput:
    """Output of `dragoman prepare --json`. The counts of a corpus are those of `prepared.json`."""

    folder: str
    is_new: bool
    corpora: Mapping[str, Any]


@click.command()
@recipe_argument
@overrides_argument
@output_path_option("Folder to write.", required=True)
@click.option(
    "--format",
    "pair_format",
    type=click.Choice(["tsv", "lines", "jsonl", "tmx", "parquet"]),
    default="tsv",
    show_default=True,
    help="Format of the kept pairs.",
)
@overwrite_option("Replace the output of an earlier cleaning.")
@cluster_option
@json_option()
def clean(
    recipe: Path,
    overrides: tuple[str, ...],
    output: Path,
    pair_format: str,
    overwrite: bool,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Clean the training corpora of RECIPE by the filters of its data.cleaning, and show what each filter dropped.

    The command writes a new folder: a file with the kept pairs of each corpus, cleaning.json, and the page cleaning.html with
    ten examples for each filter. `dragoman train` and `dragoman prepare` clean by themselves. Use this command to check the
    filters, or to get cleaned text for other programs.

    With --cluster, -o and data.root may also be URLs of an object store, such as s3://bucket/name; on one machine, use
    --cluster local. The same command continues after an interruption.

    \b
    Example:  dragoman clean recipes/en-de.toml -o cleaned
              dragoman clean cleaning data.train.file=pairs.tsv task.source_language=en task.target_language=de -o cleaned
    """
    from dragoman.cleaning.cleaning_report import find_warnings, format_table
    from dragoman.cleaning.enabled_filters import FILTER_KEYS
    from dragoman.cleaning.pipeline import clean_corpora
    from dragoman.cluster.clean import clean_on_cluster
    from dragoman.cluster.ray_executor import connect
    from dragoman.config import read_recipe
    from dragoman.console.terminal import PreparationProgressBar, print_json, print_table, stderr_console
    from dragoman.formats.object_store import format_location, is_url
    from dragoman.runtime.progress import Heartbeat

    settings = read_recipe(recipe, overrides)
    if cluster is None and (is_url(output) or is_url(settings.data.root)):
        url = output if is_url(output) else settings.data.root
        raise usage_error(f"{format_location(url)}: object stores need --cluster; add --cluster local for this machine")
    if not is_url(output):
        check_output_paths(output, overwrite=True)
    console = stderr_console()
    progress_bar = PreparationProgressBar(console)
    try:
        with Heartbeat(progress_bar.write_if_due):
            options: dict[str, Any] = {
                "file_format": pair_format, "overwrite": overwrite, "on_progress": progress_bar.update,
            }  # fmt: skip
            if cluster is None:
                stats_by_corpus = clean_corpora(settings, output, **options)
            else:
                treat_termination_as_interrupt()
                with connect(cluster) as executor:
                    stats_by_corpus = clean_on_cluster(settings, output, executor, **options)
    finally:
        progress_bar.close()
    for warning in find_warnings(stats_by_corpus):
        console.print(f"warning: {warning}", style="yellow", markup=False)
    if as_json:
        print_json(CleanOutput(format_location(output), {name: stats.to_dict() for name, stats in stats_by_corpus.items()}))
        return
    header, rows = format_table(stats_by_corpus)
    location = format_location(output)
    print_table(f"{location}: pairs that each filter dropped (examples in {location}/cleaning.html)", header, rows)
    filters_off = FILTER_KEYS.keys() - {row[0] for row in rows}
    off = f"; off: {', '.join(sorted(filters_off))}" if filters_off else ""
    click.echo(f"{len(FILTER_KEYS) - len(filters_off)} of {len(FILTER_KEYS)} filters are on{off}")


@click.command()
@recipe_argument
@overrides_argument
@cluster_option
@json_option()
def prepare(recipe: Path, overrides: tuple[str, ...], cluster: str | None, as_json: bool) -> None:
    """Clean the corpora of RECIPE, learn its tokenizer and encode them into the run folder.

    If nothing has changed since the last time, the command does nothing. After an interruption it resumes. Training does all
    this by itself.

    With --cluster, workers filter and encode the pairs. data.root and run may be URLs of an object store, such as
    s3://bucket/name. The corpora are then copied to the run folder, and run is written when it is complete.

    \b
    Example:  dragoman prepare multi30k-ende data.root=path/to/multi30k/tok
    """
    from dragoman.cluster.cluster_map import ClusterMap
    from dragoman.cluster.ray_executor import connect
    from dragoman.console.terminal import PreparationProgressBar, print_json, print_table, stderr_console
    from dragoman.data.data_defaults import read_training_recipe
    from dragoman.data.store_preparation import prepare_with_stores
    from dragoman.runtime.processes import map_in_processes
    from dragoman.runtime.progress import Heartbeat

    settings, *_ = read_training_recipe(recipe, overrides)
    console = stderr_console()
    progress_bar = PreparationProgressBar(console)

    def notice(text: str) -> None:
        progress_bar.close()
        progress_bar.timer.restart()
        console.print(text, style="dim", markup=False)

    try:
        with Heartbeat(progress_bar.write_if_due), ExitStack() as stack:
            map_items: MapFunction = map_in_processes
            if cluster is not None:
                treat_termination_as_interrupt()
                map_items = ClusterMap(stack.enter_context(connect(cluster)))
            prepared = prepare_with_stores(settings, notice, on_progress=progress_bar.update, map_items=map_items)
    finally:
        progress_bar.close()
    if as_json:
        counts_by_corpus = {name: vars(pair_counts) for name, pair_counts in prepared.pair_counts.items()}
        print_json(PrepareOutput(prepared.location, prepared.is_new, counts_by_corpus))
        return
    for name, pair_counts in prepared.pair_counts.items():
        for message in pair_counts.summarize(settings.data.overlong_pairs):
            console.print(f"{name}: {message}", markup=False)
    rows = [
        (name, *(f"{count:,}" for count in (
            counts.read, sum(counts.dropped.values()), counts.overlong_pairs, counts.kept, counts.source_tokens,
            counts.target_tokens,
        )))
        for name, counts in prepared.pair_counts.items()
    ]  # fmt: skip
    title = f"{prepared.location}: {'prepared' if prepared.is_new else 'nothing changed, nothing to do'}"
    header = ["corpus", "pairs read", "dropped", "over-long", "pairs", "source tokens", "target tokens"]
    print_table(title, header, rows)
    _print_unwritten(prepared.pair_counts.values())


def _print_unwritten(pair_counts: Iterable[PairStats]) -> None:
    """Print the most frequent characters that the vocabulary cannot write, the target first; nothing if it writes all."""
    from dragoman.console.terminal import print_table
    from dragoman.data.encode import PairStats, describe_character

    total = PairStats()
    for counts in pair_counts:
        total.add(counts)
    sides = {"target": total.unwritten_target, "source": total.unwritten_source}
    rows = [
        (side, describe_character(character), f"U+{ord(character):04X} {unicodedata.name(character, '')}", f"{count:,}")
        for side, counts in sides.items()
        for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_LISTED_CHARACTERS]
    ]
    if rows:
        title = ", ".join(f"{len(counts)} of the {side}" for side, counts in sides.items() if counts)
        print_table(f"characters that the vocabulary cannot write: {title}", ["side", "character", "name", "count"], rows)
