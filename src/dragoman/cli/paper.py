"""The paper's tables: `paper table1`, `table2`, `table3`, and `paper differences`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dragoman.cli.train import CHANGES, JSON

if TYPE_CHECKING:
    from dragoman.paper.table1 import Row
    from dragoman.paper.table2 import Cost
    from dragoman.paper.table3 import Table3

PICTURE = click.option("-o", "--output", type=click.Path(path_type=Path), help="Draw the table as an SVG here.")
OVERWRITE = click.option("--overwrite", is_flag=True, help="Replace a picture that exists.")


@click.group()
def paper() -> None:
    """Run the paper's tables on this machine, beside the printed ones. Each has --json.

    \b
    Example:  dragoman paper differences modern
              dragoman paper table1 -o table1.svg
    """


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
    from dragoman.cli.screen import print_json
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
    type=click.FloatRange(min=0, min_open=True),
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

    from dragoman.cli.screen import people, print_json
    from dragoman.paper.table1 import picture
    from dragoman.paper.table1 import table1 as measured
    from dragoman.storage import refuse_existing, write_lines

    if output is not None and not overwrite:
        refuse_existing(output)
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
    from dragoman.cli.screen import print_table
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
@click.option("--tflops", type=click.FloatRange(min=0, min_open=True), help="What a device sustains, instead of as measured.")
@click.option("--score", is_flag=True, help="Translate each test set once more, for BLEU in sacreBLEU's way and the paper's.")
@JSON
def table2(runs: tuple[Path, ...], tflops: float | None, score: bool, as_json: bool) -> None:
    """What the runs in these folders cost: in the paper's way (time × devices × sustained FLOPS), and exactly counted.

    \b
    Example:  dragoman paper table2 runs/multi30k-ende runs/short --score
    """
    from dataclasses import asdict

    from dragoman.cli.screen import print_json
    from dragoman.paper.table2 import PRINTED, cost_of, with_both_bleus

    costs = [cost_of(run, sustained=None if tflops is None else tflops * 1e12) for run in runs]
    if score:
        costs = [with_both_bleus(one) for one in costs]
    if as_json:
        print_json({"table": 2, "runs": [one.as_json() for one in costs], "printed": [asdict(row) for row in PRINTED]})
        return
    _print_table2(costs)


def _print_table2(costs: Sequence[Cost]) -> None:
    from dragoman.cli.screen import facts_table, print_table
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
            "time × devices × sustained": f"{one.seconds:,.0f} s × {one.devices} × {rate}",
            "FLOPs in the paper's way": flops(one.paper_flops) or "not known: give --tflops",
            "FLOPs counted": flops(one.counted_flops),
        }
        if one.bleu is not None:
            facts["BLEU"] = f"{points(one.bleu)} ({one.bleu_signature})"
        if one.paper_bleu is not None:
            facts["BLEU as the paper"] = f"{points(one.paper_bleu)} ({one.paper_bleu_signature})"
        facts_table(f"{one.run}: {one.name}", facts)


@paper.command()
@click.option("--corpus", type=click.Path(path_type=Path), required=True, help="The recipe whose corpus and training to use.")
@CHANGES
@click.option("--rows", help="Which rows, such as A,C-n2,big; base is always among them.  [default: all]")
@click.option("--budget", default="2000", show_default=True, help="What each row may spend: steps (2000) or minutes (10min).")
@click.option("--seeds", type=click.IntRange(1, 100), default=1, show_default=True, help="How often to train each row.")
@click.option(
    "--scale",
    type=click.Choice(["paper", "half", "small", "tiny"]),
    default="small",
    show_default=True,
    help="Sizes: as printed; half as wide; half as deep and a quarter as wide; half as deep and a sixteenth as wide.",
)
@click.option("--folder", type=click.Path(path_type=Path), help="Where the rows' runs go.  [default: runs/table3-NAME]")
@PICTURE
@OVERWRITE
@JSON
def table3(
    corpus: Path,
    changes: tuple[str, ...],
    rows: str | None,
    budget: str,
    seeds: int,
    scale: str,
    folder: Path | None,
    output: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Train the rows of Table 3 over the corpus of a recipe, each for the same budget, and see which orderings come out.

    Every row differs from base as printed, at a scale of which base has 3 layers and d_model 128 (small). KEY=VALUE changes
    the recipe. The same command again goes on where it stopped; rows that are done stay as they are.

    \b
    Example:  dragoman paper table3 --corpus multi30k-ende data.root=path/to/multi30k/tok --budget 2000 --seeds 3 -o table3.svg
    """
    from dragoman.cli.screen import TrainingScreen, people, print_json
    from dragoman.config import read_recipe
    from dragoman.paper.rows import SCALES, chosen_rows, refuse_settled
    from dragoman.paper.table3 import picture, read_budget
    from dragoman.paper.table3 import table3 as trained
    from dragoman.storage import refuse_existing, write_lines

    chosen, spend = chosen_rows(rows), read_budget(budget)
    refuse_settled(changes)
    recipe = read_recipe(corpus, changes)
    if output is not None and not overwrite:
        refuse_existing(output)
    console = people()
    screens: list[TrainingScreen] = []

    def screen(told: str) -> TrainingScreen:
        console.print(told, style="bold", markup=False)
        screens.append(TrainingScreen(console))
        return screens[-1]

    try:
        table = trained(
            recipe,
            rows=chosen,
            scale_name=scale,
            scale=SCALES[scale],
            budget=spend,
            seeds=seeds,
            folder=folder or Path("runs") / f"table3-{recipe.name}",
            listener=screen,
        )
    finally:
        for one in screens:
            one.close()
    if output is not None:
        write_lines(output, [picture(table)], overwrite=overwrite)
    if as_json:
        print_json(table.as_json())
        return
    _print_table3(table)


