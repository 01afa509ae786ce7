"""Gradient guard: skips updates with a non-finite loss or gradient, and gradient spikes if the recipe asks for that.

The guard keeps its state on the device, so no step waits for it. The trainer reads the counts now and then. All ranks decide
alike, since they use the gradient and the likelihood summed over all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dragoman.training.checkpoints.checkpoint import TrainerState

GRAD_NORM_WINDOW = 128
# Fewer norms than this give no useful standard deviation.
MIN_GRAD_NORMS = 32


class GradientGuard:
    """Decision for each step whether its update is applied. A skipped step changes neither weights nor moments."""

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
        # The newest norm is the last. Positions that are not filled yet are at the front.
        self._grad_norms = torch.tensor(
            [0.0] * (GRAD_NORM_WINDOW - len(grad_norms)) + list(grad_norms), dtype=torch.float64, device=device
        )
        self._ages = torch.arange(GRAD_NORM_WINDOW, 0, -1, device=device)

    @classmethod
    def from_state(
        cls, trainer_state: TrainerState, device: torch.device, *, grad_norm_spike_sigma: float | None
    ) -> GradientGuard:
        """Return the guard of a resumed run."""
        return cls(
            device,
            grad_norm_spike_sigma=grad_norm_spike_sigma,
            skipped_steps=trainer_state.skipped_steps,
            consecutive_skips=trainer_state.consecutive_skips,
            grad_norms=trainer_state.grad_norms,
        )

    def should_apply(self, norm: Tensor, nll: Tensor) -> Tensor:
        """Return whether to apply an update with this gradient norm and likelihood, as a boolean tensor on the device."""
        applied = torch.isfinite(norm) & torch.isfinite(nll)
        if self.grad_norm_spike_sigma is not None:
            threshold = self._compute_threshold(self.grad_norm_spike_sigma)
            # A spike enters the window as the threshold, so the window follows a lasting change of level.
            clamped_norm = torch.where(norm <= threshold, norm.double(), threshold)
            shifted_norms = torch.cat([self._grad_norms[1:], clamped_norm[None]])
            self._grad_norms = torch.where(applied, shifted_norms, self._grad_norms)
            self._count = torch.where(applied, (self._count + 1).clamp(max=GRAD_NORM_WINDOW), self._count)
            applied = applied & (norm <= threshold)
        self._skipped_steps = self._skipped_steps + ~applied
        self._consecutive_skips = torch.where(applied, 0, self._consecutive_skips + 1)
        return applied

    def _compute_threshold(self, sigma: float) -> Tensor:
        """Return mean + sigma · standard deviation of the norms in the window; infinity while they are few."""
        is_filled = self._ages <= self._count
        count = self._count.clamp(min=1)
        mean = torch.where(is_filled, self._grad_norms, 0.0).sum() / count
        std = (torch.where(is_filled, self._grad_norms - mean, 0.0).square().sum() / count).sqrt()
        return torch.where(self._count >= MIN_GRAD_NORMS, mean + sigma * std, torch.inf)

    def reset_streak(self) -> None:
        """Set the number of consecutive skipped steps to zero."""
        self._consecutive_skips = torch.zeros_like(self._consecutive_skips)

    # The properties below wait for the device.

    @property
    def skipped_steps(self) -> int:
        """Steps skipped so far."""
        return int(self._skipped_steps)

    @property
    def consecutive_skips(self) -> int:
        """Steps skipped since the last applied step."""
        return int(self._consecutive_skips)

    @property
    def grad_norms(self) -> tuple[float, ...]:
        """The norms in the window, the newest last."""
        return tuple(self._grad_norms[GRAD_NORM_WINDOW - int(self._count) :].tolist())
