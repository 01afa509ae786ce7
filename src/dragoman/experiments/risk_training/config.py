"""Section `training.minimum_risk`: training on whole outputs of the model instead of single tokens."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from dragoman.config.fields import Integer, PositiveFloat, RecipeSection, Weight


class MinimumRiskConfig(RecipeSection):
    """Loss of whole outputs: weight · risk of the outputs + likelihood_weight · loss of the references.

    The risk of an output is 1 − GLEU (Wu et al. 2016, section 5), counted on the pieces of the vocabulary. The mean is over the
    best outputs of beam search, by their renormalized probabilities (Shen et al. 2016).
    """

    num_candidates: Annotated[Integer, Field(ge=2, le=1_000)] = 8
    """Candidates of a sentence; each costs a search and a training pass over an output."""
    include_reference: bool = False
    """Whether the reference is one more candidate, as in Shen 2016."""
    sharpness: PositiveFloat = 1.0
    """Exponent of the probabilities before they are renormalized; 1 keeps them."""
    weight: Weight = 1.0
    """Weight of the risk of a sentence; 0 leaves the loss of the references alone."""
    likelihood_weight: Weight = 0.017
    """Weight of the loss of the references; by default α of GNMT."""

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if not self.weight and not self.likelihood_weight:
            raise ValueError("weight and likelihood_weight are 0, so there is no loss: give at least one a weight above 0")
        return self
