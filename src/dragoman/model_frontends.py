"""Front ends of NumPy models: those of text and of spectrograms.

B sources    S positions of the encoder    D model width    M bands    T frames
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.activations import FloatArray, activate, gelu
from dragoman.config.encoder_input import KERNEL_SIZE
from dragoman.frontends.protocol import Frontend
from dragoman.model_weights import CONVOLUTIONS, ModelWeights, Stack


def build_frontend(weights: ModelWeights) -> Frontend[NDArray[Any]]:
    """Return the first part of a model's encoder. Its vectors are in memory of their own."""
    match weights.config.frontend:
        case "tokens":
            return TextFrontend(weights)
        case "log-mel":
            return SpectrogramFrontend(weights)


def embed_tokens(weights: ModelWeights, stack: Stack, ids_BT: NDArray[np.int64]) -> FloatArray:
    """Return √d_model · E[ids] (section 3.4); padding has a zero vector. → (B, T, D)"""
    scale_BT = np.where(ids_BT == weights.padding_id, 0, weights.embedding_scale).astype(np.float32)
    x_BTD: FloatArray = weights.get_embedding(stack)[ids_BT] * scale_BT[:, :, None]
    return x_BTD


@dataclass(frozen=True)
class TextFrontend:
    """Embeddings of token ids (B, S), padded on the right."""

    weights: ModelWeights
    numbers_per_vector: int = 1

    def embed(self, source: NDArray[Any]) -> FloatArray:
        return embed_tokens(self.weights, "encoder", source)

    def find_inputs(self, source: NDArray[Any]) -> NDArray[np.bool_]:
        return np.asarray(source != self.weights.padding_id)


@dataclass(frozen=True)
class SpectrogramFrontend:
    """Two convolutions over the frames of spectrograms (B, M, T), each with GELU (Radford et al. 2022, section 2.2).

    The second one steps over two frames, so that S = T / 2. No position is padding: a short sound ends with silence.
    """

    weights: ModelWeights

    @property
    def numbers_per_vector(self) -> int:
        return 2 * self.weights.config.num_mel_bins

    def embed(self, source: NDArray[Any]) -> FloatArray:
        x_BTD = np.ascontiguousarray(source.swapaxes(1, 2), np.float32)
        for layer, stride in enumerate((1, 2)):
            x_BTD = self._convolve(x_BTD, f"{CONVOLUTIONS}.{layer}", stride)
        return x_BTD

    def _convolve(self, x_BTF: FloatArray, name: str, stride: int) -> FloatArray:
        """Return the GELU of a convolution over three frames, with a frame of zeros at both ends. → (B, T / stride, D)"""
        padded_BTF = np.pad(x_BTF, ((0, 0), (1, 1), (0, 0)))
        frames = [padded_BTF[:, offset : offset + x_BTF.shape[1] : stride] for offset in range(KERNEL_SIZE)]
        weight_DX, bias_D = (self.weights.arrays[f"{name}.{parameter}"] for parameter in ("weight", "bias"))
        y_BTD: FloatArray = np.concatenate(frames, axis=2) @ weight_DX.T
        y_BTD += bias_D
        return activate(y_BTD, gelu)

    def find_inputs(self, source: NDArray[Any]) -> NDArray[np.bool_]:
        return np.ones((len(source), source.shape[2] // 2), np.bool_)
