"""Bundles and trained models in memory, made of a model of PyTorch."""

from __future__ import annotations

from collections.abc import Callable

from dragoman.bundle import Bundle, BundleMetadata
from dragoman.config import ModelConfig, Recipe
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.inference.backends.trained_model import TrainedModel
from dragoman.model.transformer import Transformer
from dragoman.model.weights import collect_weights, to_arrays
from dragoman.model_weights import ModelWeights


def bundle_model(
    recipe: Recipe, tokenizer: PairTokenizer, model: Transformer, metadata: BundleMetadata | None = None
) -> Bundle:
    """Return a bundle that shares the weights of a model."""
    bundle = Bundle(recipe, tokenizer, to_arrays(collect_weights(model)), metadata or BundleMetadata())
    bundle.__dict__["model"] = model
    return bundle


def wrap_model(model: Transformer, config: ModelConfig, *, release: Callable[[], None] = lambda: None) -> TrainedModel:
    """Return a trained model, whose arrays are views of the parameters of a model."""

    def get_weights() -> ModelWeights:
        return ModelWeights(config, to_arrays(collect_weights(model)), model.encoder.embedding.padding_id, release=release)

    return TrainedModel(config, get_weights, lambda: model, release)
