"""Fit of targets into the positions of a CTC decoder."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dragoman.data.tokenization.special_tokens import PADDING_ID


@dataclass(frozen=True)
class CtcFit:
    """Sentences of a batch whose target fits into the positions of the decoder.

    fits_B: true where some path merges to the target: it has a position for each token, and one between equal neighbors
    num_target_tokens: tokens of these targets, end tokens included, as in `Batch.num_target_tokens`
    num_infeasible: number of the other sentences; they have no loss
    """

    fits_B: Tensor
    num_target_tokens: int
    num_infeasible: int


def measure_fit(targets_BT: Tensor, num_frames_B: Tensor) -> CtcFit:
    """Return which targets, padded on the right, fit into the positions of their source."""
    is_token_BT = targets_BT != PADDING_ID
    is_repeated_BT = (targets_BT[:, 1:] == targets_BT[:, :-1]) & is_token_BT[:, 1:]
    num_tokens_B = is_token_BT.sum(dim=1)
    num_needed_B = num_tokens_B - 1 + is_repeated_BT.sum(dim=1)  # without the end token
    fits_B = num_needed_B <= num_frames_B
    return CtcFit(fits_B, int(num_tokens_B[fits_B].sum()), int((~fits_B).sum()))
