"""Initial weights, drawn from PyTorch's generator."""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from dragoman.config import ModelConfig
from dragoman.model.linear import Linear
from dragoman.model.positional_encoding import LearnedPositionalEmbedding
from dragoman.model.transformer import Transformer

GNMT_LIMIT, GNMT_WIDTH = 0.04, 1024
"""Largest magnitude of all trained parameters at the start, and the width of its layers (Wu et al. 2016, section 8.3)."""
CONVS2S_EMBEDDING_STD = 0.1
"""Standard deviation of embeddings (Gehring et al. 2017, section 4.2)."""


@runtime_checkable
class HasOwnInitialWeights(Protocol):
    """Module that sets its initial weights itself, after those of the linear layers in it."""

    def set_initial_weights(self) -> None: ...


@torch.no_grad()
def initialize(model: Transformer, config: ModelConfig) -> None:
    """Draw the weights from PyTorch's generator, in place.

    Embeddings are N(0, 1/√d), or N(0, 0.02) for "normal", uniform for "gnmt", and N(0, 0.1) for "convs2s", where positions have
    the same deviation. Matrices follow `initialization`. Biases are zero, but uniform for "gnmt", and PyTorch's own draws for
    "torch". A module with a method `set_initial_weights` has the last word.

    GNMT's limit is for its width of 1024. For another width it is multiplied by √(1024 / d_model), so that a product has the
    same variance. With ±0.04 at a width of 64, the gradient of the attention's keys is a thousandth of that at 1024.
    """
    gnmt_limit = GNMT_LIMIT * math.sqrt(GNMT_WIDTH / config.d_model)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            match config.initialization:
                case "glorot":
                    nn.init.xavier_uniform_(module.weight)
                case "normal":
                    nn.init.normal_(module.weight, std=0.02)
                case "gnmt":
                    nn.init.uniform_(module.weight, -gnmt_limit, gnmt_limit)
                case "convs2s":
                    gain = module.variance_gain if isinstance(module, Linear) else 1.0
                    nn.init.normal_(module.weight, std=math.sqrt(gain / module.in_features))
            if module.bias is not None and config.initialization == "gnmt":
                nn.init.uniform_(module.bias, -gnmt_limit, gnmt_limit)
            elif module.bias is not None and config.initialization != "torch":
                nn.init.zeros_(module.bias)
    for module in model.modules():
        if isinstance(module, HasOwnInitialWeights):
            module.set_initial_weights()
        elif isinstance(module, LearnedPositionalEmbedding) and config.initialization == "convs2s":
            nn.init.normal_(module.weight, std=CONVS2S_EMBEDDING_STD / module.scale)  # larger positions would hide the tokens
    if model.output_bias is not None:
        nn.init.zeros_(model.output_bias)
    embeddings = [model.encoder.embedding.weight, model.decoder.embedding.weight, model.output]
    if model.encoder.embedding.target_space_embedding is not None:
        embeddings.append(model.encoder.embedding.target_space_embedding)
    for embedding in {id(embedding): embedding for embedding in embeddings}.values():
        _draw_embedding(embedding, config, gnmt_limit)


def _draw_embedding(embedding: Tensor, config: ModelConfig, gnmt_limit: float) -> None:
    match config.initialization:
        case "gnmt":
            nn.init.uniform_(embedding, -gnmt_limit, gnmt_limit)
        case "normal":
            nn.init.normal_(embedding, std=0.02)
        case "convs2s":
            nn.init.normal_(embedding, std=CONVS2S_EMBEDDING_STD)
        case _:
            nn.init.normal_(embedding, std=config.d_model**-0.5)
