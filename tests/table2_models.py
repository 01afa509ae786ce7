"""Models of Table 2's systems as their recipes build them, at the sizes of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dragoman.config import ModelConfig, read_recipe
from dragoman.paper.table2_systems import SYSTEMS

SYSTEM_NAMES = [system.name for system in SYSTEMS]
NO_DROPOUT = {"residual_dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}


def make_system_config(name: str, **sizes: Any) -> ModelConfig:
    """Return the section `model` of a system's recipe without dropout, with these keys in place of the recipe's."""
    system = next(system for system in SYSTEMS if system.name == name)
    model = read_recipe(Path(system.recipe)).model.model_dump()
    return ModelConfig.model_validate(model | NO_DROPOUT | sizes)
