"""Model on disk: one folder with checksums, which training writes and inference reads.

    config.json          the whole recipe, the vocabulary sizes, and the metadata of the training
    weights.safetensors  each parameter once, under its first name, as floating-point numbers or int8; a parser's word tables
    source.model         SentencePiece model of the source, or of both sides if they share it
    target.model         SentencePiece model of the target, if it is separate; labels.json for a parser
    manifest.json        size, CRC-32 and SHA-256 of each file

Loading parses JSON and tensors; it never executes anything from a bundle.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from dragoman.config import ModelConfig, Recipe, TaskConfig, TokenizerConfig, recipe_from_dict
from dragoman.config.section import read_value
from dragoman.config.section_validation import FieldError
from dragoman.data.tokenization.language_tokens import LanguageTokens
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer, read_tokenizer, write_tokenizer
from dragoman.data.tokenization.special_tokens import WORD_ID
from dragoman.errors import BundleError, OutputError, RecipeError, naming_missing_library
from dragoman.io.safetensors import StoredArrays, StoredTensor, save_tensors
from dragoman.io.storage import MANIFEST_FILE, atomic_dir, read_digests, to_write_error, verify_checksums
from dragoman.languages import have_common_texts
from dragoman.model_weights import OUTPUT, ModelWeights, check_weights, list_shapes
from dragoman.runtime.tensor_files import TensorFiles
from dragoman.tasks.attention_alignment import AlignmentHead
from dragoman.tasks.confidence import ConfidenceCalibration
from dragoman.text.length_ratios import LengthRatios

if TYPE_CHECKING:
    from dragoman.model.transformer import Transformer
    from dragoman.shortlist import Shortlist

CONFIG_FILE, WEIGHTS_FILE = "config.json", "weights.safetensors"
RETIRED_FIELDS = ("heads", "draft")
"""Fields of the metadata that older versions wrote."""


@dataclass(frozen=True, kw_only=True)
class ModelOrigin:
    """Origin of a model that another toolkit trained. A field that the source does not state is None.

    Attributes:
        format: format of the source, such as huggingface-marian
        name: name of the source: its folder, or its name and revision on a hub
        license: license of the model, as the source states it
        source_languages: language codes of the source side
        target_languages: language codes of the target side
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    format: str
    name: str
    license: str | None = None
    source_languages: list[str] | None = None
    target_languages: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class SpeechTokens:
    """Tokens that direct the transcription of speech, by their ids in the bundle (Radford et al. 2022, figure 1).

    Attributes:
        languages: token of each language code; empty for a model of one language, whose prompt has no language and no task
        tasks: token of each task: `transcribe`, and `translate` into English
        first_special: first token behind those of text
        no_timestamps: token that begins an output without timestamps
        first_timestamp: token of the start of a window; the token of every 20 ms after it follows
        no_speech: token whose probability tells that nobody speaks; None if the source has none
        previous: token before the text that precedes a window; None if the source has none
        suppressed: tokens that no output contains
        suppressed_first: tokens that no output begins with
        max_initial_timestamp: greatest number of the first timestamp, in steps of 20 ms; None for no limit
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    languages: dict[str, int]
    tasks: dict[str, int]
    first_special: int
    no_timestamps: int
    first_timestamp: int
    no_speech: int | None
    suppressed: list[int]
    suppressed_first: list[int]
    max_initial_timestamp: int | None
    previous: int | None = None


@dataclass(frozen=True, kw_only=True)
class BundleMetadata:
    """Origin of a model: its data, training and software. A field that is not known is None.

    Attributes:
        training_files: files of the training corpora
        language_pairs: pairs of languages that a model of many languages was trained on
        pairs: sentence pairs that the model was trained on
        dropped_pairs: number of pairs that preparation dropped or truncated, by reason
        parameters: number of trained parameters
        steps: optimizer steps
        epochs: passes over the training corpora
        seconds: training time in seconds, without validation and pauses
        target_tokens: target tokens of all steps, without padding
        target_tokens_per_second: mean throughput
        machine: device, precision and kernels
        flops: floating-point operations of all steps
        mfu: model FLOP/s utilization: the share of the peak FLOP/s that the steps reached
        data_wait_fraction: share of the training time that was spent waiting for batches
        skipped_steps: steps without an update, because the loss or a gradient was not finite
        infeasible_pairs: pairs of all steps that a CTC decoder could not learn, because it has too few positions for them
        averaged_checkpoints: names of the checkpoints whose mean the weights are
        paper_deviations: settings that differ from the paper, one sentence each
        alignment: attention head that alignments are read from
        confidence: calibration of the confidence of translations
        length_ratios: usual lengths of translations, for each pair of languages with enough training pairs
        speech: tokens that direct the transcription of speech
        origin: the source of a model that `dragoman convert` wrote
        init_from: folder of the bundle that was fine-tuned
        init_digest: SHA-256 of the weights and the tokenizer of that bundle, see `compute_bundle_digest`
        interpolated_bundles: folders of the bundles whose weighted mean the weights are, with their shares
        adapter: folder of the adapter that was merged into the weights
        dragoman: version of dragoman
        torch: version of PyTorch
        finished: end of the training in UTC, in ISO 8601
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    training_files: list[str] | None = None
    language_pairs: list[tuple[str, str]] | None = None
    pairs: int | None = None
    dropped_pairs: dict[str, int] | None = None
    parameters: int | None = None
    steps: int | None = None
    epochs: float | None = None
    seconds: float | None = None
    target_tokens: int | None = None
    target_tokens_per_second: int | None = None
    machine: str | None = None
    flops: float | None = None
    mfu: float | None = None
    data_wait_fraction: float | None = None
    skipped_steps: int | None = None
    infeasible_pairs: int | None = None
    averaged_checkpoints: list[str] | None = None
    paper_deviations: list[str] | None = None
    alignment: AlignmentHead | None = None
    confidence: ConfidenceCalibration | None = None
    length_ratios: list[LengthRatios] | None = None
    speech: SpeechTokens | None = None
    origin: ModelOrigin | None = None
    init_from: str | None = None
    init_digest: str | None = None
    interpolated_bundles: dict[str, float] | None = None
    adapter: str | None = None
    dragoman: str | None = None
    torch: str | None = None
    finished: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the known fields as `config.json` holds them."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, document: object) -> BundleMetadata:
        """Return the metadata of a JSON object. Raise FieldError if it does not fit the schema."""
        if isinstance(document, Mapping):
            document = {key: value for key, value in document.items() if key not in RETIRED_FIELDS}
        return read_value(cls, document)


