"""Table 3 at any budget: every row trained alike over several seeds, and which of the printed orderings came out.

    FOLDER/base-seed1/  A-h1-seed1/  …      each a run folder as `dragoman train` makes it

A row that is done is not done again, one that was interrupted goes on, and a folder that was begun with another recipe or
another budget is refused before anything trains.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dragoman.config import Recipe
from dragoman.data.manifest import MANIFEST, digested_inputs, read_manifest, texts_of
from dragoman.data.prepare import prepare
from dragoman.errors import DataError, OutputError, RecipeError, RunError
from dragoman.evaluation.bootstrap import Resampled, resample
from dragoman.formats.text import read_lines
from dragoman.io.storage import cannot_write
from dragoman.paper.parallel_runs import train_beside
from dragoman.paper.table3_results import Budget, Result, Table3, Trained
from dragoman.paper.table3_rows import PaperRow, Scale, row_recipe
from dragoman.training.checkpoints.checkpoint import list_checkpoints
from dragoman.training.device import choose_machine
from dragoman.training.monitoring.callbacks import Listener
from dragoman.training.monitoring.run_status import read_record
from dragoman.training.report import TRANSLATIONS
from dragoman.training.run import train
from dragoman.training.validation import read_text

# What a row that stands there may differ in from the one that is asked for: where things are, and how much is told.
MAY_DIFFER = ("name", "run", "data.root", "data.preprocessing_workers", "data.num_workers", "training.log_every_steps")


def table3(
    plain: Recipe,
    *,
    rows: Sequence[PaperRow],
    scale_name: str,
    scale: Scale,
    budget: Budget,
    seeds: int,
    folder: Path,
    listener: Callable[[str], Listener],
    processes: int = 1,
) -> Table3:
    """Train what is not done yet, and put the table together.

    Raises RecipeError where the recipe or the budget is of no use, RunError where a row's folder was begun with another recipe.

    plain: the corpus's recipe
    listener: for the run that is told, such as "C-n2, seed 1 (8 of 60)"; where several train at a time, it hears no more
    processes: runs that train at a time
    """
    wanted = [(row, seed) for seed in range(1, seeds + 1) for row in rows]
    recipes = {
        (row.name, seed): row_recipe(
            plain, row, scale=scale, seed=seed, budget=budget.knobs(), run=folder / f"{row.name}-seed{seed}"
        )
        for row, seed in wanted
    }
    for recipe in recipes.values():
        _refuse_another(recipe)
    gone = _refuse_other_text(recipes.values())
    names = {
        (row.name, seed): f"{row.name}, seed {seed} ({number} of {len(wanted)})" for number, (row, seed) in enumerate(wanted, 1)
    }
    missing = [key for key, recipe in recipes.items() if _finished(Path(recipe.run)) is None]
    if missing and gone is not None:
        raise gone
    like = _ways(recipes.values()) if missing else {}
    if processes > 1:
        _prepare(recipes, missing)
        runs = [(names[key], recipes[key]) for key in missing]
        train_beside(runs, processes=processes, told=lambda name: listener(name).close(), like=like)
    done: dict[str, list[Trained]] = {row.name: [] for row in rows}
    for row, seed in wanted:
        recipe = recipes[row.name, seed]
        report = _finished(Path(recipe.run))
        if report is None:
            _share_data(recipe, [Path(one.run) for (_, other), one in recipes.items() if other == seed])
            report = train(recipe, listener(names[row.name, seed]), like=like)
        done[row.name].append(trained_row(row.name, seed, report, budget))
    draws, remarks = ({row.name: [] for row in rows}, [f"no bootstrap: {gone}"]) if gone is not None else _resampled(recipes)
    results = [Result(row, done[row.name], draws[row.name]) for row in rows]
    return Table3(plain.name, scale_name, budget, seeds, results, remarks)


def _ways(recipes: Collection[Recipe]) -> dict[str, str]:
    """In which ways to compute all rows: those of a row that has begun, else the fastest here. They differ in the last bits."""
    for recipe in recipes:
        for begun in list_checkpoints(Path(recipe.run) / "checkpoints"):
            if begun.machine is not None:
                return begun.machine
    return choose_machine(next(iter(recipes)).training).memory()


def _prepare(recipes: Mapping[tuple[str, int], Recipe], missing: Sequence[tuple[str, int]]) -> None:
    """Prepare the data of a seed's first run, and let the others of the seed begin with it: it does not know the row."""
    for key in missing:
        recipe = recipes[key]
        _share_data(recipe, [Path(one.run) for (_, seed), one in recipes.items() if seed == key[1]])
        if not (Path(recipe.run) / "data" / MANIFEST).is_file():
            prepare(recipe, Path(recipe.run) / "data")


