"""Training model as it is, called by PyTorch layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from dragoman.model.transformer import Transformer
from dragoman.tasks.inference_model import InferenceModel
from dragoman.tasks.torch_models import as_inference_model


@dataclass(frozen=True)
class EagerModel:
    """Training model with the interface of the models that are prepared for a processor."""

    model: Transformer

    def build_inference_model(self, vocab_ids_W: NDArray[np.int64] | None = None) -> InferenceModel:
        """Return the inference model, which computes all words."""
        return as_inference_model([self.model])

    def restrict_output(self, vocab_ids_W: NDArray[np.int64]) -> NoReturn:
        """Raise an error, because the back end refuses a shortlist before."""
        raise NotImplementedError
