"""Model on disk: one folder with checksums, which training writes and inference reads.

    config.json          the whole recipe, the vocabulary sizes, and the metadata of the training
    weights.safetensors  each parameter once, under its first name, as floating-point numbers or int8; a parser's word tables
    source.model         SentencePiece model of the source, or of both sides if they share it
    target.model         SentencePiece model of the target, if it is separate; labels.json for a parser
    manifest.json        size and SHA-256 of each file

Loading parses JSON and tensors; it never executes anything from a bundle.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from safetensors import SafetensorError
from torch import Tensor, nn

from dragoman.config import Recipe, recipe_from_dict
from dragoman.data.tokenization.language_tokens import LanguageTokens
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer, read_tokenizer, write_tokenizer
from dragoman.errors import BundleError, OutputError, RecipeError
from dragoman.io.int8_tensors import dequantize_matrices
from dragoman.io.mapped_file import MappedFile
from dragoman.io.safetensors import MappedTensors, TensorStream, save_tensors
from dragoman.io.storage import MANIFEST_FILE, atomic_dir, read_digests, to_write_error, verify_checksums
from dragoman.model.factory import assemble_model
from dragoman.model.transformer import Transformer
from dragoman.runtime.tensor_files import check_again, open_tensor_files
from dragoman.tasks.attention_alignment import AlignmentHead
from dragoman.tasks.confidence import ConfidenceCalibration
from dragoman.text.length_ratios import LengthRatios

CONFIG_FILE, WEIGHTS_FILE = "config.json", "weights.safetensors"
OUTPUT_WEIGHT = "output"
CHECK_CHUNK_SIZE = 2**22
RETIRED_FIELDS = ("heads", "draft")
"""Fields of the metadata that older versions wrote."""
"""Weights that are checked for finite values at once."""


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

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    format: str
    name: str
    license: str | None = None
    source_languages: list[str] | None = None
    target_languages: list[str] | None = None


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
        origin: the source of a model that `dragoman convert` wrote
        init_from: folder of the bundle that was fine-tuned
        init_digest: SHA-256 of the weights and the tokenizer of that bundle, see `compute_bundle_digest`
        interpolated_bundles: folders of the bundles whose weighted mean the weights are, with their shares
        adapter: folder of the adapter that was merged into the weights
        dragoman: version of dragoman
        torch: version of PyTorch
        finished: end of the training in UTC, in ISO 8601
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

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
        """Return the metadata of a JSON object. Raise pydantic's ValidationError if it does not fit the schema."""
        if isinstance(document, Mapping):
            document = {key: value for key, value in document.items() if key not in RETIRED_FIELDS}
        return metadata_adapter().validate_python(document)


@lru_cache(maxsize=1)
def metadata_adapter() -> TypeAdapter[BundleMetadata]:
    """Return pydantic's adapter of the metadata; `metadata_adapter().json_schema()` is its JSON schema."""
    return TypeAdapter(BundleMetadata)


@dataclass(frozen=True)
class Bundle:
    """Model with its recipe, tokenizer and metadata.

    Attributes:
        recipe: the whole recipe of the training
        tokenizer: the tokenizers of both sides
        model: the model with its weights, in evaluation mode
        metadata: the origin of the model
        release: releases the memory of the mapped weights; a later use reads their copy on disk again
    """

    recipe: Recipe
    tokenizer: PairTokenizer
    model: Transformer
    metadata: BundleMetadata = field(default_factory=BundleMetadata)
    release: Callable[[], None] = lambda: None


def collect_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return each parameter and each buffer of the model's state once, by name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()} | collect_buffers(model)


def collect_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that belong to a model's state and that gradients do not train."""
    state_names = model.state_dict().keys()
    return {name: table for name, table in model.named_buffers() if name in state_names}


def load_weights(
    model: nn.Module, weights: Mapping[str, Tensor], *, location: Path, release: Callable[[], None] = lambda: None
) -> None:
    """Set the weights of a model; weights that it shares stay shared.

    Args:
        model: the model, possibly on the meta device
        weights: a tensor for each name of `collect_weights`
        location: the file or folder that error messages name
        release: called after each chunk of weights is checked

    Raises:
        BundleError: a name or a shape differs, or a weight is not a finite number.
    """
    weights, buffers = restore_weights(weights, location=location), collect_buffers(model)
    expected = dict(model.named_parameters()) | buffers
    if missing := sorted(expected.keys() - weights.keys()):
        raise BundleError(
            f"{location}: weight {missing[0]} of the model in the config is missing; export the bundle again",
            code="bundle-mismatch",
        )
    if extra := sorted(weights.keys() - expected.keys()):
        raise BundleError(
            f"{location}: weight {extra[0]!r} does not belong to the model in the config; export the bundle again",
            code="bundle-mismatch",
        )
    for name, parameter in expected.items():
        if parameter.shape != weights[name].shape:
            raise BundleError(
                f"{location}: {name} has shape {tuple(weights[name].shape)}, but the config describes {tuple(parameter.shape)}",
                code="bundle-mismatch",
            )
        if not weights[name].is_floating_point() or not _is_finite(weights[name], release):
            raise BundleError(
                f"{location}: {name} holds values that are not finite numbers; train or average the model again",
                code="bundle-damaged",
            )
    float_weights = {name: weights[name].float() for name in expected}
    new_tensors = {
        id(tensor): float_weights[name] if name in buffers else nn.Parameter(float_weights[name])
        for name, tensor in expected.items()
    }
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            setattr(module, name, new_tensors[id(parameter)])
        for name, table in module.named_buffers(recurse=False):
            if id(table) in new_tensors:
                setattr(module, name, new_tensors[id(table)])


