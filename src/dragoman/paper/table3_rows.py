"""Rows of Table 3 as printed, at the size of the paper and at smaller scales, and their recipes for any corpus.

At every scale a row differs from base as printed: A-h16 has twice the heads of base, C-d256 half of its d_model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.config import Recipe, parse_setting, recipe_from_dict
from dragoman.config.presets import SIZES
from dragoman.errors import RecipeError
from dragoman.paper.budget import Budget
from dragoman.paper.run_grid import ROW_TRAINING, make_row_document, select_names


@dataclass(frozen=True)
class PaperRow:
    """Printed row, scored on newstest2013. `name` is its size in `dragoman.config.presets.SIZES`."""

    name: str
    perplexity: float
    bleu: float
    million_parameters: float | None = None


PAPER_ROWS = (
    PaperRow("base", 4.92, 25.8, 65),
    PaperRow("A-h1", 5.29, 24.9),
    PaperRow("A-h4", 5.00, 25.5),
    PaperRow("A-h16", 4.91, 25.8),
    PaperRow("A-h32", 5.01, 25.4),
    PaperRow("B-dk16", 5.16, 25.1, 58),
    PaperRow("B-dk32", 5.01, 25.4, 60),
    PaperRow("C-n2", 6.11, 23.7, 36),
    PaperRow("C-n4", 5.19, 25.3, 50),
    PaperRow("C-n8", 4.88, 25.5, 80),
    PaperRow("C-d256", 5.75, 24.5, 28),
    PaperRow("C-d1024", 4.66, 26.0, 168),
    PaperRow("C-ff1024", 5.12, 25.4, 53),
    PaperRow("C-ff4096", 4.75, 26.2, 90),
    PaperRow("D-p0", 5.77, 24.6),
    PaperRow("D-p0.2", 4.95, 25.5),
    PaperRow("D-ls0", 4.67, 25.3),
    PaperRow("D-ls0.2", 5.47, 25.7),
    PaperRow("E", 4.92, 25.7),
    PaperRow("big", 4.33, 26.4, 213),
)

# Series of rows that vary one setting, with base. The order of their scores is meaningful.
ROW_SERIES: dict[str, tuple[str, ...]] = {
    "A: heads": ("base", "A-h1", "A-h4", "A-h16", "A-h32"),
    "B: key width": ("base", "B-dk16", "B-dk32"),
    "C: layers": ("base", "C-n2", "C-n4", "C-n8"),
    "C: d_model": ("base", "C-d256", "C-d1024"),
    "C: d_ff": ("base", "C-ff1024", "C-ff4096"),
    "D: dropout": ("base", "D-p0", "D-p0.2"),
    "D: label smoothing": ("base", "D-ls0", "D-ls0.2"),
    "E: learned positions": ("base", "E"),
    "big": ("base", "big"),
}
# Section 5.4: the first of these rows has the better accuracy, because of label smoothing.
ACCURACY_ROWS = ("base", "D-ls0")


@dataclass(frozen=True)
class ModelScale:
    """Divisors of base's layers and widths. All numbers of all rows divide without a remainder."""

    layer_divisor: int
    width_divisor: int


# Settings of every row. They override the recipe.
_DECODING_OVERRIDES: dict[str, Any] = {
    "method": "beam", "beam_size": 4, "length_penalty": "gnmt", "alpha": 0.6, "nbest": 1, "mbr": "none", "mbr_candidates": None,
    "num_beam_groups": 1,
}  # fmt: skip

MODEL_SCALES = {"paper": ModelScale(1, 1), "half": ModelScale(1, 2), "small": ModelScale(2, 4), "tiny": ModelScale(2, 16)}


def select_rows(row_names: str | None) -> list[PaperRow]:
    """Return base and the rows that text such as `A,C-n2,big` names, or all rows. Raises RecipeError for an unknown name."""
    known_names = ["A", "B", "C", "D", *(row.name for row in PAPER_ROWS)]
    names = {"base", *select_names(row_names, known_names, option="--rows", noun="row of Table 3")}
    return [row for row in PAPER_ROWS if names & {row.name, row.name.partition("-")[0]}]


def make_row_model(name: str, scale: ModelScale) -> dict[str, Any]:
    """Return the keys of the [model] section of a row at this scale."""
    model = dict(SIZES[name]["model"])
    for key in ("encoder_layers", "decoder_layers"):
        model[key] //= scale.layer_divisor
    for key in ("d_model", "d_ff"):
        model[key] //= scale.width_divisor
    if "d_k" in model:  # d_v stays as in base
        model["d_k"] //= scale.width_divisor
    return {"d_k": None, "d_v": None, **model}


def check_fixed_keys(overrides: Sequence[str]) -> None:
    """Raise RecipeError if a KEY=VALUE is for a key that Table 3 sets itself."""
    option_by_key = {
        "size": "--rows and --scale",
        "run": "--folder",
        "training.seed": "--seeds",
        "training.max_steps": "--budget",
    }
    option_by_key |= {"training.max_minutes": "--budget"}
    fixed_keys = {f"model.{key}" for key in make_row_model("B-dk16", MODEL_SCALES["paper"])} | {
        f"training.{key}" for key in ROW_TRAINING
    }
    fixed_keys |= {f"decoding.{key}" for key in _DECODING_OVERRIDES} | {"data.test", "training.label_smoothing", *option_by_key}
    for override in overrides:
        key, _ = parse_setting(override)
        if key in fixed_keys:
            advice = f"use {option_by_key[key]}" if key in option_by_key else "leave it out"
            raise RecipeError(f"{override!r}: Table 3 sets {key} itself; {advice}")


def make_row_recipe(base_recipe: Recipe, row: PaperRow, *, scale: ModelScale, seed: int, budget: Budget, run: Path) -> Recipe:
    """Return the recipe of a row for this corpus and budget. It is scored on the validation set, as in Table 3.

    The row sets the sizes, P_drop, ε_ls, the position encoding of row E, beam 4, α .6, and no averaging. The recipe sets all
    other keys. Raises RecipeError if the recipe has no validation set.
    """
    document = make_row_document(base_recipe, row.name, seed=seed, budget=budget, run=run) | {"size": row.name}
    document["model"] |= make_row_model(row.name, scale)
    document["training"]["label_smoothing"] = SIZES[row.name]["training"]["label_smoothing"]
    document["decoding"] |= _DECODING_OVERRIDES
    return recipe_from_dict(document, where=f"{base_recipe.name}, row {row.name}")