@dataclass(frozen=True)
class Bundle:
    """Model with its recipe, tokenizer and metadata.

    Attributes:
        recipe: the whole recipe of the training
        tokenizer: the tokenizers of both sides
        arrays: the weights by name, in float32; see `dragoman.model_weights.list_shapes`
        metadata: the origin of the model
        release: releases the memory of the mapped weights; a later use reads their copy on disk again
    """

    recipe: Recipe
    tokenizer: PairTokenizer
    arrays: Mapping[str, NDArray[np.float32]]
    metadata: BundleMetadata = field(default_factory=BundleMetadata)
    release: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"<Bundle {self.recipe.label}, {self.metadata.parameters or 0:,} parameters>"

    @property
    def vocabulary_sizes(self) -> dict[str, int]:
        """Numbers of tokens of both sides, as the functions that build a model take them."""
        return {"source_vocab_size": len(self.tokenizer.source), "target_vocab_size": len(self.tokenizer.target)}

    def select_languages(
        self, source_language: str | None, target_language: str | None, *, zero_shot: bool = False
    ) -> PairTokenizer:
        """Return the tokenizers for these languages, see `PairTokenizer.select_languages`. A bilingual model has its own."""
        pair = self.recipe.task.source_language, self.recipe.task.target_language
        if self.tokenizer.languages is not None or not all(pair):
            return self.tokenizer.select_languages(source_language, target_language, zero_shot=zero_shot)
        chosen = {"source_language": source_language, "target_language": target_language}
        for (key, language), own_language in zip(chosen.items(), pair, strict=True):
            if language is not None and not have_common_texts(language, own_language):
                raise RecipeError(
                    f"decoding.{key} = {language!r}: the model translates from {pair[0]} to {pair[1]}; choose another model",
                    code="invalid-option",
                )
        return self.tokenizer

    @property
    def weights(self) -> ModelWeights | None:
        """Weights of a model that the compiled back end computes; None for an architecture that only PyTorch computes."""
        if self.recipe.model.find_torch_layers():
            return None
        word_id = None if self.recipe.task.has_text_target else WORD_ID
        return ModelWeights(self.recipe.model, self.arrays, word_id=word_id, release=self.release)

    @cached_property
    def model(self) -> Transformer:
        """Model of PyTorch in evaluation mode, which reads these arrays in place. The first access imports PyTorch."""
        with naming_missing_library(f"{self.recipe.name}: the model of PyTorch"):
            from dragoman.model.weights import restore_model
        word_id = None if self.recipe.task.has_text_target else WORD_ID
        tagging = self.recipe.task.has_tagging_head
        return restore_model(self.recipe.model, self.arrays, **self.vocabulary_sizes, word_id=word_id, tagging=tagging)


