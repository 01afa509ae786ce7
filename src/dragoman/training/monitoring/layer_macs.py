"""Multiply-accumulate operations of one token in the layers of a model. Architectures of a hook change them."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.config import ModelConfig


@dataclass(frozen=True)
class LayerMacs:
    """Operations of one token with the weights of the layers, and of one query with one key.

    encoder, decoder: in each layer, of self-attention's projections or of the layer in its place
    feed_forward: in one feed-forward network
    query: of one query beside the projections
    pair: of one query with one key, and of its weight with the value
    encoder_attentions, decoder_attentions, cross_attentions: number of layers with this attention
    source, target: of one source token and of one target token beside the layers, without the output matrix
    positions_per_source: positions of a decoder that predicts all tokens at once; None if it has one for each target token
    has_local_source: whether such a position attends to the source of the positions in its window only
    """

    encoder: tuple[int, ...]
    decoder: tuple[int, ...]
    feed_forward: int
    pair: int
    encoder_attentions: int
    decoder_attentions: int
    cross_attentions: int
    query: int = 0
    source: int = 0
    target: int = 0
    positions_per_source: float | None = None
    has_local_source: bool = False


def count_layer_macs(config: ModelConfig) -> LayerMacs:
    """Return the operations of the Transformer, changed by the architectures that the configuration asks for."""
    projections = config.d_model * (config.num_heads + config.key_value_heads) * (config.key_width + config.value_width)
    macs = LayerMacs(
        encoder=(projections,) * config.encoder_layers,
        decoder=(2 * config.d_model**2 if config.has_ssru else projections,) * config.decoder_layers,
        feed_forward=(3 if config.is_gated else 2) * config.d_model * config.d_ff,
        pair=config.num_heads * (config.key_width + config.value_width),
        encoder_attentions=config.encoder_layers,
        decoder_attentions=0 if config.has_ssru else config.decoder_layers,
        cross_attentions=config.num_cross_attentions,
    )
    for extension in config.model_extensions:
        macs = extension.change_macs(macs, config)
    return macs
