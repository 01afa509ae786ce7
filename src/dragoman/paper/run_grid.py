"""Runs of a table: its rows over several seeds, trained alike, each in a folder of its own as of `dragoman train`.

Finished runs are kept, and interrupted runs are resumed. A folder of another recipe is an error, which is raised before any
training.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.config import Recipe, TaskConfig, flatten_settings
from dragoman.config.section_validation import suggest_or_list_names
from dragoman.data.manifest import MANIFEST, hash_inputs, list_input_digests, read_manifest
from dragoman.data.prepare import prepare
from dragoman.errors import DataError, RecipeError, RunError
from dragoman.evaluation.bleu_tokenizer import get_task_bleu_tokenizer
from dragoman.evaluation.bootstrap import ResampledScore, resample
from dragoman.formats.text import read_lines
from dragoman.io.storage import to_write_error
from dragoman.paper.budget import Budget
from dragoman.paper.parallel_runs import train_parallel
from dragoman.runtime.counts import format_count
from dragoman.training.checkpoints.checkpoint import list_checkpoints
from dragoman.training.compute_plan import choose_compute_plan
from dragoman.training.monitoring.events import Callback, RunClosed
from dragoman.training.monitoring.run_status import read_report, read_run_status
from dragoman.training.report import TRANSLATIONS_FILE
from dragoman.training.run import train

# Keys in which an existing run of a row may differ: places of files, and amounts of logging.
KEYS_THAT_MAY_DIFFER = (
    "name",
    "run",
    "data.root",
    "data.preprocessing_workers",
    "data.num_workers",
    "training.log_every_steps",
)
# Settings of every row that is scored on the validation set. They override the recipe.
ROW_TRAINING: dict[str, Any] = {
    "num_validation_translations": 0, "best_metric": "loss", "patience": None, "checkpoint_averaging": "none",
    "loggers": [], "max_epochs": None, "checkpoint_url": None,
}  # fmt: skip

RunKey = tuple[str, int]
"""Name of the row, and seed."""


def select_names(text: str | None, known_names: Sequence[str], *, option: str, noun: str) -> list[str]:
    """Return the names in text such as `score,no-norm`; all known names without a text.

    option, noun: for the error, such as --rows and row

    Raises RecipeError for an unknown name, and for a text without a name.
    """
    names = list(known_names) if text is None else [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known_names:
            raise RecipeError(f"{option}: {name!r} is no {noun}{suggest_or_list_names(name, known_names)}")
    if not names:
        raise RecipeError(f"{option}: names no {noun}; give some of {', '.join(known_names)}")
    return names


def make_row_document(base_recipe: Recipe, row: str, *, seed: int, budget: Budget, run: Path) -> dict[str, Any]:
    """Return the recipe of a row as a dictionary, with the training settings of all rows. It is scored on the validation set.

    Raises RecipeError if the recipe has no single validation set.
    """
    if base_recipe.data.valid is None:
        raise RecipeError(f"{base_recipe.name}: data.valid is missing, but the table needs it for scores; name its files")
    document = base_recipe.model_dump() | {"name": f"{base_recipe.name}, {row}", "run": str(run)}
    document["training"] |= {**ROW_TRAINING, "seed": seed, **budget.to_training_settings()}
    document["data"]["test"] = document["data"]["valid"]
    return document


@dataclass(frozen=True)
class RunGrid:
    """Runs of a table. recipes: recipe of each run, in the order of training"""

    recipes: Mapping[RunKey, Recipe]

    def get_folder(self, key: RunKey) -> Path:
        return Path(self.recipes[key].run)

    def train(
        self, make_callback: Callable[[str], Callback], *, processes: int = 1, allow_divergence: bool = False
    ) -> dict[RunKey, dict[str, Any] | None]:
        """Train the unfinished runs, and return the report of each run; None if it diverged.

        make_callback: called with the name of a run when it starts, such as "C-n2, seed 1 (8 of 60)". It returns the callback
            of the run, which is not used if several runs train at the same time.
        processes: runs that train at the same time

        Raises RunError if a folder has another recipe, or if a run fails, and DataError if the corpus is missing.
        """
        for recipe in self.recipes.values():
            _check_same_recipe(recipe.run, recipe.model_dump())
        data_error = self._check_same_text()
        reports = {key: read_finished_report(self.get_folder(key)) for key in self.recipes}
        unfinished = [key for key, report in reports.items() if report is None]
        if not unfinished:
            return reports
        if data_error is not None:
            raise data_error
        names = {
            (row, seed): f"{row}, seed {seed} ({number} of {len(self.recipes)})"
            for number, (row, seed) in enumerate(self.recipes, start=1)
        }
        reuse_plan = self._choose_common_plan()
        if processes > 1:
            for key in unfinished:
                self._share_data(key)
                if not (self.get_folder(key) / "data" / MANIFEST).is_file():
                    prepare(self.recipes[key], self.get_folder(key) / "data")
            runs = [(names[key], self.recipes[key]) for key in unfinished]
            train_parallel(
                runs, processes=processes, on_start=lambda name: make_callback(name)(RunClosed()), reuse_plan=reuse_plan
            )
            return {key: read_finished_report(self.get_folder(key)) for key in self.recipes}
        for key in unfinished:
            self._share_data(key)
            try:
                reports[key] = train(self.recipes[key], make_callback(names[key]), reuse_plan=reuse_plan)
            except RunError as error:
                if not allow_divergence or error.code != "run-diverged":
                    raise
        return reports

    def _choose_common_plan(self) -> dict[str, str]:
        """Return one plan for all runs, because plans differ in the last bits: that of a started run, else the fastest."""
        for key in self.recipes:
            for checkpoint in list_checkpoints(self.get_folder(key) / "checkpoints"):
                if checkpoint.compute_plan is not None:
                    return checkpoint.compute_plan
        return choose_compute_plan(next(iter(self.recipes.values())).training).to_dict()

    def _share_data(self, key: RunKey) -> None:
        """Copy the prepared data of another row of this seed. The run verifies them as its own."""
        data_dir = self.get_folder(key) / "data"
        others = (self.get_folder(other) / "data" for other in self.recipes if other[1] == key[1])
        prepared_dir = next((folder for folder in others if (folder / MANIFEST).is_file()), None)
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

    def _check_same_text(self) -> DataError | None:
        """Raise RunError if the rows have different corpora, or another corpus than data.root holds now.

        Return the error of a missing corpus, because a finished table can be printed without it.
        """
        run_by_digests: dict[tuple[str, ...], str] = {}
        known_inputs: dict[str, Any] = {}
        for recipe in self.recipes.values():
            manifest = read_manifest(Path(recipe.run) / "data")
            if manifest is not None:
                known_inputs = manifest["inputs"]
                run_by_digests.setdefault(list_input_digests(known_inputs), f"{recipe.run}: was trained on")
        data_error, recipe = None, next(iter(self.recipes.values()))
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


def _check_same_recipe(run: str, settings: Mapping[str, Any]) -> None:
    """Raise RunError if the run's folder holds a run of another recipe."""
    folder = Path(run)
    if not (folder / "recipe.json").exists():
        return
    old_settings, new_settings = (
        dict(flatten_settings(compared)) for compared in (read_run_status(folder).recipe.model_dump(), settings)
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


def read_row_scores(row: str, seed: int, report: Mapping[str, Any], budget: Budget) -> dict[str, Any]:
    """Return the results that rows of Tables 2 and 3 have. Raises RecipeError if the budget was too small for a second step."""
    budget.check_steps(row, report)
    return {
        "seed": seed,
        "perplexity": float(report["valid"]["perplexity"]),
        "bleu": float(report["bleu"]),
        "signature": report.get("signatures", {}).get("bleu", ""),
        "parameters": int(report["parameters"]),
        "steps": int(report["steps"]),
        "seconds": float(report["seconds"]),
    }


def resample_translations(folder: Path, references: Sequence[str], task: TaskConfig) -> ResampledScore:
    """Return the BLEU of a run's translations over the bootstrap samples.

    Raises DataError if the translations are missing, or belong to another test set.
    """
    path = folder / TRANSLATIONS_FILE
    return resample_lines(list(read_lines(path)), references, task, path)


def resample_lines(lines: Sequence[str], references: Sequence[str], task: TaskConfig, path: Path) -> ResampledScore:
    """Return the BLEU of lines over the bootstrap samples. path: origin of the lines, for the error"""
    if len(lines) != len(references):
        num_lines = format_count(len(lines), "line")
        raise DataError(f"{path}: has {num_lines}, but the test set has {len(references):,}; train the row again")
    return resample(lines, [references], tokenize=get_task_bleu_tokenizer(task))


def _link_or_copy(source: str, target: str) -> None:
    """Make a hard link, which is safe because preparation replaces files and never changes them. Copy if links fail."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
