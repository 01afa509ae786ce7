"""Systems of Table 2, and the recipe of each one for any corpus and budget.

A system is the section `model` of its Multi30k recipe, with the keys of `training` that its layers were tuned with. Corpus,
vocabulary, search and all other keys are those of the corpus's recipe. All systems have about the parameters of the first one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.config import ModelConfig, Recipe, make_recipe, parse_setting, read_recipe
from dragoman.config.section_validation import suggest_or_list_names
from dragoman.errors import RecipeError
from dragoman.experiments.mixers.options import MixerOptions
from dragoman.paper.budget import Budget
from dragoman.paper.run_grid import select_names

SYSTEM_TRAINING_KEYS = ("schedule", "peak_lr", "warmup_steps", "clip_norm", "load_balancing_weight")
"""Keys of the section `training` that belong to a system. The others are those of the corpus's recipe."""

NUM_CHECKPOINTS = 50
"""Checkpoints of a run, if the budget is in steps. The mean of the newest ones is the final model."""
NUM_VALIDATIONS = 10
PATH_LENGTH = 32
"""Positions between whose ends the longest path is counted."""

# Keys that the table sets itself, and the option that sets them.
_OPTION_BY_KEY = {
    "name": None, "run": "--folder", "training.seed": "--seeds", "training.max_steps": "--steps",
    "training.max_flops": "--flops", "training.max_minutes": "--minutes", "training.clock": "--clock",
    "training.max_epochs": None, "training.patience": None,
}  # fmt: skip


@dataclass(frozen=True)
class System:
    """One system: its name, its recipe, its rows of Table 2, and the longest path of its encoder as in Table 1."""

    name: str
    recipe: str
    paper_row: str
    paper_ensemble_row: str | None
    path: str


SYSTEMS = (
    System("transformer", "multi30k-ende", "Transformer (base)", None, "1"),
    System("gnmt", "multi30k-ende-gnmt", "GNMT + RL", "GNMT + RL ensemble", "n"),
    System("deep-att", "multi30k-ende-deep-att", "Deep-Att + PosUnk", "Deep-Att + PosUnk ensemble", "n"),
    System("convs2s", "multi30k-ende-convs2s", "ConvS2S", "ConvS2S ensemble", "n/k"),
    System("bytenet", "multi30k-ende-bytenet", "ByteNet", None, "log_k n"),
    System("moe", "multi30k-ende-moe", "MoE", None, "n"),
)


def select_systems(names: str | None) -> list[System]:
    """Return the Transformer and the systems that text such as `gnmt,moe` names, or all systems.

    Raises RecipeError for an unknown name.
    """
    chosen = select_names(names, [system.name for system in SYSTEMS], option="--systems", noun="system")
    return [system for system in SYSTEMS if system.name in {"transformer", *chosen}]


def split_overrides(overrides: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the settings of all systems, such as `decoding.beam_size=4`, and those of each, as in `gnmt:model.d_ff=64`.

    Raises RecipeError for an unknown system, and for a key that the table sets itself.
    """
    known_names = [system.name for system in SYSTEMS]
    shared: list[str] = []
    by_system: dict[str, list[str]] = {name: [] for name in known_names}
    for override in overrides:
        name, separator, setting = override.partition(":")
        is_shared = not separator or "=" in name
        key, _ = parse_setting(override if is_shared else setting)
        if not is_shared and name not in known_names:
            raise RecipeError(f"{override!r}: {name!r} is no system{suggest_or_list_names(name, known_names)}")
        if key in _OPTION_BY_KEY:
            option = _OPTION_BY_KEY[key]
            raise RecipeError(f"{override!r}: Table 2 sets {key} itself; {f'use {option}' if option else 'leave it out'}")
        if is_shared:
            shared.append(override)
        else:
            by_system[name].append(setting)
    return shared, by_system


def make_system_recipe(
    corpus: Path, system: System, overrides: Sequence[str], *, seed: int, budget: Budget, run: Path
) -> Recipe:
    """Return the recipe of a system for the corpus of a recipe. It is scored on data.test, or on data.valid without one.

    overrides: settings that replace those of the corpus and of the system, such as `training.peak_lr=1e-3`

    Raises RecipeError if the recipe is no translation recipe, or has no single test or validation set.
    """
    corpus_recipe = read_recipe(corpus)
    if not corpus_recipe.task.has_text_target:
        raise RecipeError(f"{corpus}: is a parsing recipe, and Table 2 is for translation; give another --corpus")
    document = corpus_recipe.model_dump()
    system_recipe = read_recipe(Path(system.recipe)).model_dump()
    document["model"] = system_recipe["model"]
    training = {key: value for key, value in document["training"].items() if key not in SYSTEM_TRAINING_KEYS}
    training |= {key: value for key, value in system_recipe["training"].items() if key in SYSTEM_TRAINING_KEYS}
    document["training"] = training | {"max_flops": budget.flops, "clock": budget.clock, "seed": seed}
    document["training"] |= budget.to_training_settings()
    if budget.steps is not None:
        document["training"] |= {
            "checkpoint_every_steps": max(budget.steps // NUM_CHECKPOINTS, 1),
            "validate_every_steps": max(budget.steps // NUM_VALIDATIONS, 1),
        }
    document |= {"name": f"{document['name']}, {system.name}", "run": str(run)}
    where = f"{corpus}, {system.name}"
    recipe = make_recipe(document, overrides, where=where)
    if recipe.data.test is None:
        if recipe.data.valid is None:
            raise RecipeError(
                f"{corpus}: data.test and data.valid are missing, but Table 2 needs one for scores; name its files"
            )
        data = recipe.model_dump()["data"]
        recipe = recipe.model_copy(update={"data": recipe.data.model_validate(data | {"test": data["valid"]})})
    return recipe


def count_longest_path(model: ModelConfig, length: int) -> int:
    """Return the positions or layers that a signal crosses in the encoder between the ends of a source of this length.

    An LSTM crosses each position. A convolution needs as many layers as their reach asks for, whether the model has them or not
    (Table 1). Self-attention needs one layer.
    """
    distance, options = length - 1, model.get_extension(MixerOptions)
    if distance <= 0 or (options.encoder_mixer == "attention" and model.attention_window is None):
        return min(distance, 1)
    half = (options.kernel_size - 1) // 2
    match options.encoder_mixer:
        case "attention":
            return math.ceil(distance / (model.attention_window or distance))
        case "recurrent":
            return distance
        case "convolution":
            return math.ceil(distance / half) if half else distance
        case _:
            reach, dilation, layers = 0, 1, 0
            while reach < distance:
                reach, layers = reach + max(half, 1) * dilation, layers + 1
                dilation = 1 if dilation >= options.max_dilation else 2 * dilation
            return layers
