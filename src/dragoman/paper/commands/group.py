"""Commands `paper table1`, `paper figures`, `paper differences` and `paper results`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dragoman.console.options import (
    PATH_TYPE,
    FiniteNumber,
    SuggestingGroup,
    bundle_argument,
    check_output_paths,
    json_option,
    output_path_option,
    overrides_argument,
    overwrite_option,
)
from dragoman.errors import RecipeError
from dragoman.paper.commands.ablations import ablations
from dragoman.paper.commands.claims import claims
from dragoman.paper.commands.demo import demo
from dragoman.paper.commands.demonstrations import example, positions, scaling
from dragoman.paper.commands.fetch import fetch
from dragoman.paper.commands.table2 import table2
from dragoman.paper.commands.table3 import table3
from dragoman.paper.commands.table4 import table4
from dragoman.runtime.counts import format_count

if TYPE_CHECKING:
    from dragoman.paper.table1 import Table1Row


@click.group(cls=SuggestingGroup)
def paper() -> None:
    """Reproduce the tables and figures of the paper on this machine, with the printed values. Each command has --json.

    \b
    Example:  dragoman paper differences modern
              dragoman paper table1 -o table1.svg
    """


for _command in (table2, table3, table4, ablations, scaling, positions, example, claims, demo, fetch):
    paper.add_command(_command)


@paper.command()
@click.argument("preset")
@overrides_argument
@click.option("--size", help="Size: base, big, tiny or a row of Table 3.  [default: base]")
@json_option()
def differences(preset: str, overrides: tuple[str, ...], size: str | None, as_json: bool) -> None:
    """List the settings in which PRESET (paper, t2t-2017 or modern) deviates from the text of the paper.

    \b
    Example:  dragoman paper differences t2t-2017 --size big
              dragoman paper differences modern training.warmup_steps=4000
    """
    from dragoman.config import make_recipe
    from dragoman.console.terminal import print_json
    from dragoman.paper.commands.outputs import describe_differences
    from dragoman.paper.differences import find_differences

    recipe = make_recipe({"preset": preset, **({"size": size} if size is not None else {})}, overrides, where=f"paper {preset}")
    paper_differences = find_differences(recipe.model_dump())
    if as_json:
        print_json(describe_differences(recipe.preset, recipe.size, paper_differences))
        return
    click.echo(f"{recipe.preset}, {recipe.size}: compared with the text of the paper")
    for difference in paper_differences:
        item = difference.item
        click.echo(f"\n{item.number:>2}  {click.style(item.name, bold=True)}: {difference.state}")
        labeled_texts = {"text": item.text, "2017 code": item.code, "later": item.later_code, "recipe": difference.value}
        for name, sentence in labeled_texts.items():
            if sentence:
                click.echo(f"    {name:<10} {sentence}")
    click.echo("")
    deviations = [deviation for difference in paper_differences for deviation in difference.deviations]
    for deviation in deviations:
        click.echo(deviation.describe())
    if not deviations:
        click.echo("It does not deviate from the text.")


@paper.command()
@click.option(
    "--budget",
    type=FiniteNumber(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds of processor time to spend.",
)
@output_path_option("Draw the table as an SVG to this file.")
@overwrite_option()
@json_option()
def table1(budget: float, output: Path | None, overwrite: bool, as_json: bool) -> None:
    """Measure Table 1: the cost of each kind of layer as n, d, and k or r grow, and the path length of a signal.

    Time is the processor time of one thread for the forward and backward pass of one layer. Exponents are fitted over the three
    largest sizes. Run nothing else on the machine at the same time.

    \b
    Example:  dragoman paper table1 --budget 100 -o table1.svg
    """
    from rich.progress import Progress

    from dragoman.console.figure_files import check_chart, write_chart
    from dragoman.console.terminal import print_json, rich_console
    from dragoman.paper.commands.outputs import describe_table1
    from dragoman.paper.table1 import draw_table1, measure_table1

    check_chart(output, overwrite=overwrite)
    console = rich_console()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task_id = bar.add_task("measuring", total=1.0)
        rows = measure_table1(budget, lambda share: bar.update(task_id, completed=share))
    write_chart(output, lambda: draw_table1(rows), overwrite=overwrite)
    if as_json:
        print_json(describe_table1(rows))
        return
    _print_table1(rows)


def _print_table1(rows: Sequence[Table1Row]) -> None:
    from dragoman.console.terminal import print_table
    from dragoman.paper.table1 import PATH_LENGTHS

    cost_rows, path_rows = [], []
    for row in rows:
        reach_symbol = "r" if "attention" in row.kind else "k"
        for axis, (fitted, printed) in row.get_time_exponents().items():
            sweep, size_symbol = row.sweeps_by_axis[axis], reach_symbol if axis == "reach" else axis
            fitted_exponents = sweep.fit_exponents()
            layer_cell = f"{row.kind}\nO({row.paper_row.complexity})" if axis == "n" else ""
            size_range = f"{size_symbol} = {sweep.sizes[0]} … {sweep.sizes[-1]}"
            exponent_cells = (f"{fitted:.2f}", f"{fitted_exponents['operations']:.2f}", f"{fitted_exponents['memory']:.2f}")
            cost_rows.append((layer_cell, size_range, f"{size_symbol}^{printed:g}", *exponent_cells))
        path_fit = f"n^{row.path_exponent:.2f}" if row.paper_row.path_n is not None else f"{row.path_exponent:.2f} log"
        sequential_cells = (
            row.paper_row.sequential,
            f"{row.sequential_matmuls[0]} … {row.sequential_matmuls[-1]}",
            f"n^{row.sequential_exponent:.2f}",
        )
        path_rows.append(
            (row.kind, *sequential_cells, row.paper_row.path, f"{row.path_lengths[0]} … {row.path_lengths[-1]}", path_fit)
        )
    header = ["layer", "sizes", "printed", "time", "products", "memory"]
    print_table("Table 1: the cost of a layer, as exponents", header, cost_rows)
    header = ["layer", "sequential", "counted", "fitted", "path", "counted", "fitted"]
    lengths = f"n = {PATH_LENGTHS[0]} … {PATH_LENGTHS[-1]}"
    print_table(f"Table 1: sequential products, and path length in layers, at {lengths}", header, path_rows)


@paper.command()
@click.argument("runs", nargs=-1, required=True, type=PATH_TYPE, metavar="RUN...")
@json_option()
def results(runs: tuple[Path, ...], as_json: bool) -> None:
    """Print the reports of finished runs as a Markdown table: mean and deviation over seeds, signatures, machine, date.

    Runs that differ only in their seed are one row. Each further row is compared with the first by paired bootstrap.

    \b
    Example:  dragoman paper results runs/plain-1 runs/plain-2 runs/smoothed-1 runs/smoothed-2
    """
    from dragoman.console.terminal import print_json
    from dragoman.paper.results_table import build_rows, format_markdown

    rows = build_rows(runs)
    if as_json:
        print_json({"rows": rows})
        return
    click.echo(format_markdown(rows))


@paper.command()
@bundle_argument
@click.argument("sentence", required=False)
@output_path_option("Folder for the SVGs.  [default: figures]")
@click.option(
    "--figure",
    "numbers",
    type=click.Choice(["3", "4", "5"]),
    multiple=True,
    help="Figure to draw. Repeat it for several.  [default: all]",
)
@click.option("--layer", type=int, help="Encoder layer, counted from 1.  [default: 5 of 6 as printed, else the last but one]")
@click.option("--heads", metavar="A,B", help="Two heads for Figures 4 and 5.  [default: 5,6 as printed, or the last two]")
@click.option("--word", help="Query word of Figures 3 and 4: a word of the sentence, or its number, counted from 1.")
@click.option("--png", is_flag=True, help="Also write each figure as a PNG.")
@overwrite_option("Replace figures that exist.")
@json_option("Print the weights as JSON. Draw only if -o names a folder.")
def figures(
    bundle: Path,
    sentence: str | None,
    output: Path | None,
    numbers: tuple[str, ...],
    layer: int | None,
    heads: str | None,
    word: str | None,
    png: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Draw Figures 3 to 5 for BUNDLE: the attention of the encoder heads for SENTENCE, or for the sentences of the paper.

    Figure 3 shows all heads of a layer for one query word. Figure 4 shows one head for all words, and two heads for one word.
    Figure 5 shows two heads for all words. The default of --word is the paper's word ("making", "its") if the sentence has
    it. Otherwise Figure 3 takes the word with the most distant attention, and Figure 4 the word with the sharpest attention.

    \b
    Example:  dragoman paper figures en-de -o figures
              dragoman paper figures runs/wmt14-ende-base/bundle --figure 4 --heads 5,6 --png
    """
    from dragoman.console.figure_files import write_png, write_svg
    from dragoman.console.terminal import print_json, stderr_console
    from dragoman.inference.load import load
    from dragoman.io.storage import check_path_is_free, make_output_dir
    from dragoman.paper.commands.outputs import describe_figure
    from dragoman.paper.figures import FIGURES, build_figures
    from dragoman.viz.explanation_figures import svg_to_png

    check_output_paths(output, overwrite=True, input_paths=[bundle])
    figure_numbers = tuple(map(int, numbers)) or FIGURES
    folder = output or (None if as_json else Path("figures"))
    if folder and not overwrite:
        for number in figure_numbers:
            for suffix in ("svg", "png") if png else ("svg",):
                check_path_is_free(folder / f"figure{number}.{suffix}")
    head_pair = _parse_head_numbers(heads)
    drawn_figures = build_figures(
        load(bundle, task="translation"), sentence, numbers=figure_numbers, layer=layer, heads=head_pair, word=word
    )
    if folder:
        svgs = {f"figure{figure.number}": figure.to_svg() for figure in drawn_figures}
        pngs = {name: svg_to_png(svg) for name, svg in svgs.items()} if png else {}
        make_output_dir(folder)
        write_svg(folder, svgs, overwrite=overwrite)
        write_png(folder, pngs, overwrite=overwrite)
    if as_json:
        print_json({"figures": list(map(describe_figure, drawn_figures))})
        return
    for figure in drawn_figures:
        click.echo(f"Figure {figure.number}: {figure.caption}")
    stderr_console().print(f"{folder}: {format_count(len(drawn_figures), 'figure')}", markup=False)


def _parse_head_numbers(heads: str | None) -> list[int]:
    """Return the two numbers of text such as 5,6. Raises RecipeError for any other text."""
    if heads is None:
        return []
    parts = [part.strip() for part in heads.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise RecipeError(f"--heads {heads}: give two heads, counted from 1, such as 5,6")
    return [int(part) for part in parts]
