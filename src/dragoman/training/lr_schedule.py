"""The learning rate (section 5.3) and how much of the budget is spent."""

from __future__ import annotations

import math

from dragoman.config import TrainingConfig


def spent(config: TrainingConfig, *, step: int, epochs: float, minutes: float) -> float:
    """The share of the budget that is used up, by whichever limit is nearest; 1 or more ends the run."""
    shares = [step / config.max_steps]
    if config.max_epochs is not None:
        shares.append(epochs / config.max_epochs)
    if config.max_minutes is not None:
        shares.append(minutes / config.max_minutes)
    return max(shares)


def learning_rate(config: TrainingConfig, *, d_model: int, step: int, share_spent: float = 0.0) -> float:
    """The rate of update `step`, counted from 1.

    `paper` is equation 3 times `lr_factor`. A cooldown lowers the end of the run linearly to zero.
    """
    warmup = float(config.warmup_steps)
    rate = config.peak_lr
    match config.schedule:
        case "noam":
            rate = config.lr_factor / math.sqrt(d_model) * min(1.0 / math.sqrt(step), step * warmup**-1.5)
        case "inverse_sqrt":
            rate *= min(math.sqrt(warmup / step), step / warmup)
        case "constant":
            rate *= min(1.0, step / warmup)
    if config.lr_decay_ratio > 0.0:
        rate *= min(1.0, max(0.0, 1.0 - share_spent) / config.lr_decay_ratio)
    return rate
