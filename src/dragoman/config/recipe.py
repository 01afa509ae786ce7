"""Recipe model, its `task` section, and the reader of recipe files.

Later layers win: preset → size → what follows from the corpora (`data.data_defaults`) → initial bundle → recipe file →
`key=value` overrides.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from dragoman.config.card_config import CardConfig
from dragoman.config.data_config import DataConfig, Direction, LanguagePair, iter_directions
from dragoman.config.decoding_config import DecodingConfig
from dragoman.config.fields import BleuTokenizer, Weight
from dragoman.config.initial_bundle import (
    TOKENIZER_FILE_KEYS,
    check_structure,
    inherit_sections,
    merge_extra_tokens,
    read_initial_recipe,
)
from dragoman.config.model_config import ModelConfig
from dragoman.config.presets import PRESETS, SIZES
from dragoman.config.section import RecipeSection, SectionT, model_validator, validate_section
from dragoman.config.section_validation import format_value, suggest_name
from dragoman.config.tokenizer_config import TokenizerConfig
from dragoman.config.training_config import TrainingConfig
from dragoman.errors import RecipeError

RETIRED_KEYS: Mapping[str, tuple[str, ...]] = {
    "decoding": ("speculative", "typical_threshold"),
    "training": ("r_drop_alpha",),
}
"""Keys that stored recipes of older versions hold, by section."""


class TaskConfig(RecipeSection):
    """Task of the model, its languages, and how a parser represents trees."""

    kind: Literal["translation", "parsing", "transcription"] = "translation"
    """Task of the model; no recipe trains the transcription of speech, but `dragoman convert` writes such bundles."""
    source_language: str = ""
    """Language code of the source, such as `en`, for reports, scores, cleaning and files with many languages."""
    target_language: str = ""
    """Language code of the target, such as `de`, for reports, scores, cleaning and files with many languages."""
    tokenized: bool = False
    """Whether the text is already tokenized, so that BLEU counts its tokens unchanged."""
    bleu_tokenizer: BleuTokenizer = "auto"
    """Tokenizer of sacreBLEU for BLEU; `auto` takes the one of the target language, or `none` for tokenized text."""
    linearization: Literal["typed", "tensor2tensor", "topdown"] = "typed"
    """Parsing: form of a tree as a sequence of labels; `typed` and `topdown` replace each word by `XX`."""
    function_tags: Literal["keep", "strip"] = "strip"
    """Parsing: whether labels keep function tags and indices, as in NP-SBJ-1."""
    traces: Literal["keep", "strip"] = "strip"
    """Parsing: whether traces stay in the trees and count as words of the text."""
    pos_tags: Literal["head", "sequence", "given"] = "head"
    """Parsing: source of part-of-speech tags: a layer on the encoder, the output sequence (`tensor2tensor`), or the input."""
    pos_loss_weight: Weight = 1.0
    """Parsing: weight of a tag's loss relative to the loss of an output token; used if pos_tags = 'head'."""

    @property
    def has_text_target(self) -> bool:
        """Return whether the model outputs text, and not trees."""
        return self.kind != "parsing"

    @property
    def has_speech_source(self) -> bool:
        """Return whether the model reads speech and writes what is said."""
        return self.kind == "transcription"

    @property
    def has_tagging_head(self) -> bool:
        """Return whether a layer on the encoder predicts the tags."""
        return not self.has_text_target and self.pos_tags == "head"

    @model_validator
    def _check_consistency(self) -> None:
        if self.tokenized and self.bleu_tokenizer not in ("auto", "none"):
            raise ValueError(
                f"bleu_tokenizer = {self.bleu_tokenizer!r} with tokenized = true: tokenized text counts its tokens as they "
                "are; drop one of the two"
            )
        if not self.has_text_target and (self.linearization == "tensor2tensor") != (self.pos_tags == "sequence"):
            raise ValueError(
                f"pos_tags = {self.pos_tags!r} with linearization = {self.linearization!r}: only the tensor2tensor sequence "
                "holds tags; use pos_tags = 'sequence' with it, and 'head' or 'given' with the other two"
            )


