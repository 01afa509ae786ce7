"""A model on disk: one sealed folder that training writes and everything else reads.

    config.json          the whole recipe, the sizes of the vocabularies, and the story of the training
    weights.safetensors  each parameter once, under the name of the first place that uses it; a parser's tables of words
    source.model         SentencePiece model of the source; of both sides where they are joint
    target.model         that of the target, where it is another; labels.json for a parser
    manifest.json        size and SHA-256 of each file

Loading parses JSON and tensors; nothing in a bundle is ever executed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from dragoman.config import Recipe, recipe_from_dict
from dragoman.data.tokenization.sentencepiece import SentencePieceTokenizer
from dragoman.data.tokenization.tokenizer import PairTokenizer, read_tokenizer, write_tokenizer
from dragoman.errors import BundleError, OutputError, RecipeError
from dragoman.io.safetensors import MappedTensors, save_tensors
from dragoman.io.storage import atomic_dir, describe_write_error, verify_checksums
from dragoman.model.factory import assemble_model
from dragoman.model.transformer import Transformer

CONFIG_FILE, WEIGHTS_FILE = "config.json", "weights.safetensors"
OUTPUT_WEIGHT = "output"
CHECK_CHUNK_SIZE = 2**22
"""Numbers that are looked through at once."""


@dataclass(frozen=True)
class Bundle:
    """A model with all that belongs to it. `story` tells what it was trained on and how, as JSON.

    forget: gives the memory back that reading the weights has filled, where they stand on disk; called for again, they are
        read again
    """

    recipe: Recipe
    tokenizer: PairTokenizer
    model: Transformer
    metadata: dict[str, Any]
    release: Callable[[], None] = lambda: None


def collect_weights(model: nn.Module) -> dict[str, Tensor]:
    """Each parameter and each table that is part of the model's state once, by name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()} | collect_buffers(model)


def collect_buffers(model: nn.Module) -> dict[str, Tensor]:
    """What is part of a model's state and not learnt by gradients."""
    state_names = model.state_dict().keys()
    return {name: table for name, table in model.named_buffers() if name in state_names}


def load_weights(
    model: nn.Module, weights: Mapping[str, Tensor], *, location: Path, release: Callable[[], None] = lambda: None
) -> None:
    """Give the model these weights, shared ones shared as before. Raises BundleError where names or shapes differ.

    A weight that is NaN or infinite is refused as well: every translation would be silent nonsense.

    forget: called whenever weights were looked through
    """
    buffers = collect_buffers(model)
    expected = dict(model.named_parameters()) | buffers
    if missing := sorted(expected.keys() - weights.keys()):
        raise BundleError(f"{location}: weight {missing[0]} of the model that the config describes is missing")
    if extra := sorted(weights.keys() - expected.keys()):
        raise BundleError(f"{location}: weight {extra[0]!r} does not belong to the model that the config describes")
    for name, parameter in expected.items():
        if parameter.shape != weights[name].shape:
            raise BundleError(
                f"{location}: {name} has shape {tuple(weights[name].shape)}, but the config describes {tuple(parameter.shape)}"
            )
        if not weights[name].is_floating_point() or not _is_finite(weights[name], release):
            raise BundleError(f"{location}: {name} holds values that are not finite numbers; a model cannot compute with them")
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


def _is_finite(weight: Tensor, release: Callable[[], None]) -> bool:
    """Without a copy of a matrix that may be most of the model: a NaN is its own least and greatest."""
    for chunk in torch.split(weight.flatten(), CHECK_CHUNK_SIZE):
        if not all(bool(extreme.isfinite()) for extreme in chunk.aminmax()):
            return False
        release()
    return True


