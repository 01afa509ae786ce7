"""Masks as values: boolean tensors that broadcast to B·H·T·S, true where a query may look.

Every row of a mask lets at least one key through, so that a softmax over it is a distribution.
"""

from __future__ import annotations

import torch
from torch import Tensor


def padding_mask(token_mask_BS: Tensor) -> Tensor:
    """Every query may look at the real tokens of its own sentence. (B, S) → (B, 1, 1, S)."""
    return token_mask_BS[:, None, None, :]


def causal_mask(target_length: int, source_length: int, *, device: torch.device) -> Tensor:
    """Query t may look at keys up to its own (section 3.2.3); the queries are the last of the keys. → (T, S)."""
    ones = torch.ones(target_length, source_length, dtype=torch.bool, device=device)
    return ones.tril(diagonal=source_length - target_length)


def window_mask(target_length: int, source_length: int, radius: int, *, device: torch.device) -> Tensor:
    """Query t may look at keys at most `radius` places away (restricted self-attention, section 4). → (T, S)."""
    query_T1 = torch.arange(source_length - target_length, source_length, device=device)[:, None]
    key_S = torch.arange(source_length, device=device)
    return (query_T1 - key_S).abs() <= radius


def windowed_padding_mask(token_mask_BS: Tensor, radius: int) -> Tensor:
    """Both at once; a padding query, which nothing reads, looks at itself. → (B, 1, S, S)."""
    length = token_mask_BS.shape[1]
    window_SS = window_mask(length, length, radius, device=token_mask_BS.device)
    diagonal_SS = torch.eye(length, dtype=torch.bool, device=token_mask_BS.device)
    return padding_mask(token_mask_BS) & window_SS | diagonal_SS
