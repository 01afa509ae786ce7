"""Table 3 at any budget: all rows trained alike over several seeds, and compared with the printed order.

FOLDER/base-seed1/  A-h1-seed1/  …      one run folder each, as of `dragoman train`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dragoman.config import Recipe
from dragoman.errors import DataError
from dragoman.evaluation.bootstrap import ResampledScore
from dragoman.paper.budget import Budget
from dragoman.paper.run_grid import RunGrid, read_row_scores, resample_translations
from dragoman.paper.table3_results import Table3, Table3Result, TrainedRow
from dragoman.paper.table3_rows import ModelScale, PaperRow, make_row_recipe
from dragoman.training.monitoring.events import Callback
from dragoman.training.validation import get_references, read_eval_pairs


def train_table3(
    base_recipe: Recipe,
    *,
    rows: Sequence[PaperRow],
    scale_name: str,
    scale: ModelScale,
    budget: Budget,
    seeds: int,
    folder: Path,
    make_callback: Callable[[str], Callback],
    processes: int = 1,
) -> Table3:
    """Train the unfinished rows, and return the table.

    base_recipe: recipe with the corpus and the training settings
    make_callback, processes: see `RunGrid.train`

    Raises RecipeError if the recipe or the budget cannot be used, and RunError if a row's folder has another recipe.
    """
    grid = RunGrid(
        {
            (row.name, seed): make_row_recipe(
                base_recipe, row, scale=scale, seed=seed, budget=budget, run=folder / f"{row.name}-seed{seed}"
            )
            for seed in range(1, seeds + 1)
            for row in rows
        }
    )
    trained_by_row: dict[str, list[TrainedRow]] = {row.name: [] for row in rows}
    for (name, seed), report in grid.train(make_callback, processes=processes).items():
        assert report is not None
        scores = read_row_scores(name, seed, report, budget)
        trained_by_row[name].append(TrainedRow(name, **scores, token_accuracy=report["valid"].get("token_accuracy")))
    resamples_by_row, remarks = _resample_bleu(grid)
    results = [Table3Result(row, trained_by_row[row.name], resamples_by_row.get(row.name, [])) for row in rows]
    return Table3(base_recipe.name, scale_name, budget, seeds, results, remarks)


def _resample_bleu(grid: RunGrid) -> tuple[dict[str, list[ResampledScore]], list[str]]:
    """Return the BLEU over the bootstrap samples for each row, and a remark for each row without all translations."""
    recipe = next(iter(grid.recipes.values()))
    assert recipe.data.test is not None
    try:
        references = get_references(read_eval_pairs(recipe.data.test, recipe.data, recipe.task), recipe.tokenizer)
    except DataError as error:
        return {}, [f"no bootstrap: {error}"]
    resamples_by_row: dict[str, list[ResampledScore]] = {}
    missing_reasons: dict[str, str] = {}
    for row, seed in grid.recipes:
        try:
            resampled = resample_translations(grid.get_folder((row, seed)), references, recipe.task)
        except DataError as error:
            missing_reasons.setdefault(row, f"no bootstrap of {row}: {error}")
        else:
            resamples_by_row.setdefault(row, []).append(resampled)
    complete = {row: resamples for row, resamples in resamples_by_row.items() if row not in missing_reasons}
    return complete, list(missing_reasons.values())
