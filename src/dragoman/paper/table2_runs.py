"""Table 2 at any budget: all systems trained alike over several seeds, and the ensemble of each system's seeds.

    FOLDER/transformer-seed1/  gnmt-seed1/  …      one run folder each, as of `dragoman train`
    FOLDER/transformer-outputs.json  …             outputs of the ensemble, and the speed of translation

Finished runs and outputs are kept, and interrupted runs are resumed. A folder of another recipe or another budget is an error,
which is raised before any training.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from dragoman.bundle import compute_bundle_digest, load_bundle
from dragoman.config import Recipe, TaskConfig, TrainingConfig
from dragoman.errors import DataError, RecipeError
from dragoman.evaluation.bleu_tokenizer import get_task_bleu_tokenizer
from dragoman.evaluation.bootstrap import ResampledScore, resample
from dragoman.formats.pair import Pair
from dragoman.formats.text import read_lines
from dragoman.io.storage import write_json
from dragoman.paper.parallel_runs import train_parallel
from dragoman.paper.table2_results import SystemResult, Table2, TrainedSystem, TranslationSpeed
from dragoman.paper.table2_systems import (
    PATH_LENGTH,
    System,
    SystemBudget,
    count_longest_path,
    make_system_recipe,
    split_overrides,
)
from dragoman.paper.table3 import (
    check_same_recipe,
    check_same_text,
    choose_common_plan,
    list_run_dirs,
    prepare_shared_data,
    read_finished_report,
    share_data,
)
from dragoman.runtime.counts import format_count
from dragoman.tasks.translation import decode_best, translate_lines
from dragoman.torch_engine.inference_model import as_inference_model
from dragoman.training.monitoring.events import Callback, RunClosed
from dragoman.training.monitoring.run_status import read_run_status
from dragoman.training.report import TRANSLATIONS_FILE
from dragoman.training.run import train
from dragoman.training.trainer import read_clock
from dragoman.training.validation import get_references, read_eval_pairs


def train_table2(
    corpus: Path,
    overrides: Sequence[str],
    *,
    systems: Sequence[System],
    budget: SystemBudget,
    seeds: int,
    folder: Path,
    make_callback: Callable[[str], Callback],
    processes: int = 1,
) -> Table2:
    """Train the unfinished runs, translate with the ensembles, and return the table.

    corpus: recipe with the corpus, the vocabulary, the search and the training settings
    overrides: settings of all systems, such as `decoding.beam_size=4`, or of one, such as `gnmt:training.peak_lr=1e-3`
    make_callback: called with the name of a run when it starts, such as "gnmt, seed 1 (8 of 18)". It returns the callback of
        the run, which is not used if several runs train at the same time.
    processes: runs that train at the same time

    Raises RecipeError if the recipe, a setting or the budget cannot be used. Raises DataError if the corpus is missing, and
    RunError if the folder has runs of another recipe, or if a run fails.
    """
    shared_overrides, overrides_by_system = split_overrides(overrides)
    recipes = {
        (system.name, seed): make_system_recipe(
            corpus,
            system,
            [*shared_overrides, *overrides_by_system[system.name]],
            seed=seed,
            budget=budget,
            run=folder / f"{system.name}-seed{seed}",
        )
        for seed in range(1, seeds + 1)
        for system in systems
    }
    for recipe in recipes.values():
        check_same_recipe(recipe)
    if (data_error := check_same_text(recipes.values())) is not None:
        raise data_error
    _train_runs(recipes, make_callback, processes)
    first_recipe = next(iter(recipes.values()))
    assert first_recipe.data.test is not None
    pairs = read_eval_pairs(first_recipe.data.test, first_recipe.data, first_recipe.task)
    results = []
    for system in systems:
        system_recipes = [recipes[system.name, seed] for seed in range(1, seeds + 1)]
        make_callback(f"{system.name}, outputs")(RunClosed())
        results.append(_collect_system(system, system_recipes, pairs, folder, budget))
    task = first_recipe.task
    languages = f"{task.source_language or '?'}-{task.target_language or '?'}"
    return Table2(first_recipe.name.removesuffix(f", {systems[0].name}"), languages, budget, seeds, results)


def _train_runs(recipes: Mapping[tuple[str, int], Recipe], make_callback: Callable[[str], Callback], processes: int) -> None:
    """Train the unfinished runs, with the seeds one after another, so that all systems have a run early."""
    names = {
        (system, seed): f"{system}, seed {seed} ({number} of {len(recipes)})"
        for number, (system, seed) in enumerate(recipes, start=1)
    }
    unfinished = [key for key, recipe in recipes.items() if read_finished_report(Path(recipe.run)) is None]
    if not unfinished:
        return
    first_training, run_dirs = next(iter(recipes.values())).training, [Path(recipe.run) for recipe in recipes.values()]
    reuse_plan = choose_common_plan(first_training, run_dirs)
    if processes > 1:
        prepare_shared_data(recipes, unfinished)
        runs = [(names[key], recipes[key]) for key in unfinished]
        train_parallel(runs, processes=processes, on_start=lambda name: make_callback(name)(RunClosed()), reuse_plan=reuse_plan)
        return
    for key in unfinished:
        share_data(recipes[key].run, list_run_dirs(recipes, key[1]))
        train(recipes[key], make_callback(names[key]), reuse_plan=reuse_plan)


def _collect_system(
    system: System, recipes: Sequence[Recipe], pairs: Sequence[Pair], folder: Path, budget: SystemBudget
) -> SystemResult:
    """Return the results of a system over its seeds, and those of its ensemble if there are several seeds."""
    runs = [Path(recipe.run) for recipe in recipes]
    trained = [_read_trained_system(system.name, recipe.run, recipe.training, budget) for recipe in recipes]
    outputs = _translate(system, recipes, pairs, folder / f"{system.name}-outputs.json", budget)
    references = get_references(pairs, recipes[0].tokenizer)
    resampled = [_resample(list(read_lines(run / TRANSLATIONS_FILE)), references, recipes[0].task, run) for run in runs]
    ensemble = None
    if outputs["ensemble"] is not None:
        ensemble = _resample(outputs["ensemble"]["translations"], references, recipes[0].task, folder)
    return SystemResult(
        system,
        trained,
        resampled,
        ensemble,
        speed=TranslationSpeed(**outputs["speed"]),
        ensemble_speed=None if outputs["ensemble"] is None else TranslationSpeed(**outputs["ensemble"]["speed"]),
        longest_path=count_longest_path(recipes[0].model, PATH_LENGTH),
        curve=_average_curves(runs),
    )


def _read_trained_system(name: str, run: str, training: TrainingConfig, budget: SystemBudget) -> TrainedSystem:
    """Return the results of a run. Raises RecipeError if its budget was too small for more than one step."""
    report = read_finished_report(Path(run))
    assert report is not None
    if int(report["steps"]) <= 1 and budget.steps is None:
        raise RecipeError(
            f"budget of {budget}: is too small for two steps of {name}, of which one took {report['seconds']:.1f} seconds and "
            f"{report['flops']:.1e} FLOPs; give more, and another --folder"
        )
    return TrainedSystem(
        name,
        training.seed,
        float(report["bleu"]),
        report.get("signatures", {}).get("bleu", ""),
        float(report["valid"]["perplexity"]),
        int(report["parameters"]),
        int(report["steps"]),
        float(report["seconds"]),
        float(report["flops"]),
        int(report["target_tokens"]),
    )


def _translate(
    system: System, recipes: Sequence[Recipe], pairs: Sequence[Pair], path: Path, budget: SystemBudget
) -> dict[str, Any]:
    """Translate the test set with the first seed, for its speed, and with the ensemble. The outputs stay in a file.

    The file is replaced if it belongs to other bundles, another search, another clock or other sources.
    """
    bundle_paths = [Path(recipe.run) / "bundle" for recipe in recipes]
    sources = [pair.source for pair in pairs]
    origin = {
        "bundles": [compute_bundle_digest(bundle_path) for bundle_path in bundle_paths],
        "decoding": recipes[0].decoding.model_dump(mode="json"),
        "clock": budget.clock,
        "sources": len(sources),
    }
    if path.is_file():
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            kept = {}
        if isinstance(kept, dict) and kept.get("origin") == origin:
            return kept
    bundles = [load_bundle(bundle_path) for bundle_path in bundle_paths]
    tokenizer, recipe = bundles[0].tokenizer, recipes[0]

    def translate(members: int) -> tuple[list[str], dict[str, Any]]:
        inference_model = as_inference_model([bundle.model for bundle in bundles[:members]])
        translate_lines(inference_model, tokenizer, sources[:8], recipe)  # the first call is slower
        started = read_clock(budget.clock)
        lines = translate_lines(inference_model, tokenizer, sources, recipe)
        seconds = read_clock(budget.clock) - started
        tokens = sum(len(line.hypotheses[0].tokens) for line in lines if line.hypotheses)
        return decode_best(lines, tokenizer), {"tokens": tokens, "seconds": seconds}

    outputs: dict[str, Any] = {"origin": origin, "speed": translate(1)[1], "ensemble": None}
    if len(bundles) > 1:
        translations, speed = translate(len(bundles))
        outputs["ensemble"] = {"translations": translations, "speed": speed}
    write_json(path, outputs, overwrite=True)
    return outputs


def _resample(lines: Sequence[str], references: Sequence[str], task: TaskConfig, folder: Path) -> ResampledScore:
    if len(lines) != len(references):
        raise DataError(
            f"{folder}: has {format_count(len(lines), 'translation')}, but the test set has {len(references):,} lines; start "
            "another table with --folder"
        )
    return resample(lines, [references], tokenize=get_task_bleu_tokenizer(task))


def _average_curves(runs: Sequence[Path]) -> list[tuple[float, float]]:
    """Return the mean validation loss over the seeds, by the share of the budget. Runs of other lengths meet by their order."""
    curves = []
    for run in runs:
        points = read_run_status(run).points("valid", "nll")
        last_step = max((step for step, _ in points), default=1.0)
        curves.append([(step / last_step, nll) for step, nll in points])
    return [(fmean(share for share, _ in points), fmean(nll for _, nll in points)) for points in zip(*curves, strict=False)]
