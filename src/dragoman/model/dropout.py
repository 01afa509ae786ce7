"""Dropout with fast masks on a CPU, because PyTorch draws its own there one number at a time in one thread."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

NUM_LEVELS = 1 << 16
INT_DTYPES = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def compute_threshold(p: float) -> int:
    """Return the number of the 2¹⁶ values of a random word that drop an element; the error of p is at most 1.5e-5."""
    return min(round(p * NUM_LEVELS), NUM_LEVELS - 1)


def draw_keep_mask(shape: torch.Size, threshold: int) -> Tensor:
    """Return a mask of 16-bit words whose bits are all zero with probability threshold · 2⁻¹⁶, and all one otherwise.

    PyTorch's generator gives the seed; NumPy's generator draws the words in half the time.
    """
    count = shape.numel()
    generator = np.random.Generator(np.random.SFC64(int(torch.randint(2**63 - 1, ()))))
    random_words = generator.integers(2**64, size=(count + 3) // 4, dtype=np.uint64).view(np.int16)[:count]
    return torch.from_numpy(random_words).ge_(threshold - NUM_LEVELS // 2).neg_().view(shape)


def apply_keep_mask(x: Tensor, keep_mask: Tensor, threshold: int) -> Tensor:
    """Return x with the masked elements zeroed and the others scaled, so that the mean stays the same.

    Clearing bits takes less time than multiplying by a mask.
    """
    # The bitwise operation extends the 16 bits of the mask to the width of x in the same pass.
    return (x.view(INT_DTYPES[x.element_size()]) & keep_mask).view(x.dtype).mul_(NUM_LEVELS / (NUM_LEVELS - threshold))


class _Dropout16Bit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, threshold: int) -> Tensor:
        ctx.keep_mask = draw_keep_mask(x.shape, threshold)
        ctx.threshold = threshold
        return apply_keep_mask(x, ctx.keep_mask, threshold)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return apply_keep_mask(grads[0], ctx.keep_mask, ctx.threshold), None


def dropout(x: Tensor, p: float) -> Tensor:
    """Return x with each element zeroed with probability p and the others divided by 1 − p, drawn from PyTorch's generator."""
    if p == 0.0:
        return x
    if x.device.type == "cpu" and not torch.compiler.is_compiling():  # the compiler generates its own masks
        return cast(Tensor, _Dropout16Bit.apply(x, compute_threshold(p)))  # type: ignore[no-untyped-call]
    return F.dropout(x, p)


class Dropout(nn.Module):
    """Dropout with probability p in training mode."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Return x with dropout in training mode, else x."""
        return dropout(x, self.p) if self.training else x
