"""Repetition: detection at the end of an output, and a penalty on tokens that an output has already.

An output repeats itself if it ends with one group of tokens at least four times in a row, over at least `window` tokens. A
window of 32 therefore stops one token after 32 copies, eight tokens after four, and twenty tokens after four. Natural text has
a word three times or a row of dots, but not this. A source that repeats itself (`contains_repetition`) may have such an output.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MIN_REPEATS = 4
# A search checks its outputs at every length that is a multiple of this.
CHECK_INTERVAL = 8


def is_repeating(outputs_NT: Tensor, window: int) -> Tensor:
    """Return whether each output of T tokens ends with a repetition of a group of at most `window` tokens. → (N,)"""
    length = outputs_NT.shape[1]
    max_period = min(window, length // MIN_REPEATS)
    if max_period < 1 or length < window:
        return torch.zeros(len(outputs_NT), dtype=torch.bool, device=outputs_NT.device)
    period_P = torch.arange(1, max_period + 1, device=outputs_NT.device)
    # Number of tokens at the end that must equal the token one period before; the first group adds one period to it.
    needed_P = torch.maximum(window - period_P, (MIN_REPEATS - 1) * period_P)
    max_depth = max(window - 1, (MIN_REPEATS - 1) * max_period)
    reversed_NT = torch.nn.functional.pad(outputs_NT.flip(1)[:, : max_depth + max_period], (0, max_period), value=-1)
    window_NTP = reversed_NT.unfold(1, max_period + 1, 1)[:, :max_depth]
    is_equal_NTP = window_NTP[:, :, 1:] == window_NTP[:, :, :1]
    is_beyond_TP = torch.arange(window_NTP.shape[1], device=outputs_NT.device)[:, None] >= needed_P
    return (is_equal_NTP | is_beyond_TP).all(1).any(1)


def penalize_repeated_tokens(logits_NV: Tensor, outputs_NT: Tensor, penalty: float) -> None:
    """Lower the logits of the tokens of each output, in place (Keskar et al. 2019, section 4.1).

    A positive logit is divided by the penalty. A negative one is multiplied, because a division would raise it.
    """
    logits_NT = logits_NV.gather(1, outputs_NT)
    logits_NV.scatter_(1, outputs_NT, torch.where(logits_NT > 0, logits_NT / penalty, logits_NT * penalty))


def contains_repetition(tokens: Sequence[int], window: int) -> bool:
    """Return whether such a repetition occurs anywhere in the tokens."""
    max_period = min(window, len(tokens) // MIN_REPEATS) if len(tokens) >= window else 0
    for period in range(1, max_period + 1):
        needed, run = max(window - period, (MIN_REPEATS - 1) * period), 0
        for previous, token in zip(tokens, tokens[period:], strict=False):
            run = run + 1 if previous == token else 0
            if run >= needed:
                return True
    return False
