"""Encoder and decoder whose layers have a mixer in the place of self-attention.

A decoder reads the source in one of four ways (`cross_attention` in the recipe):

    every: attention in each layer, as in the Transformer
    multi_step: the same with the input's embedding in each query, and √m as a factor for m source tokens (ConvS2S)
    first: one attention after the first layer, whose result the other layers read beside their input (GNMT)
    unfold: no attention; the input at position t includes the encoder's output at position t (ByteNet)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.experiments.mixers.state import LayerState, MixerInput, MixerOutput, MixerState
from dragoman.experiments.token_masks import find_target_tokens
from dragoman.model.attention import Attention, KeyValue
from dragoman.model.layers import FeedForward, Residual, attend_to_source
from dragoman.model.linear import Linear
from dragoman.model.masks import padding_mask
from dragoman.model.pointer import Pointer
from dragoman.model.transformer import Decoder, DecoderState, Embedding, Encoder


class MixerEncoderLayer(nn.Module):
    """Mixer and the feed-forward network, each with a residual connection."""

    def __init__(
        self, *, mixer: nn.Module, feed_forward: FeedForward, mixer_residual: Residual, feed_forward_residual: Residual
    ) -> None:
        super().__init__()
        self.mixer = mixer
        self.mixer_residual = mixer_residual
        self.feed_forward = feed_forward
        self.feed_forward_residual = feed_forward_residual

    def forward(self, x_BSD: Tensor, token_mask_BS: Tensor, fast_forward: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the layer's output (B, S, D), and its fast-forward connection if the mixer has one."""
        y_BSD = self.mixer_residual.sublayer_input(x_BSD)
        output: MixerOutput = self.mixer(MixerInput(y_BSD, None, token_mask_BS, fast_forward))
        x_BSD = self.mixer_residual(x_BSD, output.y_NTD)
        y_BSD = self.feed_forward(self.feed_forward_residual.sublayer_input(x_BSD))
        return self.feed_forward_residual(x_BSD, y_BSD), output.fast_forward


class MixerEncoder(Encoder):
    """Stack of mixer layers over the source.

    adds_embedding: whether the memory is (output + embedding) · scale, as the values of ConvS2S are
    """

    def __init__(
        self,
        *,
        embedding: Embedding,
        layers: Sequence[MixerEncoderLayer],
        norm: nn.Module,
        adds_embedding: bool,
        scale: float,
    ) -> None:
        super().__init__(embedding=embedding, layers=layers, norm=norm, window=None)
        self.adds_embedding = adds_embedding
        self.scale = scale

    def forward(self, source_BS: Tensor) -> Tensor:
        """Return the memory: the encodings of source ids, which are padded on the right. → (B, S, D)"""
        token_mask_BS = self.source_frontend.find_inputs(source_BS)
        embedding_BSD = x_BSD = self.embedding.add_positions(self.source_frontend.embed(source_BS))
        fast_forward: Tensor | None = None
        for layer in self.layers:
            x_BSD, fast_forward = layer(x_BSD, token_mask_BS, fast_forward)
        x_BSD = cast(Tensor, self.norm(x_BSD))
        return (x_BSD + embedding_BSD) * self.scale if self.adds_embedding else x_BSD


class DecoderLayerOutput(NamedTuple):
    """Output of a decoder layer (N, T, D), its state, its fast-forward connection, and the context for the layers above."""

    x_NTD: Tensor
    state: LayerState
    fast_forward: Tensor | None
    context_NTD: Tensor | None


