"""Command `paper ablations`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

import click

from dragoman.console.options import (
    PATH_TYPE,
    json_option,
    output_path_option,
    overrides_argument,
    overwrite_option,
)
from dragoman.paper.commands.table3 import training_progress_bars


@click.command()
@click.option("--corpus", type=PATH_TYPE, required=True, help="Recipe with the corpus, the model and the training settings.")
@overrides_argument
@click.option(
    "--rows", help="Rows or series to train: score, scaling, structure, activation, layers. Base is included.  [default: all]"
)
@click.option("--budget", default="2000", show_default=True, help="Budget of each row: steps (2000) or minutes (10min).")
@click.option("--seeds", type=click.IntRange(1, 100), default=1, show_default=True, help="Seeds of each row.")
@click.option("--folder", type=PATH_TYPE, help="Folder for the runs of the rows.  [default: runs/ablations-NAME]")
@output_path_option("Draw the learning curves as an SVG to this file.")
@overwrite_option()
@json_option()
def ablations(
    corpus: Path,
    overrides: tuple[str, ...],
    rows: str | None,
    budget: str,
    seeds: int,
    folder: Path | None,
    output: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Train a recipe's model with one choice of the paper changed in each row, each for the same budget.

    The series are the scores of attention, their scaling at d_k of 16, 64 and 256, residuals and normalization, the
    activation, and the layers of later models. The rows of the last series have the d_ff that keeps the operations of base.
    KEY=VALUE changes a key of the recipe. The same command resumes, and keeps finished rows.

    \b
    Example:  dragoman paper ablations --corpus multi30k-ende data.root=path/to/multi30k/tok --rows score -o ablations.svg
              dragoman paper ablations --corpus multi30k-ende --rows scaling,no-norm --budget 5min --seeds 3
    """
    from dragoman.config import read_recipe
    from dragoman.console.figure_files import check_chart, write_chart
    from dragoman.console.terminal import print_json, print_table
    from dragoman.paper.ablations import draw_ablations, select_ablations, train_ablations
    from dragoman.paper.budget import parse_budget
    from dragoman.paper.commands.outputs import describe_ablation
    from dragoman.runtime.counts import format_count

    selected_rows, row_budget = select_ablations(rows), parse_budget(budget)
    recipe = read_recipe(corpus, overrides)
    check_chart(output, overwrite=overwrite)
    with training_progress_bars() as add_progress_bar:
        results = train_ablations(
            recipe,
            selected_rows,
            budget=row_budget,
            seeds=seeds,
            folder=folder or Path("runs") / f"ablations-{recipe.name}",
            make_callback=add_progress_bar,
        )
    title = f"Ablations: {recipe.name}, {row_budget} a row, {format_count(seeds, 'seed')}"
    write_chart(output, lambda: draw_ablations(results, title=title), overwrite=overwrite)
    if as_json:
        described = list(map(describe_ablation, results))
        print_json({"corpus": recipe.name, "budget": str(row_budget), "seeds": seeds, "rows": described})
        return
    cells = [
        (
            result.row.series, result.row.name, result.row.description,
            "" if result.parameters is None else f"{result.parameters:,}", _format_mean(result.nlls, 3),
            _format_mean(result.bleus, 2),
            f"diverged with seed {', '.join(map(str, result.diverged_seeds))}" if result.diverged_seeds else "",
        )
        for result in results
    ]  # fmt: skip
    print_table(title, ["series", "row", "model", "parameters", "nats per token", "BLEU", ""], cells)


def _format_mean(values: Sequence[float], digits: int) -> str:
    if not values:
        return ""
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{spread}"
