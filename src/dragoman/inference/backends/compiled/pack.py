"""Makes a trained model ready for `kernels.transformer`: its weights as bytes, in the order in which these multiply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from dragoman.inference.backends.compiled.cpu_features import has_vectors
from dragoman.inference.backends.compiled.jit_cache import can_enter, put_in_order
from dragoman.inference.backends.compiled.kernels.structs import (
    BYTES,
    GROUP,
    LANES,
    ONTO,
    ONTO_FROM_RELU,
    PUT,
    RELU,
    Across,
    Heads,
    Layers,
    Matrices,
    Norms,
    Table,
)
from dragoman.inference.backends.compiled.model import FLOATS, CompiledTransformer, Side
from dragoman.inference.backends.packed.matmul import Weight
from dragoman.inference.backends.packed.pack import pack_embedding
from dragoman.model.attention import Attention
from dragoman.model.layers import DecoderLayer, EncoderLayer, PreNorm
from dragoman.model.linear import Linear
from dragoman.model.transformer import Embedding, Transformer
from dragoman.runtime.malloc import give_freed_memory_back

Layer = EncoderLayer | DecoderLayer
QUAD = 4
# So many heads fill a vector.
SIDE_BY_SIDE = (1, 2, 4, 8, 16)


@torch.no_grad()
def compile_model(model: Transformer, *, forget: Callable[[], None] = lambda: None) -> CompiledTransformer:
    """The model made ready. It must stay what it is: its embeddings are read where they are.

    forget: see `Bundle.forget`; told whenever weights were read
    """
    compiler = _Compiler(forget)
    decoder = [cast(DecoderLayer, layer) for layer in model.decoder.layers]
    compiled = CompiledTransformer(
        source=compiler.side(model.encoder),
        target=compiler.side(model.decoder),
        across=compiler.across(decoder),
        heads=heads_of(decoder[0].attention),
        output=compiler.matrices([_weight(model.output, forget)], [None], PUT),
        kept=compiler.kept,
    )
    give_freed_memory_back()
    return compiled


@torch.no_grad()
def with_words(compiled: CompiledTransformer, model: Transformer, words_W: Tensor) -> CompiledTransformer:
    """It says these words alone."""
    compiler = _Compiler(lambda: None)
    output = compiler.matrices([_weight(model.output[words_W])], [None], PUT)
    return replace(compiled, output=output, kept=[*compiled.kept, *compiler.kept])


def _weight(weight: Tensor, forget: Callable[[], None] = lambda: None) -> Weight:
    return Weight(weight.detach, weight.shape, forget)


class _Compiler:
    """Makes every part of a model ready in the same way. kept: what was made, and is known by its address"""

    def __init__(self, forget: Callable[[], None]) -> None:
        self.forget = forget
        self.kept: list[Tensor] = []

    def keep(self, tensor: Tensor) -> int:
        self.kept.append(tensor.contiguous())
        return self.kept[-1].data_ptr()

    def side(self, stack: nn.Module) -> Side:
        embedding = pack_embedding(cast(Embedding, stack.embedding))
        layers = [cast(Layer, layer) for layer in cast(nn.ModuleList, stack.layers)]
        table = Table(self.keep(embedding.weight_VD.float()), self.keep(embedding.gain_V.float()))
        return Side(embedding, table, self.layers(layers, cast(nn.Module, stack.norm)))

    def layers(self, layers: Sequence[Layer], final: nn.Module) -> Layers:
        attentions = [layer.attention for layer in layers]
        return Layers(
            number=len(layers),
            look=self.joined(attentions, "query", "key", "value"),
            output=self.outputs(attentions),
            inner=self.linears([layer.feed_forward.inner for layer in layers], RELU),
            outer=self.linears([layer.feed_forward.outer for layer in layers], ONTO_FROM_RELU),
            norms=(
                self.norms([layer.attention_residual.norm for layer in layers]),
                self.norms([layer.feed_forward_residual.norm for layer in layers]),
            ),
            before=isinstance(layers[0].attention_residual, PreNorm),
            final=self.norms([final] if isinstance(final, nn.LayerNorm) else []),
        )

    def across(self, layers: Sequence[DecoderLayer]) -> Across:
        attentions = [layer.cross_attention for layer in layers]
        return Across(
            look=self.joined(attentions, "query"),
            output=self.outputs(attentions),
            remember=self.joined(attentions, "key", "value"),
            norms=self.norms([layer.cross_attention_residual.norm for layer in layers]),
        )

    def norms(self, norms: Sequence[nn.Module]) -> Norms:
        found = [cast(nn.LayerNorm, norm) for norm in norms]
        if not found:
            return Norms(0, 0, 0.0, False)
        weights, biases = (torch.stack([getattr(norm, name).detach() for norm in found]) for name in ("weight", "bias"))
        return Norms(self.keep(weights.float()), self.keep(biases.float()), float(found[0].eps), True)

    def joined(self, attentions: Sequence[Attention], *names: str) -> Matrices:
        """Several projections as one, one after the other."""
        heads = heads_of(attentions[0])
        widths = [heads.value_width if name == "value" else heads.key_width for name in names]
        weights, biases = [], []
        for attention in attentions:
            linear = cast(Linear, attention.get_submodule(names[0]))
            shape = torch.Size((sum(widths), linear.in_features))
            weights.append(Weight(partial(_projections, attention, names, widths, "weight"), shape, self.forget))
            biases.append(None if linear.bias is None else _projections(attention, names, widths, "bias"))
        return self.matrices(weights, biases, PUT)

    def outputs(self, attentions: Sequence[Attention]) -> Matrices:
        """What becomes of all that the heads found."""
        shape = torch.Size((attentions[0].output.out_features, heads_of(attentions[0]).value_width))
        weights = [Weight(partial(_output, attention, shape[1]), shape, self.forget) for attention in attentions]
        return self.matrices(weights, [attention.output.bias for attention in attentions], ONTO)

    def linears(self, linears: Sequence[Linear], then: int) -> Matrices:
        weights = [_weight(linear.weight, self.forget) for linear in linears]
        return self.matrices(weights, [linear.bias for linear in linears], then)

    def matrices(self, weights: Sequence[Weight], biases: Sequence[Tensor | None], then: int) -> Matrices:
        tensors = in_order(weights, biases, then)
        bytes_, scale, bias, shift = map(self.keep, tensors)
        return Matrices(bytes_, scale, bias, shift, weights[0].shape[0], tensors[1].shape[1], then)


def heads_of(attention: Attention) -> Heads:
    """Filled up to 1, 2, 4, 8 or 16 heads, and each until they fill vectors together."""
    number = next(filled for filled in SIDE_BY_SIDE if filled >= attention.num_heads)
    widths = (linear.out_features // attention.num_heads for linear in (attention.query, attention.value))
    return Heads(number, *(-(-width * number // LANES) * LANES for width in widths))


def _side_by_side(each_HK: Tensor, width: int) -> Tensor:
    """Rows that stand head by head (H, K, …) as kernels have them, filled up with zeros. → (width, …)"""
    heads, rows = each_HK.shape[:2]
    number = next(filled for filled in SIDE_BY_SIDE if filled >= heads)
    filled_KH = each_HK.new_zeros(width // number, number, *each_HK.shape[2:])
    filled_KH[:rows, :heads] = each_HK.transpose(0, 1)
    return filled_KH.flatten(0, 1)


def _projections(attention: Attention, names: Sequence[str], widths: Sequence[int], kind: str) -> Tensor:
    """Weight or bias of several projections; queries take the scale of equation 1 along."""
    parts = []
    for name, width in zip(names, widths, strict=True):
        all_heads = cast(Tensor, getattr(attention.get_submodule(name), kind)).detach()
        part = all_heads.view(attention.num_heads, -1, *all_heads.shape[1:])
        parts.append(_side_by_side(part * part.shape[1] ** -0.5 if name == "query" else part, width))
    return torch.cat(parts)


def _output(attention: Attention, width: int) -> Tensor:
    """The weight (D, U) of an attention's output."""
    weight_UD = attention.output.weight.detach().t()
    return _side_by_side(weight_UD.reshape(attention.num_heads, -1, weight_UD.shape[1]), width).t()


