"""Multiply-accumulate operations of one token in layers without self-attention."""

from __future__ import annotations

from dataclasses import replace

from dragoman.config import ModelConfig
from dragoman.experiments.mixers.options import MixerOptions
from dragoman.training.monitoring.layer_macs import LayerMacs


def count_layer_macs(macs: LayerMacs, options: MixerOptions, config: ModelConfig) -> LayerMacs:
    """Return the operations with those of the layers in the place of self-attention."""
    if options.encoder_mixer != "attention":
        encoder = tuple(_count_encoder_macs(options, config, layer) for layer in range(config.encoder_layers))
        macs = replace(macs, encoder=encoder, encoder_attentions=0)
    if options.decoder_mixer != "attention":
        decoder = tuple(_count_decoder_macs(options, config, layer) for layer in range(config.decoder_layers))
        macs = replace(macs, decoder=decoder, decoder_attentions=0)
    if options.cross_attention == "unfold":
        macs = replace(macs, target=macs.target + config.d_model**2)
    return macs


def _count_encoder_macs(options: MixerOptions, config: ModelConfig, layer: int) -> int:
    if options.encoder_mixer != "recurrent" or not options.has_two_directions(layer):
        return _count_mixer_macs(options, options.encoder_mixer, layer, inputs=config.d_model, width=config.d_model)
    width = config.d_model // 2
    inputs = width if options.recurrent_directions == "interleaved" and layer else config.d_model
    return 2 * _count_lstm_macs(options, layer, inputs=inputs, width=width)


def _count_decoder_macs(options: MixerOptions, config: ModelConfig, layer: int) -> int:
    """Return the same for a decoder layer, whose mixer may read the context of the first layer beside its input."""
    num_inputs = 2 if options.cross_attention == "first" and layer else 1
    return _count_mixer_macs(options, options.decoder_mixer, layer, inputs=num_inputs * config.d_model, width=config.d_model)


def _count_mixer_macs(options: MixerOptions, mixer: str, layer: int, *, inputs: int, width: int) -> int:
    match mixer:
        case "recurrent":
            return _count_lstm_macs(options, layer, inputs=inputs, width=width)
        case "convolution":
            return options.kernel_size * inputs * 2 * width
        case _:
            half = width // 2
            return inputs * half + options.kernel_size * half * half + half * width


def _count_lstm_macs(options: MixerOptions, layer: int, *, inputs: int, width: int) -> int:
    """Return the operations of one LSTM. Half of its gates' inputs are computed twice for a fast-forward connection."""
    inputs += 2 * width if options.fast_forward and layer else 0
    return 4 * width * (inputs + width) + (2 * width * inputs if options.fast_forward else 0)
