"""Checkpoints of OpenNMT-py 2 and 3: one file `*.pt`, with a SentencePiece model or codes beside it if text is to be split.

- `opt` is a namespace of all options of the training.
- `vocab` has the tokens: lists in version 3, objects of torchtext in version 2.
- `model` and `generator` have the tensors; version 3 can store them in a file `*.safetensors` of the same name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dragoman.conversion.checkpoint_reader import CheckpointContent, InertObject
from dragoman.conversion.mapped_arrays import Array, damaged
from dragoman.conversion.opennmt_transformer import (
    LAYOUTS,
    SPECIAL_TOKENS,
    TOKENIZER_TRANSFORMS,
    OpenNmtModel,
    choose_segmenters,
    convert_model,
    list_transforms,
    read_rate,
    read_tokens,
)
from dragoman.conversion.source_files import (
    ModelSettings,
    SourceFiles,
    SourceTensors,
    is_state_dict,
    list_checkpoints,
    open_checkpoint,
)
from dragoman.conversion.target import ConversionOptions, ConvertedModel

NAME = "opennmt-py"
TORCHTEXT_CLASSES = [
    *(f"torchtext.{module}" for module in ("vocab.Vocab", "data.field.Field", "data.field.RawField", "data.field.LabelField")),
    *(f"onmt.inputters.text_dataset.{name}" for name in ("TextMultiField", "_feature_tokenize")),
    *(
        f"onmt.inputters.inputter.{name}"
        for name in ("AlignField", "parse_align_idx", "_feature_tokenize", "make_src", "make_tgt")
    ),
    "functools.partial",
    "collections.Counter",
    "collections.defaultdict",
    "torch.int64",
    "torch.float32",
]
INERT_CLASSES = frozenset(["argparse.Namespace", "__builtin__.set", "builtins.set", "__builtin__.int", *TORCHTEXT_CLASSES])
"""Classes of the options and vocabularies, which stay plain data."""
REQUIRED_OPTIONS: dict[str, tuple[tuple[Any, ...], str]] = {
    "model_type": (("text",), "dragoman translates text"),
    "model_task": (("seq2seq", None), "dragoman has encoder-decoder models only"),
    "encoder_type": (("transformer",), "dragoman has the Transformer only"),
    "decoder_type": (("transformer",), "dragoman has the Transformer only"),
    "self_attn_type": (("scaled-dot", "scaled-dot-flash", None), "dragoman has scaled dot-product attention only"),
    "copy_attn": ((False, None), "dragoman has no copy attention"),
    "max_relative_positions": ((0, None), "dragoman has no relative, rotary or ALiBi positions"),
    "relative_positions_buckets": ((0, None), "dragoman has no relative positions"),
    "position_encoding": ((True,), "dragoman has no model without positions"),
    "pos_ffn_activation_fn": (("relu", "gelu", None), "dragoman has no gated activations"),
    "num_kv": ((0, None), "dragoman has no multi-query attention"),
    "multiquery": ((False, None), "dragoman has no multi-query attention"),
    "sliding_window": ((0, None), "dragoman has no sliding window"),
    "parallel_residual": ((False, None), "dragoman has no parallel residual connections"),
    "layer_norm": (("standard", None), "dragoman has no RMSNorm"),
    "num_experts": ((0, None), "dragoman has no mixture of experts"),
    "generator_function": (("softmax", None), "dragoman has softmax only"),
    "n_src_feats": ((0, None), "dragoman has no source features"),
    "src_feats_vocab": ((None, "", {}), "dragoman has no source features"),
    "lora_layers": (([], None), "merge LoRA into the weights with lora_weights.py first"),
    "lora_embedding": ((False, None), "merge LoRA into the weights with lora_weights.py first"),
    "quant_layers": (([], None), "dragoman reads weights without quantization"),
}
"""Values that dragoman has, and the feature that it lacks otherwise. None stands for an option that is not set."""
OTHER_OBJECT = "<object>"
"""Text that stands for a value that is neither a number, a text, nor a list or dictionary of them."""
LAYER_NAMES = {
    "encoder": {"layer_norm": "input_layernorm"},
    "decoder": {"layer_norm_1": "input_layernorm", "layer_norm_2": "precontext_layernorm"},
}
FEED_FORWARD_NAMES = {"layer_norm": "post_attention_layernorm", "w_1": "mlp.gate_up_proj", "w_2": "mlp.down_proj"}


def detect(files: SourceFiles) -> bool:
    """Return whether a folder holds a checkpoint, and none of the dictionaries that belong to a checkpoint of fairseq."""
    return bool(list_checkpoints(files)) and not any(re.fullmatch(r"dict\..+\.txt", name) for name in files.names)


def read(files: SourceFiles, options: ConversionOptions) -> ConvertedModel:
    """Return the model of a folder."""
    path, checkpoint = open_checkpoint(files, INERT_CLASSES)
    content = checkpoint.value if isinstance(checkpoint.value, dict) else {}
    opt = content.get("opt")
    if not isinstance(opt, InertObject) or not isinstance(opt.state, dict) or not isinstance(content.get("vocab"), dict):
        raise damaged(
            path, "has no opt and vocab of OpenNMT-py 2 or 3; a model of fairseq needs its dictionaries dict.*.txt beside it"
        )
    settings = ModelSettings({name: _as_plain(value) for name, value in opt.state.items() if isinstance(name, str)}, path)
    for name, (allowed, problem) in REQUIRED_OPTIONS.items():
        if settings.get(name) not in allowed:
            raise settings.refuse(name, problem)
    vocabulary = content["vocab"]
    if isinstance(features := vocabulary.get("src_feats"), list) and features:
        raise settings.refuse("n_src_feats", "dragoman has no source features")
    is_version_3 = isinstance(vocabulary.get("src"), list)
    source_tokens, target_tokens = (
        read_tokens(vocabulary.get(side) if is_version_3 else _find_tokens(vocabulary.get(side)), side, settings)
        for side in ("src", "tgt")
    )
    transforms = list_transforms(settings)
    segmenters, has_codes = choose_segmenters(
        files,
        transforms,
        dict.fromkeys(TOKENIZER_TRANSFORMS, settings),
        shares_vocabulary=settings.boolean("share_vocab", False),
    )
    model = OpenNmtModel(
        settings=settings,
        tensors=_read_tensors(checkpoint, files, path),
        tokens=(source_tokens, target_tokens),
        special_tokens=SPECIAL_TOKENS,
        decoder_start=str(_as_plain(vocabulary.get("decoder_start_token", SPECIAL_TOKENS["bos_token"]))),
        layers=(settings.integer("enc_layers"), settings.integer("dec_layers")),
        num_heads=settings.integer("heads"),
        activation=settings.get("pos_ffn_activation_fn") or "relu",
        norm_epsilon=settings.number("norm_eps", 1e-6),
        position_encoding=_get_position_encoding(settings),
        shares_embeddings=settings.boolean("share_embeddings", False),
        shares_output=settings.boolean("share_decoder_embeddings", False),
        dropout=read_rate(settings, "dropout", 0.3),
        attention_dropout=read_rate(settings, "attention_dropout", 0.1),
        segmenters=segmenters,
        has_codes=has_codes,
        transforms=transforms,
        length_penalty="power" if is_version_3 else "none",
    )
    return convert_model(files, options, model, format_name=NAME)


def _as_plain(value: Any) -> Any:
    """Return numbers, texts, and lists and dictionaries of them. Other objects become `OTHER_OBJECT`.

    So a message shows any value in bounded time, although a list can hold another one many times, and so on.
    """
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list():
            return [_as_plain_item(item) for item in value]
        case dict():
            return {str(_as_plain_item(name)): _as_plain_item(item) for name, item in value.items()}
    return OTHER_OBJECT


def _as_plain_item(value: Any) -> Any:
    return OTHER_OBJECT if isinstance(value, list | dict) else _as_plain(value)


def _find_tokens(multi_field: Any) -> Any:
    """Return the tokens of a field of text of OpenNMT-py 2, whose only field of torchtext is that of the words; else None."""
    fields = _get_attribute(multi_field, "fields")
    if not isinstance(fields, list) or len(fields) != 1 or not isinstance(fields[0], tuple) or len(fields[0]) != 2:
        return None
    return _get_attribute(_get_attribute(fields[0][1], "vocab"), "itos")


def _get_attribute(value: Any, name: str) -> Any:
    """Return an attribute of an inert object, or None."""
    return value.state.get(name) if isinstance(value, InertObject) and isinstance(value.state, dict) else None


def _get_position_encoding(settings: ModelSettings) -> str:
    value = settings.get("position_encoding_type") or "SinusoidalInterleaved"
    if value not in [name for name in LAYOUTS if name != "Learned"]:
        raise settings.refuse("position_encoding_type", "dragoman has SinusoidalInterleaved and SinusoidalConcat")
    return str(value)


def _read_tensors(checkpoint: CheckpointContent, files: SourceFiles, path: Path) -> SourceTensors:
    """Return the tensors under the names of Eole."""
    content = checkpoint.value
    if "model" not in content:
        pattern = rf"{re.escape(path.stem)}(\.\d\d)?\.safetensors"  # training writes one file, and tools several
        names = sorted(name for name in files.names if re.fullmatch(pattern, name))
        stored = files.open_parts(names or [f"{path.stem}.safetensors"])
        return SourceTensors(dict(_rename(stored)), stored.release, stored.location, settings=f"opt in {path.name}")
    states = [content["model"], content.get("generator")]
    if not all(is_state_dict(state) for state in states):
        raise damaged(path, "model or generator is not a dictionary of tensors")
    named = {**states[0], **{f"generator.{name.removeprefix('0.')}": tensor for name, tensor in states[1].items()}}
    return SourceTensors(dict(_rename(named)), checkpoint.release, path, settings="its options in opt")


def _rename(tensors: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    """Yield each tensor with its name in Eole. An unknown name stays as it is, so that a message can name it."""
    for name, tensor in tensors.items():
        if match := re.fullmatch(r"(encoder|decoder)\.embeddings\.make_embedding\.(emb_luts\.0|pe)\.(\w+)", name):
            part = "embeddings" if match[2] == "emb_luts.0" else "pe"
            yield f"{'src' if match[1] == 'encoder' else 'tgt'}_emb.{part}.{match[3]}", tensor
        elif match := re.fullmatch(r"(encoder|decoder)\.transformer(?:_layers)?\.(\d+)\.(.+)\.(\w+)", name):
            stack, layer, part, kind = match.groups()
            if part.startswith("feed_forward."):
                part = FEED_FORWARD_NAMES.get(part.removeprefix("feed_forward."), part)
            else:
                part = LAYER_NAMES[stack].get(part, part)
            yield f"{stack}.transformer_layers.{layer}.{part}.{kind}", tensor
        else:
            yield name, tensor
