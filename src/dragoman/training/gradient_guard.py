"""Which updates may touch the weights: none with a number that is not finite, and none out of all proportion if so asked.

Everything stands on the device, so that no step waits for it; the loop looks at the counts now and then. All ranks come to the
same decision, since they decide by the gradient and the likelihood of all of them together.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dragoman.training.checkpoints.checkpoint import TrainerState

GRAD_NORM_WINDOW = 128
# Fewer norms than this say nothing of their spread.
MIN_GRAD_NORMS = 32


class GradientGuard:
    """Decides step by step. A skipped step changes neither weights nor moments."""

    def __init__(
        self,
        device: torch.device,
        *,
        grad_norm_spike_sigma: float | None = None,
        skipped_steps: int = 0,
        consecutive_skips: int = 0,
        grad_norms: Sequence[float] = (),
    ) -> None:
        self.grad_norm_spike_sigma = grad_norm_spike_sigma
        self._skipped_steps = torch.tensor(skipped_steps, device=device)
        self._consecutive_skips = torch.tensor(consecutive_skips, device=device)
        self._count = torch.tensor(len(grad_norms), device=device)
        # The newest last; what is not yet filled stands at the front.
        self._grad_norms = torch.tensor(
            [0.0] * (GRAD_NORM_WINDOW - len(grad_norms)) + list(grad_norms), dtype=torch.float64, device=device
        )
        self._ages = torch.arange(GRAD_NORM_WINDOW, 0, -1, device=device)

    @classmethod
    def from_state(
        cls, trainer_state: TrainerState, device: torch.device, *, grad_norm_spike_sigma: float | None
    ) -> GradientGuard:
        """As it was where a run stands."""
        return cls(
            device,
            grad_norm_spike_sigma=grad_norm_spike_sigma,
            skipped=trainer_state.skipped,
            in_a_row=trainer_state.skipped_in_a_row,
            norms=trainer_state.grad_norms,
        )

    def should_apply(self, norm: Tensor, nll: Tensor) -> Tensor:
        """Whether an update with a gradient of this norm, from this likelihood, may be made: a truth value on the device."""
        applied = torch.isfinite(norm) & torch.isfinite(nll)
        if self.grad_norm_spike_sigma is not None:
            threshold = self._compute_threshold(self.grad_norm_spike_sigma)
            # A spike enters as the highest that would have passed, so that a lasting change of level is followed.
            clamped_norm = torch.where(norm <= threshold, norm.double(), threshold)
            shifted_norms = torch.cat([self._grad_norms[1:], clamped_norm[None]])
            self._grad_norms = torch.where(applied, shifted_norms, self._grad_norms)
            self._count = torch.where(applied, (self._count + 1).clamp(max=GRAD_NORM_WINDOW), self._count)
            applied = applied & (norm <= threshold)
        self._skipped_steps = self._skipped_steps + ~applied
        self._consecutive_skips = torch.where(applied, 0, self._consecutive_skips + 1)
        return applied

    def _compute_threshold(self, sigma: float) -> Tensor:
        """The mean of the norms in the window and `limit` standard deviations; infinite while they are few."""
        is_filled = self._ages <= self._count
        count = self._count.clamp(min=1)
        mean = torch.where(is_filled, self._grad_norms, 0.0).sum() / count
        std = (torch.where(is_filled, self._grad_norms - mean, 0.0).square().sum() / count).sqrt()
        return torch.where(self._count >= MIN_GRAD_NORMS, mean + sigma * std, torch.inf)

    def reset_streak(self) -> None:
        """Count skipped steps in a row from here."""
        self._consecutive_skips = torch.zeros_like(self._consecutive_skips)

    # What follows waits for the device.

    @property
    def skipped_steps(self) -> int:
        """Steps skipped so far."""
        return int(self._skipped_steps)

    @property
    def consecutive_skips(self) -> int:
        """Steps skipped since the last that was not."""
        return int(self._consecutive_skips)

    @property
    def grad_norms(self) -> tuple[float, ...]:
        """The window, the newest last."""
        return tuple(self._grad_norms[GRAD_NORM_WINDOW - int(self._count) :].tolist())
