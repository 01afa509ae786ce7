"""The Transformer of OpenNMT-py and Eole: pre-norm layers, sources without an end token, and an output bias.

Both toolkits train the same model. Its tensors have the names of Eole here; `opennmt_py` renames those of OpenNMT-py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dragoman.bundle import ModelOrigin
from dragoman.conversion.mapped_arrays import Array, damaged
from dragoman.conversion.source_files import ModelSettings, SourceFiles, SourceTensors
from dragoman.conversion.target import ConversionOptions, ConvertedModel, build_model
from dragoman.conversion.text_tokenizers import build_pair_tokenizer, find_segmenter
from dragoman.conversion.vocabulary_order import VocabularyOrder
from dragoman.conversion.weight_reader import WeightReader
from dragoman.io.safetensors import TensorStream

SPECIAL_TOKENS = {"pad_token": "<blank>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
"""Special tokens by their name in Eole, unless `vocab.json` names others."""
LAYOUTS = {"SinusoidalInterleaved": "interleaved", "SinusoidalConcat": "concatenated", "Learned": "learned"}
"""Position encodings that dragoman has, by their name in both toolkits."""
ATTENTION_PARTS = {"linear_query": "query", "linear_keys": "key", "linear_values": "value", "final_linear": "output"}
LAYER_PARTS = {
    "input_layernorm": "attention_residual.norm",
    "post_attention_layernorm": "feed_forward_residual.norm",
    "mlp.gate_up_proj": "feed_forward.inner",
    "mlp.down_proj": "feed_forward.outer",
}
"""Parts of a layer other than attentions: name in Eole → name in dragoman."""
TRAINING_TRANSFORMS = frozenset(
    ["filtertoolong", "filterfeats", "clean", "switchout", "tokendrop", "tokenmask", "bart", "fuzzymatch"]
)
"""Transforms of training text, which no translation needs."""
TOKENIZER_TRANSFORMS = ("sentencepiece", "bpe", "onmt_tokenize")
FOREIGN_TOKENIZERS = ("huggingface_tokenize",)
SIDE_NAMES = ("src", "source"), ("tgt", "trg", "target")
"""Marks of the files of each side, if there are several."""
LANGUAGES_NOTE = "The model does not state its languages; give --source-language and --target-language to record them."
PIECES_NOTE = "The folder has no codes and no SentencePiece model, so the text must hold the tokens of the vocabulary."


@dataclass(frozen=True)
class OpenNmtModel:
    """Model of OpenNMT-py or Eole in common terms.

    Attributes:
        settings: options of the model, for error messages
        tensors: tensors under the names of Eole
        tokens: tokens of the source and of the target by id
        special_tokens: names of the special tokens, with the keys of `SPECIAL_TOKENS`
        decoder_start: token that the decoder starts with
        layers: numbers of layers of the encoder and the decoder
        num_heads: number of heads of each attention
        activation: activation of the feed-forward networks
        norm_epsilon: ε of layer normalization
        position_encoding: a key of `LAYOUTS`
        position_shift: row of the first learned position
        scales_learned: the sum of embeddings and learned positions is multiplied by √d
        shares_embeddings: encoder and decoder have one matrix
        shares_output: the output matrix is the decoder's embedding
        dropout, attention_dropout: rates of the training
        segmenters: files that split the text of source and target; None if the text holds its pieces
        has_codes: the files are codes of subword-nmt, and not SentencePiece models
        transforms: names of the text transforms of the training
        length_penalty: default of the toolkit's search
    """

    settings: ModelSettings
    tensors: SourceTensors
    tokens: tuple[Sequence[str], Sequence[str]]
    special_tokens: Mapping[str, str]
    decoder_start: str
    layers: tuple[int, int]
    num_heads: int
    activation: str
    norm_epsilon: float
    position_encoding: str
    shares_embeddings: bool
    shares_output: bool
    dropout: float
    attention_dropout: float
    segmenters: tuple[str | None, str | None]
    has_codes: bool
    transforms: Sequence[str]
    length_penalty: str
    position_shift: int = 0
    scales_learned: bool = False


def convert_model(files: SourceFiles, options: ConversionOptions, model: OpenNmtModel, *, format_name: str) -> ConvertedModel:
    """Return the model in the terms of a bundle.

    Raises:
        DataError: a file is missing or damaged.
        BundleError: the model has a feature that dragoman does not have.
    """
    if 0 in model.layers:
        raise damaged(model.settings.path, "describes a stack without layers")
    source_order, target_order = (_build_order(model, tokens) for tokens in model.tokens)
    if target_order.rows[2] is None or target_order.rows[3] is None:
        raise damaged(model.settings.path, "the target vocabulary has no begin or no end token")
    orders = source_order, target_order
    tie_embeddings, weights = _build_weights(model, orders)
    tokenizer = build_pair_tokenizer(
        files,
        model.segmenters,
        orders,
        append_source_eos=False,
        codes=model.segmenters if model.has_codes else (),
        may_hold_pieces=True,
    )
    languages = options.choose_languages()
    return build_model(
        ModelOrigin(format=format_name, name=options.name),
        model.settings.path,
        languages,
        {
            "model": _convert_settings(model, tie_embeddings, weights),
            "decoding": {"beam_size": 5, "length_penalty": model.length_penalty, "alpha": 1.0, "early_stopping": "best"},
        },
        tokenizer,
        weights,
        notes=tuple(_list_notes(model, has_languages=all(languages))),
    )


def choose_segmenters(
    files: SourceFiles, transforms: Sequence[str], options: Mapping[str, ModelSettings], *, shares_vocabulary: bool
) -> tuple[tuple[str | None, str | None], bool]:
    """Return the files of the tokenizer among the transforms, or else those of the folder that look like one.

    They split the text of source and target, and are codes of subword-nmt if the second value is true.

    Args:
        files: files of the model
        transforms: names of the text transforms
        options: options of each tokenizer transform
        shares_vocabulary: the model of the source also splits the target

    Raises:
        DataError: a file is missing, or several may be meant.
        BundleError: dragoman does not have the tokenizer.
    """
    names = [name for name in transforms if name in (*TOKENIZER_TRANSFORMS, *FOREIGN_TOKENIZERS)]
    if not names:
        advice = "name them like src.model and tgt.model"
        source, target = (find_segmenter(files, marks, advice) for marks in SIDE_NAMES)
        return (source, target), source is not None and not source.endswith(".model")
    settings = options.get(names[0], ModelSettings({}, files.folder))
    if len(names) > 1 or names[0] in FOREIGN_TOKENIZERS:
        raise ModelSettings({"transforms": names}, settings.path).refuse(
            "transforms", "dragoman splits text by one SentencePiece model or by codes of subword-nmt"
        )
    kind = names[0]
    if kind == "onmt_tokenize":
        for side in ("src", "tgt"):
            kwargs = settings.get(f"{side}_onmttok_kwargs") or {}
            mode = kwargs if isinstance(kwargs, dict) else re.sub(r"[\s{}'\"]", "", str(kwargs))
            if mode not in ({}, {"mode": "none"}, "", "mode:none"):
                raise settings.refuse(f"{side}_onmttok_kwargs", "dragoman does not have OpenNMT's Tokenizer")
        kinds = {str(settings.get(f"{side}_subword_type") or "none") for side in ("src", "tgt")}
        if len(kinds) > 1 or not kinds <= {"none", "sentencepiece"}:
            raise settings.refuse("src_subword_type", "dragoman has SentencePiece models for both sides")
        kind = next(iter(kinds))
    if kind == "none":
        return (None, None), False
    paths = [settings.get(f"{side}_subword_model") for side in ("src", "tgt")]
    paths[1] = paths[0] if shares_vocabulary or not paths[1] else paths[1]
    file_names = [re.split(r"[/\\]", path)[-1] if isinstance(path, str) else "" for path in paths]
    source, target = (files.path(name).name for name in file_names)
    return (source, target), kind == "bpe"


def list_transforms(settings: ModelSettings) -> list[str]:
    """Return the names of the text transforms."""
    names = settings.get("transforms")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def read_tokens(value: Any, name: str, settings: ModelSettings) -> list[str]:
    """Return a list of tokens. Raise DataError if it is something else."""
    if not isinstance(value, list) or not value or not all(isinstance(token, str) for token in value):
        raise damaged(settings.path, f"the vocabulary {name} is not a list of tokens")
    if len(set(value)) < len(value):
        raise damaged(settings.path, f"the vocabulary {name} has a token twice")
    return value


def read_rate(settings: ModelSettings, name: str, default: float) -> float:
    """Return a dropout rate: a number, or the first of a list with one for each part of the training."""
    value = settings.get(name)
    if isinstance(value, list) and value:
        settings = ModelSettings({name: value[0]}, settings.path)
    return settings.number(name, default)


def _build_order(model: OpenNmtModel, tokens: Sequence[str]) -> VocabularyOrder:
    ids = {token: index for index, token in enumerate(tokens)}
    special_ids = {key: ids.get(token) for key, token in model.special_tokens.items()}
    unknown = special_ids["unk_token"]
    if unknown is None:
        raise damaged(model.settings.path, f"a vocabulary has no token {model.special_tokens['unk_token'][:40]}")
    return VocabularyOrder.build(
        tokens,
        padding=special_ids["pad_token"],
        unknown=unknown,
        begin=special_ids["bos_token"],
        end=special_ids["eos_token"],
    )


def _convert_settings(model: OpenNmtModel, tie_embeddings: str, weights: Mapping[str, TensorStream]) -> dict[str, Any]:
    """Return the recipe section `model`."""
    layout = LAYOUTS[model.position_encoding]
    special_tokens = model.special_tokens
    starts = {special_tokens["bos_token"]: "bos", special_tokens["eos_token"]: "eos"}
    if model.decoder_start not in starts:
        raise ModelSettings({"decoder_start_token": model.decoder_start}, model.settings.path).refuse(
            "decoder_start_token", "dragoman starts with the begin or the end token"
        )
    positions = weights.get("encoder.embedding.positions.weight")
    return {
        "encoder_layers": model.layers[0],
        "decoder_layers": model.layers[1],
        "d_model": weights["output"].shape[1],
        "d_ff": weights["encoder.layers.0.feed_forward.inner.bias"].shape[0],
        "num_heads": model.num_heads,
        "norm": "pre",
        "final_norm": True,
        "norm_epsilon": model.norm_epsilon,
        "attention_bias": "encoder.layers.0.attention.query.bias" in weights,
        "activation": model.activation,
        "position_encoding": layout,
        **({} if positions is None else {"max_positions": positions.shape[0]}),
        "tie_embeddings": tie_embeddings,
        "output_bias": True,
        "scale_embeddings": layout != "learned" or model.scales_learned,
        "residual_dropout": model.dropout,
        "embedding_dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": model.dropout,
        "decoder_start_token": starts[model.decoder_start],
        "append_source_eos": False,
    }


def _build_weights(model: OpenNmtModel, orders: tuple[VocabularyOrder, VocabularyOrder]) -> tuple[str, dict[str, TensorStream]]:
    """Return the weights of the bundle, and which matrices are equal, as `model.tie_embeddings` has it."""
    reader = WeightReader(model.tensors, prefix="", family="OpenNMT's Transformer")
    source_name, target_name = "src_emb.embeddings.weight", "tgt_emb.embeddings.weight"
    encoder = reader.get(source_name)
    decoder = reader.get(target_name, *([source_name] if model.shares_embeddings else []))
    output = reader.get("generator.weight", *([target_name, source_name] if model.shares_output else []))
    tie_embeddings, weights = reader.read_vocabulary_matrices(encoder, decoder, output, orders)
    weights["output_bias"] = _build_output_bias(reader, orders[1], output.dtype)
    has_bias = any(re.search(r"_attn\..*\.bias$", name) for name in model.tensors)
    for stack, num_layers in zip(("encoder", "decoder"), model.layers, strict=True):
        weights |= _build_layers(reader, stack, num_layers, has_attention_bias=has_bias)
        weights |= reader.read_norm(stack)
        table = f"{'src' if stack == 'encoder' else 'tgt'}_emb.pe"
        if model.position_encoding == "Learned":
            weights[f"{stack}.embedding.positions.weight"] = _build_positions(reader, model, f"{table}.weight")
        else:
            reader.skip_sinusoids(f"{table}.pe", layout=LAYOUTS[model.position_encoding])
    reader.check_all_used()
    return tie_embeddings, weights


def _build_output_bias(reader: WeightReader, order: VocabularyOrder, dtype: np.dtype[Any]) -> TensorStream:
    """Return the bias of the output matrix; a model without one has zeros."""
    name = "generator.bias"
    if name not in reader.tensors:
        return reader.builder.output_bias(None, order, dtype)
    bias = reader.get(name)
    if bias.shape != (order.num_source_rows,):
        raise damaged(reader.tensors.location, f"{name} has the shape {tuple(bias.shape)}, not one value for each token")
    return reader.builder.output_bias(bias, order, dtype)


def _build_positions(reader: WeightReader, model: OpenNmtModel, name: str) -> TensorStream:
    """Return learned positions, which dragoman multiplies by √d. (number of positions, D)"""
    table = reader.get(name)
    if table.ndim != 2 or len(table) <= model.position_shift:
        raise damaged(reader.tensors.location, f"{name} has the shape {tuple(table.shape)}, which has no positions")
    scale = 1.0 if model.scales_learned else table.shape[1] ** -0.5
    return reader.builder.concat([table[model.position_shift :]], scale=scale)


def _build_layers(reader: WeightReader, stack: str, num_layers: int, *, has_attention_bias: bool) -> dict[str, TensorStream]:
    """Return the weights of all layers of one stack. A missing bias is zero."""
    attentions = {"self_attn": "attention", **({"context_attn": "cross_attention"} if stack == "decoder" else {})}
    linears = {
        f"{attention}.{part}": f"{name}.{target}"
        for attention, name in attentions.items()
        for part, target in ATTENTION_PARTS.items()
    }
    norms = {"precontext_layernorm": "cross_attention_residual.norm"} if stack == "decoder" else {}
    weights = {}
    for layer in range(num_layers):
        source, target = f"{stack}.transformer_layers.{layer}", f"{stack}.layers.{layer}"
        for part, name in (linears | LAYER_PARTS | norms).items():
            weight = reader.get(f"{source}.{part}.weight")
            weights[f"{target}.{name}.weight"] = reader.builder.concat([weight])
            if part not in linears or has_attention_bias:
                weights[f"{target}.{name}.bias"] = reader.builder.concat([_get_bias(reader, f"{source}.{part}.bias", weight)])
    return weights


def _get_bias(reader: WeightReader, name: str, weight: Array) -> Array:
    """Return a bias, or zeros for one that a model without biases does not have."""
    if name in reader.tensors or "layernorm" in name:
        return reader.get(name)
    return np.zeros(weight.shape[:1], weight.dtype)


def _list_notes(model: OpenNmtModel, *, has_languages: bool) -> list[str]:
    """Return the differences to the source, one sentence each."""
    rule = "no length penalty" if model.length_penalty == "none" else "scores divided by the length"
    notes = [f"The model states no search options, so the toolkit's defaults are set: a beam of 5, and {rule}."]
    if model.segmenters[0] is None:
        notes.append(PIECES_NOTE)
    others = [name for name in model.transforms if name not in (*TRAINING_TRANSFORMS, *TOKENIZER_TRANSFORMS)]
    if others:
        notes.append(f"The bundle does not apply these transforms of the text: {', '.join(others)[:200]}.")
    if not has_languages:
        notes.append(LANGUAGES_NOTE)
    return notes
