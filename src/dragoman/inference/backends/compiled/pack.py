"""Conversion of a trained model into a `CompiledTransformer`: int8 weights in the layout that the kernels multiply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from dragoman.inference.backends.compiled.jit_cache import pack_weights
from dragoman.inference.backends.compiled.kernels.structs import (
    ADD_RESIDUAL,
    ADD_RESIDUAL_U8,
    LANES,
    MAX_HEADS,
    OUTPUT_BLOCK,
    RELU,
    STORE,
    VECTOR_BYTES,
    CrossAttention,
    EmbeddingTable,
    HeadLayout,
    Int8Weights,
    LayerWeights,
    NormWeights,
)
from dragoman.inference.backends.compiled.model import F32_OPTIONS, CompiledTransformer, StackWeights
from dragoman.inference.backends.shared import InferenceEmbedding, LazyWeight
from dragoman.model.attention import Attention
from dragoman.model.layers import DecoderLayer, EncoderLayer, PreNorm
from dragoman.model.linear import Linear
from dragoman.model.transformer import Embedding, Transformer
from dragoman.runtime.malloc import trim_malloc

AnyLayer = EncoderLayer | DecoderLayer
VNNI_GROUP = 4
# Numbers of heads that fill a vector.
HEAD_COUNTS = (1, 2, 4, 8, MAX_HEADS)


@torch.no_grad()
def compile_model(model: Transformer, *, release: Callable[[], None] = lambda: None) -> CompiledTransformer:
    """Return the compiled model. The trained model must not change, because its embeddings are read in place.

    release: is called whenever weights were read, so that mapped memory can be released
    """
    packer = _Int8Packer(release)
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


@torch.no_grad()
def pack_output(model: Transformer, vocab_ids_W: Tensor) -> tuple[Int8Weights, list[Tensor]]:
    """Return the weights before the softmax for these words only, and the tensors that hold them."""
    packer = _Int8Packer(lambda: None)
    return packer.pack_int8([_lazy_weight(model.output[vocab_ids_W])], [None], STORE), packer.tensors


def _lazy_weight(weight: Tensor, release: Callable[[], None] = lambda: None) -> LazyWeight:
    return LazyWeight(weight.detach, weight.shape, release)


class _Int8Packer:
    """Packer of all parts of one model. tensors: packed tensors, which the model knows by their addresses"""

    def __init__(self, release: Callable[[], None]) -> None:
        self.release = release
        self.tensors: list[Tensor] = []

    def add_tensor(self, tensor: Tensor) -> int:
        self.tensors.append(tensor.contiguous())
        return self.tensors[-1].data_ptr()

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

    def pack_int8(self, weights: Sequence[LazyWeight], biases: Sequence[Tensor | None], epilogue: int) -> Int8Weights:
        tensors = pack_int8_weights(weights, biases, epilogue)
        weights_address, scale, bias, compensation = map(self.add_tensor, tensors)
        return Int8Weights(weights_address, scale, bias, compensation, weights[0].shape[0], tensors[1].shape[1], epilogue)


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


def pack_int8_weights(
    weights: Sequence[LazyWeight], biases: Sequence[Tensor | None], epilogue: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the weights, scales, biases and compensations of one product in all layers, as `Int8Weights` describes them."""
    num_outputs, num_inputs = weights[0].shape
    num_layers, num_panels, num_quads = (
        len(weights),
        -(-num_outputs // OUTPUT_BLOCK) * OUTPUT_BLOCK // LANES,
        -(-num_inputs // VECTOR_BYTES) * VECTOR_BYTES // VNNI_GROUP,
    )
    int8_LPQ = torch.zeros(num_layers, num_panels, num_quads, LANES, VNNI_GROUP, dtype=torch.int8, device="cpu")
    scale_LO, bias_LO = torch.zeros(2, num_layers, num_panels * LANES, **F32_OPTIONS).unbind()
    compensation_LO = torch.zeros(num_layers, num_panels * LANES, dtype=torch.int32, device="cpu")
    for layer, (weight, bias_O) in enumerate(zip(weights, biases, strict=True)):
        if bias_O is not None:
            bias_LO[layer, :num_outputs] = bias_O.detach()
        for rows, block_RI in weight.iter_blocks():
            contiguous_RI = block_RI.contiguous()
            panel, scale = int8_LPQ[layer, rows.start // LANES].data_ptr(), scale_LO[layer, rows].data_ptr()
            compensation = 0 if epilogue == ADD_RESIDUAL_U8 else compensation_LO[layer, rows].data_ptr()
            pack_weights(contiguous_RI.data_ptr(), len(contiguous_RI), num_inputs, panel, scale, compensation)
    return int8_LPQ, scale_LO, bias_LO, compensation_LO
