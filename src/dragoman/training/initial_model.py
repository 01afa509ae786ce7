"""Start of a fine-tuning run: the copy of the initial bundle in the run folder, and the weights that are made of it.

    runs/NAME/initial/            the initial bundle
    runs/NAME/initial-optimizer/  with training.init_optimizer = "keep": the optimizer's state of the bundle's run

The run reads the copies only, so it resumes without the bundle. It refuses another bundle at the same path.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor, nn

from dragoman.bundle import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    BundleMetadata,
    check_bundle,
    compute_bundle_digest,
    read_config,
)
from dragoman.config import INITIAL_DIR, TrainingConfig
from dragoman.config.section_validation import suggest_or_list_names
from dragoman.data.tokenization.special_tokens import SPECIAL_IDS
from dragoman.errors import BundleError, RecipeError, RunError
from dragoman.io.mapped_file import MappedFile
from dragoman.io.safetensors import StoredArrays
from dragoman.io.storage import MANIFEST_FILE, atomic_dir, verify_checksums
from dragoman.model.lora import add_adapters, find_linears
from dragoman.model.transformer import Transformer
from dragoman.model.weights import load_weights
from dragoman.model_packages import resolve_model
from dragoman.model_weights import restore_arrays
from dragoman.training.checkpoints.checkpoint import OPTIMIZER_FILE, load_tensors, read_all_checkpoints

OPTIMIZER_DIR = "initial-optimizer"
VOCABULARY_WEIGHTS = ("encoder.embedding.weight", "decoder.embedding.weight", "output", "output_bias")
"""Parameters with a row for each piece; shared matrices have the first of these names."""
NEW_ROW_NOISE = 0.01
"""Noise on the rows of new tokens, relative to the standard deviation of the existing rows in each dimension."""


def copy_initial_bundle(run: Path, training: TrainingConfig, *, has_checkpoint: bool, notify: Callable[[str], None]) -> None:
    """Copy the bundle that `training.init_from` names into the run folder, unless its copy is there already.

    has_checkpoint: the run resumes, so the copy must stay

    Raises RunError if the run was started from another bundle, and BundleError if there is neither a bundle nor a copy.
    """
    if training.init_from is None:
        return
    source, copy = resolve_model(training.init_from), run / INITIAL_DIR
    if has_checkpoint:
        _check_same_bundle(source, copy)
        return
    if not (source / CONFIG_FILE).exists() and copy.exists():
        check_bundle(copy)
        return
    check_bundle(source)
    if training.init_optimizer == "keep":
        _copy_optimizer_state(source, run / OPTIMIZER_DIR)
    if _is_intact_copy(source, copy):
        return
    notify(f"copying the initial bundle {source} to {copy}")
    _copy_dir(source, copy, [path.name for path in source.iterdir() if not path.name.startswith(".")])


def _check_same_bundle(source: Path, copy: Path) -> None:
    verify_checksums(copy, RunError)
    if (source / CONFIG_FILE).exists() and compute_bundle_digest(source) != compute_bundle_digest(copy):
        raise RunError(
            f"{copy.parent}: was started from another bundle than {source} holds now; restore the bundle or move it away, or "
            "start in another folder with run=FOLDER",
            code="recipe-changed",
        )


def _is_intact_copy(source: Path, copy: Path) -> bool:
    try:
        check_bundle(copy)
    except BundleError:
        return False
    return (source / MANIFEST_FILE).read_bytes() == (copy / MANIFEST_FILE).read_bytes()


def _copy_optimizer_state(bundle: Path, copy: Path) -> None:
    """Copy the optimizer's state of the newest checkpoint of the run that wrote the bundle."""
    checkpoints = read_all_checkpoints(bundle.parent / "checkpoints")
    if not checkpoints:
        raise RunError(
            f"training.init_optimizer = 'keep': {bundle.parent} holds no checkpoint with the moments of this bundle; give the "
            "bundle in its run folder, or set 'fresh'",
            code="checkpoint-not-found",
        )
    verify_checksums(checkpoints[-1].path, RunError)
    _copy_dir(checkpoints[-1].path, copy, [OPTIMIZER_FILE])


def _copy_dir(source: Path, copy: Path, names: Sequence[str]) -> None:
    """Copy these files, except for the manifest, which is made anew and replaces an older copy."""
    paths = [source / name for name in names if name != MANIFEST_FILE]
    with atomic_dir(copy, overwrite=True, size=sum(path.stat().st_size for path in paths)) as folder:
        for path in paths:
            shutil.copyfile(path, folder / path.name)


