"""Weight matrices that are read on demand and quantized in blocks.

O outputs    I inputs    R rows of one block
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# Largest magnitude of a symmetric int8 value.
INT8_MAX = 127.0
# Lower bound of a quantization step, so that a row of zeros has a step too.
MIN_SCALE = 1e-30
# Rows that are quantized at once, so that temporary copies stay small.
QUANTIZE_BLOCK_ROWS = 256


@dataclass(frozen=True)
class LazyWeight:
    """Weight matrix (O, I) that can be loaded again at any time.

    load: returns the matrix
    shape: (O, I)
    release: is called whenever nothing refers to a loaded matrix any more
    """

    load: Callable[[], Tensor]
    shape: torch.Size
    release: Callable[[], None] = lambda: None

    @classmethod
    def from_tensor(cls, weight_OI: Tensor) -> LazyWeight:
        """Return a lazy weight of a tensor that stays in memory."""
        weight_OI = weight_OI.detach()
        return cls(lambda: weight_OI, weight_OI.shape)

    def compute_max_abs(self) -> Tensor:
        """Return the largest magnitude of each output's weights (O,)."""
        # Maximum and minimum need no copy of all magnitudes, and new memory costs more than the comparisons.
        return torch.cat([torch.maximum(block_RI.amax(1), block_RI.amin(1).neg_()) for _, block_RI in self.iter_blocks()])

    def quantize_into(self, scale_O: Tensor, int8_OI: Tensor) -> None:
        """Write the weights, in steps of each output's scale, into a tensor of bytes."""
        scaled_RI = torch.empty(min(QUANTIZE_BLOCK_ROWS, self.shape[0]), self.shape[1], dtype=torch.float32)
        for rows, block_RI in self.iter_blocks():
            int8_OI[rows] = torch.div(block_RI, scale_O[rows, None], out=scaled_RI[: len(block_RI)]).round_()

    def iter_blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield the rows of each block and their weights (R, I) in float32."""
        weight_OI = self.load()
        for start in range(0, len(weight_OI), QUANTIZE_BLOCK_ROWS):
            rows = slice(start, start + QUANTIZE_BLOCK_ROWS)
            yield rows, weight_OI[rows].float()
            self.release()

    def to_dtype(self, dtype: torch.dtype) -> Tensor:
        """Return a copy of the weights (O, I) in this type."""
        copy_OI = torch.empty(self.shape, dtype=dtype).copy_(self.load())
        self.release()
        return copy_OI
