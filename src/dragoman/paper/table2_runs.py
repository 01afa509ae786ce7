"""Table 2 at any budget: all systems trained alike over several seeds, and the ensemble of each system's seeds.

FOLDER/transformer-seed1/  gnmt-seed1/  …      one run folder each, as of `dragoman train`
FOLDER/transformer-outputs.json  …             outputs of the ensemble, and the speed of translation
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from dragoman.bundle import compute_bundle_digest, load_bundle
from dragoman.config import Recipe
from dragoman.formats.pair import Pair
from dragoman.io.storage import write_json
from dragoman.paper.budget import Budget
from dragoman.paper.run_grid import RunGrid, read_row_scores, resample_lines, resample_translations
from dragoman.paper.table2_results import SystemResult, Table2, TrainedSystem, TranslationSpeed
from dragoman.paper.table2_systems import PATH_LENGTH, System, count_longest_path, make_system_recipe, split_overrides
from dragoman.tasks.inference_model import get_decoder_start_id
from dragoman.tasks.translation import LineSearch, decode_best
from dragoman.torch_engine.inference_model import as_inference_model
from dragoman.training.monitoring.events import Callback, RunClosed
from dragoman.training.monitoring.run_status import read_run_status
from dragoman.training.trainer import read_clock
from dragoman.training.validation import get_references, read_eval_pairs


def train_table2(
    corpus: Path,
    overrides: Sequence[str],
    *,
    systems: Sequence[System],
    budget: Budget,
    seeds: int,
    folder: Path,
    make_callback: Callable[[str], Callback],
    processes: int = 1,
) -> Table2:
    """Train the unfinished runs, translate with the ensembles, and return the table.

    corpus: recipe with the corpus, the vocabulary, the search and the training settings
    overrides: settings of all systems, such as `decoding.beam_size=4`, or of one, such as `gnmt:training.peak_lr=1e-3`
    make_callback, processes: see `RunGrid.train`

    Raises RecipeError if the recipe, a setting or the budget cannot be used. Raises DataError if the corpus is missing, and
    RunError if the folder has runs of another recipe, or if a run fails.
    """
    shared_overrides, overrides_by_system = split_overrides(overrides)
    grid = RunGrid(
        {
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
    )
    reports = grid.train(make_callback, processes=processes)
    first_recipe = next(iter(grid.recipes.values()))
    assert first_recipe.data.test is not None
    pairs = read_eval_pairs(first_recipe.data.test, first_recipe.data, first_recipe.task)
    results = []
    for system in systems:
        make_callback(f"{system.name}, outputs")(RunClosed())
        trained = []
        for seed in range(1, seeds + 1):
            report = reports[system.name, seed]
            assert report is not None
            scores = read_row_scores(system.name, seed, report, budget)
            scores |= {"flops": float(report["flops"]), "target_tokens": int(report["target_tokens"])}
            trained.append(TrainedSystem(system.name, **scores))
        system_runs = SystemRuns(system, grid, folder, budget, pairs)
        results.append(system_runs.collect(trained))
    task = first_recipe.task
    languages = f"{task.source_language or '?'}-{task.target_language or '?'}"
    return Table2(first_recipe.name.removesuffix(f", {systems[0].name}"), languages, budget, seeds, results)


@dataclass(frozen=True)
class SystemRuns:
    """Finished runs of a system, and the pairs of the test set."""

    system: System
    grid: RunGrid
    folder: Path
    budget: Budget
    pairs: Sequence[Pair]

    @property
    def recipes(self) -> list[Recipe]:
        return [recipe for (name, _), recipe in self.grid.recipes.items() if name == self.system.name]

    def collect(self, trained: Sequence[TrainedSystem]) -> SystemResult:
        """Return the results of the system over its seeds, and those of its ensemble if there are several seeds."""
        recipe, runs = self.recipes[0], [Path(recipe.run) for recipe in self.recipes]
        path = self.folder / f"{self.system.name}-outputs.json"
        outputs = self._translate(path)
        references, ensemble = get_references(self.pairs, recipe.tokenizer), outputs["ensemble"]
        return SystemResult(
            self.system,
            trained,
            [resample_translations(run, references, recipe.task) for run in runs],
            None if ensemble is None else resample_lines(ensemble["translations"], references, recipe.task, path),
            speed=TranslationSpeed(**outputs["speed"]),
            ensemble_speed=None if ensemble is None else TranslationSpeed(**ensemble["speed"]),
            longest_path=count_longest_path(recipe.model, PATH_LENGTH),
            curve=_average_curves(runs),
        )

    def _translate(self, path: Path) -> dict[str, Any]:
        """Translate the test set with the first seed, for its speed, and with the ensemble. The outputs stay in a file.

        The file is replaced if it belongs to other bundles, another search, another clock or other sources.
        """
        recipe, bundle_paths = self.recipes[0], [Path(recipe.run) / "bundle" for recipe in self.recipes]
        sources = [pair.source for pair in self.pairs]
        origin = {
            "bundles": [compute_bundle_digest(bundle_path) for bundle_path in bundle_paths],
            "decoding": recipe.decoding.model_dump(),
            "clock": self.budget.clock,
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
        tokenizer = bundles[0].tokenizer

        def translate(members: int) -> tuple[list[str], dict[str, Any]]:
            inference_model = as_inference_model([bundle.model for bundle in bundles[:members]])
            search = LineSearch(inference_model, tokenizer, recipe.task, recipe.decoding, get_decoder_start_id(recipe.model))
            search.translate(sources[:8])  # the first call is slower
            started = read_clock(self.budget.clock)
            lines = search.translate(sources)
            seconds = read_clock(self.budget.clock) - started
            tokens = sum(len(line.hypotheses[0].tokens) for line in lines if line.hypotheses)
            return decode_best(lines, tokenizer), {"tokens": tokens, "seconds": seconds}

        outputs: dict[str, Any] = {"origin": origin, "speed": translate(1)[1], "ensemble": None}
        if len(bundles) > 1:
            translations, speed = translate(len(bundles))
            outputs["ensemble"] = {"translations": translations, "speed": speed}
        write_json(path, outputs, overwrite=True)
        return outputs


def _average_curves(runs: Sequence[Path]) -> list[tuple[float, float]]:
    """Return the mean validation loss over the seeds, by the share of the budget. Runs of other lengths meet by their order."""
    curves = []
    for run in runs:
        points = read_run_status(run).points("valid", "nll")
        last_step = max((step for step, _ in points), default=1.0)
        curves.append([(step / last_step, nll) for step, nll in points])
    return [(fmean(share for share, _ in points), fmean(nll for _, nll in points)) for points in zip(*curves, strict=False)]
