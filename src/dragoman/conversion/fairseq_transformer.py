"""Checkpoints of fairseq's `transformer`.

- One `*.pt`, such as `checkpoint_best.pt`, has the weights, and the options of the training as `args` or `cfg`.
- `dict.SRC.txt` and `dict.TGT.txt` number the tokens after four special ones.
- A SentencePiece model (`*.model`) or codes of subword-nmt or fastBPE (`*codes`, `*code`) split the text. Without them, the
  text holds its pieces already.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.bundle import ModelOrigin
from dragoman.conversion.checkpoint_reader import NUMPY_CLASSES, CheckpointContent, InertObject
from dragoman.conversion.mapped_arrays import Array, damaged
from dragoman.conversion.model_section import ACTIVATIONS
from dragoman.conversion.source_files import (
    ModelSettings,
    SourceFiles,
    SourceTensors,
    is_state_dict,
    list_checkpoints,
    open_checkpoint,
)
from dragoman.conversion.target import ConversionOptions, ConvertedModel, build_model
from dragoman.conversion.text_tokenizers import build_pair_tokenizer, find_segmenter
from dragoman.conversion.vocabulary_order import VocabularyOrder
from dragoman.conversion.weight_reader import WeightReader
from dragoman.errors import DataError
from dragoman.io.safetensors import TensorStream

NAME = "fairseq-transformer"
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
"""First tokens of each dictionary."""
BEGIN, PADDING, END, UNKNOWN = range(4)
OVERWRITE_FLAG = "#fairseq:overwrite"
METERS = ["AverageMeter", "TimeMeter", "StopwatchMeter"]
INERT_CLASSES = frozenset(
    ["argparse.Namespace", *NUMPY_CLASSES]
    + [f"{module}.{meter}" for module in ("fairseq.meters", "fairseq.logging.meters") for meter in METERS]
)
"""Classes of the options and of the training's statistics, which stay plain data."""

ARCHITECTURES = frozenset(
    [
        "transformer", "transformer_tiny", "transformer_iwslt_de_en", "transformer_wmt_en_de",
        "transformer_vaswani_wmt_en_de_big", "transformer_vaswani_wmt_en_fr_big", "transformer_wmt_en_de_big",
        "transformer_wmt_en_de_big_t2t", "transformer_align", "transformer_wmt_en_de_big_align",
    ]
)  # fmt: skip
"""Architectures of the one model `transformer`."""
UNSUPPORTED_OPTIONS = (
    "adaptive_softmax_cutoff", "adaptive_input", "layernorm_embedding", "no_cross_attention", "cross_self_attention",
    "no_token_positional_embeddings", "use_factorized_embedding", "merge_src_tgt_embed", "base_layers", "char_inputs",
    "encoder_recurrent_stacking", "decoder_recurrent_stacking", "encoder_add_adapters", "decoder_add_adapters",
    "encoder_layers_to_keep", "decoder_layers_to_keep", "no_decoder_final_norm",
)  # fmt: skip
"""Options that must be off."""
EQUAL_OPTIONS = ("embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before", "learned_pos")
"""Options that must be equal for both stacks."""
OLD_NORMS = {
    "encoder": {"0": "self_attn_layer_norm", "1": "final_layer_norm"},
    "decoder": {"0": "self_attn_layer_norm", "1": "encoder_attn_layer_norm", "2": "final_layer_norm"},
}
"""Names of the layer normalizations in checkpoints of 2018, and today."""
SEARCH_NOTE = (
    "The checkpoint states no search options, so those of fairseq-generate are set: a beam of 5 and a length penalty of 1."
)
PIECES_NOTE = "The folder has no codes and no SentencePiece model, so the text must hold the tokens of the dictionary."


def detect(files: SourceFiles) -> bool:
    """Return whether a folder holds a checkpoint, under any name, and dictionaries of fairseq."""
    has_dictionary = any(re.fullmatch(r"dict\..+\.txt", name) for name in files.names)
    return has_dictionary and bool(list_checkpoints(files))


