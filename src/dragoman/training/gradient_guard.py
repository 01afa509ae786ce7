"""Which updates may touch the weights: none with a number that is not finite, and none out of all proportion if so asked.

Everything stands on the device, so that no step waits for it; the loop looks at the counts now and then. All ranks come to the
same decision, since they decide by the gradient and the likelihood of all of them together.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dragoman.training.checkpoints.checkpoint import Progress

WINDOW = 128
# Fewer norms than this say nothing of their spread.
ENOUGH = 32


class Guard:
    """Decides step by step. A skipped step changes neither weights nor moments."""

    def __init__(
        self,
        device: torch.device,
        *,
        grad_norm_spike_sigma: float | None = None,
        skipped: int = 0,
        in_a_row: int = 0,
        norms: Sequence[float] = (),
    ) -> None:
        self.grad_norm_spike_sigma = grad_norm_spike_sigma
        self._skipped = torch.tensor(skipped, device=device)
        self._in_a_row = torch.tensor(in_a_row, device=device)
        self._count = torch.tensor(len(norms), device=device)
        # The newest last; what is not yet filled stands at the front.
        self._norms = torch.tensor([0.0] * (WINDOW - len(norms)) + list(norms), dtype=torch.float64, device=device)
        self._places = torch.arange(WINDOW, 0, -1, device=device)

    @classmethod
    def of(cls, progress: Progress, device: torch.device, *, grad_norm_spike_sigma: float | None) -> Guard:
        """As it was where a run stands."""
        return cls(
            device,
            grad_norm_spike_sigma=grad_norm_spike_sigma,
            skipped=progress.skipped,
            in_a_row=progress.skipped_in_a_row,
            norms=progress.norms,
        )

    def admit(self, norm: Tensor, nll: Tensor) -> Tensor:
        """Whether an update with a gradient of this norm, from this likelihood, may be made: a truth value on the device."""
        good = torch.isfinite(norm) & torch.isfinite(nll)
        if self.grad_norm_spike_sigma is not None:
            highest = self._highest(self.grad_norm_spike_sigma)
            # A spike enters as the highest that would have passed, so that a lasting change of level is followed.
            entering = torch.where(norm <= highest, norm.double(), highest)
            moved = torch.cat([self._norms[1:], entering[None]])
            self._norms = torch.where(good, moved, self._norms)
            self._count = torch.where(good, (self._count + 1).clamp(max=WINDOW), self._count)
            good = good & (norm <= highest)
        self._skipped = self._skipped + ~good
        self._in_a_row = torch.where(good, 0, self._in_a_row + 1)
        return good

    def _highest(self, limit: float) -> Tensor:
        """The mean of the norms in the window and `limit` standard deviations; infinite while they are few."""
        filled = self._places <= self._count
        count = self._count.clamp(min=1)
        mean = torch.where(filled, self._norms, 0.0).sum() / count
        spread = (torch.where(filled, self._norms - mean, 0.0).square().sum() / count).sqrt()
        return torch.where(self._count >= ENOUGH, mean + limit * spread, torch.inf)

    def forgive(self) -> None:
        """Count skipped steps in a row from here."""
        self._in_a_row = torch.zeros_like(self._in_a_row)

    # What follows waits for the device.

    @property
    def skipped(self) -> int:
        """Steps skipped so far."""
        return int(self._skipped)

    @property
    def in_a_row(self) -> int:
        """Steps skipped since the last that was not."""
        return int(self._in_a_row)

    @property
    def norms(self) -> tuple[float, ...]:
        """The window, the newest last."""
        return tuple(self._norms[WINDOW - int(self._count) :].tolist())
