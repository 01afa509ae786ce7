"""The back end of PyTorch: every model in float32, most of them on a GPU in bfloat16."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from dragoman.inference.backends.protocol import Precision
from dragoman.inference.backends.trained_model import TrainedModel
from dragoman.tasks.inference_model import InferenceModel


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

        model, config = self.trained_model.get_transformer(), self.trained_model.config
        # No CUDA graph has a pointer, an SSRU or layers that the paper has not.
        if model.output.device.type == "cpu" or config.pointer or config.has_ssru or config.find_unusual_layers():
            return as_inference_model([model])
        dtype = torch.bfloat16 if self.precision == "bfloat16" else torch.float32
        return build_static_inference_model(deepcopy(model).to(dtype))

    def restrict_output(self, vocab_ids_W: NDArray[np.int64]) -> NoReturn:
        """Raise an error, because the back end refuses a shortlist before."""
        raise NotImplementedError
