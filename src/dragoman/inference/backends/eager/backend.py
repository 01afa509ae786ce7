"""Requests that the eager back end runs: every model in float32, on any device."""

from __future__ import annotations

from dragoman.inference.backends.protocol import (
    SUPPORTED,
    BackendRequest,
    Precision,
    PreparedModel,
    Support,
    refuse,
    refuse_shortlist,
)
from dragoman.inference.backends.trained_model import TrainedModel


class EagerBackend:
    """Training model in float32, for models that no other back end runs."""

    name = "eager"

    def supports(self, request: BackendRequest) -> Support:
        if request.has_shortlist:
            return refuse_shortlist("the training model computes all words")
        return SUPPORTED if request.precision == "float32" else refuse("the training model computes in float32")

    def check_machine(self, precision: Precision) -> Support:
        return SUPPORTED

    def prepare(self, model: TrainedModel, precision: Precision) -> PreparedModel:
        from dragoman.inference.backends.eager.model import EagerModel  # imports PyTorch

        return EagerModel(model.get_transformer())
