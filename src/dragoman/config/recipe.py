"""The whole recipe, and how it is read from TOML.

recipe file → preset and size → the file's own lines → `key=value` overrides → Recipe
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import model_validator

from dragoman.config.data import DataConfig
from dragoman.config.decoding import DecodingConfig
from dragoman.config.fields import RecipeSection, SectionT, Utf8Text
from dragoman.config.model import ModelConfig
from dragoman.config.presets import PRESETS, SIZES
from dragoman.config.task import TaskConfig
from dragoman.config.tokenizer import TokenizerConfig
from dragoman.config.training import TrainingConfig
from dragoman.config.validation import format_value, suggest_name, validate_section
from dragoman.errors import RecipeError


class Recipe(RecipeSection):
    name: Utf8Text = "run"
    """Names the run in reports."""
    run: Utf8Text = "runs/run"
    """Folder that the run writes; relative to where the command runs."""
    preset: Literal["paper", "t2t-2017", "modern"] = "paper"
    """The reading of the paper to start from."""
    size: str = "base"
    """The dimensions to start from: base, big, tiny or a row of Table 3."""
    task: TaskConfig = TaskConfig()
    data: DataConfig = DataConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    decoding: DecodingConfig = DecodingConfig()

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.model.tie_embeddings == "all" and not self.tokenizer.joint:
            raise ValueError(
                "model.tie_embeddings = 'all' needs one vocabulary: set tokenizer.joint = true, or tying = 'decoder' or 'none'"
            )
        options_needing_validation = [
            name
            for name, is_needed in (
                ("average = 'best'", self.training.checkpoint_averaging == "best"),
                (f"best_metric = {self.training.best_metric!r}", self.training.best_metric != "loss"),
                ("patience", self.training.patience is not None),
            )
            if is_needed
        ]
        if options_needing_validation and self.data.valid is None:
            raise ValueError(f"training.{options_needing_validation[0]} needs something to validate on: give data.valid")
        dropouts = ("residual", "embedding", "attention", "activation")
        if self.training.r_drop_alpha and not any(getattr(self.model, f"{dropout}_dropout") for dropout in dropouts):
            raise ValueError(
                f"training.r_drop_alpha = {self.training.r_drop_alpha:g} compares two dropouts, but there is none: "
                "set model.residual_dropout, such as 0.3, or drop it"
            )
        cleaning = self.data.cleaning
        for option, share in (
            ("min_script_ratio", cleaning.min_script_ratio),
            ("min_language_probability", cleaning.min_language_probability),
        ):
            if share is not None and not (self.task.source_language and self.task.target_language):
                raise ValueError(f"data.cleaning.{option} needs task.source_language and task.target_language")
        if cleaning.eval_overlap and self.data.valid is None and self.data.test is None:
            raise ValueError("data.cleaning.eval_overlap has nothing to compare with: give data.valid, data.test or both")
        if self.tokenizer.joint and self.tokenizer.target_vocab_size is not None:
            raise ValueError("tokenizer.target_vocab_size is given but tokenizer.joint is true: drop one of the two")
        if self.tokenizer.target_model_file is not None and (self.tokenizer.joint or self.tokenizer.model_file is None):
            raise ValueError("tokenizer.target_model_file goes with tokenizer.model_file and joint = false")
        is_translation = self.task.kind == "translation"
        if (
            is_translation
            and not self.tokenizer.joint
            and self.tokenizer.model_file is not None
            and self.tokenizer.target_model_file is None
        ):
            raise ValueError("tokenizer.model_file with joint = false needs tokenizer.target_model_file, too")
        if self.tokenizer.lowercase and (self.data.noise.upper_case or self.data.noise.title_case):
            raise ValueError(
                "data.noise.upper_case and title_case do nothing with tokenizer.lowercase = true: drop them, or that"
            )
        noise_options = [f"data.noise.{name}" for name, share in self.data.noise if share]
        noise_options += ["tokenizer.sampling_alpha"] if self.tokenizer.sampling_alpha else []
        if noise_options and not self.tokenizer.byte_fallback:
            raise ValueError(
                f"{noise_options[0]} needs tokenizer.byte_fallback = true: text is put together from the encoded corpus, "
                "and an unknown character would be lost"
            )
        if self.data.max_length > self.training.batch_tokens:
            raise ValueError(
                f"data.max_length = {self.data.max_length} is more than training.batch_tokens = "
                f"{self.training.batch_tokens}: the longest pair would not fit into a batch"
            )
        if self.model.position_encoding == "learned" and self.data.max_length > self.model.max_positions:
            raise ValueError(
                f"data.max_length = {self.data.max_length} is more than the {self.model.max_positions} "
                "learned positions of model.max_positions"
            )
        return self

    @model_validator(mode="after")
    def _check_task(self) -> Self:
        corpora = {f"data.corpora.{name}": corpus for name, corpus in self.data.corpora.items()}
        corpora_by_key = {"data.train": self.data.train, **corpora, "data.valid": self.data.valid, "data.test": self.data.test}
        is_parsing = self.task.kind == "parsing"
        for key, corpus in corpora_by_key.items():
            if corpus is not None and is_parsing and (corpus.source is not None or corpus.format not in ("auto", "brackets")):
                raise ValueError(f"{key}: task.kind = 'parsing' learns from trees: give file, with format = 'brackets'")
            if corpus is not None and not is_parsing and corpus.format == "brackets":
                raise ValueError(f"{key}.format = 'brackets': trees are for task.kind = 'parsing', not for translation")
        if is_parsing:
            self._check_parsing()
        elif self.model.pointer:
            raise ValueError("model.pointer = true points at the next word of a tree: it is for task.kind = 'parsing'")
        if self.training.best_metric == ("bleu" if is_parsing else "f1"):
            best_metric, alternative = self.training.best_metric, "f1" if is_parsing else "bleu"
            raise ValueError(
                f"training.best_metric = {best_metric!r} is not for {self.task.kind}: set '{alternative}' or 'loss'"
            )
        return self

    @model_validator(mode="after")
    def _check_guided_alignment(self) -> Self:
        training, model = self.training, self.model
        corpora = {f"data.corpora.{name}": corpus for name, corpus in self.data.corpora.items()}
        training_corpora = corpora | ({} if self.data.train is None else {"data.train": self.data.train})
        aligned_keys = [f"{key}.alignments" for key, corpus in training_corpora.items() if corpus.alignments is not None]
        if not training.guided_alignment_weight:
            if aligned_keys:
                raise ValueError(
                    f"{aligned_keys[0]} guides a head: set training.guided_alignment_weight, such as 0.05, or drop it"
                )
            return self
        if aligned_keys and len(aligned_keys) < len(training_corpora):
            unaligned_key = next(key for key, corpus in training_corpora.items() if corpus.alignments is None)
            raise ValueError(
                f"{unaligned_key} has no alignments, though {aligned_keys[0].removesuffix('.alignments')} has; give all, or none"
            )
        if self.task.kind == "parsing":
            raise ValueError(
                "training.guided_alignment_weight is for translation: no word of a tree comes from another; drop it"
            )
        for option, value, limit in (
            ("alignment_layer", training.alignment_layer or 1, model.decoder_layers),
            ("alignment_head", training.alignment_head, model.num_heads),
        ):
            if value > limit:
                raise ValueError(f"training.{option} = {value}: the decoder has {limit}, counted from 1")
        return self

    @property
    def alignment_layer(self) -> int:
        """The layer of the guided head, counted from 1: as given, or the last but one (Garg et al. 2019)."""
        return self.training.alignment_layer or max(self.model.decoder_layers - 1, 1)

    def _check_parsing(self) -> None:
        tokenizer, tags = self.tokenizer, self.task.pos_tags
        for is_invalid, message in (
            (tokenizer.joint, "tokenizer.joint = true: a parser's target is a list of labels; set joint = false"),
            (tokenizer.target_model_file, "tokenizer.target_model_file: a parser's target is a list of labels; drop it"),
            (tokenizer.target_vocab_size, "tokenizer.target_vocab_size: labels are learnt from the trees; drop it"),
            (
                tokenizer.normalization != "identity",
                "tokenizer.normalization = 'nfkc' changes words; set 'identity' for a parser",
            ),
            (any(share for _, share in self.data.noise), "data.noise would part words from their trees; drop them"),
            (self.data.overlong_pairs == "truncate", "data.overlong_pairs = 'truncate' cuts trees; set 'drop' or 'error'"),
            (
                self.model.pointer and not self.model.append_source_eos,
                "model.pointer = true needs model.append_source_eos = true",
            ),
            (
                self.task.has_tagging_head and self.training.r_drop_alpha,
                f"training.r_drop_alpha does not go with task.pos_tags = {tags!r}; drop it",
            ),
            (problem := self.decoding.find_parsing_problem(), f"decoding.{problem}"),
        ):
            if is_invalid:
                raise ValueError(message)


def find_builtin_recipe(name: str) -> Path | None:
    """The file of a recipe that comes with the package; none where there is none of that name."""
    return _list_builtin_recipes().get(name)


def _list_builtin_recipes() -> dict[str, Path]:
    return {path.stem: path for path in sorted(Path(str(files("dragoman"))).glob("recipes/*.toml"))}


def read_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a TOML recipe, or one that comes with the package by its bare name, such as multi30k-ende.

    Raises RecipeError with file, key, what was given and what is allowed.
    """
    if path.name == str(path) and not path.exists() and (builtin_path := find_builtin_recipe(path.name)) is not None:
        return make_recipe(parse_toml(builtin_path.read_text(encoding="utf-8"), where=str(path)), overrides, where=str(path))
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        hint = f"; with the package come {', '.join(_list_builtin_recipes())}" if path.name == str(path) else ""
        raise RecipeError(f"{path}: there is no such recipe{hint}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise RecipeError(f"{path}, line {line}: not UTF-8 (byte 0x{error.object[error.start]:02x})") from None
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from None
    return make_recipe(parse_toml(text, where=str(path)), overrides, where=str(path))


def parse_toml(text: str, *, where: str) -> dict[str, Any]:
    """The tables of a TOML text. Raises RecipeError naming the line."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{where}: not TOML: {error}") from None
    except (ValueError, RecursionError):  # a number of thousands of digits, or thousands of brackets
        raise RecipeError(f"{where}: not a recipe: a number too long to read, or values nested too deep") from None


def make_recipe(document: Mapping[str, Any], overrides: Sequence[str] = (), *, where: str = "recipe") -> Recipe:
    """Put preset, size, document and `section.key=value` overrides together, the later over the earlier."""
    settings: dict[str, Any] = {}
    _merge_into(settings, document)
    for override in overrides:
        _apply_override(settings, override)
    merged: dict[str, Any] = {}
    _merge_into(merged, PRESETS[_read_choice(settings, "preset", "paper", PRESETS, where)])
    _merge_into(merged, SIZES[_read_choice(settings, "size", "base", SIZES, where)])
    _merge_into(merged, settings)
    return validate_section(Recipe, merged, where)


def recipe_from_dict(document: Mapping[str, Any], *, where: str) -> Recipe:
    """Read back a recipe that was written out whole, presets already laid in."""
    return validate_section(Recipe, document, where)


def update_section(section: SectionT, changes: Mapping[str, Any], *, where: str) -> SectionT:
    """The same section with some knobs changed, checked as a recipe is."""
    return validate_section(type(section), {**section.model_dump(), **changes}, where)


def _read_choice(settings: Mapping[str, Any], key: str, default: str, allowed: Mapping[str, Any], where: str) -> str:
    name = settings.get(key, default)
    if not isinstance(name, str) or name not in allowed:
        raise RecipeError(
            f"{where}: {key} = {format_value(name)} is not known; one of: {', '.join(allowed)}{suggest_name(name, allowed)}"
        )
    return name


def _merge_into(target: dict[str, Any], updates: Mapping[str, Any]) -> None:
    for key, value in updates.items():
        if isinstance(value, Mapping) and isinstance(target.get(key), dict):
            _merge_into(target[key], value)
        else:
            target[key] = {} if isinstance(value, Mapping) else value
            if isinstance(value, Mapping):
                _merge_into(target[key], value)


def parse_setting(text: str) -> tuple[str, Any]:
    """Key and value of `key=value`; the value is TOML, and what is not TOML is taken as text."""
    key, separator, value = text.partition("=")
    if not separator or not all(part.strip() for part in key.split(".")):
        raise RecipeError(f"{format_value(text)} is not a setting: write key=value, such as training.max_steps=1000")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):
        parsed = {}
    return key.strip(), parsed["value"] if parsed.keys() == {"value"} else value.strip()


def _apply_override(document: dict[str, Any], text: str) -> None:
    """Set `training.max_steps=10` in the document."""
    key, value = parse_setting(text)
    *sections, option = key.split(".")
    for name in sections:
        document = document.setdefault(name, {})
        if not isinstance(document, dict):
            raise RecipeError(f"{format_value(text)}: {name} is a value, not a section")
    document[option] = value
