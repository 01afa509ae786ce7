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
from dragoman.data.tokenization.sentencepiece import Subword
from dragoman.data.tokenization.tokenizer import Tokeniser, read_tokeniser, write_tokeniser
from dragoman.errors import BundleError, OutputError, RecipeError
from dragoman.io.safetensors import MappedTensors, save_tensors
from dragoman.io.storage import cannot_write, check_seal, sealed_folder
from dragoman.model.factory import assemble_model
from dragoman.model.transformer import Transformer

CONFIG, WEIGHTS = "config.json", "weights.safetensors"
OUTPUT = "output"
LOOKED_AT = 2**22
"""Numbers that are looked through at once."""


@dataclass(frozen=True)
class Bundle:
    """A model with all that belongs to it. `story` tells what it was trained on and how, as JSON.

    forget: gives the memory back that reading the weights has filled, where they stand on disk; called for again, they are
        read again
    """

    recipe: Recipe
    tokeniser: Tokeniser
    model: Transformer
    story: dict[str, Any]
    forget: Callable[[], None] = lambda: None


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Each parameter and each table that is part of the model's state once, by name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()} | tables_of(model)


def tables_of(model: nn.Module) -> dict[str, Tensor]:
    """What is part of a model's state and not learnt by gradients."""
    kept = model.state_dict().keys()
    return {name: table for name, table in model.named_buffers() if name in kept}


def put_weights(
    model: nn.Module, weights: Mapping[str, Tensor], *, where: Path, forget: Callable[[], None] = lambda: None
) -> None:
    """Give the model these weights, shared ones shared as before. Raises BundleError where names or shapes differ.

    A weight that is NaN or infinite is refused as well: every translation would be silent nonsense.

    forget: called whenever weights were looked through
    """
    tables = tables_of(model)
    wanted = dict(model.named_parameters()) | tables
    if missing := sorted(wanted.keys() - weights.keys()):
        raise BundleError(f"{where}: weight {missing[0]} of the model that the config describes is missing")
    if added := sorted(weights.keys() - wanted.keys()):
        raise BundleError(f"{where}: weight {added[0]!r} does not belong to the model that the config describes")
    for name, parameter in wanted.items():
        if parameter.shape != weights[name].shape:
            raise BundleError(
                f"{where}: {name} has shape {tuple(weights[name].shape)}, but the config describes {tuple(parameter.shape)}"
            )
        if not weights[name].is_floating_point() or not _is_finite(weights[name], forget):
            raise BundleError(f"{where}: {name} holds values that are not finite numbers; a model cannot compute with them")
    whole = {name: weights[name].float() for name in wanted}
    fresh = {id(one): whole[name] if name in tables else nn.Parameter(whole[name]) for name, one in wanted.items()}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            setattr(module, name, fresh[id(parameter)])
        for name, table in module.named_buffers(recurse=False):
            if id(table) in fresh:
                setattr(module, name, fresh[id(table)])


def _is_finite(weight: Tensor, forget: Callable[[], None]) -> bool:
    """Without a copy of a matrix that may be most of the model: a NaN is its own least and greatest."""
    for part in torch.split(weight.flatten(), LOOKED_AT):
        if not all(bool(end.isfinite()) for end in part.aminmax()):
            return False
        forget()
    return True


