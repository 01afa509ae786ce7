"""Values of the paper's text and of its code for each recipe key, and the deviations of a recipe from them.

A run prints its deviations before it starts. The text is "Attention Is All You Need"; a value of None means that the text does
not state one. The code is tensor2tensor 1.0.3, which produced the paper's numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dragoman.languages import get_language


@dataclass(frozen=True)
class PaperSetting:
    """Values of one recipe key in the paper's text and in its code, with the section that states it."""

    key: str
    citation: str
    paper_value: Any
    code_value: Any


@dataclass(frozen=True)
class Deviation:
    """Recipe key whose value differs from the paper's text or, if the text states none, from its code."""

    key: str
    recipe_value: Any
    paper_value: Any
    code_value: Any
    citation: str

    def describe(self) -> str:
        """Return the deviation as one line of text."""
        paper_clause = (
            f"the text has {_format_value(self.paper_value)} ({self.citation})"
            if self.paper_value is not None
            else "the text states no value"
        )
        return f"{self.key} = {_format_value(self.recipe_value)}; {paper_clause}, its code has {_format_value(self.code_value)}"


def _format_value(value: Any) -> str:
    return "none" if value is None else str(value).lower()


PAPER_SETTINGS = (
    PaperSetting("model.norm", "section 3.1", "post", "post"),
    PaperSetting("model.final_norm", "section 3.1", False, False),
    PaperSetting("model.norm_type", "section 3.1", "layer", "layer"),
    PaperSetting("model.attention_bias", "section 3.2.2", False, True),
    PaperSetting("model.position_encoding", "section 3.5", "interleaved", "concatenated"),
    PaperSetting("model.tie_embeddings", "section 3.4", "all", "all"),
    PaperSetting("model.scale_embeddings", "section 3.4", True, True),
    PaperSetting("model.embedding_norm", "section 3.4", False, False),
    PaperSetting("model.initialization", "not stated", None, "glorot"),
    PaperSetting("model.norm_epsilon", "not stated", None, 1e-6),
    PaperSetting("model.attention_dropout", "section 5.4", 0.0, 0.0),
    PaperSetting("model.activation_dropout", "section 5.4", 0.0, 0.0),
    PaperSetting("model.residual_dropout", "section 5.4", 0.1, 0.1),
    PaperSetting("model.embedding_dropout", "section 5.4", 0.1, 0.1),
    PaperSetting("model.decoder_start_token", "section 3.1: offset by one", None, "zero"),
    PaperSetting("model.append_source_eos", "not stated", None, True),
    PaperSetting("model.target_space_embedding", "section 3.4", False, True),
    PaperSetting("model.attention_window", "section 4: future work", None, None),
    PaperSetting("training.adam_beta1", "section 5.3", 0.9, 0.9),
    PaperSetting("training.adam_beta2", "section 5.3", 0.98, 0.98),
    PaperSetting("training.adam_epsilon", "section 5.3", 1e-9, 1e-9),
    PaperSetting("training.weight_decay", "not stated", None, 0.0),
    PaperSetting("training.schedule", "equation 3", "noam", "noam"),
    PaperSetting("training.lr_factor", "equation 3", 1.0, 1.0),
    PaperSetting("training.warmup_steps", "section 5.3", 4000, 4000),
    PaperSetting("training.lr_decay_ratio", "equation 3", 0.0, 0.0),
    PaperSetting("training.label_smoothing", "section 5.4", 0.1, 0.1),
    PaperSetting("training.label_smoothing_mode", "not stated", None, "exclude_target"),
    PaperSetting("training.clip_norm", "not stated", None, None),
    PaperSetting("decoding.beam_size", "section 6.1", 4, 4),
    PaperSetting("decoding.length_penalty", "section 6.1, through [GNMT]", "gnmt", "gnmt"),
    PaperSetting("decoding.alpha", "section 6.1", 0.6, 0.6),
    PaperSetting("decoding.max_extra_tokens", "section 6.1", 50, 50),
    # The code's own rule is "worst_finished". For one output, both find the same one.
    PaperSetting("decoding.early_stopping", "section 6.1: when possible", None, "exhaustive"),
)


