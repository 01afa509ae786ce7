"""From a config to a model: the one place in this room that reads knobs."""

from __future__ import annotations

import torch
from torch import nn

from dragoman.config import ModelConfig
from dragoman.model.attention import Attention
from dragoman.model.layers import DecoderLayer, EncoderLayer, FeedForward, PostNorm, PreNorm
from dragoman.model.pointer import Pointer, TagHead, Words
from dragoman.model.positional_encoding import LearnedPositions, Sinusoids
from dragoman.model.transformer import Decoder, Embedding, Encoder, Transformer


def build_model(
    config: ModelConfig,
    *,
    source_vocabulary: int,
    target_vocabulary: int,
    padding_id: int = 0,
    word_id: int | None = None,
    tagging: bool = False,
) -> Transformer:
    """A Transformer with fresh weights, drawn from torch's own generator. Vocabularies are in rows.

    word_id: the target's token for a word of the source, in a parser, whose `words` are still to learn
    tagging: a parser tags its words as well

    Raises ValueError where all tying is asked of two vocabularies of different sizes.
    """
    model = assemble_model(
        config,
        source_vocabulary=source_vocabulary,
        target_vocabulary=target_vocabulary,
        padding_id=padding_id,
        word_id=word_id,
        tagging=tagging,
    )
    initialise(model, config)
    return model


def assemble_model(
    config: ModelConfig,
    *,
    source_vocabulary: int,
    target_vocabulary: int,
    padding_id: int = 0,
    word_id: int | None = None,
    tagging: bool = False,
) -> Transformer:
    """A Transformer whose weights are still to come. Raises ValueError as `build_model` does."""
    if config.tie_embeddings == "all" and source_vocabulary != target_vocabulary:
        raise ValueError(f"all tying of {source_vocabulary} source and {target_vocabulary} target rows")
    source = nn.Parameter(torch.empty(source_vocabulary, config.d_model))
    target = source if config.tie_embeddings == "all" else nn.Parameter(torch.empty(target_vocabulary, config.d_model))
    output = target if config.tie_embeddings != "none" else nn.Parameter(torch.empty(target_vocabulary, config.d_model))
    extra = nn.Parameter(torch.empty(config.d_model)) if config.target_space_embedding else None
    final = config.final_norm if config.final_norm is not None else config.norm == "pre"
    words = None
    if word_id is not None:
        sizes = {"source_vocabulary": source_vocabulary, "target_vocabulary": target_vocabulary}
        words = Words(**sizes, word_id=word_id, padding_id=padding_id)

    def attention() -> Attention:
        return Attention(
            d_model=config.d_model,
            num_heads=config.num_heads,
            d_k=config.key_width,
            d_v=config.value_width,
            bias=config.attention_bias,
            dropout=config.attention_dropout,
        )

    def feed_forward() -> FeedForward:
        return FeedForward(d_model=config.d_model, d_ff=config.d_ff, dropout=config.activation_dropout)

    def residual() -> PostNorm | PreNorm:
        kind = PreNorm if config.norm == "pre" else PostNorm
        return kind(d_model=config.d_model, epsilon=config.norm_epsilon, dropout=config.residual_dropout)

    def norm() -> nn.Module:
        return nn.LayerNorm(config.d_model, eps=config.norm_epsilon) if final else nn.Identity()

    def embedding(weight: nn.Parameter, positions: Sinusoids | LearnedPositions, extra: nn.Parameter | None) -> Embedding:
        return Embedding(
            weight=weight,
            positions=positions,
            scaled=config.scale_embeddings,
            dropout=config.embedding_dropout,
            padding_id=padding_id,
            extra=extra,
        )

    encoder = Encoder(
        embedding=embedding(source, _positions(config), extra),
        layers=[
            EncoderLayer(attention=attention(), feed_forward=feed_forward(), residual=residual)
            for _ in range(config.encoder_layers)
        ],
        norm=norm(),
        window=config.attention_window,
    )
    decoder = Decoder(
        embedding=embedding(target, _positions(config), None),
        layers=[
            DecoderLayer(attention=attention(), cross_attention=attention(), feed_forward=feed_forward(), residual=residual)
            for _ in range(config.decoder_layers)
        ],
        norm=norm(),
        window=config.attention_window,
        pointer=Pointer(d_model=config.d_model, words=words) if words is not None and config.pointer else None,
    )
    tagger = TagHead(d_model=config.d_model, words=words) if words is not None and tagging else None
    return Transformer(encoder=encoder, decoder=decoder, output=output, words=words, tagger=tagger)


def _positions(config: ModelConfig) -> Sinusoids | LearnedPositions:
    if config.position_encoding == "learned":
        return LearnedPositions(d_model=config.d_model, max_positions=config.max_positions)
    return Sinusoids(d_model=config.d_model, concatenated=config.position_encoding == "concatenated")


@torch.no_grad()
def initialise(model: Transformer, config: ModelConfig) -> None:
    """Draw the weights: embeddings N(0, 1/√d), matrices by the named rule, biases zero (PyTorch's rule draws them too)."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            if config.initialization == "glorot":
                nn.init.xavier_uniform_(module.weight)
            elif config.initialization == "normal":
                nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None and config.initialization != "torch":
                nn.init.zeros_(module.bias)
    spread = 0.02 if config.initialization == "normal" else config.d_model**-0.5
    vectors = [model.encoder.embedding.weight, model.decoder.embedding.weight, model.output]
    if model.encoder.embedding.extra is not None:
        vectors.append(model.encoder.embedding.extra)
    for vector in {id(vector): vector for vector in vectors}.values():
        nn.init.normal_(vector, std=spread)
