"""Recipe section `model` of BART, mBART-50, FSMT and M2M-100 models, whose config.json has the names of BART."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.conversion.source_files import ModelSettings
from dragoman.io.safetensors import TensorStream

ACTIVATIONS = {"relu": "relu", "swish": "silu", "silu": "silu", "gelu": "gelu"}
"""Activations by their name in config.json."""


def build_model_section(
    settings: ModelSettings, *, is_pre_norm: bool, tie_embeddings: str, attention_dropout: float = 0.0
) -> dict[str, Any]:
    """Return the recipe section `model`, without the token that starts the decoder.

    is_pre_norm: the layers normalize their inputs, and each stack its output
    attention_dropout: the family's default

    Raises BundleError for an architecture that dragoman does not have.
    """
    activation = settings.choice("activation_function", ACTIVATIONS, "relu")
    for name in ("ffn_dim", "attention_heads"):
        if settings.integer(f"encoder_{name}") != settings.integer(f"decoder_{name}"):
            raise settings.refuse(f"decoder_{name}", f"dragoman has one value for both stacks, but encoder_{name} differs")
    return {
        "encoder_layers": settings.integer("encoder_layers"),
        "decoder_layers": settings.integer("decoder_layers"),
        "d_model": settings.integer("d_model"),
        "d_ff": settings.integer("encoder_ffn_dim"),
        "num_heads": settings.integer("encoder_attention_heads"),
        "norm": "pre" if is_pre_norm else "post",
        "final_norm": is_pre_norm,
        "norm_epsilon": 1e-5,
        "attention_bias": True,
        "activation": activation,
        "position_encoding": "concatenated",
        "position_offset": settings.integer("pad_token_id") + 1,
        "tie_embeddings": tie_embeddings,
        "scale_embeddings": settings.boolean("scale_embedding", True),
        "residual_dropout": settings.number("dropout", 0.1),
        "embedding_dropout": settings.number("dropout", 0.1),
        "attention_dropout": settings.number("attention_dropout", attention_dropout),
        "activation_dropout": settings.number("activation_dropout", 0.0),
        "append_source_eos": True,
    }


def describe_start(settings: ModelSettings) -> dict[str, Any]:
    """Return the key `decoder_start_token` of the recipe section `model`. Raise BundleError for a token of another kind."""
    start, end = settings.integer("decoder_start_token_id", 2), settings.integer("eos_token_id")
    if start not in (end, settings.integer("bos_token_id")):
        raise settings.refuse("decoder_start_token_id", "dragoman starts with the begin or the end token")
    return {"decoder_start_token": "eos" if start == end else "bos"}


def describe_bart(settings: ModelSettings, weights: Mapping[str, TensorStream]) -> dict[str, Any]:
    """Return the keys of the recipe section `model` in which BART and mBART-50 differ from fairseq's Transformer.

    Raises BundleError for an architecture that dragoman does not have.
    """
    return {
        "activation": settings.choice("activation_function", ACTIVATIONS, "gelu"),
        "position_encoding": "learned",
        "position_offset": 0,
        "max_positions": weights["encoder.embedding.positions.weight"].shape[0],
        "embedding_norm": True,
        "output_bias": True,
        "scale_embeddings": settings.boolean("scale_embedding", False),
    }