def in_order(weights: Sequence[Weight], biases: Sequence[Tensor | None], then: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One product of every layer as `Matrices` has it: weights, scales, biases, shifts. then: what becomes of it"""
    outputs, inputs = weights[0].shape
    layers, panels, quads = len(weights), -(-outputs // GROUP) * GROUP // LANES, -(-inputs // BYTES) * BYTES // QUAD
    bytes_LPQ = torch.zeros(layers, panels, quads, LANES, QUAD, dtype=torch.int8, device="cpu")
    scale_LO, bias_LO = torch.zeros(2, layers, panels * LANES, **FLOATS).unbind()
    shift_LO = torch.zeros(layers, panels * LANES, dtype=torch.int32, device="cpu")
    for layer, (weight, bias_O) in enumerate(zip(weights, biases, strict=True)):
        if bias_O is not None:
            bias_LO[layer, :outputs] = bias_O.detach()
        for rows, part_RI in weight.parts():
            ordered_RI = part_RI.contiguous()
            panel, scale = bytes_LPQ[layer, rows.start // LANES].data_ptr(), scale_LO[layer, rows].data_ptr()
            shift = 0 if then == ONTO_FROM_RELU else shift_LO[layer, rows].data_ptr()
            put_in_order(ordered_RI.data_ptr(), len(ordered_RI), inputs, panel, scale, shift)
    return bytes_LPQ, scale_LO, bias_LO, shift_LO


def can_compile(model: Transformer) -> bool:
    """Whether this processor has the vectors, and kernels know all of the model: no pointers or windows, widths of vectors."""
    sides = [cast(nn.Module, side) for side in (model.encoder, model.decoder)]
    if not has_vectors() or model.decoder.pointer is not None or any(side.window is not None for side in sides):
        return False
    layers = [cast(Layer, layer) for side in sides for layer in cast(nn.ModuleList, side.layers)]
    widths = [model.output.shape[1], *(layer.feed_forward.inner.out_features for layer in layers)]
    fits = layers[0].attention.num_heads <= SIDE_BY_SIDE[-1] and all(width % LANES == 0 for width in widths)
    return fits and can_enter()