class Recipe(RecipeSection):
    """All options of a training run, as read from a recipe file. A bundle keeps its recipe."""

    name: str = "run"
    """Name of the run in reports."""
    run: str = "runs/run"
    """Folder that the run writes, relative to the working directory."""
    preset: Literal["paper", "t2t-2017", "modern"] = "paper"
    """Defaults to start from: the paper's text, the code behind its numbers, or current practice."""
    size: str = "base"
    """Model size to start from: tiny, small, base, big, student or a row of Table 3; with preset = 'modern', by the number of
    pairs."""
    card: CardConfig = CardConfig()
    task: TaskConfig = TaskConfig()
    data: DataConfig = DataConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    decoding: DecodingConfig = DecodingConfig()

    def __repr__(self) -> str:
        return f"<Recipe {self.label}, {self.preset} {self.size}>"

    @property
    def label(self) -> str:
        """Name and languages."""
        return f"{self.name}: {self.task.source_language or '?'} → {self.task.target_language or '?'}"

    @model_validator
    def _check_extensions(self) -> None:
        for extension in (*self.model.extensions, *self.training.extensions):
            extension.check_recipe(self)

    @model_validator
    def _check_training(self) -> None:
        if self.decoding.mbr == "comet":
            raise ValueError("decoding.mbr = 'comet' needs a model on this machine: give it to translate or evaluate instead")
        if self.model.shares_input_embeddings and not self.tokenizer.joint:
            raise ValueError(
                f"model.tie_embeddings = {self.model.tie_embeddings!r} needs one vocabulary: set tokenizer.joint = true, or "
                "tie_embeddings = 'decoder' or 'none'"
            )
        options_needing_validation = [
            name
            for name, is_needed in (
                ("checkpoint_averaging = 'best'", self.training.checkpoint_averaging == "best"),
                (f"best_metric = {self.training.best_metric!r}", self.training.best_metric != "loss"),
                ("patience", self.training.patience is not None),
            )
            if is_needed
        ]
        if options_needing_validation and not self.data.evaluation_corpora("valid"):
            raise ValueError(f"training.{options_needing_validation[0]} needs validation data: give data.valid")

    @model_validator
    def _check_cleaning(self) -> None:
        cleaning = self.data.cleaning
        for option, share in (
            ("min_script_ratio", cleaning.min_script_ratio),
            ("min_language_probability", cleaning.min_language_probability),
        ):
            if share is not None and not all(all(pair) for pair in self.language_pairs or [self.default_pair]):
                raise ValueError(f"data.cleaning.{option} needs task.source_language and task.target_language; give both")
        if cleaning.eval_overlap and not self.data.evaluation_corpora("valid") and not self.data.evaluation_corpora("test"):
            raise ValueError("data.cleaning.eval_overlap needs evaluation data: give data.valid, data.test or both")

    @model_validator
    def _check_tokenizer(self) -> None:
        if self.tokenizer.joint and self.tokenizer.target_vocab_size is not None:
            raise ValueError("tokenizer.target_vocab_size is given but tokenizer.joint is true: drop one of the two")
        if self.tokenizer.target_model_file is not None and (self.tokenizer.joint or self.tokenizer.model_file is None):
            raise ValueError("tokenizer.target_model_file needs tokenizer.model_file and joint = false; give both, or drop it")
        is_translation = self.task.has_text_target
        if (
            is_translation
            and not self.tokenizer.joint
            and self.tokenizer.model_file is not None
            and self.tokenizer.target_model_file is None
        ):
            raise ValueError("tokenizer.model_file with joint = false needs tokenizer.target_model_file as well; give it")
        if self.tokenizer.lowercase and (self.data.noise.upper_case or self.data.noise.title_case):
            raise ValueError(
                "data.noise.upper_case and title_case have no effect with tokenizer.lowercase = true: drop them, or lowercase"
            )
        if self.data.noise.terminology and not self.tokenizer.is_sentencepiece:
            raise ValueError(
                f"data.noise.terminology: is for bpe and unigram, but tokenizer.model_type = {self.tokenizer.model_type!r} has "
                "no marks; drop it"
            )
        if self.data.term_file is not None and len(self.language_pairs) > 1:
            raise ValueError("data.term_file: is for one pair of languages, but data.corpora has several; drop it")
        noise_options = [f"data.noise.{name}" for name, share in self.data.noise if share]
        noise_options += ["tokenizer.sampling_alpha"] if self.tokenizer.sampling_alpha else []
        if noise_options and not self.tokenizer.byte_fallback:
            raise ValueError(
                f"{noise_options[0]} needs tokenizer.byte_fallback = true: it decodes text from the encoded corpus, where "
                "unknown characters are lost; set byte_fallback, or drop it"
            )

    @model_validator
    def _check_max_length(self) -> None:
        if self.data.max_length > self.training.batch_tokens:
            raise ValueError(
                f"data.max_length = {self.data.max_length} is more than training.batch_tokens = "
                f"{self.training.batch_tokens}, so the longest pair fits into no batch; lower one or raise the other"
            )
        if self.model.position_encoding == "learned" and self.data.max_length > self.model.max_positions:
            raise ValueError(
                f"data.max_length = {self.data.max_length} is more than the {self.model.max_positions} learned positions; "
                "lower it, or raise model.max_positions"
            )

    @model_validator
    def _check_task(self) -> None:
        corpora = {
            f"data.{key}.{name}": corpus
            for key in ("corpora", "valid_corpora", "test_corpora")
            for name, corpus in getattr(self.data, key).items()
        }
        corpora_by_key = {"data.train": self.data.train, **corpora, "data.valid": self.data.valid, "data.test": self.data.test}
        is_parsing = not self.task.has_text_target
        for key, corpus in corpora_by_key.items():
            if corpus is not None and is_parsing and (corpus.source is not None or corpus.format not in ("auto", "brackets")):
                raise ValueError(f"{key}: task.kind = 'parsing' needs trees: give file, with format = 'brackets'")
            if corpus is not None and not is_parsing and corpus.format == "brackets":
                raise ValueError(f"{key}.format = 'brackets': trees are for task.kind = 'parsing'; use a format with two sides")
        if self.task.kind not in self.model.encoder_input.tasks:
            raise ValueError(
                f"task.kind = {self.task.kind!r} with model.frontend = {self.model.frontend!r}: transcription needs "
                "frontend = 'log-mel', and no other task has it; change one of them"
            )
        if is_parsing:
            self._check_parsing()
        elif self.model.pointer:
            raise ValueError("model.pointer = true is for task.kind = 'parsing'; drop it")
        if self.training.best_metric == ("bleu" if is_parsing else "f1"):
            best_metric, alternative = self.training.best_metric, "f1" if is_parsing else "bleu"
            raise ValueError(
                f"training.best_metric = {best_metric!r} is not for {self.task.kind}: set '{alternative}' or 'loss'"
            )

    @model_validator
    def _check_guided_alignment(self) -> None:
        training, model = self.training, self.model
        corpora = {f"data.corpora.{name}": corpus for name, corpus in self.data.corpora.items()}
        training_corpora = corpora | ({} if self.data.train is None else {"data.train": self.data.train})
        aligned_keys = [f"{key}.alignments" for key, corpus in training_corpora.items() if corpus.alignments is not None]
        if not self.aligns_words:
            if aligned_keys:
                raise ValueError(
                    f"{aligned_keys[0]} has no effect without training.guided_alignment_weight: set it, such as 0.05, or drop "
                    "alignments"
                )
            return
        if aligned_keys and len(aligned_keys) < len(training_corpora):
            unaligned_key = next(key for key, corpus in training_corpora.items() if corpus.alignments is None)
            raise ValueError(
                f"{unaligned_key} has no alignments, though {aligned_keys[0].removesuffix('.alignments')} has; give them for "
                "all corpora, or for none"
            )
        if not self.task.has_text_target:
            raise ValueError(
                "training.guided_alignment_weight needs task.kind = 'translation': trees have no word alignment; drop it"
            )
        if not model.num_cross_attentions:
            raise ValueError(
                "training.guided_alignment_weight needs cross-attention, which this decoder has not: drop it, or choose "
                "another decoder"
            )
        for option, value, limit in (
            ("alignment_layer", training.alignment_layer or 1, model.num_cross_attentions),
            ("alignment_head", training.alignment_head, model.num_heads),
        ):
            if value > limit:
                allowed = "1" if limit == 1 else f"a number from 1 to {limit}"
                raise ValueError(f"training.{option} = {value}: the decoder has {limit}; give {allowed}")

    @model_validator
    def _check_layers(self) -> None:
        if (later := self.model.find_later_layers()) and (fixed := self.model.find_fixed_layers()):
            key, value = next(iter(later.items()))
            raise ValueError(f"model.{key} = {value!r} is for the layers of the Transformer; drop it, or {fixed[0]}")
        for option in ("coverage_penalty", "replace_unknowns"):
            value = getattr(self.decoding, option)
            if value and not self.model.num_cross_attentions:
                raise ValueError(
                    f"decoding.{option} = {str(value).lower()} needs cross-attention, which this decoder has not: drop it"
                )

    @model_validator
    def _check_languages(self) -> None:
        pairs, tokenizer = self.language_pairs, self.tokenizer
        for direction in self.training_directions.values():
            key = "data.train" if self.data.train is not None else f"data.corpora.{direction.corpus_name}"
            missing = [
                name
                for name, language in (
                    ("source_language", direction.source_language if tokenizer.language_token_placement == "both" else "-"),
                    ("target_language", direction.target_language),
                )
                if not language and tokenizer.language_token is not None
            ]
            if missing:
                raise ValueError(f"{key} has no {missing[0]}, which tokenizer.language_token needs: give it here or in task")
            if direction.corpus.both_directions and ("" in direction.languages or len(set(direction.languages)) < 2):
                raise ValueError(f"{key}.both_directions = true needs two languages: give source_language and target_language")
            if direction.corpus.alignments is not None and tokenizer.language_token is not None:
                raise ValueError(f"{key}.alignments: a model with language tokens aligns its corpora itself; drop alignments")
        if len(pairs) > 1 and tokenizer.language_token is None:
            raise ValueError(
                f"data.corpora has {len(pairs)} pairs of languages, {_format_pairs(pairs[:2])} first: set "
                "tokenizer.language_token, such as '>>{}<<', so that a token chooses the target language"
            )
        if len(pairs) < 2 and self.data.pair_temperature is not None:
            raise ValueError("data.pair_temperature is for several pairs of languages; drop it")
        if pairs and tokenizer.language_token is not None:
            self._check_multilingual(pairs)

    def _check_multilingual(self, pairs: list[LanguagePair]) -> None:
        """Raise ValueError if an option does not fit language tokens."""
        if not self.tokenizer.joint:
            raise ValueError("tokenizer.language_token needs one vocabulary for all languages: set tokenizer.joint = true")
        if all(self.default_pair) and self.default_pair not in pairs:
            raise ValueError(
                f"task.source_language and task.target_language: no corpus has the pair {_format_pairs([self.default_pair])}; "
                "leave them out, or give a pair of data.corpora"
            )
        known_languages = set(self.languages)
        for split in ("valid", "test"):
            for direction in self.evaluation_directions(split).values():
                if unknown := [language for language in direction.languages if language not in known_languages]:
                    raise ValueError(
                        f"data.{split}: {direction.corpus_name} has the language {unknown[0]!r}, and no training corpus has "
                        f"it; give one of {', '.join(self.languages)}"
                    )

    @property
    def default_pair(self) -> LanguagePair:
        """Return the languages of the task section, which corpora and searches have if they name none."""
        return self.task.source_language, self.task.target_language

    @property
    def aligns_words(self) -> bool:
        """Return whether the training needs the word alignment of its pairs."""
        finds_terms = self.data.noise.terminology > 0 and self.data.term_file is None
        return finds_terms or self.training.guided_alignment_weight > 0

    @property
    def training_directions(self) -> dict[str, Direction]:
        """Return the directions of the training corpora by name."""
        return {direction.name: direction for direction in iter_directions(self.data.training_corpora(), *self.default_pair)}

    def evaluation_directions(self, split: Literal["valid", "test"]) -> dict[str, Direction]:
        """Return the directions of the validation or test corpora by name."""
        corpora = self.data.evaluation_corpora(split)
        return {direction.name: direction for direction in iter_directions(corpora, *self.default_pair)}

    @property
    def language_pairs(self) -> list[LanguagePair]:
        """Return the pairs of languages of the training corpora, each once; a pair without names is a pair, too."""
        return list(dict.fromkeys(direction.languages for direction in self.training_directions.values()))

    @property
    def languages(self) -> list[str]:
        """Return the languages that have a token: those of the training corpora, in the order of their codes."""
        if self.tokenizer.language_token is None:
            return []
        return sorted({language for pair in self.language_pairs for language in pair if language})

    def with_languages(self, pair: LanguagePair) -> Self:
        """Return the recipe with these languages in its task section."""
        task = self.task.model_copy(update={"source_language": pair[0], "target_language": pair[1]})
        return self.model_copy(update={"task": task})

    @property
    def alignment_layer(self) -> int:
        """Return the layer of the guided head, counted from 1. The default is the last but one (Garg et al. 2019)."""
        return self.training.alignment_layer or max(self.model.num_cross_attentions - 1, 1)

    def _check_parsing(self) -> None:
        """Raise ValueError if an option does not fit a parser."""
        tokenizer = self.tokenizer
        for is_invalid, message in (
            (tokenizer.joint, "tokenizer.joint = true: a parser's target is a list of labels; set joint = false"),
            (
                tokenizer.model_type not in ("bpe", "unigram", "word-piece", "word"),
                f"tokenizer.model_type = {tokenizer.model_type!r}: a parser needs pieces that start a word; set bpe, unigram "
                "or word",
            ),
            (tokenizer.target_model_file, "tokenizer.target_model_file: a parser's target is a list of labels; drop it"),
            (tokenizer.target_vocab_size, "tokenizer.target_vocab_size: a parser takes its labels from the trees; drop it"),
            (
                not {tokenizer.normalization, tokenizer.source_normalization} <= {None, "identity"},
                f"tokenizer.normalization = {tokenizer.get_normalization('source')!r} changes words; set 'identity' or drop it",
            ),
            (any(share for _, share in self.data.noise), "data.noise would change words but not their trees; drop it"),
            (self.data.overlong_pairs == "truncate", "data.overlong_pairs = 'truncate' cuts trees; set 'drop' or 'error'"),
            (
                self.model.pointer and not self.model.append_source_eos,
                "model.pointer = true needs model.append_source_eos = true",
            ),
            (self.training.lora is not None, "training.lora is for translation; drop it"),
            (tokenizer.extra_tokens, "tokenizer.extra_tokens is for translation; drop it"),
            (tokenizer.prepend_bos, "tokenizer.prepend_bos is for translation; drop it"),
            (tokenizer.source_prefix, "tokenizer.source_prefix is for translation; drop it"),
            (problem := self.decoding.find_parsing_problem(), f"decoding.{problem}"),
        ):
            if is_invalid:
                raise ValueError(message)


