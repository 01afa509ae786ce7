"""Bundles with random weights of which none is zero or one, because these values could hide an error of an export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dragoman.bundle import Bundle, save_bundle
from dragoman.config import make_recipe
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.model.factory import build_model
from dragoman.model.weights import collect_weights
from torch_models import bundle_model


def make_noisy_bundle(
    tokenizer: PairTokenizer, document: dict[str, Any], *, get_scale: Callable[[str], float] = lambda name: 0.4
) -> Bundle:
    """Return a model of a recipe with random weights.

    get_scale: returns the standard deviation of the weight of this name. The mean is 1 for the weight of a normalization, and 0
        for all others
    """
    recipe = make_recipe(document)
    if tokenizer.append_source_eos != recipe.model.append_source_eos:
        tokenizer = PairTokenizer(tokenizer.source, tokenizer.target, append_source_eos=recipe.model.append_source_eos)
    model = build_model(recipe.model, source_vocab_size=len(tokenizer.source), target_vocab_size=len(tokenizer.target))
    chance = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            mean = 1.0 if name.endswith("norm.weight") else 0.0
            weight.copy_(torch.randn(weight.shape, generator=chance) * get_scale(name) + mean)
    return bundle_model(recipe, tokenizer, model.eval())


def write_bundle(bundle: Bundle, path: Path) -> Path:
    """Write a bundle with the present weights of its model, and return its path."""
    weights = collect_weights(bundle.model)
    save_bundle(path, recipe=bundle.recipe, tokenizer=bundle.tokenizer, weights=weights, metadata=bundle.metadata)
    return path