def save_bundle(
    path: Path,
    *,
    recipe: Recipe,
    tokenizer: PairTokenizer,
    weights: Mapping[str, StoredTensor],
    metadata: BundleMetadata | Mapping[str, Any],
    overwrite: bool = False,
    shortlist: Shortlist | None = None,
) -> None:
    """Write a bundle completely or not at all.

    Args:
        path: the folder of the new bundle
        recipe: the whole recipe of the training
        tokenizer: the tokenizers of both sides
        weights: an array or a tensor for each name of `list_shapes`
        metadata: the origin of the model, or a mapping that fits the schema of `BundleMetadata`
        overwrite: replace another bundle; any other folder is never replaced
        shortlist: likely target tokens, which the caller of a search may use

    Raises:
        OutputError: the path exists, or the system refuses to write.
    """
    if not isinstance(metadata, BundleMetadata):
        metadata = BundleMetadata.from_dict(metadata)
    if overwrite:
        _check_replaceable(path)
    size = sum(weight.nbytes for weight in weights.values())
    digests: dict[str, str] = {}
    with atomic_dir(path, overwrite=overwrite, size=size, digests=digests) as folder:
        _write_config(folder, recipe.model_dump(), (len(tokenizer.source), len(tokenizer.target)), metadata)
        digests[WEIGHTS_FILE] = save_tensors(folder / WEIGHTS_FILE, weights)
        if shortlist is not None:
            from dragoman.shortlist import SHORTLIST_FILE  # few bundles are written with one

            digests[SHORTLIST_FILE] = save_tensors(folder / SHORTLIST_FILE, shortlist.tables)
        write_tokenizer(folder, tokenizer)


def replace_config(path: Path, *, recipe: Recipe | None = None, metadata: BundleMetadata | None = None) -> None:
    """Write a bundle again with another recipe or other metadata; all other files stay as they are.

    Raises BundleError if the bundle is damaged, and OutputError if the system refuses to write.
    """
    check_bundle(path)
    known_recipe, (source_size, target_size), known_metadata = read_config(path)
    base_digests = read_digests(path, BundleError)
    names = [name for name in base_digests if name not in (CONFIG_FILE, MANIFEST_FILE)]
    digests = {name: base_digests[name] for name in names}
    size = sum((path / name).stat().st_size for name in names)
    settings = (recipe or known_recipe).model_dump()
    with atomic_dir(path, overwrite=True, size=size, digests=digests) as folder:
        for name in names:
            shutil.copyfile(path / name, folder / name)
        _write_config(folder, settings, (source_size, target_size), metadata or known_metadata)