def load_initial_weights(model: Transformer, run: str, training: TrainingConfig) -> None:
    """Load the weights of the initial bundle's copy; tokens that the bundle does not have get new rows.

    Low-rank adapters keep their own initial values. Raises BundleError if a shape does not fit.
    """
    path = Path(run) / INITIAL_DIR / WEIGHTS_FILE
    weights = dict(restore_arrays(StoredArrays(MappedFile.map(path)), location=path))
    parameters = dict(model.named_parameters())
    generator = torch.Generator().manual_seed(training.seed)
    for name in VOCABULARY_WEIGHTS:
        if name in parameters and name in weights and len(parameters[name]) > len(weights[name]):
            rows = torch.from_numpy(weights[name])
            weights[name] = extend_rows(rows, len(parameters[name]), generator).numpy()
    adapters = {name: parameter.detach().numpy() for name, parameter in parameters.items() if ".lora_" in name}
    load_weights(model, weights | adapters, location=path)


def extend_rows(rows: Tensor, num_rows: int, generator: torch.Generator) -> Tensor:
    """Return the rows, and new ones: the mean of those of ordinary tokens plus a little noise, as Hewitt 2021 proposes.

    The source is "Initializing new word embeddings for pretrained language models". With the mean, the probabilities of the
    existing tokens hardly change, whereas a random row may have a large logit. The noise makes new tokens differ.
    """
    known = rows[len(SPECIAL_IDS) :]
    noise = torch.randn(num_rows - len(rows), *rows.shape[1:], generator=generator)
    return torch.cat([rows, known.mean(dim=0) + NEW_ROW_NOISE * known.std(dim=0) * noise])


def add_recipe_adapters(model: Transformer, training: TrainingConfig) -> None:
    """Add the low-rank adapters of `training.lora`. Raise RecipeError for a pattern that matches no linear layer."""
    lora = training.lora
    if lora is None:
        return
    for pattern in lora.targets:
        if not find_linears(model, [pattern]):
            raise _no_match_error("training.lora.targets", pattern, "linear layer", find_linears(model, ["*"]))
    names = find_linears(model, lora.targets)
    add_adapters(model, names, rank=lora.rank, alpha=lora.alpha, seed=training.seed)


def freeze_parameters(model: nn.Module, training: TrainingConfig) -> None:
    """Turn off the gradients of the parameters in `training.freeze`, or of all but the low-rank adapters.

    Raises RecipeError for a pattern that matches no parameter, and if no parameter is left to train.
    """
    parameters, patterns = dict(model.named_parameters()), training.freeze
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in parameters):
            raise _no_match_error("training.freeze", pattern, "parameter", list(parameters))
    for name, parameter in parameters.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns) or (training.lora and ".lora_" not in name):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise RecipeError(f"training.freeze = {patterns}: matches every parameter, so nothing is left to train; drop a pattern")


def _no_match_error(key: str, pattern: str, noun: str, names: Sequence[str]) -> RecipeError:
    parts_by_name = [name.split(".") for name in names]
    prefixes = dict.fromkeys(".".join(parts[:depth]) + ".*" for parts in parts_by_name for depth in range(1, len(parts)))
    hint = suggest_or_list_names(pattern, [*prefixes, *names])
    return RecipeError(f"{key}: {pattern!r} matches no {noun} of the model{hint}", code="invalid-option")


def read_initial_optimizer(model: nn.Module, run: str) -> dict[str, Tensor]:
    """Return the optimizer's state of the bundle's run, for the parameters that are trained.

    New rows of the vocabulary have zeros. Raises RunError if the state does not fit the model.
    """
    path = Path(run) / OPTIMIZER_DIR / OPTIMIZER_FILE
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    state: dict[str, Tensor] = {}
    for key, value in load_tensors(path).items():
        name, _, state_key = key.rpartition("/")
        if name not in parameters:
            continue
        shape = parameters[name].shape
        if state_key != "step" and name in VOCABULARY_WEIGHTS and len(value) < shape[0]:
            value = torch.cat([value, value.new_zeros(shape[0] - len(value), *value.shape[1:])])
        if state_key != "step" and value.shape != shape:
            raise _optimizer_mismatch(path, name)
        state[key] = value
    if missing := sorted(parameters.keys() - {key.rpartition("/")[0] for key in state}):
        raise _optimizer_mismatch(path, missing[0])
    return state


def _optimizer_mismatch(path: Path, name: str) -> RunError:
    return RunError(
        f"{path}: the moments of the bundle's run do not fit {name}; set training.init_optimizer = 'fresh'",
        code="checkpoint-damaged",
    )


def add_initial_bundle(metadata: BundleMetadata, training: TrainingConfig, run: Path) -> BundleMetadata:
    """Return the metadata with the name and the digest of the initial bundle, if the run has one.

    A model of many languages also serves the pairs of the initial bundle.
    """
    if training.init_from is None:
        return metadata
    pairs = metadata.language_pairs
    if pairs is not None:
        _, _, initial_metadata = read_config(run / INITIAL_DIR)
        pairs = list(dict.fromkeys([*(initial_metadata.language_pairs or ()), *pairs]))
    return replace(
        metadata,
        language_pairs=pairs,
        init_from=training.init_from,
        init_digest=compute_bundle_digest(run / INITIAL_DIR),
    )
