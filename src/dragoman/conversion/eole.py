"""Model folders of Eole, the successor of OpenNMT-py.

- `config.json` has the options of the training; options that have their default are missing.
- `vocab.json` numbers the tokens.
- `model.00.safetensors` and, for large models, further parts have the tensors.
- A SentencePiece model or codes of subword-nmt split the text; `config.json` names them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dragoman.conversion.mapped_arrays import damaged
from dragoman.conversion.opennmt_transformer import (
    LAYOUTS,
    SPECIAL_TOKENS,
    OpenNmtModel,
    choose_segmenters,
    convert_model,
    list_transforms,
    read_rate,
    read_tokens,
)
from dragoman.conversion.source_files import ModelSettings, SourceFiles, SourceTensors
from dragoman.conversion.target import ConversionOptions, ConvertedModel

NAME = "eole"
CONFIG_FILE, VOCABULARY_FILE, WEIGHTS_FILE = "config.json", "vocab.json", "model.00.safetensors"
REQUIRED_OPTIONS: dict[str, tuple[tuple[Any, ...], str]] = {
    "left_pad": ((False, None), "dragoman pads on the right"),
    "add_estimator": ((False, None), "dragoman has no quality estimator"),
    "generator_function": (("softmax", None), "dragoman has softmax only"),
    "embeddings.embedding_type": (("standard", None), "dragoman has plain embeddings only"),
    "encoder.encoder_type": (("transformer",), "dragoman has the Transformer only"),
    "decoder.decoder_type": (("transformer",), "dragoman has the Transformer only"),
    "encoder.encoder_layer_style": (("standard", None), "dragoman has one place of layer normalization for both stacks"),
    "encoder.final_encoder_layer_norm": ((True, None), "dragoman normalizes the output of both pre-norm stacks"),
    "decoder.layer_types": ((None,), "dragoman has full attention in all layers"),
    "decoder.num_mtp_heads": ((0, None), "dragoman predicts one token at a time"),
}
"""Values that dragoman has, and the feature that it lacks otherwise. None stands for an option that is not set."""
REQUIRED_STACK_OPTIONS: dict[str, tuple[tuple[Any, ...], str]] = {
    "mlp_activation_fn": (("relu", "gelu", "silu", None), "dragoman has no gated activations"),
    "layer_norm": (("standard", "standardFP32", None), "dragoman has no RMSNorm"),
    "relative_positions_buckets": ((0, None), "dragoman has no relative positions"),
    "sliding_window": ((0, None), "dragoman has no sliding window"),
    "parallel_residual": ((False, None), "dragoman has no parallel residual connections"),
    "ffn_layernorm": ((False, None), "dragoman has no layer normalization around the feed-forward network"),
    "query_norm": ((False, None), "dragoman has no normalization of queries"),
    "key_norm": ((False, None), "dragoman has no normalization of keys"),
    "value_norm": ((False, None), "dragoman has no normalization of values"),
    "q_gating": ((False, None), "dragoman has no gated attention"),
    "attn_scaling": ((None,), "dragoman divides by the square root of the head's width"),
    "num_experts": ((0, None), "dragoman has no mixture of experts"),
    "head_dim": ((None,), "dragoman has heads of d_model / num_heads"),
}
"""The same for options that both stacks have."""
DEFAULT_LAYERS, DEFAULT_HEADS, DEFAULT_EPSILON = 2, 8, 1e-5
EQUAL_OPTIONS = {"heads": DEFAULT_HEADS, "mlp_activation_fn": "relu", "norm_eps": DEFAULT_EPSILON}
"""Options that must be equal for both stacks, and their defaults."""


def detect(files: SourceFiles) -> bool:
    """Return whether a folder holds a model of Eole."""
    return CONFIG_FILE in files and WEIGHTS_FILE in files


def read(files: SourceFiles, options: ConversionOptions) -> ConvertedModel:
    """Return the model of a folder."""
    config = files.read_settings(CONFIG_FILE)
    settings = _read_settings(config)
    vocabulary = files.read_settings(VOCABULARY_FILE)
    training = ModelSettings(_as_mapping(config.get("training")), config.path)
    for name in ("lora_layers", "quant_layers"):
        if training.get(name):
            raise training.refuse(name, "dragoman reads plain weights; convert the model with eole first")
    transforms = list_transforms(config)
    transform_options = {
        name: ModelSettings(_as_mapping(value), config.path)
        for name, value in _as_mapping(config.get("transforms_configs")).items()
    }
    tensors = files.open_parts(sorted(name for name in files.names if re.fullmatch(r"model\.\d\d\.safetensors", name)))
    segmenters, has_codes = choose_segmenters(
        files, transforms, transform_options, shares_vocabulary=config.boolean("share_vocab", False)
    )
    model = OpenNmtModel(
        settings=settings,
        tensors=_drop_scalars(tensors),
        tokens=(
            read_tokens(vocabulary.get("src"), "src", vocabulary),
            read_tokens(vocabulary.get("tgt"), "tgt", vocabulary),
        ),
        special_tokens=_read_special_tokens(vocabulary),
        decoder_start=str(vocabulary.get("decoder_start_token", SPECIAL_TOKENS["bos_token"])),
        layers=(settings.integer("encoder.layers", DEFAULT_LAYERS), settings.integer("decoder.layers", DEFAULT_LAYERS)),
        num_heads=settings.integer("encoder.heads", DEFAULT_HEADS),
        activation=settings.get("encoder.mlp_activation_fn") or "relu",
        norm_epsilon=settings.number("encoder.norm_eps", DEFAULT_EPSILON),
        position_encoding=_get_position_encoding(settings),
        position_shift=settings.integer("embeddings.position_shift", 0),
        scales_learned=settings.boolean("embeddings.normalize", False),
        shares_embeddings=settings.boolean("share_embeddings", False),
        shares_output=settings.boolean("share_decoder_embeddings", False),
        dropout=read_rate(training, "dropout", 0.3),
        attention_dropout=read_rate(training, "attention_dropout", 0.1),
        segmenters=segmenters,
        has_codes=has_codes,
        transforms=transforms,
        length_penalty="power",
    )
    return convert_model(files, options, model, format_name=NAME)


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _read_settings(config: ModelSettings) -> ModelSettings:
    """Return the options of the model; those of a section, such as `encoder.heads`, default to those of the model."""
    model = _as_mapping(config.get("model"))
    if not model:
        raise damaged(config.path, "has no section model, so it is not of Eole")
    flat = {**model}
    for section in ("embeddings", "encoder", "decoder"):
        values = {name: value for name, value in model.items() if not isinstance(value, dict)}
        values |= {name: value for name, value in _as_mapping(model.get(section)).items() if value is not None}
        flat |= {f"{section}.{name}": value for name, value in values.items()}
    settings = ModelSettings(flat, config.path)
    required = REQUIRED_OPTIONS | {
        f"{stack}.{name}": requirement
        for stack in ("encoder", "decoder")
        for name, requirement in REQUIRED_STACK_OPTIONS.items()
    }
    for name, (allowed, problem) in required.items():
        if settings.get(name) not in allowed:
            raise settings.refuse(name, problem)
    for name, default in EQUAL_OPTIONS.items():
        if settings.get(f"encoder.{name}", default) != settings.get(f"decoder.{name}", default):
            raise settings.refuse(f"decoder.{name}", f"dragoman has one value for both stacks, but encoder.{name} differs")
    for stack in ("encoder", "decoder"):
        if settings.get(f"{stack}.heads_kv") not in (None, settings.get(f"{stack}.heads", DEFAULT_HEADS)):
            raise settings.refuse(f"{stack}.heads_kv", "dragoman has no multi-query attention")
    return settings


def _get_position_encoding(settings: ModelSettings) -> str:
    value = settings.get("embeddings.position_encoding_type", "SinusoidalInterleaved")
    if value not in list(LAYOUTS):
        raise settings.refuse("embeddings.position_encoding_type", f"dragoman has {', '.join(LAYOUTS)}")
    return str(value)


def _read_special_tokens(vocabulary: ModelSettings) -> dict[str, str]:
    """Return the names of the special tokens."""
    specials = _as_mapping(vocabulary.get("specials"))
    tokens = {name: specials.get(name, default) for name, default in SPECIAL_TOKENS.items()}
    if not all(isinstance(token, str) for token in tokens.values()):
        raise damaged(vocabulary.path, "a special token is not a text")
    return tokens


def _drop_scalars(tensors: SourceTensors) -> SourceTensors:
    """Return the tensors without those that Eole stores, but does not use in a model with an encoder."""
    used = {
        name: tensors[name] for name in tensors if not re.fullmatch(r"decoder\.transformer_layers\.\d+\.layer_scalar", name)
    }
    return SourceTensors(used, tensors.release, tensors.location, settings=CONFIG_FILE)