def _resampled(recipes: Mapping[tuple[str, int], Recipe]) -> tuple[dict[str, list[Resampled]], list[str]]:
    """BLEU over the draws of a bootstrap, for each row of which every run has kept its translations; and which have not."""
    found: dict[str, list[Resampled]] = {row: [] for row, _ in recipes}
    lacking: dict[str, str] = {}
    recipe = next(iter(recipes.values()))
    assert recipe.data.test is not None
    references = [pair.target for pair in read_text(recipe.data.test, recipe)]
    for (row, _), recipe in recipes.items():
        path = Path(recipe.run) / TRANSLATIONS
        try:
            lines = list(read_lines(path))
            if len(lines) != len(references):
                raise DataError(f"{path}: has {len(lines)} lines, but data.valid has {len(references)}")
        except DataError as error:
            lacking.setdefault(row, f"no bootstrap of {row}: {error}")
            continue
        found[row].append(resample(lines, [references], tokenize="none" if recipe.task.tokenized else "13a"))
    return {row: [] if row in lacking else draws for row, draws in found.items()}, list(lacking.values())


def _refuse_other_text(recipes: Collection[Recipe]) -> DataError | None:
    """Raise RunError where a row learnt from another text than the others, or than there is now.

    Where there is none any more, what is wrong with it is returned: a table that is done can be told without its corpus.
    """
    found: dict[tuple[str, ...], str] = {}
    known: dict[str, Any] = {}
    for recipe in recipes:
        prepared = read_manifest(Path(recipe.run) / "data")
        if prepared is not None:
            known = prepared["inputs"]
            found.setdefault(texts_of(known), f"{recipe.run} learnt from")
    gone, recipe = None, next(iter(recipes))
    try:
        found.setdefault(texts_of(digested_inputs(recipe, known)), f"data.root = {recipe.data.root!r} now holds")
    except DataError as error:
        gone = error
    if len(found) > 1:
        one, other, *_ = found.values()
        raise RunError(f"{one} another text than {other}; rows are compared over one: start another table with --folder")
    return gone


def _refuse_another(recipe: Recipe) -> None:
    """Raise RunError where the run's folder holds a run of another recipe, which would then be taken for this one."""
    folder = Path(recipe.run)
    if not (folder / "recipe.json").exists():
        return
    before, now = (dict(flat(one.model_dump(mode="json"))) for one in (read_record(folder).recipe, recipe))
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key) and key not in MAY_DIFFER:
            raise RunError(
                f"{folder} was begun with another recipe: {key} was {before.get(key)!r} and is {now.get(key)!r}. Set it back, "
                "or start another table with --folder"
            )


def flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every knob of a recipe with its dotted key."""
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _finished(folder: Path) -> dict[str, Any] | None:
    """The report of a run that came to its end; none of one that has to be trained, or trained on."""
    if not (folder / "recipe.json").exists() or not read_record(folder).finished:
        return None
    with suppress(OSError, ValueError, RecursionError):
        report = json.loads((folder / "report.json").read_bytes())
        if isinstance(report, dict) and {"valid", "bleu", "parameters", "steps", "seconds"} <= report.keys():
            return report
    return None


def _share_data(recipe: Recipe, others: Sequence[Path]) -> None:
    """Begin with what another row of this seed has prepared, which the run checks as if it were its own."""
    data = Path(recipe.run) / "data"
    prepared = next((one / "data" for one in others if (one / "data" / MANIFEST).is_file()), None)
    if prepared is None or data.exists():
        return
    partial = data.with_name(".data.copy")
    try:
        data.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(prepared, partial, copy_function=_linked)
        partial.rename(data)
    except OSError as error:
        raise OutputError(cannot_write(data, error)) from None


def _linked(source: str, target: str) -> None:
    """A second name for a file, which preparing replaces and never changes; a copy where the file system has no such thing."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def trained_row(row: str, seed: int, report: Mapping[str, Any], budget: Budget) -> Trained:
    """What a report says of a row. Raises RecipeError where its minutes were used up by one step."""
    seconds, steps = float(report["seconds"]), int(report["steps"])
    if budget.minutes is not None and steps <= 1 and seconds > 60.0 * budget.minutes:
        raise RecipeError(
            f"--budget {budget} is too small to train one step of {row}, which took {seconds:.1f} seconds; give more, and "
            "another --folder"
        )
    signature = report.get("signatures", {}).get("bleu", "")
    valid = float(report["valid"]["perplexity"])
    return Trained(row, seed, valid, float(report["bleu"]), signature, int(report["parameters"]), steps, seconds)
