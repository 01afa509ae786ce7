"""Attention masks: boolean tensors that broadcast to (B, H, T, S), true for a key that the query attends to.

Each row of a mask has at least one visible key, so that the softmax over it is a distribution.
"""

from __future__ import annotations

import torch
from torch import Tensor


def padding_mask(token_mask_BS: Tensor) -> Tensor:
    """Return the mask in which every query attends to the tokens of its sentence, but no padding. (B, S) → (B, 1, 1, S)"""
    return token_mask_BS[:, None, None, :]


def causal_mask(target_length: int, source_length: int, *, device: torch.device) -> Tensor:
    """Return the mask in which query t attends to keys up to its own position (section 3.2.3). → (T, S)

    The queries are the last T of the S positions.
    """
    ones = torch.ones(target_length, source_length, dtype=torch.bool, device=device)
    return ones.tril(diagonal=source_length - target_length)


def window_mask(target_length: int, source_length: int, radius: int, *, device: torch.device) -> Tensor:
    """Return the mask in which a query attends to keys at most `radius` positions away (section 4). → (T, S)

    The queries are the last T of the S positions.
    """
    query_T1 = torch.arange(source_length - target_length, source_length, device=device)[:, None]
    key_S = torch.arange(source_length, device=device)
    return (query_T1 - key_S).abs() <= radius


def windowed_padding_mask(token_mask_BS: Tensor, radius: int) -> Tensor:
    """Return the combination of both masks; a padding query, whose output is unused, attends to itself. → (B, 1, S, S)"""
    length = token_mask_BS.shape[1]
    window_SS = window_mask(length, length, radius, device=token_mask_BS.device)
    diagonal_SS = torch.eye(length, dtype=torch.bool, device=token_mask_BS.device)
    return padding_mask(token_mask_BS) & window_SS | diagonal_SS
