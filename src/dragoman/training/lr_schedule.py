"""Learning rate (section 5.3) and the share of the budget that is spent."""

from __future__ import annotations

import math

from dragoman.config import TrainingConfig


def compute_budget_fraction(config: TrainingConfig, *, step: int, epochs: float, minutes: float, flops: float = 0.0) -> float:
    """Return the share of the budget that is spent, by the limit that is nearest. The run ends at 1."""
    fractions = [step / config.max_steps]
    if config.max_epochs is not None:
        fractions.append(epochs / config.max_epochs)
    if config.max_minutes is not None:
        fractions.append(minutes / config.max_minutes)
    if config.max_flops is not None:
        fractions.append(flops / config.max_flops)
    return max(fractions)


def compute_learning_rate(config: TrainingConfig, *, d_model: int, step: int, progress: float = 0.0) -> float:
    """Return the learning rate of update `step`, counted from 1.

    `noam` is equation 3 times `lr_factor`. `lr_decay_ratio` is the last share of the budget, over which the learning rate
    decays linearly to zero.
    """
    warmup = float(config.warmup_steps)
    lr = config.peak_lr
    match config.schedule:
        case "noam":
            lr = config.lr_factor / math.sqrt(d_model) * min(1.0 / math.sqrt(step), step * warmup**-1.5)
        case "inverse_sqrt":
            lr *= min(math.sqrt(warmup / step), step / warmup)
        case "constant":
            lr *= min(1.0, step / warmup)
    if config.lr_decay_ratio > 0.0:
        lr *= min(1.0, max(0.0, 1.0 - progress) / config.lr_decay_ratio)
    return lr
