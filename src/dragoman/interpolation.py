"""Interpolation of bundles of one structure: the weighted mean of their weights, as one bundle.

Wortsman et al. 2022 ("Robust fine-tuning of zero-shot models") interpolate a model and its fine-tuned version, which keeps
much of what either can do. It needs no training, and the result is as fast as one model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman.bundle import Bundle, load_bundle, save_bundle
from dragoman.bundle_parts import inherit_parts, inherit_shortlist, without_parts
from dragoman.config.initial_bundle import CHANGEABLE_KEYS
from dragoman.config.section_validation import format_value
from dragoman.data.tokenization.pair_tokenizer import get_identity
from dragoman.errors import BundleError, RecipeError

# Shares such as 0.7 and 0.3 sum to 1 up to the rounding of decimal numbers.
MAX_SUM_ERROR = 1e-6


def interpolate_bundles(
    paths: Sequence[Path],
    output: Path,
    *,
    shares: Sequence[float] | None = None,
    overwrite: bool = False,
    notify: Callable[[str], None] = lambda _: None,
) -> dict[str, float]:
    """Write the weighted mean of several bundles as a bundle, and return the share of each.

    The recipe and the metadata are those of the first bundle. A part that it lacks comes from another one.

    shares: share of each bundle, which sum to 1; equal by default
    notify: takes one sentence if parts of a bundle are not measured again

    Raises RecipeError for shares that do not fit, and BundleError for bundles of different structures.
    """
    shares = [1.0 / len(paths)] * len(paths) if shares is None else list(shares)
    _check_shares(paths, shares)
    bundles = [load_bundle(path) for path in paths]
    for path, bundle in zip(paths[1:], bundles[1:], strict=True):
        _check_same_structure(paths[0], bundles[0], path, bundle)
    share_by_path = {str(path): share for path, share in zip(paths, shares, strict=True)}
    language_pairs = list(dict.fromkeys(pair for bundle in bundles for pair in bundle.metadata.language_pairs or ()))
    metadata = replace(
        without_parts(bundles[0].metadata),
        language_pairs=language_pairs or None,
        interpolated_bundles=share_by_path,
    )
    bases = {str(path): bundle.metadata for path, bundle in zip(paths, bundles, strict=True)}
    metadata, sentences = inherit_parts(metadata, bases)
    shortlist, _ = inherit_shortlist(paths, bundles[0].tokenizer)
    save_bundle(
        output,
        recipe=bundles[0].recipe,
        tokenizer=bundles[0].tokenizer,
        weights=_average([bundle.arrays for bundle in bundles], shares),
        metadata=metadata,
        overwrite=overwrite,
        shortlist=shortlist,
    )
    for sentence in sentences:
        notify(sentence)
    return share_by_path


def _average(models: Sequence[Mapping[str, NDArray[np.float32]]], shares: Sequence[float]) -> dict[str, NDArray[np.float32]]:
    """Return the mean of several models' weights, summed in float64."""
    averages: dict[str, NDArray[np.float32]] = {}
    for name in models[0]:
        total = np.zeros(models[0][name].shape)
        for share, model in zip(shares, models, strict=True):
            total += share * model[name].astype(np.float64)
        averages[name] = total.astype(np.float32)
    return averages


def _check_shares(paths: Sequence[Path], shares: Sequence[float]) -> None:
    if len(shares) != len(paths):
        raise RecipeError(
            f"weights: {len(shares)} are given for {len(paths)} bundles; give one weight for each", code="invalid-option"
        )
    if not all(0.0 <= share <= 1.0 for share in shares) or abs(math.fsum(shares) - 1.0) > MAX_SUM_ERROR:
        raise RecipeError(
            f"weights: {', '.join(f'{share:g}' for share in shares)} are not shares from 0 to 1 with the sum 1; give such as "
            "0.7 0.3",
            code="invalid-option",
        )
    if len({path.resolve() for path in paths}) < len(paths):
        raise RecipeError(f"{paths[0]}: a bundle is given twice; give different bundles", code="invalid-option")


def _check_same_structure(first_path: Path, first: Bundle, path: Path, bundle: Bundle) -> None:
    first_section, section = (item.recipe.model.model_dump() for item in (first, bundle))
    for key in (section | first_section).keys() - CHANGEABLE_KEYS["model"]:
        value, first_value = section.get(key), first_section.get(key)
        if value != first_value:
            raise BundleError(
                f"{path}: model.{key} = {format_value(value)}, but {first_path} has {format_value(first_value)}; "
                "give bundles of one structure, such as one and its fine-tuned version",
                code="structure-mismatch",
            )
    identities = [
        (get_identity(item.tokenizer.source), get_identity(item.tokenizer.target), item.recipe.tokenizer.lowercase)
        for item in (first, bundle)
    ]
    if identities[0] != identities[1]:
        raise BundleError(
            f"{path}: has another tokenizer than {first_path}, so their rows belong to different tokens; give bundles of one "
            "tokenizer",
            code="structure-mismatch",
        )
