"""Training of small models on generated sequences, and scores over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import torch
from torch import Tensor, nn

SEEDS = (1, 2, 3)
# Two-sided 95 % quantile of Student's t for two degrees of freedom, as three seeds have.
_T_95 = 4.303


@dataclass(frozen=True)
class SeedScores:
    """Score of each of the three seeds."""

    values: Sequence[float]

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def half_width(self) -> float:
        """Return half of the width of the 95 % interval of the mean, by Student's t."""
        return _T_95 * stdev(self.values) / math.sqrt(len(self.values))

    def __str__(self) -> str:
        """Return the mean and half of its 95 % interval."""
        return f"{self.mean:.2f} ± {self.half_width:.2f}"


def train_steps(model: nn.Module, compute_loss: Callable[[], Tensor], *, steps: int, peak_lr: float) -> None:
    """Train for some steps with Adam: a linear warm-up over a tenth of the steps, then a linear decay to zero."""
    optimizer = torch.optim.Adam(model.parameters(), lr=peak_lr, betas=(0.9, 0.98))
    warmup = max(steps // 10, 1)
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = peak_lr * min(step / warmup, (steps - step + 1) / (steps - warmup + 1))
        optimizer.zero_grad()
        compute_loss().backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
