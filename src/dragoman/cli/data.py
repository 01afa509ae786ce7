"""From text to a corpus that can be learnt from: `clean`, `prepare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from dragoman.cli.options import refuse_old
from dragoman.cli.train import CHANGES, JSON, RECIPE

if TYPE_CHECKING:
    from dragoman.config import Format


@click.command()
@RECIPE
@CHANGES
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
@JSON
def clean(recipe: Path, changes: tuple[str, ...], output: Path, form: str, overwrite: bool, as_json: bool) -> None:
    """Clean the corpora that RECIPE learns from, by the rules of its data.cleaning, and show what each rule dropped.

    Writes into a new folder: a file for each corpus with the pairs that stay, cleaning.json, and cleaning.html, a page with ten
    examples for each rule. Training and `dragoman prepare` clean by themselves; this is for looking, and for other programs.

    \b
    Example:  dragoman clean cleaning data.train.file=pairs.tsv task.source_language=en task.target_language=de -o cleaned
    """
    from dragoman.cleaning.pipeline import clean_corpora
    from dragoman.cleaning.report import table_of
    from dragoman.cli.console import PreparingScreen, people, print_json, print_table
    from dragoman.config import read_recipe

    refuse_old(output, overwrite=True)
    settings = read_recipe(recipe, changes)
    screen = PreparingScreen(people())
    try:
        tallies = clean_corpora(settings, output, form=cast("Format", form), overwrite=overwrite, progress=screen.progress)
    finally:
        screen.close()
    if as_json:
        print_json({"folder": str(output), "corpora": {name: tally.to_dict() for name, tally in tallies.items()}})
        return
    header, rows = table_of(tallies)
    print_table(f"{output}: pairs that each rule dropped (examples in {output / 'cleaning.html'})", header, rows)


@click.command()
@RECIPE
@CHANGES
@JSON
def prepare(recipe: Path, changes: tuple[str, ...], as_json: bool) -> None:
    """Clean the corpora of RECIPE, learn its subword model and encode them into the run folder.

    Asked again with nothing changed, it does nothing; interrupted, it goes on. Training does all this by itself.

    \b
    Example:  dragoman prepare multi30k-ende data.root=path/to/multi30k/tok
    """
    from dragoman.cli.console import PreparingScreen, people, print_json, print_table
    from dragoman.config import read_recipe
    from dragoman.data.prepare import prepare as prepare_corpora

    settings = read_recipe(recipe, changes)
    folder = Path(settings.run) / "data"
    console = people()
    screen = PreparingScreen(console)

    def notice(text: str) -> None:
        screen.close()
        console.print(text, style="dim", markup=False)

    try:
        prepared = prepare_corpora(settings, folder, notice, progress=screen.progress)
    finally:
        screen.close()
    if as_json:
        fates = {name: vars(fate) for name, fate in prepared.fates.items()}
        print_json({"folder": str(folder), "fresh": prepared.fresh, "corpora": fates})
        return
    for name, fate in prepared.fates.items():
        for sentence in fate.sentences(settings.data.overlong_pairs):
            console.print(f"{name}: {sentence}", markup=False)
    rows = [
        (
            name,
            f"{fate.read:,}",
            f"{sum(fate.dropped.values()):,}",
            f"{fate.overlong_pairs:,}",
            f"{fate.kept:,}",
            f"{fate.source_tokens:,}",
            f"{fate.target_tokens:,}",
        )
        for name, fate in prepared.fates.items()
    ]
    title = f"{folder}: {'prepared' if prepared.fresh else 'nothing changed, nothing to do'}"
    header = ["corpus", "pairs read", "dropped", "over-long", "pairs", "source tokens", "target tokens"]
    print_table(title, header, rows)
