"""Every knob, once: the recipe and its sections.

Each knob stands in its section's file with its type, its default, its unit and one sentence. Unknown keys and impossible values
are refused when the recipe is read, with the key, what was given and what is allowed; nothing later checks them again.
"""

from dragoman.config.cleaning import CleaningConfig, NoiseConfig
from dragoman.config.corpus import STANDARD_INPUT, CorpusConfig, Format, listed
from dragoman.config.data import DataConfig, CurriculumStageConfig
from dragoman.config.decoding import DecodingConfig
from dragoman.config.fields import RuleName, Section
from dragoman.config.model import ModelConfig
from dragoman.config.recipe import (
    Recipe,
    make_recipe,
    parse_document,
    parse_setting,
    read_recipe,
    recipe_from_dict,
    section_with,
    shipped_recipe,
)
from dragoman.config.task import TaskConfig
from dragoman.config.tokenizer import TokenizerConfig
from dragoman.config.training import TrainingConfig

__all__ = [
    "STANDARD_INPUT",
    "CleaningConfig",
    "CorpusConfig",
    "DataConfig",
    "DecodingConfig",
    "Format",
    "ModelConfig",
    "NoiseConfig",
    "Recipe",
    "RuleName",
    "Section",
    "CurriculumStageConfig",
    "TokenizerConfig",
    "TaskConfig",
    "TrainingConfig",
    "listed",
    "make_recipe",
    "parse_document",
    "parse_setting",
    "read_recipe",
    "recipe_from_dict",
    "section_with",
    "shipped_recipe",
]
