"""Multiply-accumulate operations of a training pass of a model, some of whose parameters may be frozen.

A product of a layer's input and weight takes one product in the forward pass, one for the gradient of the weight, and one for
the gradient of the input. A frozen weight needs no gradient, and neither does an input that no trained parameter precedes. So
a frozen encoder has no backward pass. A low-rank adapter needs the gradient of the whole weight, because W + α/r · B·A is
computed as a weight. The product B·A and its two gradients do not depend on the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from dragoman.model.attention import Attention
from dragoman.model.layers import DecoderLayer, EncoderLayer, FeedForward, PostNorm, PreNorm
from dragoman.model.linear import Linear
from dragoman.model.lora import LoraLinear
from dragoman.model.transformer import Transformer
from dragoman.training.monitoring.flops import Macs, Size


def count_training_macs(model: Transformer) -> Macs | None:
    """Return the operations of a forward and a backward pass for each unit of `Size`; None if all parameters are trained.

    Layers other than the paper's count as trained, so a model with such a layer gives None too.
    """
    layers = [*model.encoder.layers, *model.decoder.layers]
    is_frozen = any(not parameter.requires_grad for parameter in model.parameters())
    if not is_frozen or not all(_is_paper_layer(layer) for layer in layers):
        return None
    counter = _TrainingMacs()
    memory_has_gradient = _has_trained(model.encoder.embedding)
    for layer in model.encoder.layers:
        assert isinstance(layer, EncoderLayer)
        memory_has_gradient = counter.add_encoder_layer(layer, memory_has_gradient)
    memory_has_gradient = memory_has_gradient or _has_trained(model.encoder.norm)
    has_gradient = _has_trained(model.decoder.embedding)
    for layer in model.decoder.layers:
        assert isinstance(layer, DecoderLayer)
        has_gradient = counter.add_decoder_layer(layer, has_gradient, memory_has_gradient)
    has_gradient = has_gradient or _has_trained(model.decoder.norm)
    is_output_trained = model.output.requires_grad or (model.output_bias is not None and model.output_bias.requires_grad)
    counter.macs[Size.TARGET_TOKENS] += model.output.numel() * (1 + is_output_trained + has_gradient)
    return counter.macs


def _is_paper_layer(layer: nn.Module) -> bool:
    return (
        isinstance(layer, EncoderLayer | DecoderLayer)
        and isinstance(layer.attention, Attention)
        and isinstance(layer.feed_forward, FeedForward)
    )


def _has_trained(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


class _TrainingMacs:
    """Sum of the operations. Each method adds a part of the model, and returns whether its output has a gradient."""

    def __init__(self) -> None:
        self.macs = np.zeros(len(Size))

    def add_encoder_layer(self, layer: EncoderLayer, has_gradient: bool) -> bool:
        attended = self._add_self_attention(
            layer.attention, _enter(layer.attention_residual, has_gradient), Size.SOURCE_TOKENS, Size.ENCODER_PAIRS
        )
        has_gradient = _leave(layer.attention_residual, has_gradient, attended)
        return self._add_feed_forward(layer, has_gradient, Size.SOURCE_TOKENS)

    def add_decoder_layer(self, layer: DecoderLayer, has_gradient: bool, memory_has_gradient: bool) -> bool:
        attended = self._add_self_attention(
            layer.attention, _enter(layer.attention_residual, has_gradient), Size.TARGET_TOKENS, Size.DECODER_PAIRS
        )
        has_gradient = _leave(layer.attention_residual, has_gradient, attended)
        attention, residual = layer.cross_attention, layer.cross_attention_residual
        query = self._add_product([attention.query], _enter(residual, has_gradient), Size.TARGET_TOKENS)
        key_value = self._add_product([attention.key, attention.value], memory_has_gradient, Size.SOURCE_TOKENS)
        attended = self._add_pairs(attention, query, key_value, Size.CROSS_PAIRS)
        attended = self._add_product([attention.output], attended, Size.TARGET_TOKENS)
        has_gradient = _leave(residual, has_gradient, attended)
        return self._add_feed_forward(layer, has_gradient, Size.TARGET_TOKENS)

    def _add_self_attention(self, attention: Attention, has_gradient: bool, tokens: Size, pairs: Size) -> bool:
        has_gradient = self._add_product([attention.query, attention.key, attention.value], has_gradient, tokens)
        has_gradient = self._add_pairs(attention, has_gradient, has_gradient, pairs)
        return self._add_product([attention.output], has_gradient, tokens)

    def _add_feed_forward(self, layer: EncoderLayer | DecoderLayer, has_gradient: bool, tokens: Size) -> bool:
        residual, feed_forward = layer.feed_forward_residual, layer.feed_forward
        inner = self._add_product([feed_forward.inner], _enter(residual, has_gradient), tokens)
        return _leave(residual, has_gradient, self._add_product([feed_forward.outer], inner, tokens))

    def _add_product(self, linears: Sequence[Linear], has_gradient: bool, tokens: Size) -> bool:
        """Add layers that read one input in one product, so that the gradient of one weight is that of all."""
        num_weights = sum(linear.in_features * linear.out_features for linear in linears)
        needs_weight_gradient = any(
            (isinstance(linear, LoraLinear) and linear.lora_a.requires_grad) or linear.weight.requires_grad
            for linear in linears
        )
        self.macs[tokens] += num_weights * (1 + needs_weight_gradient + has_gradient)
        for linear in linears:
            if isinstance(linear, LoraLinear):
                self.macs[Size.BATCHES] += 3 * linear.lora_a.numel() * linear.out_features
        return has_gradient or any(_has_trained(linear) for linear in linears)

    def _add_pairs(self, attention: Attention, query: bool, key_value: bool, pairs: Size) -> bool:
        """Add Q·Kᵀ and the product of the weights with V, given which of their factors have a gradient."""
        keys, values = attention.query.out_features, attention.output.in_features
        self.macs[pairs] += keys * (1 + query + key_value) + values * (1 + (query or key_value) + key_value)
        return query or key_value


def _enter(residual: PreNorm | PostNorm, has_gradient: bool) -> bool:
    """Return whether the input of the sublayer has a gradient."""
    return has_gradient or (isinstance(residual, PreNorm) and _has_trained(residual.norm))


def _leave(residual: PreNorm | PostNorm, has_gradient: bool, sublayer_has_gradient: bool) -> bool:
    """Return whether the sum of the input and the sublayer's output has a gradient."""
    return has_gradient or sublayer_has_gradient or (isinstance(residual, PostNorm) and _has_trained(residual.norm))
