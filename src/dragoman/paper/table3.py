"""Table 3 at any budget: all rows trained alike over several seeds, and compared with the printed order.

    FOLDER/base-seed1/  A-h1-seed1/  …      one run folder each, as of `dragoman train`

Finished rows are kept, and interrupted rows are resumed. A folder of another recipe or another budget is an error, which is
raised before any training.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dragoman.config import Recipe, TrainingConfig, flatten_settings
from dragoman.data.manifest import MANIFEST, hash_inputs, list_input_digests, read_manifest
from dragoman.data.prepare import prepare
from dragoman.errors import DataError, RecipeError, RunError
from dragoman.evaluation.bleu_tokenizer import get_task_bleu_tokenizer
from dragoman.evaluation.bootstrap import ResampledScore, resample
from dragoman.formats.text import read_lines
from dragoman.io.storage import to_write_error
from dragoman.paper.parallel_runs import train_parallel
from dragoman.paper.table3_results import Budget, Table3, Table3Result, TrainedRow
from dragoman.paper.table3_rows import ModelScale, PaperRow, make_row_recipe
from dragoman.runtime.counts import format_count
from dragoman.training.checkpoints.checkpoint import list_checkpoints
from dragoman.training.compute_plan import choose_compute_plan
from dragoman.training.monitoring.events import Callback, RunClosed
from dragoman.training.monitoring.run_status import read_report, read_run_status
from dragoman.training.report import TRANSLATIONS_FILE
from dragoman.training.run import train
from dragoman.training.validation import get_references, read_eval_pairs

# Keys in which an existing run of a row may differ: places of files, and amounts of logging.
KEYS_THAT_MAY_DIFFER = (
    "name",
    "run",
    "data.root",
    "data.preprocessing_workers",
    "data.num_workers",
    "training.log_every_steps",
)


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
    make_callback: called with the name of a run when it starts, such as "C-n2, seed 1 (8 of 60)". It returns the callback of
        the run, which is not used if several runs train at the same time.
    processes: runs that train at the same time

    Raises RecipeError if the recipe or the budget cannot be used, and RunError if a row's folder has another recipe.
    """
    row_seeds = [(row, seed) for seed in range(1, seeds + 1) for row in rows]
    budget_settings = budget.to_training_settings()
    recipes: dict[tuple[str, int], Recipe] = {}
    for row, seed in row_seeds:
        run = folder / f"{row.name}-seed{seed}"
        recipes[row.name, seed] = make_row_recipe(
            base_recipe, row, scale=scale, seed=seed, budget_settings=budget_settings, run=run
        )
    for recipe in recipes.values():
        check_same_recipe(recipe)
    data_error = check_same_text(recipes.values())
    run_names = {
        (row.name, seed): f"{row.name}, seed {seed} ({number} of {len(row_seeds)})"
        for number, (row, seed) in enumerate(row_seeds, 1)
    }
    unfinished = [key for key, recipe in recipes.items() if read_finished_report(Path(recipe.run)) is None]
    if unfinished and data_error is not None:
        raise data_error
    first_training, run_dirs = next(iter(recipes.values())).training, [Path(recipe.run) for recipe in recipes.values()]
    reuse_plan = choose_common_plan(first_training, run_dirs) if unfinished else {}
    if processes > 1:
        prepare_shared_data(recipes, unfinished)
        runs = [(run_names[key], recipes[key]) for key in unfinished]
        train_parallel(runs, processes=processes, on_start=lambda name: make_callback(name)(RunClosed()), reuse_plan=reuse_plan)
    trained_by_row: dict[str, list[TrainedRow]] = {row.name: [] for row in rows}
    for row, seed in row_seeds:
        recipe = recipes[row.name, seed]
        report = read_finished_report(Path(recipe.run))
        if report is None:
            share_data(recipe.run, list_run_dirs(recipes, seed))
            report = train(recipe, make_callback(run_names[row.name, seed]), reuse_plan=reuse_plan)
        trained_by_row[row.name].append(read_trained_row(row.name, seed, report, budget))
    resamples_by_row, remarks = (
        ({row.name: [] for row in rows}, [f"no bootstrap: {data_error}"]) if data_error is not None else _resample_bleu(recipes)
    )
    results = [Table3Result(row, trained_by_row[row.name], resamples_by_row[row.name]) for row in rows]
    return Table3(base_recipe.name, scale_name, budget, seeds, results, remarks)


def choose_common_plan(training: TrainingConfig, run_dirs: Iterable[Path]) -> dict[str, str]:
    """Return one compute plan for all rows, because plans differ in the last bits: that of a started row, else the fastest."""
    for run_dir in run_dirs:
        for checkpoint in list_checkpoints(run_dir / "checkpoints"):
            if checkpoint.compute_plan is not None:
                return checkpoint.compute_plan
    return choose_compute_plan(training).to_dict()


def prepare_shared_data(recipes: Mapping[tuple[str, int], Recipe], unfinished: Sequence[tuple[str, int]]) -> None:
    """Prepare the data of the first run of each seed, and share them with the other rows of the seed."""
    for key in unfinished:
        recipe = recipes[key]
        share_data(recipe.run, list_run_dirs(recipes, key[1]))
        if not (Path(recipe.run) / "data" / MANIFEST).is_file():
            prepare(recipe, Path(recipe.run) / "data")


