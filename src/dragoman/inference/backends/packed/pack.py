"""Conversion of a trained model into a `PackedTransformer`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from dragoman.inference.backends.packed.embedding import InferenceEmbedding
from dragoman.inference.backends.packed.lazy_weight import LazyWeight
from dragoman.inference.backends.packed.matmul import PackedMatMul, pack_matmul
from dragoman.inference.backends.packed.model import (
    NormFn,
    PackedAttention,
    PackedLayer,
    PackedPointer,
    PackedStack,
    PackedTransformer,
    ResidualNorms,
)
from dragoman.inference.backends.protocol import Precision
from dragoman.model.attention import Attention
from dragoman.model.layers import ACTIVATIONS, DecoderLayer, EncoderLayer, PostNorm, PreNorm
from dragoman.model.linear import Linear
from dragoman.model.pointer import Pointer
from dragoman.model.transformer import Embedding, Transformer
from dragoman.runtime.malloc import trim_malloc


@torch.no_grad()
def pack_model(model: Transformer, precision: Precision, *, release: Callable[[], None] = lambda: None) -> PackedTransformer:
    """Return the model packed for a processor. The model must not change, because the first use packs some weights.

    release: is called whenever weights were read, so that mapped memory can be released
    """
    packer = _Packer(precision, release)
    output = packer.pack_linear(model.output, model.output_bias)
    encoder, decoder = packer.pack_stack(model.encoder), packer.pack_stack(model.decoder)
    pointer = None if model.decoder.pointer is None else packer.pack_pointer(model.decoder.pointer)
    trim_malloc()
    return PackedTransformer(encoder, decoder, output, pointer, precision, model)


@dataclass(frozen=True)
class _Packer:
    """Settings that all parts of one model are packed with."""

    precision: Precision
    release: Callable[[], None]

    def pack_linear(
        self, weight: Tensor, bias: Tensor | None, *, relu: bool = False, nonnegative_input: bool = False
    ) -> PackedMatMul:
        return pack_matmul(
            LazyWeight(weight.detach, weight.shape, self.release),
            bias,
            self.precision,
            relu=relu,
            nonnegative_input=nonnegative_input,
        )

    def pack_projections(self, attention: Attention, *names: str) -> PackedMatMul:
        bias = None if attention.query.bias is None else concat_projections(attention, names, "bias")
        linears = [cast(Linear, attention.get_submodule(name)) for name in names]
        shape = torch.Size((sum(linear.out_features for linear in linears), linears[0].in_features))
        return pack_matmul(
            LazyWeight(partial(concat_projections, attention, names, "weight"), shape, self.release), bias, self.precision
        )

    def pack_attention(self, attention: Attention, *, is_cross: bool) -> PackedAttention:
        projection_names = ("query",) if is_cross else ("query", "key", "value")
        return PackedAttention(
            qkv=self.pack_projections(attention, *projection_names),
            kv=self.pack_projections(attention, "key", "value") if is_cross else None,
            output=self.pack_linear(attention.output.weight, attention.output.bias),
            num_heads=attention.num_heads,
            key_width=attention.query.out_features // attention.num_heads,
        )

    def pack_layer(self, layer: EncoderLayer | DecoderLayer) -> PackedLayer:
        decoder_layer = layer if isinstance(layer, DecoderLayer) else None
        inner, outer, activation = layer.feed_forward.inner, layer.feed_forward.outer, layer.feed_forward.activation
        is_relu = activation == "relu"
        return PackedLayer(
            attention=self.pack_attention(layer.attention, is_cross=False),
            attention_residual=_pack_residual(layer.attention_residual),
            cross_attention=None
            if decoder_layer is None
            else self.pack_attention(decoder_layer.cross_attention, is_cross=True),
            cross_attention_residual=None if decoder_layer is None else _pack_residual(decoder_layer.cross_attention_residual),
            inner=self.pack_linear(inner.weight, inner.bias, relu=is_relu),
            activate=None if is_relu else ACTIVATIONS[activation],
            outer=self.pack_linear(outer.weight, outer.bias, nonnegative_input=is_relu),
            feed_forward_residual=_pack_residual(layer.feed_forward_residual),
        )

    def pack_pointer(self, pointer: Pointer) -> PackedPointer:
        projection = self.pack_linear(pointer.projection.weight, pointer.projection.bias)
        return PackedPointer(pointer.words, pointer.words.shifts_V.long(), projection)

    def pack_stack(self, stack: nn.Module) -> PackedStack:
        embedding, layers = cast(Embedding, stack.embedding), cast(nn.ModuleList, stack.layers)
        return PackedStack(
            embedding=InferenceEmbedding.from_embedding(embedding),
            layers=tuple(self.pack_layer(cast(EncoderLayer | DecoderLayer, layer)) for layer in layers),
            norm=_pack_norm(cast(nn.Module, stack.norm)),
            window=cast("int | None", stack.window),
        )


def _identity(x_MD: Tensor) -> Tensor:
    return x_MD


def _pack_norm(norm: nn.Module) -> NormFn:
    """Return layer normalization as a function, or the identity."""
    if not isinstance(norm, nn.LayerNorm):
        return _identity
    shape, weight_D, bias_D, epsilon = norm.normalized_shape, norm.weight.detach().clone(), norm.bias.detach().clone(), norm.eps

    def normalize(x_MD: Tensor) -> Tensor:
        return torch.layer_norm(x_MD, shape, weight_D, bias_D, epsilon)

    return normalize


def _pack_residual(residual: PostNorm | PreNorm) -> ResidualNorms:
    norm = _pack_norm(residual.norm)
    return ResidualNorms(_identity, norm) if isinstance(residual, PostNorm) else ResidualNorms(norm, _identity)


def concat_projections(attention: Attention, names: Sequence[str], parameter_name: str) -> Tensor:
    """Return the weight or bias of several projections as one, head by head. Queries include the scale of equation 1."""
    parts = []
    for name in names:
        all_heads = cast(Tensor, getattr(attention.get_submodule(name), parameter_name)).detach()
        part = all_heads.view(attention.num_heads, -1, *all_heads.shape[1:])
        parts.append(part * part.shape[1] ** -0.5 if name == "query" else part)
    return torch.cat(parts, dim=1).flatten(0, 1)