PARSING_SETTINGS = {
    setting.key: setting
    for setting in (
        PaperSetting("model.encoder_layers", "section 6.3", 4, 6),
        PaperSetting("model.decoder_layers", "section 6.3", 4, 6),
        PaperSetting("model.d_model", "section 6.3", 1024, 1024),
        PaperSetting("model.d_ff", "section 6.3: as base", 2048, 2048),
        PaperSetting("model.num_heads", "section 6.3: as base", 8, 8),
        PaperSetting("model.tie_embeddings", "section 3.4", "all", "none"),
        PaperSetting("model.attention_dropout", "section 6.3: chosen, not printed", None, 0.2),
        PaperSetting("model.residual_dropout", "section 6.3: chosen, not printed", None, 0.2),
        PaperSetting("model.embedding_dropout", "section 6.3: chosen, not printed", None, 0.2),
        PaperSetting("training.lr_factor", "section 6.3: chosen, not printed", None, 5.0),
        PaperSetting("training.warmup_steps", "sections 5.3 and 6.3", 4000, 16000),
        PaperSetting("decoding.beam_size", "section 6.3", 21, 4),
        PaperSetting("decoding.alpha", "section 6.3", 0.3, 0.6),
        PaperSetting("decoding.max_extra_tokens", "section 6.3", 300, 50),
    )
}
"""Values for parsing: of section 6.3, which leaves all else as in base, and of the code's transformer_parsing_base_dr6.

The code's factor of the learning rate is 10 · `learning_rate`: its schedule has a factor of 5,000, and its Adam divides by 500.
It is 1 for the 0.1 of transformer_base and 5 for the 0.5 of the parsing sets. Later versions have 0.05, a factor of 0.5.
"""

_SEMI_SUPERVISED_CODE: dict[str, Any] = {
    "model.d_ff": 4096,
    "model.num_heads": 16,
    "model.tie_embeddings": "decoder",
    "model.attention_dropout": 0.0,
    "model.residual_dropout": 0.1,
    "model.embedding_dropout": 0.1,
    "training.warmup_steps": 4000,
}
"""Values of the code's transformer_parsing_big, for semi-supervised parsing, that differ from transformer_parsing_base_dr6."""


# Values of Table 3's rows that differ from base, besides their dimensions.
_TABLE3_VALUES: dict[str, dict[str, Any]] = {
    "big": {"model.residual_dropout": 0.3, "model.embedding_dropout": 0.3},
    "D-p0": {"model.residual_dropout": 0.0, "model.embedding_dropout": 0.0},
    "D-p0.2": {"model.residual_dropout": 0.2, "model.embedding_dropout": 0.2},
    "D-ls0": {"training.label_smoothing": 0.0},
    "D-ls0.2": {"training.label_smoothing": 0.2},
    "E": {"model.position_encoding": "learned"},
}
# Section 6.1 gives this dropout rate for the big model from English to French.
_BIG_EN_FR_DROPOUT = 0.1


def _resolve_setting(setting: PaperSetting, recipe: Mapping[str, Any]) -> PaperSetting:
    """Return the setting for the recipe's task, languages and row of Table 3."""
    task = recipe.get("task", {})
    if task.get("kind") == "parsing":
        setting = PARSING_SETTINGS.get(setting.key, setting)
        is_semi_supervised = len(recipe.get("data", {}).get("corpora", {})) > 1
        if is_semi_supervised and setting.key in _SEMI_SUPERVISED_CODE:
            return replace(setting, code_value=_SEMI_SUPERVISED_CODE[setting.key])
        return setting
    value = _TABLE3_VALUES.get(recipe["size"], {}).get(setting.key)
    if value is None:
        return setting
    languages = [get_language(task.get(f"{side}_language", "")) for side in ("source", "target")]
    if recipe["size"] == "big" and languages == ["en", "fr"]:
        return replace(setting, paper_value=_BIG_EN_FR_DROPOUT, code_value=_BIG_EN_FR_DROPOUT, citation="section 6.1")
    return replace(setting, paper_value=value, code_value=value, citation="Table 3")


def find_deviations(recipe: Mapping[str, Any]) -> list[Deviation]:
    """Return the deviations of a recipe, given as nested plain values, from the paper's text.

    If the text states no value, the code's value counts. The preset t2t-2017 is compared with the code as well. The dimensions
    of a parser are compared, too; those of a translation model are its size.
    """
    deviations = []
    translation_keys = {setting.key for setting in PAPER_SETTINGS}
    is_parsing = recipe.get("task", {}).get("kind") == "parsing"
    dimensions = [setting for key, setting in PARSING_SETTINGS.items() if is_parsing and key not in translation_keys]
    for setting in (*dimensions, *PAPER_SETTINGS):
        section, option = setting.key.split(".")
        setting = _resolve_setting(setting, recipe)
        recipe_value = recipe[section][option]
        if setting.key == "model.final_norm" and recipe_value is None:
            recipe_value = recipe["model"]["norm"] == "pre"
        if setting.key == "training.lr_factor" and recipe["training"]["schedule"] != "noam":
            continue
        is_unspecified = setting.paper_value is None
        follows_code = recipe["preset"] == "t2t-2017"
        if recipe_value != (setting.code_value if is_unspecified else setting.paper_value) or (
            follows_code and recipe_value != setting.code_value
        ):
            deviations.append(Deviation(setting.key, recipe_value, setting.paper_value, setting.code_value, setting.citation))
    return deviations
