"""Conversion of a trained model into a `CompiledTransformer`: int8 weights in the layout that the kernels multiply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from dragoman.inference.backends.compiled.kernels.structs import (
    ADD_RESIDUAL,
    ADD_RESIDUAL_U8,
    LANES,
    MAX_HEADS,
    RELU,
    STORE,
    CrossAttention,
    EmbeddingTable,
    HeadLayout,
    Int8Weights,
    LayerWeights,
    NormWeights,
)
from dragoman.inference.backends.compiled.model import CompiledTransformer, StackWeights
from dragoman.inference.backends.compiled.weights import Int8Packer
from dragoman.inference.backends.shared import InferenceEmbedding, LazyWeight
from dragoman.model.attention import Attention
from dragoman.model.layers import DecoderLayer, EncoderLayer, PreNorm
from dragoman.model.linear import Linear
from dragoman.model.transformer import Embedding, Transformer
from dragoman.runtime.malloc import trim_malloc

AnyLayer = EncoderLayer | DecoderLayer
# Numbers of heads that fill a vector.
HEAD_COUNTS = (1, 2, 4, 8, MAX_HEADS)


@torch.no_grad()
def compile_model(model: Transformer, *, release: Callable[[], None] = lambda: None) -> CompiledTransformer:
    """Return the compiled model. The trained model must not change, because its embeddings are read in place.

    release: is called whenever weights were read, so that mapped memory can be released
    """
    packer = _ModelPacker(release)
    decoder_layers = [cast(DecoderLayer, layer) for layer in model.decoder.layers]
    compiled_model = CompiledTransformer(
        encoder=packer.pack_stack(model.encoder),
        decoder=packer.pack_stack(model.decoder),
        cross_attention=packer.pack_cross_attention(decoder_layers),
        head_layout=compute_head_layout(decoder_layers[0].attention),
        output=packer.pack_int8([_lazy_weight(model.output, release)], [None], STORE),
        owned_tensors=packer.tensors,
    )
    trim_malloc()
    return compiled_model


def _lazy_weight(weight: Tensor, release: Callable[[], None] = lambda: None) -> LazyWeight:
    return LazyWeight(weight.detach, weight.shape, release)


class _ModelPacker(Int8Packer):
    """Packer of all parts of one model."""

    def __init__(self, release: Callable[[], None]) -> None:
        super().__init__()
        self.release = release

    def pack_stack(self, stack: nn.Module) -> StackWeights:
        embedding = InferenceEmbedding.from_embedding(cast(Embedding, stack.embedding))
        layers = [cast(AnyLayer, layer) for layer in cast(nn.ModuleList, stack.layers)]
        embedding_table = EmbeddingTable(
            self.add_tensor(embedding.weight_VD.float()), self.add_tensor(embedding.scale_V.float())
        )
        return StackWeights(embedding, embedding_table, self.pack_layers(layers, cast(nn.Module, stack.norm)))

    def pack_layers(self, layers: Sequence[AnyLayer], final_norm: nn.Module) -> LayerWeights:
        attentions = [layer.attention for layer in layers]
        return LayerWeights(
            num_layers=len(layers),
            qkv=self.pack_projections(attentions, "query", "key", "value"),
            output=self.pack_output_projections(attentions),
            inner=self.pack_linears([layer.feed_forward.inner for layer in layers], RELU),
            outer=self.pack_linears([layer.feed_forward.outer for layer in layers], ADD_RESIDUAL_U8),
            norms=(
                self.pack_norms([layer.attention_residual.norm for layer in layers]),
                self.pack_norms([layer.feed_forward_residual.norm for layer in layers]),
            ),
            pre_norm=isinstance(layers[0].attention_residual, PreNorm),
            final_norm=self.pack_norms([final_norm] if isinstance(final_norm, nn.LayerNorm) else []),
        )

    def pack_cross_attention(self, layers: Sequence[DecoderLayer]) -> CrossAttention:
        attentions = [layer.cross_attention for layer in layers]
        return CrossAttention(
            query=self.pack_projections(attentions, "query"),
            output=self.pack_output_projections(attentions),
            kv=self.pack_projections(attentions, "key", "value"),
            norms=self.pack_norms([layer.cross_attention_residual.norm for layer in layers]),
        )

    def pack_norms(self, norms: Sequence[nn.Module]) -> NormWeights:
        layer_norms = [cast(nn.LayerNorm, norm) for norm in norms]
        if not layer_norms:
            return NormWeights(0, 0, 0.0, False)
        weights, biases = (torch.stack([getattr(norm, name).detach() for norm in layer_norms]) for name in ("weight", "bias"))
        return NormWeights(self.add_tensor(weights.float()), self.add_tensor(biases.float()), float(layer_norms[0].eps), True)

    def pack_projections(self, attentions: Sequence[Attention], *names: str) -> Int8Weights:
        """Return several projections as one, one behind the other."""
        head_layout = compute_head_layout(attentions[0])
        widths = [head_layout.value_width if name == "value" else head_layout.key_width for name in names]
        weights, biases = [], []
        for attention in attentions:
            linear = cast(Linear, attention.get_submodule(names[0]))
            shape = torch.Size((sum(widths), linear.in_features))
            weights.append(LazyWeight(partial(_concat_projections, attention, names, widths, "weight"), shape, self.release))
            biases.append(None if linear.bias is None else _concat_projections(attention, names, widths, "bias"))
        return self.pack_int8(weights, biases, STORE)

    def pack_output_projections(self, attentions: Sequence[Attention]) -> Int8Weights:
        """Return the output projections, which read the results of all heads."""
        shape = torch.Size((attentions[0].output.out_features, compute_head_layout(attentions[0]).value_width))
        weights = [
            LazyWeight(partial(_get_output_weight, attention, shape[1]), shape, self.release) for attention in attentions
        ]
        return self.pack_int8(weights, [attention.output.bias for attention in attentions], ADD_RESIDUAL)

    def pack_linears(self, linears: Sequence[Linear], epilogue: int) -> Int8Weights:
        weights = [_lazy_weight(linear.weight, self.release) for linear in linears]
        return self.pack_int8(weights, [linear.bias for linear in linears], epilogue)


def compute_head_layout(attention: Attention) -> HeadLayout:
    """Return the layout with the heads padded to 1, 2, 4, 8 or 16, and their widths to whole vectors."""
    num_heads = next(count for count in HEAD_COUNTS if count >= attention.num_heads)
    widths = (linear.out_features // attention.num_heads for linear in (attention.query, attention.value))
    return HeadLayout(num_heads, *(-(-width * num_heads // LANES) * LANES for width in widths))


def _interleave_heads(x_HK: Tensor, width: int) -> Tensor:
    """Return rows of heads (H, K, …) in the kernels' order (width, …), where heads alternate, padded with zeros."""
    num_heads, head_width = x_HK.shape[:2]
    padded_heads = next(count for count in HEAD_COUNTS if count >= num_heads)
    padded_KH = x_HK.new_zeros(width // padded_heads, padded_heads, *x_HK.shape[2:])
    padded_KH[:head_width, :num_heads] = x_HK.transpose(0, 1)
    return padded_KH.flatten(0, 1)


def _concat_projections(attention: Attention, names: Sequence[str], widths: Sequence[int], parameter_name: str) -> Tensor:
    """Return the weight or bias of several projections. Queries include the scale of equation 1."""
    parts = []
    for name, width in zip(names, widths, strict=True):
        all_heads = cast(Tensor, getattr(attention.get_submodule(name), parameter_name)).detach()
        part = all_heads.view(attention.num_heads, -1, *all_heads.shape[1:])
        parts.append(_interleave_heads(part * part.shape[1] ** -0.5 if name == "query" else part, width))
    return torch.cat(parts)


def _get_output_weight(attention: Attention, width: int) -> Tensor:
    """Return the weight (D, U) of the output projection."""
    weight_UD = attention.output.weight.detach().t()
    return _interleave_heads(weight_UD.reshape(attention.num_heads, -1, weight_UD.shape[1]), width).t()