def _write_config(folder: Path, recipe: Mapping[str, Any], vocabulary: tuple[int, int], metadata: BundleMetadata) -> None:
    config = {
        "recipe": recipe,
        "vocabulary": dict(zip(("source", "target"), vocabulary, strict=True)),
        "metadata": metadata.to_dict(),
    }
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=1, ensure_ascii=False), encoding="utf-8")


def _check_replaceable(path: Path) -> None:
    try:
        names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    except OSError as error:
        raise to_write_error(path, error) from None
    if any(not name.startswith(".") for name in names) and not names & {CONFIG_FILE, WEIGHTS_FILE}:
        raise OutputError(f"{path}: holds files but no bundle, so it is kept; give another name", code="not-replaceable")


def check_bundle(path: Path) -> None:
    """Raise BundleError if a file is missing, cut or changed, or if `path` is the run folder around the bundle."""
    verify_checksums(path, BundleError)


def compute_bundle_digest(path: Path) -> str:
    """Return the SHA-256 that identifies the weights and the tokenizer of a bundle, from the digests in its manifest.

    The config does not count: it changes no output. Raise BundleError if there is no bundle.
    """
    digests = read_digests(path, BundleError)
    digests = {name: digest for name, digest in digests.items() if name != CONFIG_FILE}
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def get_license(stated: str | None, metadata: BundleMetadata) -> str | None:
    """Return the license of the weights that the recipe's card states, or that of the source of a converted model."""
    return stated or (metadata.origin.license if metadata.origin else None)


def load_bundle(path: Path) -> Bundle:
    """Return a bundle after checking every checksum. Raise BundleError if a file is missing, cut or changed."""
    with TensorFiles(path, BundleError) as files:
        return read_bundle(path, files)


def read_bundle(path: Path, files: TensorFiles) -> Bundle:
    """Return a bundle whose checksums the caller checks. Raise BundleError if its files do not describe one model.

    files: its tensor files
    """
    recipe, vocabulary, metadata = read_config(path)
    tokenizer = read_tokenizer(path, recipe.tokenizer, append_source_eos=recipe.model.append_source_eos)
    tokenizer = tokenizer.replace(source_prefix=recipe.tokenizer.source_prefix)
    if recipe.tokenizer.language_token is not None:
        tokenizer = tokenizer.with_languages(
            LanguageTokens(
                recipe.tokenizer.language_token,
                recipe.tokenizer.language_token_placement,
                recipe.task.source_language,
                recipe.task.target_language,
                *_list_languages(metadata),
                text_may_choose=metadata.origin is not None,
            )
        )
    if recipe.task.has_text_target != tokenizer.has_text_target:
        raise BundleError(
            f"{path / CONFIG_FILE}: task.kind = {recipe.task.kind!r} does not fit the vocabulary of the target; copy the "
            "bundle again",
            code="bundle-mismatch",
        )
    if vocabulary != (pieces := (len(tokenizer.source), len(tokenizer.target))):
        raise BundleError(
            f"{path / CONFIG_FILE}: names {vocabulary} pieces, but the tokenizers have {pieces}; copy the bundle again",
            code="bundle-mismatch",
        )
    try:  # waits for the copy
        weights = StoredArrays(files[WEIGHTS_FILE])
    except (SafetensorError, OSError, KeyError) as error:
        raise BundleError(f"{path / WEIGHTS_FILE}: cannot be read: {error}", code="bundle-damaged") from None
    shapes = _list_shapes(recipe.model, recipe.task, vocabulary, weights, location=path / CONFIG_FILE)
    arrays = check_weights(weights, shapes, location=path / WEIGHTS_FILE, release=weights.release)
    return Bundle(recipe, tokenizer, arrays, metadata, weights.release)


