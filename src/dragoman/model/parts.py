"""Parts of a model as functions of its configuration. An architecture of a hook replaces some of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from dragoman.config import ModelConfig
from dragoman.model.attention import Attention
from dragoman.model.layers import DecoderLayer, EncoderLayer, FeedForward, PostNorm, PreNorm, Residual
from dragoman.model.pointer import Pointer
from dragoman.model.relative_positions import RelativePositionBias
from dragoman.model.rotary_positions import build_rotary_positions
from dragoman.model.ssru import Ssru
from dragoman.model.transformer import Decoder, Embedding, Encoder


@dataclass(frozen=True)
class ModelParts:
    """Functions that build the parts of a model; their weights are not initialized.

    attention: one attention
    feed_forward: one feed-forward network (B, T, D) → (B, T, D)
    residual: the residual connection of an attention, or of a layer in its place
    feed_forward_residual: the residual connection of a feed-forward network
    final_norm: normalization at the end of a stack
    encoder, decoder: a stack with these parts. The decoder of a parser has a pointer
    """

    attention: Callable[[ModelConfig], Attention]
    feed_forward: Callable[[ModelConfig], FeedForward]
    residual: Callable[[ModelConfig], Residual]
    feed_forward_residual: Callable[[ModelParts, ModelConfig], Residual]
    final_norm: Callable[[ModelConfig], nn.Module]
    encoder: Callable[[ModelParts, ModelConfig, Embedding], Encoder]
    decoder: Callable[[ModelParts, ModelConfig, Embedding, Pointer | None], Decoder]


def choose_parts(config: ModelConfig) -> ModelParts:
    """Return the parts of the Transformer, changed by the architectures that the configuration asks for."""
    parts = TRANSFORMER
    for extension in config.model_extensions:
        parts = extension.change_parts(parts, config)
    return parts


def build_attention(config: ModelConfig) -> Attention:
    """Return an attention of the paper."""
    return Attention(
        d_model=config.d_model,
        num_heads=config.num_heads,
        d_k=config.key_width,
        d_v=config.value_width,
        bias=config.attention_bias,
        dropout=config.attention_dropout,
        num_key_value_heads=config.num_key_value_heads,
    )


def build_feed_forward(config: ModelConfig) -> FeedForward:
    """Return a feed-forward network of the paper."""
    return FeedForward(
        d_model=config.d_model,
        d_ff=config.d_ff,
        dropout=config.activation_dropout,
        activation=config.activation,
        bias=config.feed_forward_bias,
        is_gated=config.is_gated,
    )


def build_norm(config: ModelConfig) -> nn.Module:
    """Return a layer normalization, or an RMSNorm."""
    return (nn.RMSNorm if config.norm_type == "rms" else nn.LayerNorm)(config.d_model, eps=config.norm_epsilon)


def build_residual(config: ModelConfig) -> Residual:
    """Return a residual connection with a normalization."""
    residual_type = PreNorm if config.norm == "pre" else PostNorm
    return residual_type(norm=build_norm(config), dropout=config.residual_dropout)


def build_final_norm(config: ModelConfig) -> nn.Module:
    """Return the normalization at the end of a stack, or the identity if the configuration has none."""
    return build_norm(config) if config.has_final_norm else nn.Identity()


def build_encoder(parts: ModelParts, config: ModelConfig, embedding: Embedding) -> Encoder:
    """Return a stack of encoder layers."""
    layers = [
        EncoderLayer(
            attention=parts.attention(config),
            feed_forward=parts.feed_forward(config),
            attention_residual=parts.residual(config),
            feed_forward_residual=parts.feed_forward_residual(parts, config),
        )
        for _ in range(config.encoder_layers)
    ]
    return Encoder(
        embedding=embedding,
        layers=layers,
        norm=parts.final_norm(config),
        window=config.attention_window,
        relative_positions=RelativePositionBias.from_config(config, bidirectional=True),
        rotary_positions=build_rotary_positions(config),
    )


def build_decoder_layers(parts: ModelParts, config: ModelConfig) -> list[DecoderLayer]:
    """Return the layers of a decoder."""
    return [
        DecoderLayer(
            attention=Ssru(d_model=config.d_model) if config.has_ssru else parts.attention(config),
            cross_attention=parts.attention(config),
            feed_forward=parts.feed_forward(config),
            attention_residual=parts.residual(config),
            cross_attention_residual=parts.residual(config),
            feed_forward_residual=parts.feed_forward_residual(parts, config),
        )
        for _ in range(config.decoder_layers)
    ]


def build_decoder(parts: ModelParts, config: ModelConfig, embedding: Embedding, pointer: Pointer | None) -> Decoder:
    """Return a stack of decoder layers."""
    return Decoder(
        embedding=embedding,
        layers=build_decoder_layers(parts, config),
        norm=parts.final_norm(config),
        window=config.attention_window,
        relative_positions=RelativePositionBias.from_config(config, bidirectional=False),
        rotary_positions=build_rotary_positions(config),
        pointer=pointer,
    )


TRANSFORMER = ModelParts(
    attention=build_attention,
    feed_forward=build_feed_forward,
    residual=build_residual,
    feed_forward_residual=lambda parts, config: parts.residual(config),
    final_norm=build_final_norm,
    encoder=build_encoder,
    decoder=build_decoder,
)
"""Parts of the paper's Transformer."""
