"""The paper: `paper table1` to `table4`, `figures`, `differences`, and `results` for a page of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dragoman.cli.options import FiniteNumber, refuse_old
from dragoman.cli.table3 import OVERWRITE, PICTURE, table3
from dragoman.cli.table4 import table4
from dragoman.cli.train import CHANGES, JSON
from dragoman.errors import RecipeError

if TYPE_CHECKING:
    from dragoman.paper.table1 import Row
    from dragoman.paper.table2 import Cost


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
@CHANGES
@click.option("--size", help="base, big, tiny or a row of Table 3.  [default: base]")
@JSON
def differences(preset: str, changes: tuple[str, ...], size: str | None, as_json: bool) -> None:
    """How PRESET (paper, t2t-2017 or modern) departs from the printed text, trap by trap.

    \b
    Example:  dragoman paper differences t2t-2017 --size big
              dragoman paper differences modern training.warmup_steps=4000
    """
    from dragoman.cli.console import print_json
    from dragoman.config import make_recipe
    from dragoman.paper.differences import differences as found_in

    recipe = make_recipe({"preset": preset, **({"size": size} if size is not None else {})}, changes, where=f"paper {preset}")
    found = found_in(recipe.model_dump(mode="json"))
    if as_json:
        print_json({"preset": recipe.preset, "size": recipe.size, "differences": [one.as_json() for one in found]})
        return
    click.echo(f"{recipe.preset}, {recipe.size}: how it stands to the printed text")
    for one in found:
        item = one.item
        click.echo(f"\n{item.number:>2}  {click.style(item.name, bold=True)}: {one.state}")
        told = {"text": item.text, "2017 code": item.code, "later": item.later, "here": one.ours}
        for name, sentence in told.items():
            if sentence:
                click.echo(f"    {name:<10} {sentence}")
    click.echo("")
    departures = [departure for one in found for departure in one.departures]
    for departure in departures:
        click.echo(departure.sentence())
    if not departures:
        click.echo("It departs from nothing that the text says.")


@paper.command()
@click.option(
    "--budget",
    type=FiniteNumber(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds of processor time to spend.",
)
@PICTURE
@OVERWRITE
@JSON
def table1(budget: float, output: Path | None, overwrite: bool, as_json: bool) -> None:
    """Measure Table 1: what a layer of each kind costs as n, d, and k or r grow, and how far a signal has to go in it.

    Time is this process's own, in one thread, for one layer forwards and backwards; exponents are fitted over the three largest
    sizes. Nothing else should be at work on the machine meanwhile.

    \b
    Example:  dragoman paper table1 --budget 100 -o table1.svg
    """
    from rich.progress import Progress

    from dragoman.cli.console import people, print_json
    from dragoman.io.storage import write_lines
    from dragoman.paper.table1 import picture
    from dragoman.paper.table1 import table1 as measured

    refuse_old(output, overwrite=overwrite)
    console = people()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("measuring", total=1.0)
        rows = measured(budget, lambda share: bar.update(task, completed=share))
    if output is not None:
        write_lines(output, [picture(rows)], overwrite=overwrite)
    if as_json:
        print_json({"table": 1, "rows": [row.as_json() for row in rows]})
        return
    _print_table1(rows)


def _print_table1(rows: Sequence[Row]) -> None:
    from dragoman.cli.console import print_table
    from dragoman.paper.table1 import PATH_LENGTHS

    cost, way = [], []
    for row in rows:
        name = "r" if "attention" in row.kind else "k"
        for axis, (fitted, printed) in row.time_exponents().items():
            sweep, size = row.sweeps[axis], name if axis == "reach" else axis
            others = sweep.exponents()
            first = f"{row.kind}\nO({row.printed.complexity})" if axis == "n" else ""
            sizes = f"{size} = {sweep.sizes[0]} … {sweep.sizes[-1]}"
            exponents = (f"{fitted:.2f}", f"{others['operations']:.2f}", f"{others['memory']:.2f}")
            cost.append((first, sizes, f"{size}^{printed:g}", *exponents))
        fit = f"n^{row.path_exponent:.2f}" if row.printed.path_n is not None else f"{row.path_exponent:.2f} log"
        waits = (row.printed.sequential, f"{row.sequential[0]} … {row.sequential[-1]}", f"n^{row.sequential_exponent:.2f}")
        way.append((row.kind, *waits, row.printed.path, f"{row.path[0]} … {row.path[-1]}", fit))
    header = ["layer", "sizes", "printed", "time", "products", "memory"]
    print_table("Table 1: the cost of a layer, as exponents", header, cost)
    header = ["layer", "waits", "counted", "fitted", "path", "counted", "fitted"]
    lengths = f"n = {PATH_LENGTHS[0]} … {PATH_LENGTHS[-1]}"
    print_table(f"Table 1: products that wait for one another, and layers that a signal crosses, at {lengths}", header, way)


@paper.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--tflops", type=FiniteNumber(min=0, min_open=True), help="What a device sustains, instead of as measured.")
@click.option("--score", is_flag=True, help="Translate each test set once more, for BLEU in sacreBLEU's way and the paper's.")
@JSON
def table2(runs: tuple[Path, ...], tflops: float | None, score: bool, as_json: bool) -> None:
    """What the runs in these folders cost: in the paper's way (time × devices × sustained FLOPS), and exactly counted.

    \b
    Example:  dragoman paper table2 runs/multi30k-ende runs/short --score
    """
    from dataclasses import asdict

    from dragoman.cli.console import print_json
    from dragoman.paper.table2 import PRINTED, cost_of, with_both_bleus

    costs = [cost_of(run, sustained=None if tflops is None else tflops * 1e12) for run in runs]
    if score:
        costs = [with_both_bleus(one) for one in costs]
    if as_json:
        print_json({"table": 2, "runs": [one.as_json() for one in costs], "printed": [asdict(row) for row in PRINTED]})
        return
    _print_table2(costs)


def _print_table2(costs: Sequence[Cost]) -> None:
    from dragoman.cli.console import facts_table, print_table
    from dragoman.paper.table2 import PRINTED

    def points(value: float | None) -> str:
        return "" if value is None else f"{value:.4g}"

    def flops(value: float | None) -> str:
        return "" if value is None else f"{value:.1e}"

    rows = [
        (one.model, points(one.german), points(one.french), flops(one.german_flops), flops(one.french_flops)) for one in PRINTED
    ]
    print_table("Table 2 as printed (newstest2014)", ["model", "BLEU EN-DE", "EN-FR", "FLOPs EN-DE", "EN-FR"], rows)
    for one in costs:
        rate = f"{one.sustained / 1e12:.3g} TFLOP/s ({one.sustained_by})" if one.sustained is not None else one.sustained_by
        facts: dict[str, str] = {
            "languages": one.languages,
            "steps": f"{one.steps:,} ({one.state})",
            "time × devices × sustained": f"{one.seconds:,.0f} s × {one.devices:.3g} × {rate}",
            "FLOPs in the paper's way": flops(one.paper_flops) or "not known: give --tflops",
            "FLOPs counted": flops(one.counted_flops),
        }
        if one.bleu is not None:
            facts["BLEU"] = f"{points(one.bleu)} ({one.bleu_signature})"
        if one.paper_bleu is not None:
            facts["BLEU as the paper"] = f"{points(one.paper_bleu)} ({one.paper_bleu_signature})"
        facts_table(f"{one.run}: {one.name}", facts)


@paper.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@JSON
def results(runs: tuple[Path, ...], as_json: bool) -> None:
    """A table row from the reports of finished runs, as Markdown: mean and spread over the seeds, signatures, machine and date.

    Runs that differ in their seed alone are one row. Of several rows each is set against the first, by paired bootstrap.

    \b
    Example:  dragoman paper results runs/plain-1 runs/plain-2 runs/smoothed-1 runs/smoothed-2
    """
    from dragoman.cli.console import print_json
    from dragoman.paper.results_table import markdown
    from dragoman.paper.results_table import results as rows_of

    rows = rows_of(runs)
    if as_json:
        print_json({"rows": [row.as_json() for row in rows]})
        return
    click.echo(markdown(rows))


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
    from dragoman.cli.console import people, print_json
    from dragoman.cli.figure_files import picture_folder, write_png, write_svg
    from dragoman.inference.translator import load
    from dragoman.io.storage import refuse_existing
    from dragoman.paper.figures import FIGURES
    from dragoman.paper.figures import figures as drawn_from
    from dragoman.viz.figures import png_of

    refuse_old(output, overwrite=True, read=[bundle])
    asked = tuple(map(int, numbers)) or FIGURES
    folder = output or (None if as_json else Path("figures"))
    if folder and not overwrite:
        for number in asked:
            for suffix in ("svg", "png") if png else ("svg",):
                refuse_existing(folder / f"figure{number}.{suffix}")
    pair = _numbers(heads)
    found = drawn_from(load(bundle), sentence, numbers=asked, layer=layer, heads=pair, word=word)
    if folder:
        drawn = {f"figure{one.number}": one.svg() for one in found}
        pixels = {name: png_of(svg) for name, svg in drawn.items()} if png else {}
        picture_folder(folder)
        write_svg(folder, drawn, overwrite=overwrite)
        write_png(folder, pixels, overwrite=overwrite)
    if as_json:
        print_json({"figures": [one.as_json() for one in found]})
        return
    for one in found:
        click.echo(f"Figure {one.number}: {one.remark}")
    people().print(f"{folder}: {len(found)} figure{'s' * (len(found) > 1)}", markup=False)


def _numbers(heads: str | None) -> list[int]:
    """Such as 5,6. Raises RecipeError for anything else."""
    if heads is None:
        return []
    parts = [part.strip() for part in heads.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise RecipeError(f"--heads {heads}: give two heads, counted from 1, such as 5,6")
    return [int(part) for part in parts]
