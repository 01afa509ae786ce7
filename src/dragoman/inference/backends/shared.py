"""Code that several back ends share: weights that are read on demand, the embedding for inference, and int8 constants.

O outputs    I inputs    R rows of one block    V vocabulary    D model width    T positions    C sentences
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dragoman.model.transformer import Embedding

Precision = Literal["float32", "bfloat16", "int8"]

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


@dataclass(frozen=True)
class InferenceEmbedding:
    """Scaled token vectors plus positions. The vectors are the model's own memory.

    weight_VD: token vectors
    scale_V: factor of each token's vector; 0 for padding
    positions: returns the vectors (length, D) of the positions from `start` on
    extra_D: vector that every position adds, or None
    """

    weight_VD: Tensor
    scale_V: Tensor
    positions: Callable[[int, int], Tensor]
    extra_D: Tensor | None
    padding_id: int

    @classmethod
    def from_embedding(cls, embedding: Embedding) -> InferenceEmbedding:
        """Return the embedding of a trained model."""
        scale_V = torch.full((len(embedding.weight),), embedding.scale, dtype=torch.float32)
        scale_V[embedding.padding_id] = 0.0
        extra_D = None if embedding.target_space_embedding is None else embedding.target_space_embedding.detach().clone()
        return cls(embedding.weight.detach(), scale_V, embedding.positions, extra_D, embedding.padding_id)

    def compute_positions(self, start: int, length: int) -> Tensor:
        """Return the vectors (length, D) of the positions from `start` on, with the extra vector."""
        positions_TD = self.positions(start, length).detach()
        return positions_TD.contiguous() if self.extra_D is None else positions_TD + self.extra_D

    def __call__(self, ids_TC: Tensor, start: int) -> Tensor:
        """Return the vectors (T·C, D) of tokens at the positions from `start` on."""
        positions_T1D = self.compute_positions(start, ids_TC.shape[0])[:, None]
        ids_M = ids_TC.flatten()
        x_TCD = self.weight_VD.index_select(0, ids_M).view(*ids_TC.shape, -1)
        scale_TC1 = self.scale_V.index_select(0, ids_M).view(*ids_TC.shape, 1)
        return torch.addcmul(positions_T1D, x_TCD, scale_TC1).flatten(0, 1)
