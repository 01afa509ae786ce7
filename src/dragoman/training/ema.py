"""The moving average of the weights, kept beside them while a run goes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dragoman.training.distributed.parallelize import shard_like


class MovingAverage:
    """After step t the average is d·average + (1 − d)·weights, with d = min(decay, (1 + t) / (10 + t)) as in TensorFlow."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.parameters = dict(model.named_parameters())
        self.ema_weights = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def update(self, step: int, applied: Tensor) -> None:
        """Take the weights after `step` in, where the step was good."""
        weight = applied * (1.0 - min(self.decay, (1.0 + step) / (10.0 + step)))
        for name, average in self.ema_weights.items():
            average.lerp_(self.parameters[name].detach(), weight)

    @torch.no_grad()
    def load(self, ema_weights: Mapping[str, Tensor]) -> None:
        """Go on from what a checkpoint kept."""
        for name, average in self.ema_weights.items():
            average.copy_(shard_like(ema_weights[name], average))
