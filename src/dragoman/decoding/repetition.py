"""Repetition: detection at the end of an output, and a penalty on tokens that an output has already.

An output repeats itself if it ends with one group of tokens at least four times in a row, over at least `window` tokens. A
window of 32 therefore stops one token after 32 copies, eight tokens after four, and twenty tokens after four. Natural text has
a word three times or a row of dots, but not this. A source that repeats itself (`contains_repetition`) may have such an output.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.decoding.arrays import Array, Arrays

MIN_REPEATS = 4
# A search checks its outputs at every length that is a multiple of this.
CHECK_INTERVAL = 8


def is_repeating(outputs_NT: Array, window: int, arrays: Arrays) -> Array:
    """Return whether each output of T tokens ends with a repetition of a group of at most `window` tokens. → (N,)"""
    xp, (num_rows, length) = arrays.xp, outputs_NT.shape
    max_period = min(window, length // MIN_REPEATS)
    if max_period < 1 or length < window:
        return arrays.full((num_rows,), False, xp.bool)
    period_P = arrays.arange(max_period) + 1
    # Number of tokens at the end that must equal the token one period before; the first group adds one period to it.
    needed_P = xp.maximum(window - period_P, (MIN_REPEATS - 1) * period_P)
    max_depth = max(window - 1, (MIN_REPEATS - 1) * max_period)
    padding_NT = arrays.full((num_rows, max_period), -1, outputs_NT.dtype)
    reversed_NT = xp.concat([xp.flip(outputs_NT, (1,))[:, : max_depth + max_period], padding_NT], axis=1)
    window_NTP = arrays.windows(reversed_NT, max_period + 1)[:, :max_depth]
    is_equal_NTP = window_NTP[:, :, 1:] == window_NTP[:, :, :1]
    is_beyond_TP = arrays.arange(window_NTP.shape[1])[:, None] >= needed_P
    return (is_equal_NTP | is_beyond_TP).all(1).any(1)


def penalize_repeated_tokens(logits_NV: Array, outputs_NT: Array, penalty: float, arrays: Arrays) -> None:
    """Lower the logits of the tokens of each output, in place (Keskar et al. 2019, section 4.1).

    A positive logit is divided by the penalty. A negative one is multiplied, because a division would raise it.
    """
    rows_N1 = arrays.arange(len(logits_NV))[:, None]
    logits_NT = logits_NV[rows_N1, outputs_NT]
    logits_NV[rows_N1, outputs_NT] = arrays.xp.where(logits_NT > 0, logits_NT / penalty, logits_NT * penalty)


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