def _format_pairs(pairs: Sequence[LanguagePair]) -> str:
    return ", ".join(f"{source or '?'} → {target or '?'}" for source, target in pairs)


def find_builtin_recipe(name: str) -> Path | None:
    """Return the file of a recipe of this package, or None if no recipe has this name."""
    return list_builtin_recipes().get(name)


def list_builtin_recipes() -> dict[str, Path]:
    """Return the files of the recipes of this package by name."""
    return {path.stem: path for path in sorted((Path(__file__).parents[1] / "recipes").glob("*.toml"))}


def read_recipe(path: Path, overrides: Sequence[str] = (), *, defaults: Mapping[str, Any] | None = None) -> Recipe:
    """Read a TOML recipe file. A bare name such as multi30k-ende reads a recipe of this package.

    defaults: size and sections that win over preset and size, and over which the file wins

    Raises RecipeError, which names file, key, given value and limit.
    """
    text = read_recipe_text(path)
    return make_recipe(parse_toml(text, where=str(path)), overrides, where=str(path), defaults=defaults)


def read_recipe_text(path: Path) -> str:
    """Return the TOML text of a recipe file, or of a recipe of this package. Raises RecipeError if it cannot be read."""
    if path.name == str(path) and not path.exists() and (builtin_path := find_builtin_recipe(path.name)) is not None:
        return builtin_path.read_text(encoding="utf-8")
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        from difflib import get_close_matches

        if files := [file for file in (path.with_name(f"{path.name}.toml"), path.with_suffix(".toml")) if file.is_file()]:
            hint = f"did you mean {files[0]}?"
        elif matches := get_close_matches(str(path), names := _list_recipe_names(path.parent), n=1, cutoff=0.8):
            hint = f"did you mean {names[matches[0]]}?"
        elif path.name == str(path):
            hint = f"the package has {', '.join(list_builtin_recipes())}"
        else:
            hint = "check its name and its folder"
        raise RecipeError(f"{path}: there is no such recipe; {hint}", code="recipe-not-found") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise RecipeError(
            f"{path}, line {line}: not UTF-8 (byte 0x{error.object[error.start]:02x}); save the file as UTF-8",
            code="recipe-syntax",
        ) from None
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}; give a TOML file", code="recipe-not-found") from None


