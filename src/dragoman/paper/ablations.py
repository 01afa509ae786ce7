"""Ablations of claims that the paper makes without a table: scaled dot-product scores, residuals, layer normalization, ReLU.

The series `layers` has the layers of later models instead of the paper's, each at the operations of the recipe's model.

    FOLDER/base-seed1/  dot-seed1/  …      one run folder each, as of `dragoman train`

Each row changes one choice of the model, and trains on the same data for the same budget. A row that diverges stays in the
table without scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from dragoman.config import ModelConfig, Recipe, recipe_from_dict
from dragoman.paper.budget import Budget
from dragoman.paper.run_grid import RunGrid, RunKey, make_row_document, select_names
from dragoman.training.monitoring.events import Callback
from dragoman.training.monitoring.layer_macs import count_layer_macs
from dragoman.training.monitoring.run_status import read_run_status
from dragoman.viz.charts import Panel, Series, render_learning_curve

Point = tuple[float, float]

NUM_VALIDATIONS = 20
"""Points of a learning curve, if the budget is in steps."""


@dataclass(frozen=True)
class AblationRow:
    """One model: the recipe's with these keys of the section `model`. `series` is the claim that it tests."""

    name: str
    series: str
    description: str
    settings: Mapping[str, Any]


def _make_scaling_rows(d_k: int) -> list[AblationRow]:
    return [
        AblationRow(f"dk{d_k}", "scaling", f"d_k = {d_k}, q·k / √d_k", {"d_k": d_k, "attention_score": "scaled-dot"}),
        AblationRow(f"dk{d_k}-dot", "scaling", f"d_k = {d_k}, q·k", {"d_k": d_k, "attention_score": "dot"}),
    ]


_T5_LAYERS = {"norm_type": "rms", "activation": "geglu", "position_encoding": "relative"}
_LLAMA_LAYERS = {"norm_type": "rms", "activation": "swiglu", "position_encoding": "rotary", "num_key_value_heads": 2}
ABLATION_ROWS = (
    AblationRow("base", "base", "the recipe's model", {}),
    AblationRow("dot", "score", "q·k without the division by √d_k", {"attention_score": "dot"}),
    AblationRow("additive", "score", "v·tanh(q + k)", {"attention_score": "additive"}),
    AblationRow("multiplicative", "score", "q·W·k", {"attention_score": "multiplicative"}),
    *(row for d_k in (16, 64, 256) for row in _make_scaling_rows(d_k)),
    AblationRow("no-residual", "structure", "no residual connections", {"residual": False}),
    AblationRow("no-norm", "structure", "no normalization", {"normalization": "none", "final_norm": None}),
    AblationRow("batch-norm", "structure", "batch normalization", {"normalization": "batch"}),
    AblationRow("silu", "activation", "SiLU instead of ReLU", {"activation": "silu"}),
    AblationRow("gelu", "activation", "GELU instead of ReLU", {"activation": "gelu"}),
    AblationRow("rms", "layers", "RMSNorm", {"norm_type": "rms"}),
    AblationRow("geglu", "layers", "a gate with GELU", {"activation": "geglu"}),
    AblationRow("swiglu", "layers", "a gate with SiLU", {"activation": "swiglu"}),
    AblationRow("relative", "layers", "relative positions of T5", {"position_encoding": "relative"}),
    AblationRow("rotary", "layers", "rotary positions", {"position_encoding": "rotary"}),
    AblationRow("grouped", "layers", "two heads of keys and values", {"num_key_value_heads": 2}),
    AblationRow("t5-v1.1", "layers", "rms, geglu and relative", {**_T5_LAYERS}),
    AblationRow("llama", "layers", "rms, swiglu, rotary and grouped", {**_LLAMA_LAYERS}),
)


@dataclass(frozen=True)
class TrainedAblation:
    """Results of a row over its seeds.

    nlls, bleus: score of each seed that has one, on the validation set
    diverged_seeds: seeds whose run diverged
    curve: mean over the seeds of the negative log-likelihood per token in nats, by step
    """

    row: AblationRow
    parameters: int | None
    nlls: Sequence[float]
    bleus: Sequence[float]
    diverged_seeds: Sequence[int]
    curve: Sequence[Point]


