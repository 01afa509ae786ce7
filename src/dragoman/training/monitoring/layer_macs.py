"""Multiply-accumulate operations of one token in one layer, for all kinds of layers that a recipe can choose."""

from __future__ import annotations

from dragoman.config import ModelConfig


def count_encoder_mixer_macs(model: ModelConfig, layer: int) -> int:
    """Return the operations of self-attention's products with weights, or of the layer in its place.

    layer: number of the layer, counted from 0
    """
    directions = model.recurrent_directions
    if model.encoder_mixer != "recurrent" or directions == "forward" or (directions == "first" and layer):
        return _count_mixer_macs(model, model.encoder_mixer, layer, inputs=model.d_model)
    width = model.d_model // 2
    inputs = width if directions == "interleaved" and layer else model.d_model
    return 2 * _count_lstm_macs(model, layer, inputs=inputs, width=width)


def count_decoder_mixer_macs(model: ModelConfig, layer: int) -> int:
    """Return the same for a decoder layer, whose mixer may read the context of the first layer beside its input."""
    inputs = 2 if model.cross_attention == "first" and layer else 1
    return _count_mixer_macs(model, model.decoder_mixer, layer, inputs=inputs * model.d_model)


def count_feed_forward_macs(model: ModelConfig) -> int:
    """Return the operations of the feed-forward network, or of the gates and the active experts of a mixture."""
    dense_macs = 2 * model.d_model * model.d_ff
    match model.feed_forward:
        case "moe":
            return model.experts_per_token * dense_macs + 2 * model.d_model * model.num_experts
        case "none":
            return 0
        case _:
            return dense_macs


def count_score_macs(model: ModelConfig) -> tuple[int, int]:
    """Return the operations of one query, and of one query with one key, that scores need beside the projections."""
    keys = model.num_heads * model.key_width
    return (keys * model.key_width if model.attention_score == "multiplicative" else 0), keys


def _count_mixer_macs(model: ModelConfig, mixer: str, layer: int, *, inputs: int) -> int:
    width = model.d_model
    match mixer:
        case "recurrent":
            return _count_lstm_macs(model, layer, inputs=inputs, width=width)
        case "convolution":
            return model.kernel_size * inputs * 2 * width
        case "dilated":
            half = width // 2
            return inputs * half + model.kernel_size * half * half + half * width
        case _:
            return 2 * width * model.num_heads * (model.key_width + model.value_width)


def _count_lstm_macs(model: ModelConfig, layer: int, *, inputs: int, width: int) -> int:
    """Return the operations of one LSTM. Half of its gates' inputs are computed twice for a fast-forward connection."""
    inputs += 2 * width if model.fast_forward and layer else 0
    return 4 * width * (inputs + width) + (2 * width * inputs if model.fast_forward else 0)
