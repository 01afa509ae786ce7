"""Construction of a model from its configuration, the only module of the package that reads one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from dragoman.config import ModelConfig
from dragoman.model.attention import Attention
from dragoman.model.attention_scores import AdditiveScore, AttentionScore, DotScore, MultiplicativeScore
from dragoman.model.ctc import CtcDecoder
from dragoman.model.experts import Experts
from dragoman.model.initialization import initialize
from dragoman.model.layers import DecoderLayer, EncoderLayer, FeedForward, PostNorm, PreNorm
from dragoman.model.mixers.convolution import DilatedConvolution, GatedConvolution
from dragoman.model.mixers.recurrent import OneWayLayer, TwoWayLayer
from dragoman.model.mixers.stacks import MixerDecoder, MixerDecoderLayer, MixerEncoder, MixerEncoderLayer
from dragoman.model.normalization import add_weight_normalization, build_norm
from dragoman.model.pointer import Pointer, TagHead, WordTables
from dragoman.model.positional_encoding import (
    LearnedPositionalEmbedding,
    NoPositionalEmbedding,
    SinusoidalPositionalEmbedding,
)
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
    encoder, decoder = parts.build_encoder(source_weight, target_space_embedding), parts.build_decoder(target_weight, words)
    if config.normalization == "weight":
        add_weight_normalization([*encoder.layers, *decoder.layers])
    return Transformer(
        encoder=encoder,
        decoder=decoder,
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
        config = self.config
        if config.encoder_mixer != "attention":
            return MixerEncoder(
                embedding=self.build_embedding(weight, target_space_embedding),
                layers=[
                    MixerEncoderLayer(
                        mixer=self.build_encoder_mixer(layer),
                        feed_forward=self.build_feed_forward(),
                        build_residual=self.build_residual,
                    )
                    for layer in range(config.encoder_layers)
                ],
                norm=self.build_final_norm(),
                adds_embedding=config.cross_attention == "multi_step",
                scale=config.residual_scale,
            )
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
        config = self.config
        if config.decoder == "ctc":
            return CtcDecoder(
                embedding=self.build_embedding(weight, None),
                layers=self.build_decoder_layers(),
                norm=self.build_final_norm(),
                window=config.attention_window,
                upsampling=config.ctc_upsampling,
            )
        pointer = Pointer(d_model=config.d_model, words=words) if words is not None and config.pointer else None
        if config.decoder_mixer != "attention":
            return MixerDecoder(
                embedding=self.build_embedding(weight, None),
                layers=[
                    MixerDecoderLayer(
                        mixer=self.build_decoder_mixer(layer),
                        cross_attention=self.build_attention() if layer < config.num_cross_attentions else None,
                        feed_forward=self.build_feed_forward(),
                        build_residual=self.build_residual,
                        reading=config.cross_attention,
                    )
                    for layer in range(config.decoder_layers)
                ],
                norm=self.build_final_norm(),
                reading=config.cross_attention,
                pointer=pointer,
            )
        return Decoder(
            embedding=self.build_embedding(weight, None),
            layers=self.build_decoder_layers(),
            norm=self.build_final_norm(),
            window=self.config.attention_window,
            pointer=pointer,
        )

    def build_decoder_layers(self) -> list[DecoderLayer]:
        return [
            DecoderLayer(
                attention=self.build_attention(),
                cross_attention=self.build_attention(),
                feed_forward=self.build_feed_forward(),
                build_residual=self.build_residual,
            )
            for _ in range(self.config.decoder_layers)
        ]

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
            score=self.build_score(),
        )

    def build_score(self) -> AttentionScore | None:
        config = self.config
        match config.attention_score:
            case "dot":
                return DotScore()
            case "additive":
                return AdditiveScore(num_heads=config.num_heads, d_k=config.key_width)
            case "multiplicative":
                return MultiplicativeScore(num_heads=config.num_heads, d_k=config.key_width)
            case "scaled-dot":
                return None

    def build_encoder_mixer(self, layer: int) -> nn.Module:
        config, directions = self.config, self.config.recurrent_directions
        if config.encoder_mixer == "recurrent" and (directions != "forward" and not (directions == "first" and layer > 0)):
            return TwoWayLayer(
                d_model=config.d_model,
                dropout=config.activation_dropout,
                fast_forward=config.fast_forward,
                interleaved=directions == "interleaved",
                layer=layer,
            )
        return self.build_mixer(config.encoder_mixer, layer, in_features=config.d_model, causal=False)

    def build_decoder_mixer(self, layer: int) -> nn.Module:
        config = self.config
        num_inputs = 2 if config.cross_attention == "first" and layer > 0 else 1
        return self.build_mixer(config.decoder_mixer, layer, in_features=num_inputs * config.d_model, causal=True)

    def build_mixer(self, name: str, layer: int, *, in_features: int, causal: bool) -> nn.Module:
        config = self.config
        match name:
            case "recurrent":
                return OneWayLayer(
                    in_features=in_features,
                    d_model=config.d_model,
                    dropout=config.activation_dropout,
                    fast_forward=config.fast_forward,
                    is_first=layer == 0,
                )
            case "convolution":
                return GatedConvolution(
                    in_features=in_features,
                    d_model=config.d_model,
                    kernel_size=config.kernel_size,
                    causal=causal,
                    dropout=config.activation_dropout,
                )
            case "dilated":
                return DilatedConvolution(
                    in_features=in_features,
                    d_model=config.d_model,
                    kernel_size=config.kernel_size,
                    dilation=2 ** (layer % config.max_dilation.bit_length()),
                    causal=causal,
                    dropout=config.activation_dropout,
                    normalization=config.normalization,
                    epsilon=config.norm_epsilon,
                )
        raise AssertionError(f"{name} is no mixer")

    def build_feed_forward(self) -> FeedForward | Experts | None:
        config = self.config
        match config.feed_forward:
            case "dense":
                return self.build_dense()
            case "moe":
                experts = [self.build_dense() for _ in range(config.num_experts)]
                return Experts(d_model=config.d_model, experts=experts, num_active=config.experts_per_token)
            case "none":
                return None

    def build_dense(self) -> FeedForward:
        config = self.config
        return FeedForward(
            d_model=config.d_model, d_ff=config.d_ff, dropout=config.activation_dropout, activation=config.activation
        )

    def build_residual(self) -> PostNorm | PreNorm:
        config = self.config
        residual_class = PreNorm if config.norm == "pre" else PostNorm
        return residual_class(
            d_model=config.d_model,
            epsilon=config.norm_epsilon,
            dropout=config.residual_dropout,
            normalization=config.normalization,
            residual=config.residual,
            scale=config.residual_scale,
        )

    def build_final_norm(self) -> nn.Module:
        config = self.config
        has_final_norm = config.final_norm if config.final_norm is not None else config.norm == "pre"
        return build_norm(config.normalization, config.d_model, config.norm_epsilon) if has_final_norm else nn.Identity()


def _build_positions(
    config: ModelConfig,
) -> SinusoidalPositionalEmbedding | LearnedPositionalEmbedding | NoPositionalEmbedding:
    if config.position_encoding == "none":
        return NoPositionalEmbedding()
    if config.position_encoding == "learned":
        return LearnedPositionalEmbedding(d_model=config.d_model, max_positions=config.max_positions)
    return SinusoidalPositionalEmbedding(d_model=config.d_model, layout=config.position_encoding, offset=config.position_offset)