def _list_recipe_names(folder: Path) -> dict[str, str]:
    """Return what a user may call a recipe of the package or of a folder → its name."""
    files = {str(name): str(file) for file in folder.glob("*.toml") for name in (file, file.with_suffix(""))}
    return {name: name for name in list_builtin_recipes()} | files


def parse_toml(text: str, *, where: str) -> dict[str, Any]:
    """Return the tables of a TOML text. Raises RecipeError, which names the line."""
    import tomllib  # the recipe of a bundle is JSON

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problem, _, position = str(error).removesuffix(")").rpartition(" (at ")
        raise RecipeError(
            f"{where}, {position}: not TOML: {problem}; write key = value on each line, and texts in quotes",
            code="recipe-syntax",
        ) from None
    except (ValueError, RecursionError):  # a number of thousands of digits, or thousands of brackets
        raise RecipeError(
            f"{where}: not a recipe: a number too long to read, or values nested too deep", code="recipe-syntax"
        ) from None


def make_recipe(
    document: Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    where: str = "recipe",
    defaults: Mapping[str, Any] | None = None,
) -> Recipe:
    """Return the recipe of preset, size, document and `section.key=value` overrides. A later layer wins over an earlier one.

    With training.init_from, the sections of that bundle come before the document, and the size is the bundle's.

    defaults: size and sections that come between the size and the bundle

    Raises RecipeError, and BundleError if the bundle cannot be read.
    """
    settings: dict[str, Any] = {}
    _merge_into(settings, document)
    for override in overrides:
        _apply_override(settings, override)
    merged: dict[str, Any] = {}
    _merge_into(merged, PRESETS[_read_choice(settings, "preset", "paper", PRESETS, where)])
    defaults = defaults or {}
    _merge_into(merged, SIZES[_read_choice(settings, "size", defaults.get("size", "base"), SIZES, where)])
    _merge_into(merged, defaults)
    initial = _drop_retired_keys(read_initial_recipe(settings, default_run=Recipe.model_fields["run"].default))
    if initial is not None:
        check_structure(settings, initial, where)
        _merge_into(merged, inherit_sections(initial))
    _merge_into(merged, settings)
    if initial is not None:
        for key in TOKENIZER_FILE_KEYS:
            merged["tokenizer"].pop(key, None)
        if (extra_tokens := merge_extra_tokens(settings, initial, where)) is not None:
            merged["tokenizer"]["extra_tokens"] = extra_tokens
    return validate_section(Recipe, merged, where)


