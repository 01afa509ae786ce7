"""Dropout that costs little on a processor: PyTorch draws its masks there one number at a time, in one thread."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 1 << 16


class _SixteenBitDropout(torch.autograd.Function):
    """Zero where a random 16-bit number falls under p · 2¹⁶, so p holds to 1.5e-5; scale the rest to keep the mean."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, threshold: int) -> Tensor:
        words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        ctx.keep = (words.view(torch.int16)[: x.numel()] >= threshold - LEVELS // 2).view(x.shape)
        ctx.scale = LEVELS / (LEVELS - threshold)
        return cast(Tensor, (x * ctx.keep).mul_(ctx.scale))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (grads[0] * ctx.keep).mul_(ctx.scale), None


def dropout(x: Tensor, p: float) -> Tensor:
    """`x` with a share p of its elements zeroed and the others divided by 1 − p; draws from torch's own generator."""
    if p == 0.0:
        return x
    if x.device.type == "cpu":
        return cast(Tensor, _SixteenBitDropout.apply(x, min(round(p * LEVELS), LEVELS - 1)))  # type: ignore[no-untyped-call]
    return F.dropout(x, p)


class Dropout(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x
