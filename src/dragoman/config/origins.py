"""Origin of each value of a recipe: command line, recipe, corpora, initial bundle, size, preset or default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.config.presets import PRESETS, SIZES
from dragoman.config.recipe import Recipe, flatten_settings, parse_setting


@dataclass(frozen=True)
class RecipeValue:
    """Key of a recipe with its value and where the value comes from."""

    key: str
    value: Any
    origin: str


def trace_values(
    recipe: Recipe, document: Mapping[str, Any], overrides: Sequence[str], *, chosen: Mapping[str, Any]
) -> list[RecipeValue]:
    """Return each value of a recipe with its origin.

    document: what the recipe file holds
    chosen: values that follow from the corpora
    """
    settings = [parse_setting(text) for text in overrides]
    commanded = {key for name, value in settings for key, _ in flatten_settings({name: value})}
    replaced = tuple(f"{name}." for name, value in settings if isinstance(value, Mapping))
    stated = {key for key, _ in flatten_settings(document) if not key.startswith(replaced)}
    from_corpora = {key for key, _ in flatten_settings(chosen)}
    defaults = dict(flatten_settings(Recipe.model_construct().model_dump()))
    sized, preset = (dict(flatten_settings(values)) for values in (SIZES[recipe.size], PRESETS[recipe.preset]))

    def find_origin(key: str, value: Any) -> str:
        if key in commanded:
            return "command line"
        if key in stated:
            return "recipe"
        if key in from_corpora:
            return "corpora"
        if key in sized and sized[key] == value:
            return f"size {recipe.size}"
        if key in preset and preset[key] == value:
            return f"preset {recipe.preset}"
        is_inherited = recipe.training.init_from is not None and defaults.get(key) != value
        return "initial bundle" if is_inherited else "default"

    values = flatten_settings(recipe.model_dump())
    return [RecipeValue(key, value, find_origin(key, value)) for key, value in values]
