"""From text to a corpus that can be learnt from: `clean`, `prepare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from dragoman.cli.options import check_output_paths
from dragoman.cli.train import JSON_OPTION, OVERRIDES_ARGUMENT, RECIPE_ARGUMENT

if TYPE_CHECKING:
    from dragoman.config import Format


@click.command()
@RECIPE_ARGUMENT
@OVERRIDES_ARGUMENT
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Folder to write.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["tsv", "lines", "jsonl", "tmx", "xliff", "po", "sgm", "parquet"]),
    default="tsv",
    show_default=True,
    help="What the pairs that stay are written as.",
)
@click.option("--overwrite", is_flag=True, help="Replace what an earlier cleaning wrote there.")
@JSON_OPTION
def clean(recipe: Path, changes: tuple[str, ...], output: Path, pair_format: str, overwrite: bool, as_json: bool) -> None:
    """Clean the corpora that RECIPE learns from, by the rules of its data.cleaning, and show what each rule dropped.

    Writes into a new folder: a file for each corpus with the pairs that stay, cleaning.json, and cleaning.html, a page with ten
    examples for each rule. Training and `dragoman prepare` clean by themselves; this is for looking, and for other programs.

    \b
    Example:  dragoman clean cleaning data.train.file=pairs.tsv task.source_language=en task.target_language=de -o cleaned
    """
    from dragoman.cleaning.pipeline import clean_corpora
    from dragoman.cleaning.report import format_table
    from dragoman.cli.console import PreparationProgressBar, print_json, print_table, stderr_console
    from dragoman.config import read_recipe

    check_output_paths(output, overwrite=True)
    settings = read_recipe(recipe, changes)
    progress_bar = PreparationProgressBar(stderr_console())
    try:
        stats_by_corpus = clean_corpora(
            settings, output, file_format=cast("Format", pair_format), overwrite=overwrite, on_progress=progress_bar.progress
        )
    finally:
        progress_bar.close()
    if as_json:
        print_json({"folder": str(output), "corpora": {name: stats.to_dict() for name, stats in stats_by_corpus.items()}})
        return
    header, rows = format_table(stats_by_corpus)
    print_table(f"{output}: pairs that each rule dropped (examples in {output / 'cleaning.html'})", header, rows)


@click.command()
@RECIPE_ARGUMENT
@OVERRIDES_ARGUMENT
@JSON_OPTION
def prepare(recipe: Path, changes: tuple[str, ...], as_json: bool) -> None:
    """Clean the corpora of RECIPE, learn its subword model and encode them into the run folder.

    Asked again with nothing changed, it does nothing; interrupted, it goes on. Training does all this by itself.

    \b
    Example:  dragoman prepare multi30k-ende data.root=path/to/multi30k/tok
    """
    from dragoman.cli.console import PreparationProgressBar, print_json, print_table, stderr_console
    from dragoman.config import read_recipe
    from dragoman.data.prepare import prepare as prepare_corpora

    settings = read_recipe(recipe, changes)
    folder = Path(settings.run) / "data"
    console = stderr_console()
    progress_bar = PreparationProgressBar(console)

    def notice(text: str) -> None:
        progress_bar.close()
        console.print(text, style="dim", markup=False)

    try:
        prepared = prepare_corpora(settings, folder, notice, on_progress=progress_bar.progress)
    finally:
        progress_bar.close()
    if as_json:
        counts_by_corpus = {name: vars(pair_counts) for name, pair_counts in prepared.pair_counts.items()}
        print_json({"folder": str(folder), "fresh": prepared.is_new, "corpora": counts_by_corpus})
        return
    for name, pair_counts in prepared.pair_counts.items():
        for message in pair_counts.summarize(settings.data.overlong_pairs):
            console.print(f"{name}: {message}", markup=False)
    rows = [
        (
            name,
            f"{pair_counts.read:,}",
            f"{sum(pair_counts.dropped.values()):,}",
            f"{pair_counts.overlong_pairs:,}",
            f"{pair_counts.kept:,}",
            f"{pair_counts.source_tokens:,}",
            f"{pair_counts.target_tokens:,}",
        )
        for name, pair_counts in prepared.pair_counts.items()
    ]
    title = f"{folder}: {'prepared' if prepared.is_new else 'nothing changed, nothing to do'}"
    header = ["corpus", "pairs read", "dropped", "over-long", "pairs", "source tokens", "target tokens"]
    print_table(title, header, rows)
