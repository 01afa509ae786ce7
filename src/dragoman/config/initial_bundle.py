"""Sections that a fine-tuning recipe takes over from the bundle that `training.init_from` names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dragoman.config.extension import get_extension_defaults
from dragoman.config.section_validation import format_value
from dragoman.errors import BundleError, RecipeError
from dragoman.model_packages import resolve_model

INITIAL_DIR = "initial"
"""Folder of a run that holds its copy of the initial bundle."""
BUNDLE_CONFIG_FILE = "config.json"
CHANGEABLE_KEYS = {
    "model": {
        "residual_dropout", "embedding_dropout", "attention_dropout", "activation_dropout", "initialization",
        "attention_window", "ctc_cross_attention", "max_masked_frames", "max_masked_bands",
    },
    "tokenizer": {"sampling_alpha", "train_sentences", "extra_tokens"},
    "task": {"source_language", "target_language", "tokenized", "bleu_tokenizer", "pos_loss_weight"},
}  # fmt: skip
"""Keys of each section that may differ from the bundle; all others decide the shape or the meaning of its weights."""
TOKENIZER_FILE_KEYS = (
    "model_file", "target_model_file", "codes_file", "target_codes_file", "vocab_file", "target_vocab_file",
)  # fmt: skip


def locate_initial_bundle(init_from: str, run: str) -> Path:
    """Return the folder of the initial bundle, or its copy in the run folder if the bundle is no longer there.

    init_from: folder, or name of a model
    """
    bundle, copy = resolve_model(init_from), Path(run) / INITIAL_DIR
    return copy if not (bundle / BUNDLE_CONFIG_FILE).exists() and (copy / BUNDLE_CONFIG_FILE).exists() else bundle


def read_initial_recipe(settings: Mapping[str, Any], *, default_run: str) -> dict[str, Any] | None:
    """Return the recipe of the initial bundle, or None if the settings name none.

    settings: recipe file and overrides, without preset and size
    default_run: run folder of settings without the key `run`

    Raises BundleError if there is no bundle, or its config cannot be read.
    """
    training = settings.get("training")
    init_from = training.get("init_from") if isinstance(training, Mapping) else None
    run = settings.get("run", default_run)
    if not isinstance(init_from, str) or not init_from or not isinstance(run, str):
        return None  # a wrong type is reported when the section is validated
    folder = locate_initial_bundle(init_from, run)
    path = folder / BUNDLE_CONFIG_FILE
    try:
        recipe = json.loads(path.read_bytes())["recipe"]
        return {**recipe, **{section: dict(recipe[section]) for section in ("task", "tokenizer", "model", "decoding")}}
    except (FileNotFoundError, NotADirectoryError):
        is_run_folder = (folder / "bundle" / BUNDLE_CONFIG_FILE).exists()
        hint = f"is a run folder; give {folder / 'bundle'}" if is_run_folder else "holds no bundle; give the folder of a bundle"
        raise BundleError(f"training.init_from: {folder} {hint}", code="bundle-not-found") from None
    except OSError as error:
        raise BundleError(f"training.init_from: {path}: cannot be read: {error.strerror}", code="bundle-damaged") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BundleError(
            f"training.init_from: {path}: is not the config of a bundle; copy the bundle again", code="bundle-damaged"
        ) from None


def inherit_sections(initial: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a fine-tuning recipe has by default: those of the initial bundle.

    initial: recipe of the bundle

    Of the card, only the license holds for other weights, too.

    The files that the tokenizer was made from are left out, because the tokenizer itself is taken over.
    """
    tokenizer = {key: value for key, value in initial["tokenizer"].items() if key not in TOKENIZER_FILE_KEYS}
    sections = {name: dict(initial[name]) for name in ("task", "model", "decoding")}
    license_key = {key: value for key, value in dict(initial.get("card") or {}).items() if key == "license"}
    return {"card": license_key, "size": initial.get("size", "base"), "tokenizer": tokenizer, **sections}


def check_structure(settings: Mapping[str, Any], initial: Mapping[str, Any], where: str) -> None:
    """Raise RecipeError if the recipe states another value than the initial bundle for a key that decides its weights."""
    for key, stated, value in _iter_fixed_keys(settings, initial):
        if stated != value:
            raise RecipeError(
                f"{where}: {key} = {format_value(stated)}, but the bundle in training.init_from has "
                f"{'no value' if value is None else format_value(value)}; drop the key, or train a new model without init_from",
                code="key-conflict",
            )


def _iter_fixed_keys(settings: Mapping[str, Any], initial: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield each key that the recipe states and that must not change, with its value in the recipe and in the bundle."""
    if "size" in settings:
        yield "size", settings["size"], initial.get("size", "base")
    for section, changeable_keys in CHANGEABLE_KEYS.items():
        stated = settings.get(section, {})
        # A bundle has no keys of architectures that it does not use.
        known = (get_extension_defaults("architectures") if section == "model" else {}) | initial[section]
        for key, value in stated.items() if isinstance(stated, Mapping) else ():
            if key in known and key not in changeable_keys:
                yield f"{section}.{key}", value, known[key]


def merge_extra_tokens(settings: Mapping[str, Any], initial: Mapping[str, Any], where: str) -> list[str] | None:
    """Return the extra tokens of the bundle and then those that the recipe adds; None if the recipe adds none.

    Raises RecipeError if the recipe also trains low-rank adapters, which leave the embeddings of new tokens untrained.
    """
    tokenizer, training = settings.get("tokenizer", {}), settings.get("training", {})
    stated = tokenizer.get("extra_tokens") if isinstance(tokenizer, Mapping) else None
    known = initial["tokenizer"].get("extra_tokens", [])
    if not isinstance(stated, list):
        return None
    new = [token for token in stated if token not in known]
    if new and isinstance(training, Mapping) and training.get("lora") is not None:
        raise RecipeError(
            f"{where}: tokenizer.extra_tokens adds {format_value(new[0])}, but training.lora trains no embedding; drop one of "
            "the two",
            code="key-conflict",
        )
    return [*known, *new]
