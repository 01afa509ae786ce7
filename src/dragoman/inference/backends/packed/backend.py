"""Requests that the packed back end runs: every model, on any processor."""

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
)
from dragoman.inference.backends.trained_model import TrainedModel


class PackedBackend:
    """PyTorch functions over packed weights."""

    name = "packed"

    def supports(self, request: BackendRequest) -> Support:
        if request.device_type != "cpu":
            return fall_back("packed weights are for processors")
        return UNUSUAL_LAYERS if request.traits.has_unusual_layers else SUPPORTED

    def check_machine(self, precision: Precision) -> Support:
        if precision == "float32":
            return SUPPORTED
        from dragoman.runtime.cpu_support import has_int8_matmul, supports_bf16_matmul  # imports PyTorch

        if precision == "int8" and not has_int8_matmul():
            return refuse("this build of PyTorch has no int8 products")
        if precision == "bfloat16" and not supports_bf16_matmul():
            return refuse("oneDNN does not multiply bfloat16 on this processor")
        return SUPPORTED

    def prepare(self, model: TrainedModel, precision: Precision) -> PreparedModel:
        from dragoman.inference.backends.packed.pack import pack_model  # imports PyTorch

        return pack_model(model.get_transformer(), precision, release=model.release)
