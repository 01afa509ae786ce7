"""Bundles with random weights, made without PyTorch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dragoman.bundle import Bundle
from dragoman.config import Recipe
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.model_weights import POINTER_WORDS, WORDS, list_shapes
from dragoman.parsing.sentence_parser import get_labels


def random_bundle(recipe: Recipe, tokenizer: PairTokenizer, *, seed: int = 1) -> Bundle:
    """Return a bundle in memory with random weights."""
    return Bundle(recipe, tokenizer, draw_weights(recipe, tokenizer, seed=seed))


def draw_weights(recipe: Recipe, tokenizer: PairTokenizer, *, seed: int = 1) -> dict[str, NDArray[np.float32]]:
    """Return random weights by name: Xavier's for layers, and of deviation d_model^-0.5 for embeddings.

    A parser's word tables are filled from its vocabularies.
    """
    sizes = {"source_vocab_size": len(tokenizer.source), "target_vocab_size": len(tokenizer.target)}
    is_parser = recipe.task.kind == "parsing"
    shapes = list_shapes(recipe.model, **sizes, has_words=is_parser, tagging=is_parser and recipe.task.has_tagging_head)
    numbers = np.random.default_rng(seed)
    weights: dict[str, NDArray[np.float32]] = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            weights[name] = np.full(shape, 1.0 if name.endswith("norm.weight") else 0.0, np.float32)
        elif name == "output" or "embedding" in name:
            weights[name] = numbers.standard_normal(shape, np.float32) * np.float32(recipe.model.d_model**-0.5)
            if "positions" not in name:
                weights[name][0] = 0.0  # padding
        else:
            limit = (6 / sum(shape)) ** 0.5
            weights[name] = numbers.uniform(-limit, limit, shape).astype(np.float32)
    if is_parser:
        labels = get_labels(tokenizer)
        prefix = POINTER_WORDS if recipe.model.pointer else WORDS
        begins: list[int] = tokenizer.source.word_start_mask.nonzero()[0].tolist()
        for table, ids in (("begins_V", begins), ("shifts_V", labels.shift_ids), ("hidden_V", labels.hidden_ids)):
            weights[f"{prefix}.{table}"][ids] = 1.0
    return weights