def _resample_bleu(recipes: Mapping[tuple[str, int], Recipe]) -> tuple[dict[str, list[ResampledScore]], list[str]]:
    """Return the BLEU over the bootstrap samples for each row, and a remark for each row without all translations."""
    resamples_by_row: dict[str, list[ResampledScore]] = {row: [] for row, _ in recipes}
    missing_reasons: dict[str, str] = {}
    recipe = next(iter(recipes.values()))
    assert recipe.data.test is not None
    references = get_references(read_eval_pairs(recipe.data.test, recipe.data, recipe.task), recipe.tokenizer)
    for (row, _), recipe in recipes.items():
        path = Path(recipe.run) / TRANSLATIONS_FILE
        try:
            lines = list(read_lines(path))
            if len(lines) != len(references):
                num_lines = format_count(len(lines), "line")
                raise DataError(f"{path}: has {num_lines}, but data.valid has {len(references):,}; train the row again")
        except DataError as error:
            missing_reasons.setdefault(row, f"no bootstrap of {row}: {error}")
            continue
        resamples_by_row[row].append(resample(lines, [references], tokenize=get_task_bleu_tokenizer(recipe.task)))
    return {row: [] if row in missing_reasons else resamples for row, resamples in resamples_by_row.items()}, list(
        missing_reasons.values()
    )


def check_same_text(recipes: Collection[Recipe]) -> DataError | None:
    """Raise RunError if the rows have different corpora, or another corpus than data.root holds now.

    Return the error of a missing corpus, because a finished table can be printed without it.
    """
    run_by_digests: dict[tuple[str, ...], str] = {}
    known_inputs: dict[str, Any] = {}
    for recipe in recipes:
        manifest = read_manifest(Path(recipe.run) / "data")
        if manifest is not None:
            known_inputs = manifest["inputs"]
            run_by_digests.setdefault(list_input_digests(known_inputs), f"{recipe.run}: was trained on")
    data_error, recipe = None, next(iter(recipes))
    try:
        run_by_digests.setdefault(
            list_input_digests(hash_inputs(recipe, known_inputs)), f"data.root = {recipe.data.root!r} now holds"
        )
    except DataError as error:
        data_error = error
    if len(run_by_digests) > 1:
        first_text, second_text, *_ = run_by_digests.values()
        raise RunError(
            f"{first_text} another text than {second_text}; rows need one corpus, so start another table with --folder"
        )
    return data_error


def check_same_recipe(recipe: Recipe) -> None:
    """Raise RunError if the run's folder holds a run of another recipe."""
    folder = Path(recipe.run)
    if not (folder / "recipe.json").exists():
        return
    old_settings, new_settings = (
        dict(flatten_settings(compared_recipe.model_dump(mode="json")))
        for compared_recipe in (read_run_status(folder).recipe, recipe)
    )
    for key in sorted(old_settings.keys() | new_settings.keys()):
        if old_settings.get(key) != new_settings.get(key) and key not in KEYS_THAT_MAY_DIFFER:
            raise RunError(
                f"{folder}: has another recipe: {key} was {old_settings.get(key)!r} and is {new_settings.get(key)!r}; "
                "set it back, or start another table with --folder"
            )


def read_finished_report(folder: Path) -> dict[str, Any] | None:
    """Return the report of a finished run, or None for a run that has to be trained."""
    if not (folder / "recipe.json").exists() or not read_run_status(folder).is_finished:
        return None
    with suppress(RunError):
        return read_report(folder, "valid", "bleu", "parameters", "steps", "seconds")
    return None


def list_run_dirs(recipes: Mapping[tuple[str, int], Recipe], seed: int) -> list[Path]:
    """Return the run folders of all rows with this seed."""
    return [Path(recipe.run) for (_, recipe_seed), recipe in recipes.items() if recipe_seed == seed]


def share_data(run: str, other_run_dirs: Sequence[Path]) -> None:
    """Copy the prepared data of another row of this seed. The run verifies them as its own."""
    data_dir = Path(run) / "data"
    prepared_dir = next((run_dir / "data" for run_dir in other_run_dirs if (run_dir / "data" / MANIFEST).is_file()), None)
    if prepared_dir is None or data_dir.exists():
        return
    partial_dir = data_dir.with_name(".data.copy")
    try:
        data_dir.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial_dir, ignore_errors=True)
        shutil.copytree(prepared_dir, partial_dir, copy_function=_link_or_copy)
        partial_dir.rename(data_dir)
    except OSError as error:
        raise to_write_error(data_dir, error) from None


def _link_or_copy(source: str, target: str) -> None:
    """Make a hard link, which is safe because preparation replaces files and never changes them. Copy if links fail."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def read_trained_row(row: str, seed: int, report: Mapping[str, Any], budget: Budget) -> TrainedRow:
    """Return the results of a row from its report. Raises RecipeError if its minutes were too few for more than one step."""
    seconds, steps = float(report["seconds"]), int(report["steps"])
    if budget.minutes is not None and steps <= 1 and seconds > 60.0 * budget.minutes:
        raise RecipeError(
            f"--budget {budget}: is too small to train one step of {row}, which took {seconds:.1f} seconds; give more, and "
            "another --folder"
        )
    signature = report.get("signatures", {}).get("bleu", "")
    perplexity = float(report["valid"]["perplexity"])
    return TrainedRow(row, seed, perplexity, float(report["bleu"]), signature, int(report["parameters"]), steps, seconds)
