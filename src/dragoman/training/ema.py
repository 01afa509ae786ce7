"""Exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dragoman.training.distributed.parallelize import shard_like


class MovingAverage:
    """Moving average: after step t it is d·average + (1 − d)·weights, with d = min(decay, (1 + t) / (10 + t)) (TensorFlow)."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.parameters = dict(model.named_parameters())
        self.ema_weights = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def update(self, step: int, applied: Tensor) -> None:
        """Update the average with the weights after `step`, if the step was applied."""
        weight = applied * (1.0 - min(self.decay, (1.0 + step) / (10.0 + step)))
        for name, average in self.ema_weights.items():
            average.lerp_(self.parameters[name].detach(), weight)

    @torch.no_grad()
    def load(self, ema_weights: Mapping[str, Tensor]) -> None:
        """Replace the average with that of a checkpoint."""
        for name, average in self.ema_weights.items():
            average.copy_(shard_like(ema_weights[name], average))
