"""Precisions of a model, and the protocol of the models that a back end has prepared."""

from __future__ import annotations

from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from dragoman.tasks.inference_model import InferenceModel

Precision = Literal["float32", "bfloat16", "int8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


class PreparedModel(Protocol):
    """Model that a back end has prepared for its device."""

    def build_inference_model(self, vocab_ids_W: NDArray[np.int64] | None = None) -> InferenceModel:
        """Return the model as a search steps it.

        vocab_ids_W: token ids of a restricted output vocabulary, whose numbers the steps read
        """
        ...

    def restrict_output(self, vocab_ids_W: NDArray[np.int64]) -> PreparedModel:
        """Return the prepared model with these output words only."""
        ...
