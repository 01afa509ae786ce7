"""Construction of a model from its configuration, the only module of the package that reads one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from dragoman.config import ModelConfig
from dragoman.model.attention import Attention
from dragoman.model.layers import DecoderLayer, EncoderLayer, FeedForward, PostNorm, PreNorm
from dragoman.model.pointer import Pointer, TagHead, WordTables
from dragoman.model.positional_encoding import LearnedPositionalEmbedding, SinusoidalPositionalEmbedding
from dragoman.model.transformer import Decoder, Embedding, Encoder, Transformer


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

    Raises ValueError if `tie_embeddings` is "all" and the vocabulary sizes differ.
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
    if config.tie_embeddings == "all" and source_vocab_size != target_vocab_size:
        raise ValueError(
            f"tie_embeddings = 'all': the source vocabulary has {source_vocab_size} rows and the target vocabulary "
            f"{target_vocab_size}; use one vocabulary, or tie_embeddings = 'decoder'"
        )
    source_weight = nn.Parameter(torch.empty(source_vocab_size, config.d_model))
    target_weight = (
        source_weight if config.tie_embeddings == "all" else nn.Parameter(torch.empty(target_vocab_size, config.d_model))
    )
    output_weight = (
        target_weight if config.tie_embeddings != "none" else nn.Parameter(torch.empty(target_vocab_size, config.d_model))
    )
    target_space_embedding = nn.Parameter(torch.empty(config.d_model)) if config.target_space_embedding else None
    words = None
    if word_id is not None:
        words = WordTables(
            source_vocab_size=source_vocab_size, target_vocab_size=target_vocab_size, word_id=word_id, padding_id=padding_id
        )
    parts = _PartBuilder(config, padding_id)
    return Transformer(
        encoder=parts.build_encoder(source_weight, target_space_embedding),
        decoder=parts.build_decoder(target_weight, words),
        output=output_weight,
        output_bias=nn.Parameter(torch.empty(target_vocab_size)) if config.output_bias else None,
        words=words,
        tagger=TagHead(d_model=config.d_model, words=words) if words is not None and tagging else None,
    )


@dataclass(frozen=True)
class _PartBuilder:
    """Builder of the parts of a model from its configuration, with uninitialized weights."""

    config: ModelConfig
    padding_id: int

    def build_encoder(self, weight: nn.Parameter, target_space_embedding: nn.Parameter | None) -> Encoder:
        return Encoder(
            embedding=self.build_embedding(weight, target_space_embedding),
            layers=[
                EncoderLayer(
                    attention=self.build_attention(),
                    feed_forward=self.build_feed_forward(),
                    build_residual=self.build_residual,
                )
                for _ in range(self.config.encoder_layers)
            ],
            norm=self.build_final_norm(),
            window=self.config.attention_window,
        )

    def build_decoder(self, weight: nn.Parameter, words: WordTables | None) -> Decoder:
        return Decoder(
            embedding=self.build_embedding(weight, None),
            layers=[
                DecoderLayer(
                    attention=self.build_attention(),
                    cross_attention=self.build_attention(),
                    feed_forward=self.build_feed_forward(),
                    build_residual=self.build_residual,
                )
                for _ in range(self.config.decoder_layers)
            ],
            norm=self.build_final_norm(),
            window=self.config.attention_window,
            pointer=Pointer(d_model=self.config.d_model, words=words) if words is not None and self.config.pointer else None,
        )

    def build_embedding(self, weight: nn.Parameter, target_space_embedding: nn.Parameter | None) -> Embedding:
        return Embedding(
            weight=weight,
            positions=_build_positions(self.config),
            scale_embeddings=self.config.scale_embeddings,
            dropout=self.config.embedding_dropout,
            padding_id=self.padding_id,
            target_space_embedding=target_space_embedding,
        )

    def build_attention(self) -> Attention:
        config = self.config
        return Attention(
            d_model=config.d_model,
            num_heads=config.num_heads,
            d_k=config.key_width,
            d_v=config.value_width,
            bias=config.attention_bias,
            dropout=config.attention_dropout,
        )

    def build_feed_forward(self) -> FeedForward:
        config = self.config
        return FeedForward(
            d_model=config.d_model, d_ff=config.d_ff, dropout=config.activation_dropout, activation=config.activation
        )

    def build_residual(self) -> PostNorm | PreNorm:
        config = self.config
        residual_class = PreNorm if config.norm == "pre" else PostNorm
        return residual_class(d_model=config.d_model, epsilon=config.norm_epsilon, dropout=config.residual_dropout)

    def build_final_norm(self) -> nn.Module:
        config = self.config
        has_final_norm = config.final_norm if config.final_norm is not None else config.norm == "pre"
        return nn.LayerNorm(config.d_model, eps=config.norm_epsilon) if has_final_norm else nn.Identity()


def _build_positions(config: ModelConfig) -> SinusoidalPositionalEmbedding | LearnedPositionalEmbedding:
    if config.position_encoding == "learned":
        return LearnedPositionalEmbedding(d_model=config.d_model, max_positions=config.max_positions)
    return SinusoidalPositionalEmbedding(d_model=config.d_model, layout=config.position_encoding, offset=config.position_offset)


@torch.no_grad()
def initialize(model: Transformer, config: ModelConfig) -> None:
    """Draw the weights from PyTorch's generator, in place.

    Embeddings are N(0, 1/√d), or N(0, 0.02) for "normal". Matrices follow `initialization`. Biases are zero, except for
    "torch", which keeps PyTorch's own draws.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            if config.initialization == "glorot":
                nn.init.xavier_uniform_(module.weight)
            elif config.initialization == "normal":
                nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None and config.initialization != "torch":
                nn.init.zeros_(module.bias)
    if model.output_bias is not None:
        nn.init.zeros_(model.output_bias)
    std = 0.02 if config.initialization == "normal" else config.d_model**-0.5
    embeddings = [model.encoder.embedding.weight, model.decoder.embedding.weight, model.output]
    if model.encoder.embedding.target_space_embedding is not None:
        embeddings.append(model.encoder.embedding.target_space_embedding)
    for embedding in {id(embedding): embedding for embedding in embeddings}.values():
        nn.init.normal_(embedding, std=std)
