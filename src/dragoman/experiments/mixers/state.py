"""State of the decoder between steps, for layers without self-attention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from dragoman.model.transformer import DecoderState

LayerState = tuple[Tensor, ...]
"""Tensors of one layer with one row a hypothesis: h and c of an LSTM, or the last inputs of a convolution."""


class MixerInput(NamedTuple):
    """Input of a mixer, a layer that combines T more positions in the place of self-attention.

    x_NTX: outputs of the layer below, in a decoder perhaps with a context vector beside them
    state: state after earlier positions; None before the first one
    token_mask_NT: true for tokens, false for padding on the right; None if there is no padding
    fast_forward: connection of the layer below
    """

    x_NTX: Tensor
    state: LayerState | None = None
    token_mask_NT: Tensor | None = None
    fast_forward: Tensor | None = None


class MixerOutput(NamedTuple):
    """Result of a mixer: its output (N, T, D), its state after the last position, and its fast-forward connection.

    fast_forward: half of the gates' inputs (N, T, 2 · D) for the layer above; None without such connections
    """

    y_NTD: Tensor
    state: LayerState
    fast_forward: Tensor | None = None


@dataclass(frozen=True)
class MixerState(DecoderState):
    """State of a decoder of mixers. `cross_kv` has one entry for each layer with cross-attention.

    layers: state of each layer; None before the first step
    memory_BSD: encoder output that the decoder reads position by position, without attention; else None
    """

    layers: tuple[LayerState, ...] | None = None
    memory_BSD: Tensor | None = None

    def reorder(self, rows_N: Tensor) -> MixerState:
        """Return the state in which row i is the former row rows_N[i]; rows stay within their sentence."""
        layers = self.layers and _select(self.layers, rows_N)
        return replace(self, layers=layers, pointer=self.pointer and self.pointer.reorder(rows_N))

    def select_sentences(self, sentences_B: Tensor) -> MixerState:
        layers = self.layers
        if layers is not None:
            beam_size = layers[0][0].shape[0] // self.memory_mask.shape[0]
            rows_N = (sentences_B[:, None] * beam_size + torch.arange(beam_size, device=sentences_B.device)).flatten()
            layers = _select(layers, rows_N)
        return replace(
            self,
            cross_kv=tuple(layer_kv.select(sentences_B) for layer_kv in self.cross_kv),
            memory_mask=self.memory_mask.index_select(0, sentences_B),
            pointer=self.pointer and self.pointer.select_sentences(sentences_B),
            layers=layers,
            memory_BSD=None if self.memory_BSD is None else self.memory_BSD.index_select(0, sentences_B),
        )


def _select(layers: tuple[LayerState, ...], rows_N: Tensor) -> tuple[LayerState, ...]:
    return tuple(tuple(tensor.index_select(0, rows_N) for tensor in layer) for layer in layers)
