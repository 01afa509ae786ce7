"""Divergence of a run by its losses: losses from which training does not come back."""

from __future__ import annotations

import math

LOSS_FACTOR = 1.5
"""Multiple of the loss of a uniform guess, or of the first step if that is higher, above which a run has diverged."""


def find_divergence(
    *, validation_nll: float | None, training_nll: float | None, initial_nll: float | None, vocab_size: int
) -> str | None:
    """Return why a run has diverged, as the end of a sentence; None if it has not. Losses are in nats per target token.

    The validation loss of an overfitted model may be as high, so the loss of training must be, too.

    validation_nll: loss of this validation; None without a validation set
    training_nll: mean loss of the last steps; None if no step was applied
    initial_nll: loss of the first step
    vocab_size: number of target tokens V; a uniform guess has the loss log V
    """
    if validation_nll is not None and not math.isfinite(validation_nll):
        return "the validation loss is not a finite number"
    uniform_nll = math.log(vocab_size)
    losses = [nll for nll in (validation_nll, training_nll) if nll is not None]
    if not losses or min(losses) <= LOSS_FACTOR * max(uniform_nll, initial_nll or 0.0):
        return None
    return f"the loss is {min(losses):.4g} nats per token, and that of a uniform guess is {uniform_nll:.4g}"
