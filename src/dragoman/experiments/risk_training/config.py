"""Section `training.sequence_loss`: training on whole outputs of the model instead of single tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from dragoman.config.fields import PositiveFloat, Weight
from dragoman.config.section import Limits, RecipeSection, model_validator

GNMT_LIKELIHOOD_WEIGHT = 0.017
"""α of GNMT, the weight of the likelihood beside expected GLEU (Wu et al. 2016, section 5)."""


class SequenceLossConfig(RecipeSection):
    """Sequence-level loss: weight · risk of the outputs + likelihood_weight · loss of the references.

    The risk of an output is 1 − GLEU (Wu et al. 2016, section 5), counted on the pieces of the vocabulary.
    """

    objective: Literal["minimum_risk", "expected_gleu"] = "minimum_risk"
    """Mean risk of the candidates by their renormalized probabilities (Shen 2016), or mean GLEU of samples with the
    score-function gradient (GNMT)."""
    candidates: Literal["sample", "nbest"] = "sample"
    """Candidates of a sentence: samples of the model, or the n best outputs of beam search."""
    num_candidates: Annotated[int, Limits(ge=2, le=1_000)] = 15
    """Candidates of a sentence; each costs a search and a training pass over an output."""
    include_reference: bool = False
    """Minimum risk: whether the reference is one more candidate, as in Shen 2016."""
    sharpness: PositiveFloat = 5e-3
    """Minimum risk: exponent of the probabilities before they are renormalized; 1 keeps them."""
    weight: Weight = 1.0
    """Weight of the risk of a sentence; 0 leaves the loss of the references alone."""
    likelihood_weight: Weight | None = None
    """Weight of the loss of the references; by default 0.017, α of GNMT, for `expected_gleu`, and 0 for `minimum_risk`."""

    @property
    def reference_weight(self) -> float:
        """Return the weight of the loss of the references.

        The gradient of minimum risk has `sharpness` as a factor, so a weight of 0.017 would leave nothing of it.
        """
        if self.likelihood_weight is not None:
            return self.likelihood_weight
        return GNMT_LIKELIHOOD_WEIGHT if self.objective == "expected_gleu" else 0.0

    @model_validator
    def _check_objective(self) -> None:
        if not self.weight and not self.reference_weight:
            raise ValueError("weight and likelihood_weight are 0, so there is no loss: give at least one a weight above 0")
        if self.objective == "minimum_risk":
            return
        if self.candidates == "nbest":
            raise ValueError(
                "candidates = 'nbest' with objective = 'expected_gleu', whose mean is over samples: set candidates = 'sample', "
                "or objective = 'minimum_risk' with sharpness = 1"
            )
        if self.include_reference:
            raise ValueError(
                "include_reference = true with objective = 'expected_gleu', whose mean is over samples: drop it, or set "
                "objective = 'minimum_risk'"
            )
        if self.sharpness != SequenceLossConfig.model_fields["sharpness"].default:
            raise ValueError(f"sharpness = {self.sharpness:g} is for objective = 'minimum_risk': drop it")
