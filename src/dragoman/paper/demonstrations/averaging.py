"""Section 6.1: the mean of the last checkpoints against the last one, in the model that copies symbols.

It is measured twice: while the loss still falls, and later.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.paper.demonstrations.extrapolation import build_copier, draw_copies
from dragoman.paper.demonstrations.toy_training import SEEDS, SeedScores
from dragoman.paper.table1 import single_thread

MEASURED_STEPS, NUM_CHECKPOINTS, CHECKPOINT_EVERY = (160, 480), 5, 10
LENGTH, BATCH_SIZE, NUM_TESTS, LEARNING_RATE = 12, 16, 256, 3e-3


@dataclass(frozen=True)
class AveragingResult:
    """Loss in nats per symbol of the last checkpoint and of the mean of the last ones, after some steps, for each seed."""

    step: int
    last: SeedScores
    mean: SeedScores

    @property
    def gain(self) -> SeedScores:
        """Return by how much the loss of the mean is lower."""
        return SeedScores([last - mean for last, mean in zip(self.last.values, self.mean.values, strict=True)])


def measure_averaging() -> list[AveragingResult]:
    """Train with a constant rate, and score the last checkpoint and the mean of the last five after each number of steps."""
    with single_thread():
        by_seed = [_train_and_average(seed) for seed in SEEDS]
    return [
        AveragingResult(step, *(SeedScores([losses[index][kind] for losses in by_seed]) for kind in (0, 1)))
        for index, step in enumerate(MEASURED_STEPS)
    ]


def _train_and_average(seed: int) -> list[tuple[float, float]]:
    """Return the losses of the last weights and of the mean after each number of steps."""
    torch.manual_seed(seed)
    model = build_copier("interleaved")
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98))

    def compute_loss(batch_size: int, draws: torch.Generator) -> Tensor:
        logits_BTV, symbols_BT = draw_copies(model, batch_size, LENGTH, draws)
        return F.cross_entropy(logits_BTV.flatten(0, 1), symbols_BT.flatten())

    @torch.no_grad()
    def compute_test_loss(weights: dict[str, Tensor]) -> float:
        model.load_state_dict(weights)
        return compute_loss(NUM_TESTS, torch.Generator().manual_seed(0)).item()

    checkpoints: list[dict[str, Tensor]] = []
    losses = []
    for step in range(1, max(MEASURED_STEPS) + 1):
        optimizer.zero_grad()
        compute_loss(BATCH_SIZE, generator).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % CHECKPOINT_EVERY == 0:
            last = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            checkpoints = [*checkpoints[1 - NUM_CHECKPOINTS :], last]
        if step in MEASURED_STEPS:
            mean = {name: torch.stack([weights[name] for weights in checkpoints]).mean(dim=0) for name in last}
            mean_loss = compute_test_loss(mean)
            losses.append((compute_test_loss(last), mean_loss))  # the last weights stay in the model
    return losses