def read(files: SourceFiles, options: ConversionOptions) -> ConvertedModel:
    """Return the model of a folder."""
    path, checkpoint = open_checkpoint(files, INERT_CLASSES)
    settings, task = _read_settings(checkpoint, path)
    source_language, target_language = _choose_languages(files, options, task)
    orders = _read_dictionary(files, source_language), _read_dictionary(files, target_language)
    learned = settings.boolean("encoder_learned_pos", False)
    weights = _build_weights(_read_tensors(checkpoint, path), settings, orders)
    source, target = (
        find_segmenter(files, {language}, f"name them like {language}.codes") for language in (source_language, target_language)
    )
    are_models = [name is not None and name.endswith(".model") for name in (source, target)]
    if are_models[0] != are_models[1]:
        raise DataError(
            f"{files.folder}: only one language has a SentencePiece model; copy all files into the folder",
            code="source-damaged",
        )
    tokenizer = build_pair_tokenizer(
        files,
        (source, target),
        orders,
        append_source_eos=True,
        codes=() if are_models[0] else (source, target),
        may_hold_pieces=True,
    )
    num_positions = weights["encoder.embedding.positions.weight"].shape[0] if learned else None
    return build_model(
        ModelOrigin(format=NAME, name=options.name),
        path,
        (source_language, target_language),
        {
            "model": _convert_settings(settings, num_positions, has_final_norm="encoder.norm.weight" in weights),
            "decoding": {
                "beam_size": 5,
                "length_penalty": "power",
                "alpha": 1.0,
                "early_stopping": "beam_full",
                "max_source_tokens": min(settings.integer("max_source_positions", 1024), num_positions or 2**20),
            },
        },
        tokenizer,
        weights,
        notes=(SEARCH_NOTE, *(() if source else (PIECES_NOTE,))),
    )


def _as_mapping(value: Any) -> Mapping[str, Any]:
    """Return options as a dictionary: a namespace, or a dictionary whose names are texts; otherwise an empty one."""
    if isinstance(value, InertObject) and value.class_name == "argparse.Namespace":
        value = value.state
    return value if isinstance(value, dict) and all(isinstance(name, str) for name in value) else {}


def _read_settings(checkpoint: CheckpointContent, path: Path) -> tuple[ModelSettings, Mapping[str, Any]]:
    """Return the options of the model and those of the task. Raise BundleError for another architecture."""
    content = _as_mapping(checkpoint.value)
    config = _as_mapping(content.get("cfg"))
    model = _as_mapping(config.get("model")) or _as_mapping(content.get("args"))
    if not model:
        raise damaged(path, "has neither args nor cfg, so it is not a checkpoint of fairseq")
    flat = {
        f"{group}_{name}": value for group in ("encoder", "decoder") for name, value in _as_mapping(model.get(group)).items()
    }
    settings = ModelSettings({**model, **flat, "arch": model.get("arch") or model.get("_name")}, path)
    if not isinstance(settings["arch"], str) or settings["arch"] not in ARCHITECTURES:
        raise settings.refuse("arch", "dragoman has fairseq's transformer only")
    for name in UNSUPPORTED_OPTIONS:
        if settings.get(name) not in (None, False, 0, "", []):
            raise settings.refuse(name, "dragoman has no such option")
    for name in EQUAL_OPTIONS:
        if settings.get(f"encoder_{name}") != settings.get(f"decoder_{name}"):
            raise settings.refuse(f"decoder_{name}", f"dragoman has one value for both stacks, but encoder_{name} differs")
    for name in ("decoder_input_dim", "decoder_output_dim"):
        if settings.get(name) not in (None, settings.get("decoder_embed_dim")):
            raise settings.refuse(name, "dragoman has one width for embeddings and layers")
    return settings, _as_mapping(config.get("task")) or model


def _choose_languages(files: SourceFiles, options: ConversionOptions, task: Mapping[str, Any]) -> tuple[str, str]:
    """Return the languages of the dictionaries: those of the caller, else those of the checkpoint."""
    languages = (
        options.source_language or task.get("source_lang"),
        options.target_language or task.get("target_lang"),
    )
    for name, language in zip(("source_language", "target_language"), languages, strict=True):
        if not isinstance(language, str) or not re.fullmatch(r"[\w.-]{1,40}", language):
            raise DataError(
                f"{files.folder}: the checkpoint does not state its languages; give {name}", code="unsupported-language"
            )
    return str(languages[0]), str(languages[1])


def _read_dictionary(files: SourceFiles, language: str) -> VocabularyOrder:
    """Return the order of a dictionary, whose lines hold a token and its count. Raise DataError for another line."""
    name = f"dict.{language}.txt"
    tokens = dict.fromkeys(SPECIAL_TOKENS)
    for number, line in enumerate(files.read_text(name).split("\n"), start=1):
        if not line:
            continue
        line, is_new = line.rstrip("\r"), False
        if line.endswith(f" {OVERWRITE_FLAG}"):
            line, is_new = line.removesuffix(f" {OVERWRITE_FLAG}"), True
        token, _, count = line.rpartition(" ")
        if not count.isascii() or not count.isdigit():
            raise damaged(files.folder / name, f"line {number}: {line[:40]!r} is not a token and its count")
        if token in tokens:
            if not is_new:
                raise damaged(files.folder / name, f"line {number}: {token[:40]!r} occurs twice")
            token = f"<unused-{number}>"
        tokens[token] = None
    return VocabularyOrder.build(list(tokens), padding=PADDING, unknown=UNKNOWN, begin=BEGIN, end=END)


