"""Conversion of a trained model into a `CompiledTransformer`: its weights in the layout that the kernels multiply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.inference.backends.compiled.kernels.structs import (
    ADD_RESIDUAL,
    ADD_RESIDUAL_U8,
    GELU,
    LANES,
    RELU,
    SILU,
    STORE,
    CrossAttention,
    EmbeddingTable,
    HeadLayout,
    LayerWeights,
    LinearWeights,
    NormWeights,
)
from dragoman.inference.backends.compiled.model import CompiledPointer, CompiledTransformer, StackWeights
from dragoman.inference.backends.compiled.weights import CompiledPrecision, WeightPacker, round_up
from dragoman.inference.backends.shared import InferenceEmbedding, LazyWeight
from dragoman.model.attention import Attention
from dragoman.model.layers import DecoderLayer, EncoderLayer, PreNorm
from dragoman.model.linear import Linear
from dragoman.model.pointer import Pointer
from dragoman.model.transformer import Embedding, Transformer
from dragoman.runtime.malloc import trim_malloc

AnyLayer = EncoderLayer | DecoderLayer
# Numbers of heads that fill a vector.
HEAD_COUNTS = (1, 2, 4, 8, LANES)
EPILOGUES = {"relu": RELU, "silu": SILU, "gelu": GELU}
# Distance that no two positions have.
NO_WINDOW = 1 << 40


@torch.no_grad()
def compile_model(
    model: Transformer, precision: CompiledPrecision = "int8", *, release: Callable[[], None] = lambda: None
) -> CompiledTransformer:
    """Return the compiled model. The trained model must not change, because its embeddings are read in place.

    release: is called whenever weights were read, so that mapped memory can be released
    """
    packer = _ModelPacker(precision, release)
    decoder_layers = [cast(DecoderLayer, layer) for layer in model.decoder.layers]
    compiled_model = CompiledTransformer(
        encoder=packer.pack_stack(model.encoder),
        decoder=packer.pack_stack(model.decoder),
        cross_attention=packer.pack_cross_attention(decoder_layers),
        head_layout=compute_head_layout(decoder_layers[0].attention, precision),
        output=packer.pack([_lazy_weight(model.output, release)], [model.output_bias], STORE),
        pointer=None if model.decoder.pointer is None else _pack_pointer(model.decoder.pointer),
        precision=precision,
        owned_tensors=packer.tensors,
    )
    trim_malloc()
    return compiled_model


def _lazy_weight(weight: Tensor, release: Callable[[], None] = lambda: None) -> LazyWeight:
    return LazyWeight(weight.detach, weight.shape, release)


class _ModelPacker(WeightPacker):
    """Packer of all parts of one model."""

    def __init__(self, precision: CompiledPrecision, release: Callable[[], None]) -> None:
        super().__init__(precision)
        self.release = release

    def pack_stack(self, stack: nn.Module) -> StackWeights:
        embedding = InferenceEmbedding.from_embedding(cast(Embedding, stack.embedding))
        layers = [cast(AnyLayer, layer) for layer in cast(nn.ModuleList, stack.layers)]
        embedding_table = EmbeddingTable(
            self.add_tensor(embedding.weight_VD.float()),
            self.add_tensor(embedding.scale_V.float()),
            embedding.weight_VD.shape[1],
        )
        window = cast(int | None, stack.window)
        layer_weights = self.pack_layers(layers, cast(nn.Module, stack.norm), NO_WINDOW if window is None else window)
        return StackWeights(embedding, embedding_table, layer_weights)

    def pack_layers(self, layers: Sequence[AnyLayer], final_norm: nn.Module, window: int) -> LayerWeights:
        attentions = [layer.attention for layer in layers]
        activation = layers[0].feed_forward.activation
        return LayerWeights(
            num_layers=len(layers),
            qkv=self.pack_projections(attentions, "query", "key", "value"),
            output=self.pack_output_projections(attentions),
            inner=self.pack_linears([layer.feed_forward.inner for layer in layers], EPILOGUES[activation]),
            outer=self.pack_linears(
                [layer.feed_forward.outer for layer in layers], ADD_RESIDUAL_U8 if activation == "relu" else ADD_RESIDUAL
            ),
            norms=(
                self.pack_norms([layer.attention_residual.norm for layer in layers]),
                self.pack_norms([layer.feed_forward_residual.norm for layer in layers]),
            ),
            pre_norm=isinstance(layers[0].attention_residual, PreNorm),
            final_norm=self.pack_norms([final_norm] if isinstance(final_norm, nn.LayerNorm) else []),
            window=window,
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
            return NormWeights(0, 0, 0.0, 0, False)
        num_features = layer_norms[0].normalized_shape[0]
        weights, biases = (
            self.add_tensor(_pad_vectors(torch.stack([getattr(norm, name).detach().float() for norm in layer_norms])))
            for name in ("weight", "bias")
        )
        return NormWeights(weights, biases, float(layer_norms[0].eps), num_features, True)

    def pack_projections(self, attentions: Sequence[Attention], *names: str) -> LinearWeights:
        """Return several projections as one, one behind the other."""
        head_layout = compute_head_layout(attentions[0], self.precision)
        widths = [head_layout.value_width if name == "value" else head_layout.key_width for name in names]
        weights, biases = [], []
        for attention in attentions:
            linear = cast(Linear, attention.get_submodule(names[0]))
            shape = torch.Size((sum(widths), linear.in_features))
            weights.append(
                LazyWeight(partial(_concat_projections, attention, names, widths, head_layout, "weight"), shape, self.release)
            )
            biases.append(None if linear.bias is None else _concat_projections(attention, names, widths, head_layout, "bias"))
        return self.pack(weights, biases, STORE)

    def pack_output_projections(self, attentions: Sequence[Attention]) -> LinearWeights:
        """Return the output projections, which read the results of all heads."""
        head_layout = compute_head_layout(attentions[0], self.precision)
        shape = torch.Size((attentions[0].output.out_features, head_layout.value_width))
        weights = [
            LazyWeight(partial(_get_output_weight, attention, head_layout), shape, self.release) for attention in attentions
        ]
        return self.pack(weights, [attention.output.bias for attention in attentions], ADD_RESIDUAL)

    def pack_linears(self, linears: Sequence[Linear], epilogue: int) -> LinearWeights:
        weights = [_lazy_weight(linear.weight, self.release) for linear in linears]
        return self.pack(weights, [linear.bias for linear in linears], epilogue)


def compute_head_layout(attention: Attention, precision: CompiledPrecision) -> HeadLayout:
    """Return the layout with the heads padded to 1, 2, 4 or 8 or to groups of 16, and their widths to whole vectors."""
    num_groups = -(-attention.num_heads // LANES)
    num_heads = LANES if num_groups > 1 else next(count for count in HEAD_COUNTS if count >= attention.num_heads)
    widths = (linear.out_features // attention.num_heads for linear in (attention.query, attention.value))
    key_width, value_width = (num_groups * round_up(width * num_heads) for width in widths)
    return HeadLayout(num_groups, num_heads, key_width, value_width, has_float32_kv=precision == "float32")


def _interleave_heads(x_HK: Tensor, width: int, head_layout: HeadLayout) -> Tensor:
    """Return rows of heads (H, K, …) in the kernels' order (width, …), where heads alternate, padded with zeros."""
    num_groups, num_heads, head_width = head_layout.num_groups, head_layout.num_heads, x_HK.shape[1]
    padded_GKH = x_HK.new_zeros(num_groups, width // (num_groups * num_heads), num_heads, *x_HK.shape[2:])
    for group, heads_HK in enumerate(torch.split(x_HK, num_heads)):
        padded_GKH[group, :head_width, : len(heads_HK)] = heads_HK.transpose(0, 1)
    return padded_GKH.flatten(0, 2)


def _pad_vectors(x_XD: Tensor) -> Tensor:
    """Return vectors with zeros behind them, up to whole vectors of the kernels."""
    return F.pad(x_XD, (0, round_up(x_XD.shape[-1]) - x_XD.shape[-1]))


def _concat_projections(
    attention: Attention, names: Sequence[str], widths: Sequence[int], head_layout: HeadLayout, parameter_name: str
) -> Tensor:
    """Return the weight or bias of several projections. Queries include the scale of equation 1."""
    parts = []
    for name, width in zip(names, widths, strict=True):
        all_heads = cast(Tensor, getattr(attention.get_submodule(name), parameter_name)).detach()
        part = all_heads.view(attention.num_heads, -1, *all_heads.shape[1:])
        scaled_part = part * part.shape[1] ** -0.5 if name == "query" else part
        parts.append(_interleave_heads(scaled_part, width, head_layout))
    return torch.cat(parts)


def _get_output_weight(attention: Attention, head_layout: HeadLayout) -> Tensor:
    """Return the weight (D, U) of the output projection."""
    weight_UD = attention.output.weight.detach().t()
    weight_HUD = weight_UD.reshape(attention.num_heads, -1, weight_UD.shape[1])
    return _interleave_heads(weight_HUD, head_layout.value_width, head_layout).t()


def _pack_pointer(pointer: Pointer) -> CompiledPointer:
    """Return the pointer of a parser. Its projection stays in float32, because it is computed once for each sentence."""
    linear = pointer.projection
    weight_DD = _pad_vectors(_pad_vectors(linear.weight.detach().float()).t()).t()
    bias_D = None if linear.bias is None else _pad_vectors(linear.bias.detach().float())
    return CompiledPointer(pointer.words, pointer.words.shifts_V.long(), weight_DD, bias_D)
