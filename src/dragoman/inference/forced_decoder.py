"""The choice of a forced decoder: NumPy for the paper's layers on a CPU, and PyTorch for others and on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.inference.backends.trained_model import TrainedModel
from dragoman.model_forward import NumpyTransformer

if TYPE_CHECKING:
    from dragoman.torch_engine.forced_decoder import TorchForcedDecoder


def build_forced_decoder(model: TrainedModel, device: str = "cpu") -> NumpyTransformer | TorchForcedDecoder:
    """Return the forced decoder of a trained model on a device."""
    if device == "cpu" and not model.config.find_unusual_layers():
        return NumpyTransformer(model.get_weights())
    from dragoman.torch_engine.forced_decoder import TorchForcedDecoder  # most models need no PyTorch

    return TorchForcedDecoder(model.get_transformer())