def _print_table3(table: Table3) -> None:
    from dragoman.cli.screen import print_table
    from dragoman.paper.table3 import Metric, Result

    def shown(one: Result, metric: Metric) -> str:
        spread = one.spread(metric)
        return f"{one.mean(metric):.2f}" + (f" ± {spread:.2f}" if spread is not None else "")

    rows = []
    in_steps = table.budget.steps is not None
    for one in table.results:
        printed = one.printed
        millions = f"{printed.million_parameters:g}" if printed.million_parameters is not None else ""
        spent = f"{one.seconds:,.0f}" if in_steps else f"{one.steps:,.0f}"
        ours = (shown(one, "perplexity"), shown(one, "bleu"), f"{one.parameters / 1e6:.3f}")
        rows.append(
            (printed.name, spent, f"{printed.perplexity:.2f}", ours[0], f"{printed.bleu:.1f}", ours[1], millions, ours[2])
        )
    header = ["row", "seconds" if in_steps else "steps", "printed", "PPL", "printed", "BLEU", "printed", "10⁶ params"]
    print_table(table.title, header, rows)
    signatures = {one.signature for result in table.results for one in result.trained}
    click.echo(f"perplexity per word-piece of data.valid, un-smoothed; BLEU of the same: {', '.join(sorted(signatures))}")
    for metric in ("perplexity", "bleu"):
        found = table.orderings(metric)
        counted = {outcome: [one for one in found if one.outcome == outcome] for outcome in ("held", "reversed")}
        name = "perplexity" if metric == "perplexity" else "BLEU"
        if table.seeds == 1:
            agreeing = sum(one.measured > 0 for one in found)
            click.echo(
                f"{name}: {agreeing} of {len(found)} printed orderings came out alike, but one seed has no spread to tell them "
                "from chance; give --seeds 3"
            )
            continue
        within = len(found) - sum(map(len, counted.values()))
        click.echo(
            f"{name}: of {len(found)} printed orderings {len(counted['held'])} held, {len(counted['reversed'])} came out the "
            f"other way round, {within} lie within the spread"
        )
        for outcome, ones in counted.items():
            for pair in ones:
                by = f"{pair.measured:+.2f} ± {pair.spread:.2f}"
                click.echo(f"  {outcome}: {pair.better} better than {pair.worse}, by {by} ({pair.series})")
