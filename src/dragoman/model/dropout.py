"""Dropout that costs little on a processor: PyTorch draws its masks there one number at a time, in one thread."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 1 << 16
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def threshold_of(p: float) -> int:
    """How many of the 2¹⁶ values of a random word drop an element, so that p holds to 1.5e-5."""
    return min(round(p * LEVELS), LEVELS - 1)


def drawn(shape: torch.Size, threshold: int) -> Tensor:
    """What to keep, as 16 bits that are all one, or all zero with probability threshold · 2⁻¹⁶.

    The seed is from torch's own generator; numpy's draws words from it in half of the time.
    """
    count = shape.numel()
    draws = np.random.Generator(np.random.SFC64(int(torch.randint(2**63 - 1, ()))))
    words = draws.integers(2**64, size=(count + 3) // 4, dtype=np.uint64).view(np.int16)[:count]
    return torch.from_numpy(words).ge_(threshold - LEVELS // 2).neg_().view(shape)


def kept(x: Tensor, keep: Tensor, threshold: int) -> Tensor:
    """x without what `drawn` dropped, scaled to keep the mean. To clear bits costs less than to multiply by a mask."""
    # The sixteen bits become as many as x has while they are applied, in one pass.
    return (x.view(BITS[x.element_size()]) & keep).view(x.dtype).mul_(LEVELS / (LEVELS - threshold))


class _SixteenBitDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, threshold: int) -> Tensor:
        ctx.keep = drawn(x.shape, threshold)
        ctx.threshold = threshold
        return kept(x, ctx.keep, threshold)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return kept(grads[0], ctx.keep, ctx.threshold), None


def dropout(x: Tensor, p: float) -> Tensor:
    """`x` with a share p of its elements zeroed and the others divided by 1 − p; draws from torch's own generator."""
    if p == 0.0:
        return x
    if x.device.type == "cpu" and not torch.compiler.is_compiling():  # a compiler has masks of its own
        return cast(Tensor, _SixteenBitDropout.apply(x, threshold_of(p)))  # type: ignore[no-untyped-call]
    return F.dropout(x, p)


class Dropout(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x
