"""Command `paper table3`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dragoman.console.options import (
    PATH_TYPE,
    json_option,
    option,
    output_path_option,
    overrides_argument,
    overwrite_option,
    shared,
    with_options,
)

if TYPE_CHECKING:
    from dragoman.paper.table3_results import Table3
    from dragoman.training.commands.progress_bar import TrainingProgressBar


@dataclass(frozen=True)
class Table3Options:
    """Options of `dragoman paper table3`."""

    corpus: Path = option("--corpus", type=PATH_TYPE, required=True, help="Recipe with the corpus and the training settings.")
    overrides: tuple[str, ...] = shared(overrides_argument)
    rows: str | None = option(
        "--rows", help="Rows to train, such as A,C-n2,big. The row base is always included.  [default: all]"
    )
    budget: str = option(
        "--budget", default="2000", show_default=True, help="Budget of each row: steps (2000) or minutes (10min)."
    )
    seeds: int = option("--seeds", type=click.IntRange(1, 100), default=1, show_default=True, help="Seeds of each row.")
    scale: str = option(
        "--scale",
        type=click.Choice(["paper", "half", "small", "tiny"]),
        default="small",
        show_default=True,
        help="Sizes: as printed; half as wide; half as deep and a quarter as wide; half as deep and a sixteenth as wide.",
    )
    folder: Path | None = option(
        "--folder", type=PATH_TYPE, help="Folder for the runs of the rows.  [default: runs/table3-NAME]"
    )
    processes: int = option(
        "--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="Runs that train at the same time."
    )
    output: Path | None = shared(output_path_option("Draw the table as an SVG to this file."))
    overwrite: bool = shared(overwrite_option())
    as_json: bool = shared(json_option())


@click.command()
@with_options(Table3Options)
def table3(args: Table3Options) -> None:
    """Train the rows of Table 3 on the corpus of a recipe, each for the same budget, and compare them with the printed order.

    Every row differs from base as printed, at a smaller scale: base has 3 layers and d_model 128 at --scale small. KEY=VALUE
    changes a key of the recipe. The same command resumes, and keeps finished rows. --processes divides the cores among
    several runs. At small scales that is faster than many threads for one run.

    \b
    Example:  dragoman paper table3 --corpus multi30k-ende data.root=path/to/multi30k/tok --budget 2000 --seeds 3 -o table3.svg
              dragoman paper table3 --corpus multi30k-ende --rows A,E --scale tiny --budget 5min --processes 2
    """
    from dragoman.config import read_recipe
    from dragoman.console.figure_files import check_chart, write_chart
    from dragoman.console.terminal import print_json
    from dragoman.paper.budget import parse_budget
    from dragoman.paper.commands.outputs import describe_table3
    from dragoman.paper.table3 import train_table3
    from dragoman.paper.table3_results import draw_table3
    from dragoman.paper.table3_rows import MODEL_SCALES, check_fixed_keys, select_rows

    selected_rows, row_budget = select_rows(args.rows), parse_budget(args.budget)
    check_fixed_keys(args.overrides)
    recipe = read_recipe(args.corpus, args.overrides)
    check_chart(args.output, overwrite=args.overwrite)
    with training_progress_bars() as add_progress_bar:
        table = train_table3(
            recipe,
            rows=selected_rows,
            scale_name=args.scale,
            scale=MODEL_SCALES[args.scale],
            budget=row_budget,
            seeds=args.seeds,
            folder=args.folder or Path("runs") / f"table3-{recipe.name}",
            make_callback=add_progress_bar,
            processes=args.processes,
        )
    write_chart(args.output, lambda: draw_table3(table), overwrite=args.overwrite)
    if args.as_json:
        print_json(describe_table3(table))
        return
    _print_table3(table)


@contextmanager
def training_progress_bars() -> Iterator[Callable[[str], TrainingProgressBar]]:
    """Return a function that prints the name of a run and adds its bar. All bars are removed at the end."""
    from dragoman.console.terminal import rich_console
    from dragoman.training.commands.progress_bar import TrainingProgressBar

    console = rich_console()
    progress_bars: list[TrainingProgressBar] = []

    def add_progress_bar(run_name: str) -> TrainingProgressBar:
        console.print(run_name, style="bold", markup=False)
        progress_bars.append(TrainingProgressBar(console))
        return progress_bars[-1]

    try:
        yield add_progress_bar
    finally:
        for progress_bar in progress_bars:
            progress_bar.close()


def _print_table3(table: Table3) -> None:
    from dragoman.console.terminal import print_table
    from dragoman.paper.commands.outputs import METRICS
    from dragoman.paper.table3_results import Metric, Table3Result

    def format_mean(result: Table3Result, metric: Metric) -> str:
        if not result.has(metric):
            return ""
        std = result.std(metric)
        return f"{result.mean(metric):.2f}" + (f" ± {std:.2f}" if std is not None else "")

    rows = []
    cost = "steps" if table.budget.steps is None else "seconds"
    for result in table.results:
        paper_row = result.paper_row
        paper_millions = f"{paper_row.million_parameters:g}" if paper_row.million_parameters is not None else ""
        cost_cell = f"{result.mean(cost):,.0f}"
        perplexity_cells = (f"{paper_row.perplexity:.2f}", format_mean(result, "perplexity"))
        bleu_cells = (f"{paper_row.bleu:.1f}", format_mean(result, "bleu"), format_mean(result, "token_accuracy"))
        size_cells = (paper_millions, f"{result.parameters / 1e6:.3f}")
        rows.append((paper_row.name, cost_cell, *perplexity_cells, *bleu_cells, *size_cells))
    header = ["row", cost, "printed", "PPL", "printed", "BLEU", "accuracy", "printed", "10⁶ params"]
    print_table(table.title, header, rows)
    signatures = {run.signature for result in table.results for run in result.trained_rows}
    click.echo(f"perplexity per subword token of data.valid, unsmoothed; its BLEU: {', '.join(sorted(signatures))}")
    click.echo("accuracy: percentage of these tokens that are the likeliest after those before them")
    for remark in table.remarks:
        click.echo(remark)
    for metric in METRICS:
        orderings = table.compare_rows(metric)
        if not orderings and metric == "token_accuracy":
            continue
        orderings_by_outcome = {
            outcome: [ordering for ordering in orderings if ordering.outcome == outcome] for outcome in ("held", "reversed")
        }
        metric_name = {"bleu": "BLEU"}.get(metric, metric.replace("_", " "))
        noise_count = sum(ordering.outcome == "not significant" for ordering in orderings)
        noise_note = f", {noise_count} are within the sampling noise (paired bootstrap)" if noise_count else ""
        if table.seeds == 1:
            agreeing_count = sum(ordering.measured_margin > 0 for ordering in orderings)
            click.echo(
                f"{metric_name}: {agreeing_count} of {len(orderings)} printed orderings hold{noise_note}. "
                "One seed has no standard deviation to compare them with; give --seeds 3"
            )
            continue
        within_spread_count = len(orderings) - sum(map(len, orderings_by_outcome.values())) - noise_count
        click.echo(
            f"{metric_name}: of {len(orderings)} printed orderings {len(orderings_by_outcome['held'])} held, "
            f"{len(orderings_by_outcome['reversed'])} are reversed, {within_spread_count} are within the standard deviation "
            f"of the seeds{noise_note}"
        )
        for outcome, outcome_orderings in orderings_by_outcome.items():
            for ordering in outcome_orderings:
                margin = f"{ordering.measured_margin:+.2f} ± {ordering.margin_std:.2f}"
                click.echo(
                    f"  {outcome}: {ordering.better_row} better than {ordering.worse_row}, by {margin} ({ordering.series})"
                )
