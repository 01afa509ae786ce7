"""Every knob, once: the recipe and its sections.

Each knob stands in its section's file with its type, its default, its unit and one sentence. Unknown keys and impossible values
are refused when the recipe is read, with the key, what was given and what is allowed; nothing later checks them again.
"""

from dragoman.config.cleaning import CleaningConfig, NoiseConfig
from dragoman.config.corpus import STANDARD_INPUT, CorpusConfig, Format, as_list
from dragoman.config.data import CurriculumStageConfig, DataConfig
from dragoman.config.decoding import DecodingConfig
from dragoman.config.fields import FilterName, RecipeSection
from dragoman.config.model import ModelConfig
from dragoman.config.recipe import (
    Recipe,
    find_builtin_recipe,
    make_recipe,
    parse_setting,
    parse_toml,
    read_recipe,
    recipe_from_dict,
    update_section,
)
from dragoman.config.task import TaskConfig
from dragoman.config.tokenizer import TokenizerConfig
from dragoman.config.training import TrainingConfig

__all__ = [
    "STANDARD_INPUT",
    "CleaningConfig",
    "CorpusConfig",
    "CurriculumStageConfig",
    "DataConfig",
    "DecodingConfig",
    "FilterName",
    "Format",
    "ModelConfig",
    "NoiseConfig",
    "Recipe",
    "RecipeSection",
    "TaskConfig",
    "TokenizerConfig",
    "TrainingConfig",
    "as_list",
    "find_builtin_recipe",
    "make_recipe",
    "parse_setting",
    "parse_toml",
    "read_recipe",
    "recipe_from_dict",
    "update_section",
]