def _convert_settings(settings: ModelSettings, num_positions: int | None, *, has_final_norm: bool) -> dict[str, Any]:
    """Return the recipe section `model`. num_positions: learned positions; None for sinusoids"""
    activation = settings.choice("activation_fn", ACTIVATIONS, "relu")
    positions: dict[str, Any] = {"position_encoding": "concatenated", "position_offset": PADDING + 1}
    if num_positions is not None:
        positions = {"position_encoding": "learned", "max_positions": num_positions}
    return {
        "encoder_layers": settings.integer("encoder_layers"),
        "decoder_layers": settings.integer("decoder_layers"),
        "d_model": settings.integer("encoder_embed_dim"),
        "d_ff": settings.integer("encoder_ffn_embed_dim"),
        "num_heads": settings.integer("encoder_attention_heads"),
        "norm": "pre" if settings.boolean("encoder_normalize_before", False) else "post",
        "final_norm": has_final_norm,
        "norm_epsilon": 1e-5,
        "attention_bias": True,
        "activation": activation,
        **positions,
        "tie_embeddings": _get_tying(settings),
        "scale_embeddings": not settings.boolean("no_scale_embedding", False),
        "residual_dropout": settings.number("dropout", 0.1),
        "embedding_dropout": settings.number("dropout", 0.1),
        "attention_dropout": settings.number("attention_dropout", 0.0),
        "activation_dropout": settings.number("activation_dropout", settings.number("relu_dropout", 0.0)),
        "decoder_start_token": "eos",
        "append_source_eos": True,
    }


def _get_tying(settings: ModelSettings) -> str:
    """Return which matrices of tokens are one, as `model.tie_embeddings` has it."""
    if settings.boolean("share_all_embeddings", False):
        return "all"
    return "decoder" if settings.boolean("share_decoder_input_output_embed", False) else "none"


def _read_tensors(checkpoint: CheckpointContent, path: Path) -> SourceTensors:
    """Return the tensors under the names of today's fairseq: those of 2018 have other norms, and one matrix for q, k and v."""
    state = _as_mapping(checkpoint.value).get("model")
    if not is_state_dict(state):
        raise damaged(path, "has no dictionary of tensors named model")
    tensors: dict[str, Array] = {}
    for name, tensor in state.items():
        if re.fullmatch(r"(encoder|decoder)\.(version|embed_positions\._float_tensor)", name):
            continue  # constants
        if old := re.fullmatch(r"((encoder|decoder)\.layers\.\d+)\.layer_norms\.(\d)\.(weight|bias)", name):
            norm = OLD_NORMS[old[2]].get(old[3])
            tensors[f"{old[1]}.{norm}.{old[4]}" if norm else name] = tensor
        elif (fused := re.fullmatch(r"(.*)\.in_proj_(weight|bias)", name)) and tensor.ndim and len(tensor) % 3 == 0:
            for projection, part in zip("qkv", np.split(tensor, 3), strict=True):
                tensors[f"{fused[1]}.{projection}_proj.{fused[2]}"] = part
        else:
            tensors[name] = tensor
    return SourceTensors(tensors, checkpoint.release, path, settings="its options in args or cfg")


def _build_weights(
    tensors: SourceTensors, settings: ModelSettings, orders: tuple[VocabularyOrder, VocabularyOrder]
) -> dict[str, TensorStream]:
    """Return the weights of the bundle."""
    source_order, target_order = orders
    reader = WeightReader(tensors, prefix="", family="fairseq's transformer")
    encoder, decoder, output = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight"
    weights: dict[str, TensorStream] = {}
    match _get_tying(settings):
        case "all":
            if source_order != target_order:
                raise damaged(tensors.location, "shares all embeddings, but the two dictionaries differ")
            weights["output"] = reader.read_vocabulary_matrix(reader.get(decoder, encoder, output), target_order)
        case "decoder":
            weights["output"] = reader.read_vocabulary_matrix(reader.get(decoder, output), target_order)
            weights["encoder.embedding.weight"] = reader.read_vocabulary_matrix(reader.get(encoder), source_order)
        case _:
            weights["output"] = reader.read_vocabulary_matrix(reader.get(output, "decoder.embed_out"), target_order)
            weights["encoder.embedding.weight"] = reader.read_vocabulary_matrix(reader.get(encoder), source_order)
            weights["decoder.embedding.weight"] = reader.read_vocabulary_matrix(reader.get(decoder), target_order)
    learned = settings.boolean("encoder_learned_pos", False)
    has_final_norm = settings.boolean("encoder_normalize_before", False) and "encoder.layer_norm.weight" in tensors
    for stack in ("encoder", "decoder"):
        weights |= reader.read_layers(stack, settings.integer(f"{stack}_layers"))
        if has_final_norm:
            weights |= reader.read_norm(stack)
        if not learned:
            reader.skip_sinusoids(f"{stack}.embed_positions.weights", PADDING + 1)
    if learned:
        weights |= reader.read_learned_positions(PADDING + 1)
    reader.check_all_used()
    return weights
