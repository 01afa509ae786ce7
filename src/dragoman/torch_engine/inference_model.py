"""Inference models of Transformers that PyTorch computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.interface import SearchState, StepFn
from dragoman.model.positional_encoding import LearnedPositionalEmbedding
from dragoman.model.transformer import Transformer
from dragoman.tasks.inference_model import InferenceModel, ensemble
from dragoman.torch_engine.arrays import TorchArrays


def build_torch_inference_model(
    start: Callable[[Tensor], SearchState], step: StepFn, device: torch.device, max_positions: int | None
) -> InferenceModel:
    """Return the inference model of these functions of tensors on one device, which compute no gradients."""

    @torch.no_grad()
    def start_search(source_BS: NDArray[np.int64]) -> SearchState:
        return start(torch.from_numpy(source_BS).to(device))

    return InferenceModel(start_search, torch.no_grad()(step), TorchArrays(device), max_positions)


def as_inference_model(models: Sequence[Transformer]) -> InferenceModel:
    """Return an inference model that calls these models unchanged; several form an ensemble."""
    device, max_positions = models[0].output.device, get_max_positions(models)
    members = [
        replace(
            build_torch_inference_model(model.start, model.step, device, max_positions),
            numbers_per_vector=model.encoder.source_frontend.numbers_per_vector,
        )
        for model in models
    ]
    if len(models) == 1 and not models[0].is_autoregressive:
        return replace(members[0], own_search=_OwnTorchSearch(models[0]))
    return ensemble(members)


@dataclass(frozen=True)
class _OwnTorchSearch:
    """Search of a decoder that predicts all tokens at once; such a decoder has a method for it."""

    model: Transformer

    @torch.no_grad()
    def __call__(self, source_BS: NDArray[np.int64], **options: Any) -> list[list[Hypothesis]]:
        outputs: list[list[Hypothesis]] = cast(Any, self.model.decoder).search(self.model, source_BS, **options)
        return outputs


def get_max_positions(models: Sequence[Transformer]) -> int | None:
    """Return the number of tokens that all models have positions for; None if positions never end."""
    tables = [stack.embedding.positions for model in models for stack in (model.encoder, model.decoder)]
    return min((len(table.weight) for table in tables if isinstance(table, LearnedPositionalEmbedding)), default=None)
