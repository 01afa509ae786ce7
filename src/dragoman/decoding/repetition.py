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

TIMES = 4
# Outputs are looked at whenever their length is a multiple of this.
EVERY = 8


def looping(outputs_NT: Tensor, span: int) -> Tensor:
    """Whether each of these outputs, all T tokens long, loops at its end; groups of up to `span` tokens are found. → (N,)"""
    length = outputs_NT.shape[1]
    longest = min(span, length // TIMES)
    if longest < 1 or length < span:
        return torch.zeros(len(outputs_NT), dtype=torch.bool, device=outputs_NT.device)
    period_P = torch.arange(1, longest + 1, device=outputs_NT.device)
    # Tokens from the end that must equal those a period before them; with the first group that makes four groups or the span.
    needed_P = torch.maximum(span - period_P, (TIMES - 1) * period_P)
    deepest = max(span - 1, (TIMES - 1) * longest)
    backwards_NT = torch.nn.functional.pad(outputs_NT.flip(1)[:, : deepest + longest], (0, longest), value=-1)
    window_NTP = backwards_NT.unfold(1, longest + 1, 1)[:, :deepest]
    same_NTP = window_NTP[:, :, 1:] == window_NTP[:, :, :1]
    beyond_TP = torch.arange(window_NTP.shape[1], device=outputs_NT.device)[:, None] >= needed_P
    return (same_NTP | beyond_TP).all(1).any(1)


def loops(tokens: Sequence[int], span: int) -> bool:
    """Whether such a stretch stands anywhere in these tokens."""
    longest = min(span, len(tokens) // TIMES) if len(tokens) >= span else 0
    for period in range(1, longest + 1):
        needed, run = max(span - period, (TIMES - 1) * period), 0
        for before, token in zip(tokens, tokens[period:], strict=False):
            run = run + 1 if before == token else 0
            if run >= needed:
                return True
    return False
