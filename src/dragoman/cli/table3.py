"""Table 3 of the paper: `paper table3`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dragoman.cli.options import refuse_old
from dragoman.cli.train import CHANGES, JSON

if TYPE_CHECKING:
    from dragoman.paper.table3_results import Table3

PICTURE = click.option("-o", "--output", type=click.Path(path_type=Path), help="Draw the table as an SVG here.")
OVERWRITE = click.option("--overwrite", is_flag=True, help="Replace a picture that exists.")


@click.command()
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
@click.option("--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="Runs that train at a time.")
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
    processes: int,
    output: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Train the rows of Table 3 over the corpus of a recipe, each for the same budget, and see which orderings come out.

    Every row differs from base as printed, at a scale of which base has 3 layers and d_model 128 (small). KEY=VALUE changes
    the recipe. The same command again goes on where it stopped; rows that are done stay as they are. With --processes the
    cores are shared out among as many runs: at small scales that is faster than many threads for one.

    \b
    Example:  dragoman paper table3 --corpus multi30k-ende data.root=path/to/multi30k/tok --budget 2000 --seeds 3 -o table3.svg
              dragoman paper table3 --corpus multi30k-ende --rows A,E --scale tiny --budget 5min --processes 2
    """
    from dragoman.cli.console import TrainingScreen, people, print_json
    from dragoman.config import read_recipe
    from dragoman.io.storage import write_lines
    from dragoman.paper.table3 import table3 as trained
    from dragoman.paper.table3_results import picture, read_budget
    from dragoman.paper.table3_rows import SCALES, chosen_rows, refuse_settled

    chosen, spend = chosen_rows(rows), read_budget(budget)
    refuse_settled(changes)
    recipe = read_recipe(corpus, changes)
    refuse_old(output, overwrite=overwrite)
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
            processes=processes,
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
    from dragoman.cli.console import print_table
    from dragoman.paper.table3_results import Metric, Result

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
    for remark in table.remarks:
        click.echo(remark)
    for metric in ("perplexity", "bleu"):
        found = table.orderings(metric)
        counted = {outcome: [one for one in found if one.outcome == outcome] for outcome in ("held", "reversed")}
        name = "perplexity" if metric == "perplexity" else "BLEU"
        noise = sum(one.outcome == "under the noise" for one in found)
        sentences = f", {noise} under the noise of the sentences (paired bootstrap)" if noise else ""
        if table.seeds == 1:
            agreeing = sum(one.measured > 0 for one in found)
            click.echo(
                f"{name}: {agreeing} of {len(found)} printed orderings came out alike{sentences}, but one seed has no spread "
                "to tell them from chance; give --seeds 3"
            )
            continue
        within = len(found) - sum(map(len, counted.values())) - noise
        click.echo(
            f"{name}: of {len(found)} printed orderings {len(counted['held'])} held, {len(counted['reversed'])} came out the "
            f"other way round, {within} lie within the spread of the seeds{sentences}"
        )
        for outcome, ones in counted.items():
            for pair in ones:
                by = f"{pair.measured:+.2f} ± {pair.spread:.2f}"
                click.echo(f"  {outcome}: {pair.better} better than {pair.worse}, by {by} ({pair.series})")