def select_ablations(names: str | None) -> list[AblationRow]:
    """Return base and the rows or series that text such as `score,no-norm` names, or all rows.

    Raises RecipeError for an unknown name.
    """
    known_names = list(dict.fromkeys(name for row in ABLATION_ROWS for name in (row.series, row.name)))
    chosen = select_names(names, known_names, option="--rows", noun="row or series")
    return [row for row in ABLATION_ROWS if {row.name, row.series} & {"base", *chosen}]


def make_ablation_recipe(base_recipe: Recipe, row: AblationRow, *, seed: int, budget: Budget, run: Path) -> Recipe:
    """Return the recipe of a row. It is scored on the validation set.

    Raises RecipeError if the recipe has no single validation set, or the row does not fit its model.
    """
    document = make_row_document(base_recipe, row.name, seed=seed, budget=budget, run=run)
    document["model"] |= row.settings
    if row.series == "layers":
        document["model"]["d_ff"] = choose_equal_d_ff(base_recipe.model, recipe_from_dict(document, where=row.name).model)
    if budget.steps is not None:
        document["training"]["validate_every_steps"] = max(budget.steps // NUM_VALIDATIONS, 1)
    return recipe_from_dict(document, where=f"{base_recipe.name}, row {row.name}")


def choose_equal_d_ff(base: ModelConfig, changed: ModelConfig) -> int:
    """Return the d_ff that gives the layers of `changed` as many multiply-accumulate operations a token as those of `base`."""
    rest = _count_layer_macs(base, base.d_ff) - _count_layer_macs(changed, 0)
    return max(1, round(rest / (_count_layer_macs(changed, 1) - _count_layer_macs(changed, 0))))


def _count_layer_macs(config: ModelConfig, d_ff: int) -> int:
    """Count the products of one source and one target token with the weights of all layers."""
    macs = count_layer_macs(config)
    attentions = [*macs.encoder, *macs.decoder, *macs.decoder[: macs.cross_attentions]]
    return sum(attentions) + (config.encoder_layers + config.decoder_layers) * (macs.feed_forward // config.d_ff) * d_ff


def train_ablations(
    base_recipe: Recipe,
    rows: Sequence[AblationRow],
    *,
    budget: Budget,
    seeds: int,
    folder: Path,
    make_callback: Callable[[str], Callback],
) -> list[TrainedAblation]:
    """Train the unfinished rows, and return the results in order.

    make_callback: see `RunGrid.train`

    Raises RecipeError if the recipe or the budget cannot be used, and RunError if a row's folder has another recipe.
    """
    grid = RunGrid(
        {
            (row.name, seed): make_ablation_recipe(
                base_recipe, row, seed=seed, budget=budget, run=folder / f"{row.name}-seed{seed}"
            )
            for seed in range(1, seeds + 1)
            for row in rows
        }
    )
    reports = grid.train(make_callback, allow_divergence=True)
    return [_collect_row(row, seeds, folder, reports) for row in rows]


def _collect_row(
    row: AblationRow, seeds: int, folder: Path, reports: Mapping[RunKey, dict[str, Any] | None]
) -> TrainedAblation:
    by_seed = {seed: reports[row.name, seed] for seed in range(1, seeds + 1)}
    finished = [report for report in by_seed.values() if report is not None]
    nlls_by_step: dict[float, list[float]] = {}
    for seed in by_seed:
        for step, nll in read_run_status(folder / f"{row.name}-seed{seed}").points("valid", "nll"):
            nlls_by_step.setdefault(step, []).append(nll)
    return TrainedAblation(
        row,
        parameters=int(finished[0]["parameters"]) if finished else None,
        nlls=[math.log(float(report["valid"]["perplexity"])) for report in finished],
        bleus=[float(report["bleu"]) for report in finished],
        diverged_seeds=[seed for seed, report in by_seed.items() if report is None],
        curve=[(step, fmean(nlls)) for step, nlls in sorted(nlls_by_step.items()) if len(nlls) == seeds],
    )


def draw_ablations(results: Sequence[TrainedAblation], *, title: str) -> str:
    """Draw the learning curves as an SVG: a panel for each series, with base in each but the scaling at fixed d_k."""
    base = next(result for result in results if result.row.name == "base")
    panels = []
    for series in dict.fromkeys(result.row.series for result in results):
        members = [result for result in results if result.row.series == series]
        shown = members if series in ("base", "scaling") else [base, *members]
        if series != "base" or len(results) == 1:
            panels.append(Panel(f"{series}: nats", [Series(result.row.name, result.curve) for result in shown]))
    return render_learning_curve(panels, title=title, x_label="steps", panel_height=200)