def average_weights(weight_sets: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several models' weights, summed in float64. All must have the same names and shapes."""
    return {
        name: torch.stack([weights[name].double() for weights in weight_sets]).mean(dim=0).to(tensor.dtype)
        for name, tensor in weight_sets[0].items()
    }


def save_bundle(
    path: Path,
    *,
    recipe: Recipe,
    tokenizer: PairTokenizer,
    weights: Mapping[str, Tensor],
    metadata: Mapping[str, Any],
    overwrite: bool = False,
) -> None:
    """Write a bundle, whole or not at all. Raises OutputError where it exists or the disk is full.

    With `overwrite`, in the place of another bundle, and of nothing else.
    """
    if overwrite:
        _check_replaceable(path)
    config = {
        "recipe": recipe.model_dump(mode="json"),
        "vocabulary": {"source": len(tokenizer.source), "target": len(tokenizer.target)},
        "story": dict(metadata),
    }
    size = sum(weight.numel() * weight.element_size() for weight in weights.values())
    digests: dict[str, str] = {}
    with atomic_dir(path, overwrite=overwrite, size=size, written=digests) as folder:
        (folder / CONFIG_FILE).write_text(json.dumps(config, indent=1, ensure_ascii=False), encoding="utf-8")
        digests[WEIGHTS_FILE] = save_tensors(folder / WEIGHTS_FILE, weights)
        write_tokenizer(folder, tokenizer)


def _check_replaceable(path: Path) -> None:
    try:
        names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    except OSError as error:
        raise OutputError(describe_write_error(path, error)) from None
    if any(not name.startswith(".") for name in names) and not names & {CONFIG_FILE, WEIGHTS_FILE}:
        raise OutputError(f"{path}: holds no bundle, and is left as it is; give another name")


def check_bundle(path: Path) -> None:
    """Raise BundleError where a file of the bundle is missing, cut or changed, or where `path` is the run around it."""
    if (path / "bundle").is_dir() and not (path / CONFIG_FILE).exists():
        raise BundleError(f"{path}: is a run folder; its model is {path / 'bundle'}")
    verify_checksums(path, BundleError)


def load_bundle(path: Path) -> Bundle:
    """Read a bundle after checking every digest. Raises BundleError naming the file that is missing, cut or changed."""
    check_bundle(path)
    return read_bundle(path)


def read_bundle(path: Path) -> Bundle:
    """Read a bundle whose digests have been checked."""
    recipe, vocabulary, metadata = read_config(path)
    tokenizer = read_tokenizer(path, recipe.tokenizer, append_source_eos=recipe.model.append_source_eos)
    if (recipe.task.kind == "translation") != isinstance(tokenizer.target, SentencePieceTokenizer):
        raise BundleError(
            f"{path / CONFIG_FILE}: task.kind = {recipe.task.kind!r}, but the target's vocabulary is another task's"
        )
    if vocabulary != (pieces := (len(tokenizer.source), len(tokenizer.target))):
        raise BundleError(f"{path / CONFIG_FILE}: names {vocabulary} pieces, but the subword models have {pieces}")
    try:
        weights = MappedTensors(path / WEIGHTS_FILE)
    except (SafetensorError, OSError) as error:
        raise BundleError(f"{path / WEIGHTS_FILE}: cannot be read: {error}") from None
    model = _build_meta_model(recipe, vocabulary, weights, location=path / CONFIG_FILE)
    load_weights(model, weights, location=path / WEIGHTS_FILE, release=weights.release)
    return Bundle(recipe, tokenizer, model.eval(), metadata, weights.release)


def _build_meta_model(
    recipe: Recipe, vocabulary: tuple[int, int], weights: Mapping[str, Tensor], *, location: Path
) -> Transformer:
    """The model that a config describes. It may name any size, so the weights must bear it out before anything is made."""
    config = recipe.model
    output = tuple(weights[OUTPUT_WEIGHT].shape) if OUTPUT_WEIGHT in weights else ()
    layers = config.encoder_layers + config.decoder_layers
    if output != (vocabulary[1], config.d_model) or layers > len(weights):
        raise BundleError(
            f"{location}: describes {layers} layers and an output matrix of {(vocabulary[1], config.d_model)}, but {WEIGHTS_FILE} "
            f"holds {len(weights)} tensors and an output matrix of {output}"
        )
    try:
        with torch.device("meta"):
            sizes = dict(zip(("source_vocabulary", "target_vocabulary"), vocabulary, strict=True))
            return assemble_model(config, **sizes | _get_parser_options(recipe))
    except (RuntimeError, OverflowError, TypeError) as error:
        raise BundleError(f"{location}: describes a model of impossible sizes: {str(error).splitlines()[0]}") from None


def _get_parser_options(recipe: Recipe) -> dict[str, Any]:
    """What the model has beside a translator's parts."""
    if recipe.task.kind == "translation":
        return {}
    from dragoman.tasks.parsing import parser_options  # only here, since who translates need not wait for it

    return parser_options(recipe)


def read_config(path: Path) -> tuple[Recipe, tuple[int, int], dict[str, Any]]:
    """Recipe, vocabulary sizes and story, without the weights."""
    try:
        config = json.loads((path / CONFIG_FILE).read_bytes())
        vocabulary = int(config["vocabulary"]["source"]), int(config["vocabulary"]["target"])
        metadata = dict(config["story"])
        return recipe_from_dict(config["recipe"], where=str(path / CONFIG_FILE)), vocabulary, metadata
    except RecipeError as error:
        raise BundleError(str(error)) from None
    except OSError as error:
        raise BundleError(f"{path / CONFIG_FILE}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise BundleError(f"{path / CONFIG_FILE}: is not the config of a bundle: {type(error).__name__}: {error}") from None
