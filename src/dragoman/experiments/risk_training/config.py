"""Section `training.sequence_loss`: training on whole outputs of the model instead of single tokens."""

from __future__ import annotations

from typing import Annotated

from dragoman.config.fields import PositiveFloat, Weight
from dragoman.config.section import Limits, RecipeSection, model_validator


class SequenceLossConfig(RecipeSection):
    """Minimum risk (Shen et al. 2016) of the n best outputs of beam search.

    The loss is weight · risk of the outputs + likelihood_weight · loss of the references. The risk of an output is 1 − GLEU
    (Wu et al. 2016, section 5), counted on the pieces of the vocabulary.
    """

    num_candidates: Annotated[int, Limits(ge=2, le=1_000)] = 8
    """Outputs of a sentence; each costs a share of a beam search, and a training pass."""
    include_reference: bool = False
    """Whether the reference is one more candidate, as in Shen 2016."""
    sharpness: PositiveFloat = 1.0
    """Exponent of the probabilities before they are renormalized; 1 keeps them."""
    weight: Weight = 1.0
    """Weight of the risk of a sentence; 0 leaves the loss of the references alone."""
    likelihood_weight: Weight = 0.017
    """Weight of the loss of the references, by default that of GNMT."""

    @model_validator
    def _check_weights(self) -> None:
        if not self.weight and not self.likelihood_weight:
            raise ValueError("weight and likelihood_weight are 0, so there is no loss: give at least one a weight above 0")