def recipe_from_dict(document: Mapping[str, Any], *, where: str) -> Recipe:
    """Return the recipe of a document that holds every value, as bundles and checkpoints store it."""
    return validate_section(Recipe, _drop_retired_keys(document), where)


def _drop_retired_keys(document: object) -> Any:
    """Return a stored recipe without the keys that older versions wrote and that select nothing now."""
    if not isinstance(document, Mapping):
        return document  # the validation names the fault
    return {
        name: {key: value for key, value in section.items() if key not in RETIRED_KEYS.get(name, ())}
        if isinstance(section, Mapping)
        else section
        for name, section in document.items()
    }


def update_section(section: SectionT, changes: Mapping[str, Any], *, where: str) -> SectionT:
    """Return the section with changed values. Raises RecipeError for an unknown key or an impossible value."""
    return validate_section(type(section), {**section.model_dump(), **changes}, where)


def _read_choice(settings: Mapping[str, Any], key: str, default: str, allowed: Mapping[str, Any], where: str) -> str:
    name = settings.get(key, default)
    if not isinstance(name, str) or name not in allowed:
        raise RecipeError(
            f"{where}: {key} = {format_value(name)} is unknown; one of: {', '.join(allowed)}{suggest_name(name, allowed)}",
            code="unknown-key",
        )
    return name


