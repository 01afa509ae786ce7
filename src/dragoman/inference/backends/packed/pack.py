"""Makes a trained model ready to translate on a processor: what `dragoman.inference.backends.packed.model` computes with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from dragoman.inference.backends.packed.matmul import Precision, Product, Weight, pack_product
from dragoman.inference.backends.packed.model import (
    Norm,
    PackedAttention,
    PackedEmbedding,
    PackedLayer,
    PackedPointer,
    PackedStack,
    PackedTransformer,
    Residual,
)
from dragoman.model.attention import Attention
from dragoman.model.layers import DecoderLayer, EncoderLayer, PostNorm, PreNorm
from dragoman.model.linear import Linear
from dragoman.model.pointer import Pointer
from dragoman.model.transformer import Embedding, Transformer
from dragoman.runtime.malloc import give_freed_memory_back


@torch.no_grad()
def pack(model: Transformer, precision: Precision, *, forget: Callable[[], None] = lambda: None) -> PackedTransformer:
    """The model made ready, on a processor only. It must stay what it is: some weights are put in order when needed first.

    forget: see `Bundle.forget`; told whenever weights were read
    """
    packer = _Packer(precision, forget)
    output = packer.product(model.output, None)
    encoder, decoder = packer.stack(model.encoder), packer.stack(model.decoder)
    pointer = None if model.decoder.pointer is None else packer.pointer(model.decoder.pointer)
    give_freed_memory_back()
    return PackedTransformer(encoder, decoder, output, pointer, exact=precision == "float32")


@dataclass(frozen=True)
class _Packer:
    """Makes every part of a model ready in the same way."""

    precision: Precision
    forget: Callable[[], None]

    def product(self, weight: Tensor, bias: Tensor | None, *, relu: bool = False, positive: bool = False) -> Product:
        return pack_product(
            Weight(weight.detach, weight.shape, self.forget), bias, self.precision, relu=relu, positive=positive
        )

    def projections(self, attention: Attention, *names: str) -> Product:
        bias = None if attention.query.bias is None else joined(attention, names, "bias")
        linears = [cast(Linear, attention.get_submodule(name)) for name in names]
        shape = torch.Size((sum(linear.out_features for linear in linears), linears[0].in_features))
        return pack_product(Weight(partial(joined, attention, names, "weight"), shape, self.forget), bias, self.precision)

    def attention(self, attention: Attention, *, across: bool) -> PackedAttention:
        looks = ("query",) if across else ("query", "key", "value")
        return PackedAttention(
            look=self.projections(attention, *looks),
            remember=self.projections(attention, "key", "value") if across else None,
            output=self.product(attention.output.weight, attention.output.bias),
            heads=attention.num_heads,
            key_width=attention.query.out_features // attention.num_heads,
        )

    def layer(self, layer: EncoderLayer | DecoderLayer) -> PackedLayer:
        across = layer if isinstance(layer, DecoderLayer) else None
        inner, outer = layer.feed_forward.inner, layer.feed_forward.outer
        return PackedLayer(
            attention=self.attention(layer.attention, across=False),
            attention_residual=_pack_residual(layer.attention_residual),
            cross_attention=None if across is None else self.attention(across.cross_attention, across=True),
            cross_attention_residual=None if across is None else _pack_residual(across.cross_attention_residual),
            inner=self.product(inner.weight, inner.bias, relu=True),
            outer=self.product(outer.weight, outer.bias, positive=True),
            feed_forward_residual=_pack_residual(layer.feed_forward_residual),
        )

    def pointer(self, pointer: Pointer) -> PackedPointer:
        projection = self.product(pointer.projection.weight, pointer.projection.bias)
        return PackedPointer(pointer.words, pointer.words.shifts_V.long(), projection)

    def stack(self, side: nn.Module) -> PackedStack:
        embedding, layers = cast(Embedding, side.embedding), cast(nn.ModuleList, side.layers)
        return PackedStack(
            embedding=pack_embedding(embedding),
            layers=tuple(self.layer(cast(EncoderLayer | DecoderLayer, layer)) for layer in layers),
            norm=_pack_norm(cast(nn.Module, side.norm)),
            window=cast("int | None", side.window),
        )


def _same(x_MD: Tensor) -> Tensor:
    return x_MD


def _pack_norm(norm: nn.Module) -> Norm:
    """Layer normalisation, or nothing."""
    if not isinstance(norm, nn.LayerNorm):
        return _same
    shape, weight_D, bias_D, epsilon = norm.normalized_shape, norm.weight.detach().clone(), norm.bias.detach().clone(), norm.eps

    def normalise(x_MD: Tensor) -> Tensor:
        return torch.layer_norm(x_MD, shape, weight_D, bias_D, epsilon)

    return normalise


def _pack_residual(residual: PostNorm | PreNorm) -> Residual:
    norm = _pack_norm(residual.norm)
    return Residual(_same, norm) if isinstance(residual, PostNorm) else Residual(norm, _same)


def pack_embedding(embedding: Embedding) -> PackedEmbedding:
    gain_V = torch.full((len(embedding.weight),), embedding.scale, dtype=torch.float32)
    gain_V[embedding.padding_id] = 0.0
    extra_D = None if embedding.extra is None else embedding.extra.detach().clone()
    return PackedEmbedding(embedding.weight.detach(), gain_V, embedding.positions, extra_D, embedding.padding_id)


def joined(attention: Attention, names: Sequence[str], kind: str) -> Tensor:
    """Weight or bias of several projections as of one, head by head; queries take the scale of equation 1 along."""
    parts = []
    for name in names:
        all_heads = cast(Tensor, getattr(attention.get_submodule(name), kind)).detach()
        part = all_heads.view(attention.num_heads, -1, *all_heads.shape[1:])
        parts.append(part * part.shape[1] ** -0.5 if name == "query" else part)
    return torch.cat(parts, dim=1).flatten(0, 1)
