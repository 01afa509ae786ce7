"""Stacks of layers without self-attention from their configuration."""

from __future__ import annotations

from torch import nn

from dragoman.config import ModelConfig
from dragoman.experiments.mixers.convolution import DilatedConvolution, GatedConvolution
from dragoman.experiments.mixers.options import MixerOptions
from dragoman.experiments.mixers.recurrent import OneWayLayer, TwoWayLayer
from dragoman.experiments.mixers.stacks import MixerDecoder, MixerDecoderLayer, MixerEncoder, MixerEncoderLayer
from dragoman.experiments.normalization.options import NormalizationOptions
from dragoman.model.parts import ModelParts
from dragoman.model.pointer import Pointer
from dragoman.model.transformer import Embedding


def build_encoder(parts: ModelParts, config: ModelConfig, embedding: Embedding) -> MixerEncoder:
    """Return the encoder with the layers of `encoder_mixer`."""
    options = config.get_extension(MixerOptions)
    layers = [
        MixerEncoderLayer(
            mixer=_build_encoder_mixer(options, config, layer),
            mixer_residual=parts.residual(config),
            feed_forward=parts.feed_forward(config),
            feed_forward_residual=parts.feed_forward_residual(parts, config),
        )
        for layer in range(config.encoder_layers)
    ]
    return MixerEncoder(
        embedding=embedding,
        layers=layers,
        norm=parts.final_norm(config),
        adds_embedding=options.cross_attention == "multi_step",
        scale=config.get_extension(NormalizationOptions).residual_scale,
    )


def build_decoder(parts: ModelParts, config: ModelConfig, embedding: Embedding, pointer: Pointer | None) -> MixerDecoder:
    """Return the decoder with the layers of `decoder_mixer`."""
    options = config.get_extension(MixerOptions)
    layers = []
    for layer in range(config.decoder_layers):
        has_attention = layer < config.num_cross_attentions
        adds_attention = has_attention and options.cross_attention != "first"
        num_inputs = 2 if options.cross_attention == "first" and layer > 0 else 1
        layers.append(
            MixerDecoderLayer(
                mixer=_build_mixer(
                    options.decoder_mixer, options, config, layer, in_features=num_inputs * config.d_model, causal=True
                ),
                mixer_residual=parts.residual(config),
                cross_attention=parts.attention(config) if has_attention else None,
                cross_attention_residual=parts.residual(config) if adds_attention else None,
                feed_forward=parts.feed_forward(config),
                feed_forward_residual=parts.feed_forward_residual(parts, config),
                reading=options.cross_attention,
            )
        )
    return MixerDecoder(
        embedding=embedding,
        layers=layers,
        norm=parts.final_norm(config),
        reading=options.cross_attention,
        pointer=pointer,
    )


def _build_encoder_mixer(options: MixerOptions, config: ModelConfig, layer: int) -> nn.Module:
    if options.encoder_mixer == "recurrent" and options.has_two_directions(layer):
        return TwoWayLayer(
            d_model=config.d_model,
            dropout=config.activation_dropout,
            fast_forward=options.fast_forward,
            interleaved=options.recurrent_directions == "interleaved",
            layer=layer,
        )
    return _build_mixer(options.encoder_mixer, options, config, layer, in_features=config.d_model, causal=False)


def _build_mixer(
    name: str, options: MixerOptions, config: ModelConfig, layer: int, *, in_features: int, causal: bool
) -> nn.Module:
    match name:
        case "recurrent":
            return OneWayLayer(
                in_features=in_features,
                d_model=config.d_model,
                dropout=config.activation_dropout,
                fast_forward=options.fast_forward,
                is_first=layer == 0,
            )
        case "convolution":
            return GatedConvolution(
                in_features=in_features,
                d_model=config.d_model,
                kernel_size=options.kernel_size,
                causal=causal,
                dropout=config.activation_dropout,
            )
        case "dilated":
            return DilatedConvolution(
                in_features=in_features,
                d_model=config.d_model,
                kernel_size=options.kernel_size,
                dilation=2 ** (layer % options.max_dilation.bit_length()),
                causal=causal,
                dropout=config.activation_dropout,
                normalization=config.get_extension(NormalizationOptions).normalization,
                epsilon=config.norm_epsilon,
            )
    raise AssertionError(f"{name} is no mixer")
