"""When an output goes round in circles.

The rule: an output loops once its last tokens are one group of tokens said again and again, four times or more and over `span`
tokens or more. With a span of 32 that is one token 32 times, eight tokens four times, twenty tokens four times. Sentences that
people write hold a word three times or a row of dots, not this; where the source itself goes on so, as `loops` tells, its
output may, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MIN_REPEATS = 4
# Outputs are looked at whenever their length is a multiple of this.
CHECK_INTERVAL = 8


def is_repeating(outputs_NT: Tensor, window: int) -> Tensor:
    """Whether each of these outputs, all T tokens long, loops at its end; groups of up to `span` tokens are found. → (N,)"""
    length = outputs_NT.shape[1]
    max_period = min(window, length // MIN_REPEATS)
    if max_period < 1 or length < window:
        return torch.zeros(len(outputs_NT), dtype=torch.bool, device=outputs_NT.device)
    period_P = torch.arange(1, max_period + 1, device=outputs_NT.device)
    # Tokens from the end that must equal those a period before them; with the first group that makes four groups or the span.
    needed_P = torch.maximum(window - period_P, (MIN_REPEATS - 1) * period_P)
    max_depth = max(window - 1, (MIN_REPEATS - 1) * max_period)
    reversed_NT = torch.nn.functional.pad(outputs_NT.flip(1)[:, : max_depth + max_period], (0, max_period), value=-1)
    window_NTP = reversed_NT.unfold(1, max_period + 1, 1)[:, :max_depth]
    is_equal_NTP = window_NTP[:, :, 1:] == window_NTP[:, :, :1]
    is_beyond_TP = torch.arange(window_NTP.shape[1], device=outputs_NT.device)[:, None] >= needed_P
    return (is_equal_NTP | is_beyond_TP).all(1).any(1)


def contains_repetition(tokens: Sequence[int], window: int) -> bool:
    """Whether such a stretch stands anywhere in these tokens."""
    max_period = min(window, len(tokens) // MIN_REPEATS) if len(tokens) >= window else 0
    for period in range(1, max_period + 1):
        needed, run = max(window - period, (MIN_REPEATS - 1) * period), 0
        for previous, token in zip(tokens, tokens[period:], strict=False):
            run = run + 1 if previous == token else 0
            if run >= needed:
                return True
    return False