def restore_weights(weights: Mapping[str, Tensor], *, location: Path) -> Mapping[str, Tensor]:
    """Return weights that may be int8 as floating-point numbers. Raise BundleError if the steps of a matrix do not fit."""
    try:
        return dequantize_matrices(weights)
    except ValueError as error:
        raise BundleError(f"{location}: {error}; quantize the bundle again", code="bundle-damaged") from None


def _is_finite(weight: Tensor, release: Callable[[], None]) -> bool:
    """Return whether all values are finite, without a copy of the matrix: `aminmax` passes NaN on."""
    for chunk in torch.split(weight.flatten(), CHECK_CHUNK_SIZE):
        if not all(bool(extreme.isfinite()) for extreme in chunk.aminmax()):
            return False
        release()
    return True


def average_weights(weight_sets: Sequence[Mapping[str, Tensor]], shares: Sequence[float] | None = None) -> dict[str, Tensor]:
    """Return the mean of several models' weights, summed in float64. All models have the same names and shapes.

    shares: share of each model, which sum to 1; equal by default
    """

    def average(tensors: Sequence[Tensor]) -> Tensor:
        stacked = torch.stack([tensor.double() for tensor in tensors])
        return stacked.mean(dim=0) if shares is None else torch.tensordot(torch.tensor(shares).double(), stacked, dims=1)

    return {
        name: average([weights[name] for weights in weight_sets]).to(tensor.dtype) for name, tensor in weight_sets[0].items()
    }


def save_bundle(
    path: Path,
    *,
    recipe: Recipe,
    tokenizer: PairTokenizer,
    weights: Mapping[str, Tensor | TensorStream],
    metadata: BundleMetadata | Mapping[str, Any],
    overwrite: bool = False,
) -> None:
    """Write a bundle completely or not at all.

    Args:
        path: the folder of the new bundle
        recipe: the whole recipe of the training
        tokenizer: the tokenizers of both sides
        weights: a tensor for each name of `collect_weights`
        metadata: the origin of the model, or a mapping that fits the schema of `BundleMetadata`
        overwrite: replace another bundle; any other folder is never replaced

    Raises:
        OutputError: the path exists, or the system refuses to write.
    """
    if not isinstance(metadata, BundleMetadata):
        metadata = BundleMetadata.from_dict(metadata)
    if overwrite:
        _check_replaceable(path)
    size = sum(weight.numel() * weight.element_size() for weight in weights.values())
    digests: dict[str, str] = {}
    with atomic_dir(path, overwrite=overwrite, size=size, digests=digests) as folder:
        _write_config(folder, recipe, (len(tokenizer.source), len(tokenizer.target)), metadata)
        digests[WEIGHTS_FILE] = save_tensors(folder / WEIGHTS_FILE, weights)
        write_tokenizer(folder, tokenizer)


def replace_metadata(path: Path, metadata: BundleMetadata) -> None:
    """Write a bundle again with other metadata; all other files stay as they are.

    Raises BundleError if the bundle is damaged, and OutputError if the system refuses to write.
    """
    check_bundle(path)
    recipe, (source_size, target_size), _ = read_config(path)
    base_digests = read_digests(path, BundleError)
    names = [name for name in base_digests if name not in (CONFIG_FILE, MANIFEST_FILE)]
    digests = {name: base_digests[name] for name in names}
    size = sum((path / name).stat().st_size for name in names)
    with atomic_dir(path, overwrite=True, size=size, digests=digests) as folder:
        for name in names:
            shutil.copyfile(path / name, folder / name)
        _write_config(folder, recipe, (source_size, target_size), metadata)


