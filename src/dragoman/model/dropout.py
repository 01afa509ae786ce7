"""Dropout that costs little on a processor: PyTorch draws its masks there one number at a time, in one thread."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

NUM_LEVELS = 1 << 16
INT_DTYPES = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def compute_threshold(p: float) -> int:
    """How many of the 2¹⁶ values of a random word drop an element, so that p holds to 1.5e-5."""
    return min(round(p * NUM_LEVELS), NUM_LEVELS - 1)


def draw_keep_mask(shape: torch.Size, threshold: int) -> Tensor:
    """What to keep, as 16 bits that are all one, or all zero with probability threshold · 2⁻¹⁶.

    The seed is from torch's own generator; numpy's draws words from it in half of the time.
    """
    count = shape.numel()
    generator = np.random.Generator(np.random.SFC64(int(torch.randint(2**63 - 1, ()))))
    random_words = generator.integers(2**64, size=(count + 3) // 4, dtype=np.uint64).view(np.int16)[:count]
    return torch.from_numpy(random_words).ge_(threshold - NUM_LEVELS // 2).neg_().view(shape)


def apply_keep_mask(x: Tensor, keep_mask: Tensor, threshold: int) -> Tensor:
    """x without what `drawn` dropped, scaled to keep the mean. To clear bits costs less than to multiply by a mask."""
    # The sixteen bits become as many as x has while they are applied, in one pass.
    return (x.view(INT_DTYPES[x.element_size()]) & keep_mask).view(x.dtype).mul_(NUM_LEVELS / (NUM_LEVELS - threshold))


class _Dropout16Bit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, threshold: int) -> Tensor:
        ctx.keep = draw_keep_mask(x.shape, threshold)
        ctx.threshold = threshold
        return apply_keep_mask(x, ctx.keep, threshold)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return apply_keep_mask(grads[0], ctx.keep, ctx.threshold), None


def dropout(x: Tensor, p: float) -> Tensor:
    """`x` with a share p of its elements zeroed and the others divided by 1 − p; draws from torch's own generator."""
    if p == 0.0:
        return x
    if x.device.type == "cpu" and not torch.compiler.is_compiling():  # a compiler has masks of its own
        return cast(Tensor, _Dropout16Bit.apply(x, compute_threshold(p)))  # type: ignore[no-untyped-call]
    return F.dropout(x, p)


class Dropout(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x
