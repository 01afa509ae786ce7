"""Requests that the CUDA back end runs: models without a pointer, in float32 or bfloat16."""

from __future__ import annotations

from dragoman.inference.backends.protocol import (
    SUPPORTED,
    UNUSUAL_LAYERS,
    BackendRequest,
    Precision,
    PreparedModel,
    Support,
    fall_back,
    refuse,
    refuse_shortlist,
)
from dragoman.inference.backends.trained_model import TrainedModel


class CudaBackend:
    """Decoding steps over static buffers, recorded as CUDA graphs."""

    name = "cuda"

    def supports(self, request: BackendRequest) -> Support:
        if request.device_type == "cpu":
            return fall_back("CUDA graphs need a GPU")
        if request.has_shortlist:
            return refuse_shortlist("a shortlist saves time on a processor only")
        if request.traits.has_pointer:
            return fall_back("static buffers have no pointer; the training model runs in float32")
        if request.traits.has_unusual_layers:
            return UNUSUAL_LAYERS
        if request.precision == "int8":
            return refuse("a GPU computes in bfloat16 or float32")
        return SUPPORTED

    def check_machine(self, precision: Precision) -> Support:
        return SUPPORTED

    def prepare(self, model: TrainedModel, precision: Precision) -> PreparedModel:
        from dragoman.inference.backends.cuda.model import CudaModel  # imports PyTorch

        return CudaModel.from_transformer(model.get_transformer(), precision)