def _merge_into(target: dict[str, Any], updates: Mapping[str, Any], depth: int = 8) -> None:
    """Merge sections down to a depth below which no recipe has keys, so that a hostile one does not exhaust the stack."""
    for key, value in updates.items():
        if isinstance(value, Mapping) and depth:
            target[key] = target[key] if isinstance(target.get(key), dict) else {}
            _merge_into(target[key], value, depth - 1)
        else:
            target[key] = value


def flatten_settings(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each dotted key of a recipe document, such as `training.max_steps`, with its value."""
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from flatten_settings(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def parse_setting(text: str) -> tuple[str, Any]:
    """Return key and value of `key=value`. The value is TOML; if it is not valid TOML, it is text."""
    key, separator, value = text.partition("=")
    if not separator or not all(part.strip() for part in key.split(".")):
        raise RecipeError(
            f"{format_value(text)} is not a setting: write key=value, such as training.max_steps=1000", code="recipe-syntax"
        )
    import tomllib

    try:
        parsed = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):
        parsed = {}
    return key.strip(), parsed["value"] if parsed.keys() == {"value"} else value.strip()


def _apply_override(document: dict[str, Any], text: str) -> None:
    """Set the value of an override such as `training.max_steps=10` in the document."""
    key, value = parse_setting(text)
    *sections, option = key.split(".")
    for name in sections:
        document = document.setdefault(name, {})
        if not isinstance(document, dict):
            raise RecipeError(f"{format_value(text)}: {name} is a value, not a section", code="recipe-syntax")
    document[option] = value
