"""Requests that PyTorch runs, and the models that it prepares: every model in float32, most of them on a GPU in bfloat16."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from dragoman.inference.backends.protocol import (
    SUPPORTED,
    BackendRequest,
    ModelTraits,
    Precision,
    PreparedModel,
    Support,
    refuse,
    refuse_frontend,
    refuse_shortlist,
)
from dragoman.inference.backends.trained_model import TrainedModel
from dragoman.tasks.inference_model import InferenceModel


class TorchBackend:
    """PyTorch on a CPU or a GPU. On a GPU, steps of the paper's layers are recorded as CUDA graphs."""

    name = "torch"

    def supports(self, request: BackendRequest) -> Support:
        if request.traits.is_compiled_only:
            return refuse_frontend("PyTorch computes models that read tokens")
        if request.has_shortlist:
            return refuse_shortlist("PyTorch computes all words")
        if request.precision == "float32":
            return SUPPORTED
        if request.precision == "int8" or request.device_type == "cpu":
            return refuse("a GPU computes in bfloat16 or float32, and PyTorch on a CPU in float32")
        return (
            refuse("PyTorch computes a pointer, and layers that the paper has not, in float32")
            if request.traits.needs_float32
            else SUPPORTED
        )

    def check_machine(self, precision: Precision) -> Support:
        return SUPPORTED

    def prepare(self, model: TrainedModel, precision: Precision) -> PreparedModel:
        return TorchModel(model, precision)


@dataclass(frozen=True)
class TorchModel:
    """Model of PyTorch in one precision, on its device."""

    trained_model: TrainedModel
    precision: Precision

    def build_inference_model(self, vocab_ids_W: NDArray[np.int64] | None = None) -> InferenceModel:
        """Return the inference model, which computes all words. On a GPU, steps of the paper's layers are CUDA graphs."""
        import torch

        from dragoman.torch_engine.inference_model import as_inference_model
        from dragoman.torch_engine.static_model import build_static_inference_model

        model, traits = self.trained_model.get_transformer(), ModelTraits.from_config(self.trained_model.config)
        if model.output.device.type == "cpu" or traits.needs_float32:
            return as_inference_model([model])
        dtype = torch.bfloat16 if self.precision == "bfloat16" else torch.float32
        return build_static_inference_model(deepcopy(model).to(dtype))

    def restrict_output(self, vocab_ids_W: NDArray[np.int64]) -> NoReturn:
        """Raise an error, because the back end refuses a shortlist before."""
        raise NotImplementedError