def list_language_pairs(task: TaskConfig, tokenizer: TokenizerConfig, metadata: BundleMetadata) -> list[tuple[str, str]]:
    """Return the pairs of languages that a bundle serves: one, or several for a model of many languages; empty if unknown."""
    if metadata.language_pairs is not None or tokenizer.language_token is not None:
        return list(metadata.language_pairs or ())
    languages = task.source_language or "?", task.target_language or "?"
    return [] if set(languages) == {"?"} else [languages]


def _list_languages(metadata: BundleMetadata) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return the languages of a model of many, and the pairs that it was trained on; empty if they are not known."""
    pairs = tuple((source, target) for source, target in metadata.language_pairs or ())
    origin_languages = metadata.origin.target_languages if metadata.origin is not None else None
    return tuple(origin_languages or sorted({language for pair in pairs for language in pair if language})), pairs


def _list_shapes(
    config: ModelConfig, task: TaskConfig, vocabulary: tuple[int, int], weights: Mapping[str, NDArray[Any]], *, location: Path
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights of a config, after checking the sizes in the config against the weights."""
    output = weights[OUTPUT].shape if OUTPUT in weights else ()
    layers = config.encoder_layers + config.decoder_layers
    if output != (vocabulary[1], config.d_model) or layers > len(weights):
        raise BundleError(
            f"{location}: describes {layers} layers and an output matrix of {(vocabulary[1], config.d_model)}, but "
            f"{WEIGHTS_FILE} holds {len(weights)} tensors and an output matrix of {output}; copy the bundle again",
            code="bundle-mismatch",
        )
    if config.shares_input_embeddings and vocabulary[0] != vocabulary[1]:
        raise BundleError(
            f"{location}: shares one embedding matrix between vocabularies of {vocabulary[0]} and {vocabulary[1]} pieces; copy "
            "the bundle again",
            code="bundle-mismatch",
        )
    sizes = dict(zip(("source_vocab_size", "target_vocab_size"), vocabulary, strict=True))
    if not config.find_torch_layers():
        return list_shapes(config, **sizes, has_words=not task.has_text_target, tagging=task.has_tagging_head)
    with naming_missing_library(f"{location}: a model with {config.find_torch_layers()[0]}"):
        from dragoman.model.weights import list_model_shapes  # an architecture of PyTorch says its shapes itself
    word_id = None if task.has_text_target else WORD_ID
    try:
        return list_model_shapes(config, **sizes, word_id=word_id, tagging=task.has_tagging_head)
    except (RuntimeError, OverflowError, TypeError) as error:
        raise BundleError(
            f"{location}: describes a model of impossible sizes: {str(error).splitlines()[0]}", code="bundle-mismatch"
        ) from None


def read_config(path: Path) -> tuple[Recipe, tuple[int, int], BundleMetadata]:
    """Return the recipe, the vocabulary sizes of source and target, and the metadata.

    Raises BundleError if there is no bundle, or a damaged one.
    """
    try:
        config = json.loads((path / CONFIG_FILE).read_bytes())
        vocabulary = int(config["vocabulary"]["source"]), int(config["vocabulary"]["target"])
        metadata = BundleMetadata.from_dict(config["metadata"])
        return recipe_from_dict(config["recipe"], where=str(path / CONFIG_FILE)), vocabulary, metadata
    except RecipeError as error:
        raise BundleError(str(error), code="bundle-damaged") from None
    except FieldError as error:
        error.location = ("metadata", *error.location)
        raise BundleError(f"{path / CONFIG_FILE}: {error}; copy the bundle again", code="bundle-damaged") from None
    except OSError as error:
        read_digests(path, BundleError)  # its error says what is there instead of a bundle
        raise BundleError(f"{path / CONFIG_FILE}: cannot be read: {error.strerror}", code="bundle-damaged") from None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise BundleError(
            f"{path / CONFIG_FILE}: is not the config of a bundle: {type(error).__name__}: {error}; copy the bundle again",
            code="bundle-damaged",
        ) from None