def mean_weights(many: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several models' weights, summed in float64. All must have the same names and shapes."""
    return {
        name: torch.stack([weights[name].double() for weights in many]).mean(dim=0).to(tensor.dtype)
        for name, tensor in many[0].items()
    }


def save_bundle(
    path: Path,
    *,
    recipe: Recipe,
    tokeniser: Tokeniser,
    weights: Mapping[str, Tensor],
    story: Mapping[str, Any],
    overwrite: bool = False,
) -> None:
    """Write a bundle, whole or not at all. Raises OutputError where it exists or the disk is full.

    With `overwrite`, in the place of another bundle, and of nothing else.
    """
    if overwrite:
        _refuse_other_folders(path)
    config = {
        "recipe": recipe.model_dump(mode="json"),
        "vocabulary": {"source": len(tokeniser.source), "target": len(tokeniser.target)},
        "story": dict(story),
    }
    size = sum(weight.numel() * weight.element_size() for weight in weights.values())
    written: dict[str, str] = {}
    with sealed_folder(path, overwrite=overwrite, size=size, written=written) as folder:
        (folder / CONFIG).write_text(json.dumps(config, indent=1, ensure_ascii=False), encoding="utf-8")
        written[WEIGHTS] = save_tensors(folder / WEIGHTS, weights)
        write_tokeniser(folder, tokeniser)


def _refuse_other_folders(path: Path) -> None:
    try:
        names = {one.name for one in path.iterdir()} if path.is_dir() else set()
    except OSError as error:
        raise OutputError(cannot_write(path, error)) from None
    if any(not name.startswith(".") for name in names) and not names & {CONFIG, WEIGHTS}:
        raise OutputError(f"{path}: holds no bundle, and is left as it is; give another name")


def check_bundle(path: Path) -> None:
    """Raise BundleError where a file of the bundle is missing, cut or changed, or where `path` is the run around it."""
    if (path / "bundle").is_dir() and not (path / CONFIG).exists():
        raise BundleError(f"{path}: is a run folder; its model is {path / 'bundle'}")
    check_seal(path, BundleError)


def load_bundle(path: Path) -> Bundle:
    """Read a bundle after checking every digest. Raises BundleError naming the file that is missing, cut or changed."""
    check_bundle(path)
    return read_bundle(path)


def read_bundle(path: Path) -> Bundle:
    """Read a bundle whose digests have been checked."""
    recipe, vocabulary, story = read_config(path)
    tokeniser = read_tokeniser(path, recipe.tokenizer, append_source_eos=recipe.model.append_source_eos)
    if (recipe.task.kind == "translation") != isinstance(tokeniser.target, Subword):
        raise BundleError(f"{path / CONFIG}: task.kind = {recipe.task.kind!r}, but the target's vocabulary is another task's")
    if vocabulary != (pieces := (len(tokeniser.source), len(tokeniser.target))):
        raise BundleError(f"{path / CONFIG}: names {vocabulary} pieces, but the subword models have {pieces}")
    try:
        weights = MappedTensors(path / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise BundleError(f"{path / WEIGHTS}: cannot be read: {error}") from None
    model = _model_without_memory(recipe, vocabulary, weights, where=path / CONFIG)
    put_weights(model, weights, where=path / WEIGHTS, forget=weights.forget)
    return Bundle(recipe, tokeniser, model.eval(), story, weights.forget)


def _model_without_memory(
    recipe: Recipe, vocabulary: tuple[int, int], weights: Mapping[str, Tensor], *, where: Path
) -> Transformer:
    """The model that a config describes. It may name any size, so the weights must bear it out before anything is made."""
    config = recipe.model
    output = tuple(weights[OUTPUT].shape) if OUTPUT in weights else ()
    layers = config.encoder_layers + config.decoder_layers
    if output != (vocabulary[1], config.d_model) or layers > len(weights):
        raise BundleError(
            f"{where}: describes {layers} layers and an output matrix of {(vocabulary[1], config.d_model)}, but {WEIGHTS} "
            f"holds {len(weights)} tensors and an output matrix of {output}"
        )
    try:
        with torch.device("meta"):
            sizes = dict(zip(("source_vocabulary", "target_vocabulary"), vocabulary, strict=True))
            return assemble_model(config, **sizes | _parts_of(recipe))
    except (RuntimeError, OverflowError, TypeError) as error:
        raise BundleError(f"{where}: describes a model of impossible sizes: {str(error).splitlines()[0]}") from None


def _parts_of(recipe: Recipe) -> dict[str, Any]:
    """What the model has beside a translator's parts."""
    if recipe.task.kind == "translation":
        return {}
    from dragoman.tasks.parsing import parser_parts  # only here, since who translates need not wait for it

    return parser_parts(recipe)


def read_config(path: Path) -> tuple[Recipe, tuple[int, int], dict[str, Any]]:
    """Recipe, vocabulary sizes and story, without the weights."""
    try:
        config = json.loads((path / CONFIG).read_bytes())
        vocabulary = int(config["vocabulary"]["source"]), int(config["vocabulary"]["target"])
        story = dict(config["story"])
        return recipe_from_dict(config["recipe"], where=str(path / CONFIG)), vocabulary, story
    except RecipeError as error:
        raise BundleError(str(error)) from None
    except OSError as error:
        raise BundleError(f"{path / CONFIG}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise BundleError(f"{path / CONFIG}: is not the config of a bundle: {type(error).__name__}: {error}") from None
