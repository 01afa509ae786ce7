"""A trained model, from which each back end takes what it reads: weights as arrays, or the PyTorch model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dragoman.config import ModelConfig
from dragoman.model_weights import ModelWeights

if TYPE_CHECKING:
    from dragoman.bundle import Bundle
    from dragoman.model.transformer import Transformer


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """Configuration of a trained model, and the functions that return it. The weights must not change.

    get_weights: returns the weights as arrays; the compiled back end computes the model
    get_transformer: returns the PyTorch model on the device of the request, for inference
    release: releases mapped memory that reading the weights has filled
    """

    config: ModelConfig
    get_weights: Callable[[], ModelWeights]
    get_transformer: Callable[[], Transformer]
    release: Callable[[], None] = lambda: None

    @classmethod
    def from_bundle(cls, bundle: Bundle, device: str = "cpu", *, is_mapped: bool = False) -> TrainedModel:
        """Return the model of a bundle. is_mapped: its weights are mapped from disk, so their memory may be released"""
        release = bundle.release if is_mapped else lambda: None

        def get_weights() -> ModelWeights:
            assert bundle.weights is not None
            return replace(bundle.weights, release=release)

        return cls(bundle.recipe.model, get_weights, lambda: bundle.model.to(device), release)
