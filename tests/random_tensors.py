"""Random tensors of tests of models: numbers, and sentences of token ids."""

from __future__ import annotations

import torch
from torch import Tensor


def noise(*shape: int, seed: int = 2) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def sentences(*lengths: int, low: int = 1, high: int, seed: int = 1) -> Tensor:
    """Return random token ids from low to high − 1, padded with 0 on the right."""
    generator = torch.Generator().manual_seed(seed)
    ids_BT = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        ids_BT[row, :length] = torch.randint(low, high, (length,), generator=generator)
    return ids_BT
