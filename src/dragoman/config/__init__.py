"""Recipe schema: every option once, with its type, default, limits and one sentence.

A recipe that names an unknown key or an impossible value raises RecipeError when it is read. The error names the key, the given
value and the limit. Later code does not check the values again.
"""

from dragoman.config.data_config import (
    STANDARD_INPUT,
    CleaningConfig,
    CorpusConfig,
    DataConfig,
    Direction,
    Format,
    LanguagePair,
    NoiseConfig,
    as_list,
)
from dragoman.config.decoding_config import DecodingConfig, SearchExtension
from dragoman.config.fields import FilterName
from dragoman.config.initial_bundle import INITIAL_DIR, locate_initial_bundle
from dragoman.config.model_config import ModelConfig, ModelExtension
from dragoman.config.recipe import (
    Recipe,
    TaskConfig,
    find_builtin_recipe,
    flatten_settings,
    make_recipe,
    parse_setting,
    parse_toml,
    read_recipe,
    recipe_from_dict,
    update_section,
)
from dragoman.config.section import RecipeSection
from dragoman.config.tokenizer_config import Normalization, TokenizerConfig
from dragoman.config.training_config import LoraConfig, LossExtension, TrainingConfig

__all__ = [
    "INITIAL_DIR",
    "STANDARD_INPUT",
    "CleaningConfig",
    "CorpusConfig",
    "DataConfig",
    "DecodingConfig",
    "Direction",
    "FilterName",
    "Format",
    "LanguagePair",
    "LoraConfig",
    "LossExtension",
    "ModelConfig",
    "ModelExtension",
    "NoiseConfig",
    "Normalization",
    "Recipe",
    "RecipeSection",
    "SearchExtension",
    "TaskConfig",
    "TokenizerConfig",
    "TrainingConfig",
    "as_list",
    "find_builtin_recipe",
    "flatten_settings",
    "locate_initial_bundle",
    "make_recipe",
    "parse_setting",
    "parse_toml",
    "read_recipe",
    "recipe_from_dict",
    "update_section",
]
