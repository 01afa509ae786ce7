"""Construction of a model from its configuration."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dragoman.config import ModelConfig
from dragoman.frontends.protocol import Frontend
from dragoman.model.initialization import initialize
from dragoman.model.parts import build_norm, choose_parts
from dragoman.model.pointer import Pointer, TagHead, WordTables
from dragoman.model.positional_encoding import (
    LearnedPositionalEmbedding,
    NoPositionalEmbedding,
    SinusoidalPositionalEmbedding,
)
from dragoman.model.spectrogram_layers import SpectrogramLayers
from dragoman.model.transformer import Embedding, Transformer


def build_model(
    config: ModelConfig,
    *,
    source_vocab_size: int,
    target_vocab_size: int,
    padding_id: int = 0,
    word_id: int | None = None,
    tagging: bool = False,
) -> Transformer:
    """Return a Transformer with random weights from PyTorch's generator.

    source_vocab_size, target_vocab_size: rows of the embedding matrices
    padding_id: token whose embedding is zero
    word_id: target token that stands for a source word (parsers only); `WordTables.fill` must follow
    tagging: whether a parser also predicts a tag for each word

    Raises ValueError if `tie_embeddings` is "all" and the vocabulary sizes differ, and DeviceError for a spectrogram, which no
    recipe trains.
    """
    model = assemble_model(
        config,
        source_vocab_size=source_vocab_size,
        target_vocab_size=target_vocab_size,
        padding_id=padding_id,
        word_id=word_id,
        tagging=tagging,
    )
    initialize(model, config)
    return model


def assemble_model(
    config: ModelConfig,
    *,
    source_vocab_size: int,
    target_vocab_size: int,
    padding_id: int = 0,
    word_id: int | None = None,
    tagging: bool = False,
) -> Transformer:
    """Return a Transformer with uninitialized weights; see `build_model`, which also lists the exceptions."""
    if config.shares_input_embeddings and source_vocab_size != target_vocab_size:
        raise ValueError(
            f"tie_embeddings = {config.tie_embeddings!r}: the source vocabulary has {source_vocab_size} rows and the target "
            f"vocabulary {target_vocab_size}; use one vocabulary, or tie_embeddings = 'decoder'"
        )
    encoder_input = config.encoder_input
    source_weight = nn.Parameter(torch.empty(source_vocab_size, config.d_model))
    has_one_embedding = config.shares_input_embeddings or not encoder_input.has_embedding
    target_weight = source_weight if has_one_embedding else nn.Parameter(torch.empty(target_vocab_size, config.d_model))
    output_weight = (
        target_weight
        if config.tie_embeddings in ("all", "decoder")
        else nn.Parameter(torch.empty(target_vocab_size, config.d_model))
    )
    target_space_embedding = nn.Parameter(torch.empty(config.d_model)) if config.target_space_embedding else None
    words = None
    if word_id is not None:
        words = WordTables(
            source_vocab_size=source_vocab_size, target_vocab_size=target_vocab_size, word_id=word_id, padding_id=padding_id
        )
    parts = choose_parts(config)
    source_embedding = _build_embedding(
        source_weight, target_space_embedding, config, padding_id, encoder_input.count_positions(config)
    )
    encoder = parts.encoder(parts, config, source_embedding)
    encoder.frontend = _build_frontend(config)
    pointer = Pointer(d_model=config.d_model, words=words) if words is not None and config.pointer else None
    target_embedding = _build_embedding(target_weight, None, config, padding_id, config.max_positions)
    decoder = parts.decoder(parts, config, target_embedding, pointer)
    model = Transformer(
        encoder=encoder,
        decoder=decoder,
        output=output_weight,
        output_bias=nn.Parameter(torch.empty(target_vocab_size)) if config.output_bias else None,
        words=words,
        tagger=TagHead(d_model=config.d_model, words=words) if words is not None and tagging else None,
    )
    for extension in config.model_extensions:
        extension.change_model(model)
    return model


def _build_embedding(
    weight: nn.Parameter, target_space_embedding: nn.Parameter | None, config: ModelConfig, padding_id: int, num_positions: int
) -> Embedding:
    return Embedding(
        weight=weight,
        positions=_build_positions(config, num_positions),
        scale_embeddings=config.scale_embeddings,
        dropout=config.embedding_dropout,
        padding_id=padding_id,
        norm=build_norm(config) if config.embedding_norm else nn.Identity(),
        target_space_embedding=target_space_embedding,
    )


def _build_frontend(config: ModelConfig) -> Frontend[Tensor] | None:
    """Return the front end of other sources than text, whose front end is the encoder's embedding."""
    match config.frontend:
        case "tokens":
            return None
        case "log-mel":
            return SpectrogramLayers(num_bands=config.num_mel_bins, d_model=config.d_model)


def _build_positions(
    config: ModelConfig, num_positions: int
) -> SinusoidalPositionalEmbedding | LearnedPositionalEmbedding | NoPositionalEmbedding:
    if config.position_encoding in ("relative", "rotary", "none"):
        return NoPositionalEmbedding()
    if config.position_encoding == "learned":
        return LearnedPositionalEmbedding(d_model=config.d_model, max_positions=num_positions)
    return SinusoidalPositionalEmbedding(d_model=config.d_model, layout=config.position_encoding, offset=config.position_offset)