class MixerDecoderLayer(nn.Module):
    """Mixer, cross-attention and the feed-forward network, each with a residual connection.

    cross_attention: None if the layer has none
    cross_attention_residual: None if the layer has no attention, or passes it to the layers above
    reading: how the decoder reads the source
    """

    def __init__(
        self,
        *,
        mixer: nn.Module,
        cross_attention: Attention | None,
        feed_forward: FeedForward,
        mixer_residual: Residual,
        cross_attention_residual: Residual | None,
        feed_forward_residual: Residual,
        reading: str,
    ) -> None:
        super().__init__()
        self.mixer = mixer
        self.mixer_residual = mixer_residual
        self.cross_attention = cross_attention
        self.cross_attention_residual = cross_attention_residual
        self.feed_forward = feed_forward
        self.feed_forward_residual = feed_forward_residual
        self.reading = reading

    def forward(
        self,
        x_NTD: Tensor,
        *,
        embedding_NTD: Tensor,
        cross_kv: KeyValue | None,
        memory_mask: Tensor,
        token_mask_NT: Tensor | None,
        state: LayerState | None,
        fast_forward: Tensor | None,
        context_NTD: Tensor | None,
    ) -> DecoderLayerOutput:
        """Return the layer's output for T more positions.

        embedding_NTD: input of the first layer
        cross_kv: keys and values of the source for the layer's attention; None if it has none
        memory_mask: as in `DecoderLayer`
        token_mask_NT: true for tokens, false for padding, in training; None if it is of no use
        state: state of the mixer after earlier positions; None before the first step
        fast_forward: connection of the layer below
        context_NTD: attention after the first layer, which this layer reads beside x; None if there is none
        """
        y_NTX = self.mixer_residual.sublayer_input(x_NTD)
        if context_NTD is not None:
            y_NTX = torch.cat([y_NTX, context_NTD], dim=-1)
        output: MixerOutput = self.mixer(MixerInput(y_NTX, state, token_mask_NT, fast_forward))
        x_NTD = self.mixer_residual(x_NTD, output.y_NTD)

        if self.cross_attention is not None and cross_kv is not None:
            if self.cross_attention_residual is None:
                context_NTD = attend_to_source(self.cross_attention, x_NTD, cross_kv, memory_mask)
            else:
                y_NTD = self.cross_attention_residual.sublayer_input(x_NTD)
                y_NTD = self._read_source(self.cross_attention, y_NTD, embedding_NTD, cross_kv, memory_mask)
                x_NTD = self.cross_attention_residual(x_NTD, y_NTD)

        y_NTD = self.feed_forward(self.feed_forward_residual.sublayer_input(x_NTD))
        x_NTD = self.feed_forward_residual(x_NTD, y_NTD)
        return DecoderLayerOutput(x_NTD, output.state, output.fast_forward, context_NTD)

    def _read_source(
        self, attention: Attention, y_NTD: Tensor, embedding_NTD: Tensor, cross_kv: KeyValue, memory_mask: Tensor
    ) -> Tensor:
        """Return the attention to the source; with several steps, as in ConvS2S (sections 3.3 and 3.4). → (N, T, D)"""
        if self.reading != "multi_step":
            return attend_to_source(attention, y_NTD, cross_kv, memory_mask)
        y_NTD = (y_NTD + embedding_NTD) * math.sqrt(0.5)
        num_tokens_B = memory_mask.sum(dim=(1, 2, 3))
        factor_N = num_tokens_B.sqrt().repeat_interleave(len(y_NTD) // len(num_tokens_B)).to(y_NTD.dtype)
        return attend_to_source(attention, y_NTD, cross_kv, memory_mask) * factor_N[:, None, None]


class MixerDecoder(Decoder):
    """Stack of mixer layers over the target and the memory.

    reading: how the decoder reads the source
    """

    def __init__(
        self,
        *,
        embedding: Embedding,
        layers: Sequence[MixerDecoderLayer],
        norm: nn.Module,
        reading: str,
        pointer: Pointer | None = None,
    ) -> None:
        super().__init__(embedding=embedding, layers=layers, norm=norm, window=None, pointer=pointer)
        self.reading = reading
        width = embedding.weight.shape[1]
        self.memory_projection = Linear(width, width, bias=False) if reading == "unfold" else None

    def start(self, memory_BSD: Tensor, inputs_BS: Tensor, source_BS: Tensor) -> MixerState:
        """Return the state before the first token, with the keys and values of the memory for each attention."""
        pointer = None if self.pointer is None else self.pointer.start(memory_BSD, source_BS)
        if self.reading == "multi_step":  # the encoder gets the mean gradient of the attentions (ConvS2S, section 3.5)
            share = 1.0 / len(self.layers)
            memory_BSD = memory_BSD * share + memory_BSD.detach() * (1.0 - share)
        attentions = [cast(MixerDecoderLayer, layer).cross_attention for layer in self.layers]
        return MixerState(
            cross_kv=tuple(attention.project_kv(memory_BSD) for attention in attentions if attention is not None),
            memory_mask=padding_mask(inputs_BS),
            self_kv=None,
            length=0,
            pointer=pointer,
            memory_BSD=memory_BSD * inputs_BS[:, :, None] if self.memory_projection is not None else None,
        )

    def forward(self, inputs_NT: Tensor, state: DecoderState) -> tuple[Tensor, MixerState]:
        """Return the outputs of T more tokens (N, T, D), and the state after them."""
        assert isinstance(state, MixerState)
        token_mask_NT = find_target_tokens(inputs_NT, self.embedding.padding_id) if self.training else None
        x_NTD, pointer = self.embedding(inputs_NT, start=state.length), state.pointer
        if self.pointer is not None and pointer is not None:
            word_NTD, pointer = self.pointer(inputs_NT, pointer)
            x_NTD = x_NTD + word_NTD
        if self.memory_projection is not None:
            x_NTD = x_NTD + self.memory_projection(slice_memory(state, *inputs_NT.shape))
        embedding_NTD, cross_kv = x_NTD, iter(state.cross_kv)
        fast_forward, context_NTD, states = None, None, list[LayerState]()
        for layer, past in zip(self.layers, state.layers or (None,) * len(self.layers), strict=True):
            x_NTD, layer_state, fast_forward, context_NTD = layer(
                x_NTD,
                embedding_NTD=embedding_NTD,
                cross_kv=None if cast(MixerDecoderLayer, layer).cross_attention is None else next(cross_kv),
                memory_mask=state.memory_mask,
                token_mask_NT=token_mask_NT,
                state=past,
                fast_forward=fast_forward,
                context_NTD=context_NTD,
            )
            states.append(layer_state)
        x_NTD = self.norm(x_NTD)
        length = state.length + inputs_NT.shape[1]
        return x_NTD, replace(state, layers=tuple(states), length=length, pointer=pointer)


def slice_memory(state: MixerState, num_rows: int, length: int) -> Tensor:
    """Return the encoder's output at the next `length` positions of each row, and zeros beyond the source. → (N, T, D)"""
    assert state.memory_BSD is not None
    memory_BTD = state.memory_BSD[:, state.length : state.length + length]
    memory_BTD = F.pad(memory_BTD, (0, 0, 0, length - memory_BTD.shape[1]))
    return memory_BTD.repeat_interleave(num_rows // len(memory_BTD), dim=0)
