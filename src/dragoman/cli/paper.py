"""The paper: `paper table1` to `table4`, `figures`, `differences`, and `results` for a page of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dragoman.cli.options import FiniteNumber, check_output_paths
from dragoman.cli.table3 import OVERWRITE_OPTION, PICTURE_OPTION, table3
from dragoman.cli.table4 import table4
from dragoman.cli.train import JSON_OPTION, OVERRIDES_ARGUMENT
from dragoman.errors import RecipeError

if TYPE_CHECKING:
    from dragoman.paper.table1 import Table1Row
    from dragoman.paper.table2 import RunCost


@click.group()
def paper() -> None:
    """Run the paper's tables on this machine, beside the printed ones, and draw its figures. Each has --json.

    \b
    Example:  dragoman paper differences modern
              dragoman paper table1 -o table1.svg
    """


paper.add_command(table4)


paper.add_command(table3)


@paper.command()
@click.argument("preset")
@OVERRIDES_ARGUMENT
@click.option("--size", help="base, big, tiny or a row of Table 3.  [default: base]")
@JSON_OPTION
def differences(preset: str, overrides: tuple[str, ...], size: str | None, as_json: bool) -> None:
    """How PRESET (paper, t2t-2017 or modern) departs from the printed text, trap by trap.

    \b
    Example:  dragoman paper differences t2t-2017 --size big
              dragoman paper differences modern training.warmup_steps=4000
    """
    from dragoman.cli.console import print_json
    from dragoman.config import make_recipe
    from dragoman.paper.differences import find_differences as found_in

    recipe = make_recipe({"preset": preset, **({"size": size} if size is not None else {})}, overrides, where=f"paper {preset}")
    paper_differences = found_in(recipe.model_dump(mode="json"))
    if as_json:
        print_json(
            {
                "preset": recipe.preset,
                "size": recipe.size,
                "differences": [difference.to_dict() for difference in paper_differences],
            }
        )
        return
    click.echo(f"{recipe.preset}, {recipe.size}: how it stands to the printed text")
    for difference in paper_differences:
        item = difference.item
        click.echo(f"\n{item.number:>2}  {click.style(item.name, bold=True)}: {difference.state}")
        labeled_texts = {"text": item.text, "2017 code": item.code, "later": item.later_code, "here": difference.value}
        for name, sentence in labeled_texts.items():
            if sentence:
                click.echo(f"    {name:<10} {sentence}")
    click.echo("")
    deviations = [deviation for difference in paper_differences for deviation in difference.deviations]
    for deviation in deviations:
        click.echo(deviation.describe())
    if not deviations:
        click.echo("It departs from nothing that the text says.")


@paper.command()
@click.option(
    "--budget",
    type=FiniteNumber(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds of processor time to spend.",
)
@PICTURE_OPTION
@OVERWRITE_OPTION
@JSON_OPTION
def table1(budget: float, output: Path | None, overwrite: bool, as_json: bool) -> None:
    """Measure Table 1: what a layer of each kind costs as n, d, and k or r grow, and how far a signal has to go in it.

    Time is this process's own, in one thread, for one layer forwards and backwards; exponents are fitted over the three largest
    sizes. Nothing else should be at work on the machine meanwhile.

    \b
    Example:  dragoman paper table1 --budget 100 -o table1.svg
    """
    from rich.progress import Progress

    from dragoman.cli.console import print_json, stderr_console
    from dragoman.io.storage import write_lines
    from dragoman.paper.table1 import draw_table1
    from dragoman.paper.table1 import measure_table1 as measured

    check_output_paths(output, overwrite=overwrite)
    console = stderr_console()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task_id = bar.add_task("measuring", total=1.0)
        rows = measured(budget, lambda share: bar.update(task_id, completed=share))
    if output is not None:
        write_lines(output, [draw_table1(rows)], overwrite=overwrite)
    if as_json:
        print_json({"table": 1, "rows": [row.to_dict() for row in rows]})
        return
    _print_table1(rows)


def _print_table1(rows: Sequence[Table1Row]) -> None:
    from dragoman.cli.console import print_table
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
    header = ["layer", "waits", "counted", "fitted", "path", "counted", "fitted"]
    lengths = f"n = {PATH_LENGTHS[0]} … {PATH_LENGTHS[-1]}"
    print_table(
        f"Table 1: products that wait for one another, and layers that a signal crosses, at {lengths}", header, path_rows
    )


@paper.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--tflops", type=FiniteNumber(min=0, min_open=True), help="What a device sustains, instead of as measured.")
@click.option("--score", is_flag=True, help="Translate each test set once more, for BLEU in sacreBLEU's way and the paper's.")
@JSON_OPTION
def table2(runs: tuple[Path, ...], tflops: float | None, score: bool, as_json: bool) -> None:
    """What the runs in these folders cost: in the paper's way (time × devices × sustained FLOPS), and exactly counted.

    \b
    Example:  dragoman paper table2 runs/multi30k-ende runs/short --score
    """
    from dataclasses import asdict

    from dragoman.cli.console import print_json
    from dragoman.paper.table2 import PAPER_COSTS, add_bleu_scores, compute_run_cost

    costs = [compute_run_cost(run, sustained_flops=None if tflops is None else tflops * 1e12) for run in runs]
    if score:
        costs = [add_bleu_scores(cost) for cost in costs]
    if as_json:
        print_json({"table": 2, "runs": [cost.to_dict() for cost in costs], "printed": [asdict(row) for row in PAPER_COSTS]})
        return
    _print_table2(costs)


def _print_table2(costs: Sequence[RunCost]) -> None:
    from dragoman.cli.console import print_facts, print_table
    from dragoman.paper.table2 import PAPER_COSTS

    def format_bleu(value: float | None) -> str:
        return "" if value is None else f"{value:.4g}"

    def format_flops(value: float | None) -> str:
        return "" if value is None else f"{value:.1e}"

    rows = [
        (
            paper_row.model,
            format_bleu(paper_row.en_de_bleu),
            format_bleu(paper_row.en_fr_bleu),
            format_flops(paper_row.en_de_flops),
            format_flops(paper_row.en_fr_flops),
        )
        for paper_row in PAPER_COSTS
    ]
    print_table("Table 2 as printed (newstest2014)", ["model", "BLEU EN-DE", "EN-FR", "FLOPs EN-DE", "EN-FR"], rows)
    for cost in costs:
        rate_text = (
            f"{cost.sustained_flops / 1e12:.3g} TFLOP/s ({cost.sustained_source})"
            if cost.sustained_flops is not None
            else cost.sustained_source
        )
        facts: dict[str, str] = {
            "languages": cost.languages,
            "steps": f"{cost.steps:,} ({cost.state})",
            "time × devices × sustained": f"{cost.seconds:,.0f} s × {cost.devices:.3g} × {rate_text}",
            "FLOPs in the paper's way": format_flops(cost.paper_flops) or "not known: give --tflops",
            "FLOPs counted": format_flops(cost.counted_flops),
        }
        if cost.bleu is not None:
            facts["BLEU"] = f"{format_bleu(cost.bleu)} ({cost.bleu_signature})"
        if cost.paper_bleu is not None:
            facts["BLEU as the paper"] = f"{format_bleu(cost.paper_bleu)} ({cost.paper_bleu_signature})"
        print_facts(f"{cost.run}: {cost.name}", facts)


@paper.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@JSON_OPTION
def results(runs: tuple[Path, ...], as_json: bool) -> None:
    """A table row from the reports of finished runs, as Markdown: mean and spread over the seeds, signatures, machine and date.

    Runs that differ in their seed alone are one row. Of several rows each is set against the first, by paired bootstrap.

    \b
    Example:  dragoman paper results runs/plain-1 runs/plain-2 runs/smoothed-1 runs/smoothed-2
    """
    from dragoman.cli.console import print_json
    from dragoman.paper.results_table import build_rows as rows_of
    from dragoman.paper.results_table import format_markdown

    rows = rows_of(runs)
    if as_json:
        print_json({"rows": [row.to_dict() for row in rows]})
        return
    click.echo(format_markdown(rows))


@paper.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("sentence", required=False)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The folder for the SVGs.  [default: figures]")
@click.option("--figure", "numbers", type=click.Choice(["3", "4", "5"]), multiple=True, help="Only this one; may be repeated.")
@click.option("--layer", type=int, help="Of the encoder, counted from 1.  [default: 5 of 6 as printed, else the last but one]")
@click.option("--heads", metavar="A,B", help="The two of Figures 4 and 5.  [default: 5,6 as printed, or the last two]")
@click.option("--word", help="What Figures 3 and 4 are seen from: a word of the sentence, or its place, counted from 1.")
@click.option("--png", is_flag=True, help="Write each as a PNG, too.")
@click.option("--overwrite", is_flag=True, help="Replace pictures that exist.")
@click.option("--json", "as_json", is_flag=True, help="Print the weights as JSON; draw only where -o names a folder.")
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
    """Draw Figures 3 to 5 for BUNDLE: what the encoder's heads look at while it reads SENTENCE, or the paper's own sentences.

    Figure 3 shows all heads of a layer from one word, Figure 4 one head in full and two from one word, Figure 5 two heads in
    full. Where --word does not say which word, it is the paper's ("making", "its") if it stands there; else in Figure 3 the one
    whose heads look farthest away, in Figure 4 the one from which both look most sharply.

    \b
    Example:  dragoman paper figures runs/multi30k-ende/bundle "a man who is walking two dogs stops at a shop ." -o figures
              dragoman paper figures runs/wmt14-ende-base/bundle --figure 4 --heads 5,6 --png
    """
    from dragoman.cli.console import print_json, stderr_console
    from dragoman.cli.figure_files import make_picture_dir, write_png, write_svg
    from dragoman.inference.translator import load_translator
    from dragoman.io.storage import check_path_is_free
    from dragoman.paper.figures import FIGURES
    from dragoman.paper.figures import build_figures as drawn_from
    from dragoman.viz.figures import svg_to_png

    check_output_paths(output, overwrite=True, input_paths=[bundle])
    figure_numbers = tuple(map(int, numbers)) or FIGURES
    folder = output or (None if as_json else Path("figures"))
    if folder and not overwrite:
        for number in figure_numbers:
            for suffix in ("svg", "png") if png else ("svg",):
                check_path_is_free(folder / f"figure{number}.{suffix}")
    head_pair = _parse_head_numbers(heads)
    drawn_figures = drawn_from(
        load_translator(bundle), sentence, numbers=figure_numbers, layer=layer, heads=head_pair, word=word
    )
    if folder:
        svgs = {f"figure{figure.number}": figure.to_svg() for figure in drawn_figures}
        pngs = {name: svg_to_png(svg) for name, svg in svgs.items()} if png else {}
        make_picture_dir(folder)
        write_svg(folder, svgs, overwrite=overwrite)
        write_png(folder, pngs, overwrite=overwrite)
    if as_json:
        print_json({"figures": [figure.to_dict() for figure in drawn_figures]})
        return
    for figure in drawn_figures:
        click.echo(f"Figure {figure.number}: {figure.caption}")
    stderr_console().print(f"{folder}: {len(drawn_figures)} figure{'s' * (len(drawn_figures) > 1)}", markup=False)


def _parse_head_numbers(heads: str | None) -> list[int]:
    """Such as 5,6. Raises RecipeError for anything else."""
    if heads is None:
        return []
    parts = [part.strip() for part in heads.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise RecipeError(f"--heads {heads}: give two heads, counted from 1, such as 5,6")
    return [int(part) for part in parts]