def _write_config(folder: Path, recipe: Recipe, vocabulary: tuple[int, int], metadata: BundleMetadata) -> None:
    config = {
        "recipe": recipe.model_dump(mode="json"),
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


def load_bundle(path: Path) -> Bundle:
    """Return a bundle after checking every checksum. Raise BundleError if a file is missing, cut or changed."""
    return read_bundle(path, open_tensor_files(path, BundleError))


def read_bundle(path: Path, files: dict[str, MappedFile]) -> Bundle:
    """Return a bundle whose checksums have been checked. Raise BundleError if its files do not describe one model.

    files: its tensor files, which `open_tensor_files` has opened
    """
    recipe, vocabulary, metadata = read_config(path)
    tokenizer = read_tokenizer(path, recipe.tokenizer, append_source_eos=recipe.model.append_source_eos)
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
    try:
        weights = MappedTensors(files[WEIGHTS_FILE])
    except (SafetensorError, OSError, KeyError) as error:
        raise BundleError(f"{path / WEIGHTS_FILE}: cannot be read: {error}", code="bundle-damaged") from None
    model = _build_meta_model(recipe, vocabulary, weights, location=path / CONFIG_FILE)
    load_weights(model, weights, location=path / WEIGHTS_FILE, release=weights.release)
    check_again(path, BundleError, files)
    return Bundle(recipe, tokenizer, model.eval(), metadata, weights.release)


def list_language_pairs(recipe: Recipe, metadata: BundleMetadata) -> list[tuple[str, str]]:
    """Return the pairs of languages that a bundle serves: one, or several for a model of many languages; empty if unknown."""
    if metadata.language_pairs is not None or recipe.tokenizer.language_token is not None:
        return list(metadata.language_pairs or ())
    languages = recipe.task.source_language or "?", recipe.task.target_language or "?"
    return [] if set(languages) == {"?"} else [languages]


def _list_languages(metadata: BundleMetadata) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return the languages of a model of many, and the pairs that it was trained on; empty if they are not known."""
    pairs = tuple((source, target) for source, target in metadata.language_pairs or ())
    origin_languages = metadata.origin.target_languages if metadata.origin is not None else None
    return tuple(origin_languages or sorted({language for pair in pairs for language in pair if language})), pairs


def _build_meta_model(
    recipe: Recipe, vocabulary: tuple[int, int], weights: Mapping[str, Tensor], *, location: Path
) -> Transformer:
    """Return the model of a config on the meta device, after checking the sizes in the config against the weights."""
    config = recipe.model
    output = tuple(weights[OUTPUT_WEIGHT].shape) if OUTPUT_WEIGHT in weights else ()
    layers = config.encoder_layers + config.decoder_layers
    if output != (vocabulary[1], config.d_model) or layers > len(weights):
        raise BundleError(
            f"{location}: describes {layers} layers and an output matrix of {(vocabulary[1], config.d_model)}, but "
            f"{WEIGHTS_FILE} holds {len(weights)} tensors and an output matrix of {output}; copy the bundle again",
            code="bundle-mismatch",
        )
    try:
        with torch.device("meta"):
            sizes = dict(zip(("source_vocab_size", "target_vocab_size"), vocabulary, strict=True))
            return assemble_model(config, **sizes | _get_parser_options(recipe))
    except (RuntimeError, OverflowError, TypeError) as error:
        raise BundleError(
            f"{location}: describes a model of impossible sizes: {str(error).splitlines()[0]}", code="bundle-mismatch"
        ) from None


def _get_parser_options(recipe: Recipe) -> dict[str, Any]:
    """Return the options of `assemble_model` that only a parser has."""
    if recipe.task.has_text_target:
        return {}
    from dragoman.tasks.parsing import parser_options  # imported late, because translation does not need it

    return parser_options(recipe)


def read_config(path: Path) -> tuple[Recipe, tuple[int, int], BundleMetadata]:
    """Return the recipe, the vocabulary sizes of source and target, and the metadata. Raise BundleError if damaged."""
    try:
        config = json.loads((path / CONFIG_FILE).read_bytes())
        vocabulary = int(config["vocabulary"]["source"]), int(config["vocabulary"]["target"])
        metadata = BundleMetadata.from_dict(config["metadata"])
        return recipe_from_dict(config["recipe"], where=str(path / CONFIG_FILE)), vocabulary, metadata
    except RecipeError as error:
        raise BundleError(str(error), code="bundle-damaged") from None
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, ("metadata", *problem["loc"])))
        raise BundleError(
            f"{path / CONFIG_FILE}: {key}: {problem['msg']}; copy the bundle again", code="bundle-damaged"
        ) from None
    except OSError as error:
        raise BundleError(f"{path / CONFIG_FILE}: cannot be read: {error.strerror}", code="bundle-damaged") from None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise BundleError(
            f"{path / CONFIG_FILE}: is not the config of a bundle: {type(error).__name__}: {error}; copy the bundle again",
            code="bundle-damaged",
        ) from None
