"""Load-balancing loss of mixtures of experts (Shazeer et al. 2017, equations 7 and 11)."""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.data.collate import Batch
from dragoman.experiments.experts.layer import record_balance_losses
from dragoman.model.transformer import Transformer
from dragoman.training.losses.function import LossFunction


def add_load_balancing(loss_function: LossFunction, weight: float) -> LossFunction:
    """Return the loss plus weight · the load-balancing loss of each mixture.

    That loss is a number for a batch, so it counts once for each target token.
    """

    def compute_loss(model: Transformer, batch: Batch) -> tuple[Tensor, Tensor]:
        with record_balance_losses(model) as balance_losses:
            loss, nll = loss_function(model, batch)
        if not balance_losses:
            return loss, nll
        num_tokens = len(batch.find_nonpad_positions())
        return loss + weight * num_tokens * torch.stack(balance_losses).sum(), nll

    return compute_loss
