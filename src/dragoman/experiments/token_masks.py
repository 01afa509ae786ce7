"""Masks of tokens for modules whose training depends on which positions are padding.

The layers of the Transformer pass no such mask on. Modules that need one get it from outside, before their stack runs.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from dragoman.model.transformer import Decoder, Encoder


class ReadsTokenMask(nn.Module):
    """Module that leaves padding out of its statistics in training.

    token_mask_BT: true for tokens, false for padding; None outside of training
    """

    token_mask_BT: Tensor | None = None


def pass_token_masks(stack: Encoder | Decoder) -> None:
    """Set the mask of each module of the stack that reads one, whenever the stack runs."""
    if _set_token_masks not in stack._forward_pre_hooks.values():
        stack.register_forward_pre_hook(_set_token_masks)


def _set_token_masks(stack: nn.Module, arguments: tuple[Any, ...]) -> None:
    assert isinstance(stack, Encoder | Decoder)
    ids_BT: Tensor = arguments[0]
    padding_id = stack.embedding.padding_id
    is_decoder = isinstance(stack, Decoder)
    set_token_mask(stack, find_target_tokens(ids_BT, padding_id) if is_decoder else ids_BT != padding_id)


def find_target_tokens(inputs_NT: Tensor, padding_id: int) -> Tensor:
    """Return true for tokens, and false for padding. The first input is a token, even a zero vector. → (N, T)"""
    is_token_NT = inputs_NT != padding_id
    is_token_NT[:, 0] = True
    return is_token_NT


def set_token_mask(stack: Encoder | Decoder, mask_BT: Tensor) -> None:
    """Set the mask of each module of the stack that reads one, in training."""
    for module in stack.modules():
        if isinstance(module, ReadsTokenMask):
            module.token_mask_BT = mask_BT if stack.training else None
