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
from dragoman.conversion.target import ConversionOptions, ConvertedModel, build_recipe
from dragoman.conversion.vocabulary_order import VocabularyOrder
from dragoman.conversion.weight_reader import WeightReader
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.piece_vocabulary import PieceVocabulary
from dragoman.data.tokenization.special_tokens import SPECIAL_IDS
from dragoman.data.tokenization.subword_nmt import SubwordNmtScheme, parse_codes
from dragoman.data.tokenization.token_list import TokenListTokenizer
from dragoman.data.tokenization.vocabulary import TextTokenizer
from dragoman.errors import DataError
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
SEGMENTER_PATTERNS = {"sentencepiece": r".+\.model", "bpe": r"(.*[._-])?(bpe)?codes?([._-].{1,40})?"}
"""Names of files that split text, if the options name none."""
SIDE_NAMES = {"source": ("src", "source"), "target": ("tgt", "trg", "target")}
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
        segmenters: files that split the text of both sides
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
    segmenters: Segmenters
    transforms: Sequence[str]
    length_penalty: str
    position_shift: int = 0
    scales_learned: bool = False


@dataclass(frozen=True)
class Segmenters:
    """Files that split text: SentencePiece models or codes of subword-nmt.

    Attributes:
        kind: sentencepiece, bpe, or none if the text holds its pieces
        source, target: names of the files
    """

    kind: str
    source: str = ""
    target: str = ""

    @property
    def is_sentencepiece(self) -> bool:
        """Return whether the files are SentencePiece models."""
        return self.kind == "sentencepiece"


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
    tie_embeddings, weights = _build_weights(model, source_order, target_order)
    segmenters = model.segmenters
    is_joint = source_order == target_order and segmenters.source == segmenters.target
    source = _build_tokenizer(files, segmenters.kind, segmenters.source, source_order)
    target = source if is_joint else _build_tokenizer(files, segmenters.kind, segmenters.target, target_order)
    is_sentencepiece = segmenters.is_sentencepiece
    source_language, target_language = options.source_language or "", options.target_language or ""
    document = {
        "name": options.name,
        "task": {
            "source_language": source_language, "target_language": target_language, "tokenized": not is_sentencepiece,
        },
        "tokenizer": {
            **({} if is_sentencepiece else {"model_type": "subword-nmt", "normalization": "identity"}),
            "joint": is_joint,
            "vocab_size": len(source_order),
            **({} if is_joint else {"target_vocab_size": len(target_order)}),
            "byte_fallback": False,
        },
        "model": _convert_settings(model, tie_embeddings, weights),
        "decoding": {"beam_size": 5, "length_penalty": model.length_penalty, "alpha": 1.0, "early_stopping": "best"},
    }  # fmt: skip
    recipe = build_recipe(document, model.settings.path)
    return ConvertedModel(
        recipe=recipe,
        tokenizer=PairTokenizer(source, target, append_source_eos=False),
        weights=weights,
        origin=ModelOrigin(
            format=format_name,
            name=options.name,
            source_languages=[source_language] if source_language else None,
            target_languages=[target_language] if target_language else None,
        ),
        notes=tuple(_list_notes(model, has_languages=bool(source_language and target_language))),
    )


def choose_segmenters(
    files: SourceFiles, transforms: Sequence[str], options: Mapping[str, ModelSettings], *, shares_vocabulary: bool
) -> Segmenters:
    """Return the tokenizer among the transforms, or else the files of the folder that look like one.

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
        return _find_segmenters(files)
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
        return Segmenters("none")
    paths = [settings.get(f"{side}_subword_model") for side in ("src", "tgt")]
    paths[1] = paths[0] if shares_vocabulary or not paths[1] else paths[1]
    file_names = [re.split(r"[/\\]", path)[-1] if isinstance(path, str) else "" for path in paths]
    return Segmenters(kind, *(files.path(name).name for name in file_names))


def _find_segmenters(files: SourceFiles) -> Segmenters:
    """Return the files of a folder that split text. Raise DataError if several may be meant."""
    for kind, pattern in SEGMENTER_PATTERNS.items():
        names = sorted(name for name in files.names if re.fullmatch(pattern, name))
        if len(names) == 1:
            return Segmenters(kind, names[0], names[0])
        if names:
            parts = {name: set(re.split(r"[._-]", name)) for name in names}
            sides = [[name for name in names if parts[name] & set(marks)] for marks in SIDE_NAMES.values()]
            if [len(side) for side in sides] != [1, 1]:
                raise DataError(
                    f"{files.folder}: several files may split the text ({', '.join(names)[:120]}); leave one, or name them "
                    "like src.model and tgt.model",
                    code="source-damaged",
                )
            return Segmenters(kind, sides[0][0], sides[1][0])
    return Segmenters("none")


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


def _build_tokenizer(files: SourceFiles, kind: str, file_name: str, order: VocabularyOrder) -> TextTokenizer:
    """Return the tokenizer of one side."""
    if kind == "sentencepiece":
        return PieceVocabulary(files.read_bytes(file_name), order.pieces, name=str(files.folder / file_name))
    scheme = SubwordNmtScheme(None)
    if kind == "bpe":
        scheme = parse_codes(files.read_text(file_name).split("\n"), str(files.path(file_name)))
    return TokenListTokenizer(scheme, order.pieces[len(SPECIAL_IDS) :], name=str(files.folder / file_name))


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


def _build_weights(
    model: OpenNmtModel, source_order: VocabularyOrder, target_order: VocabularyOrder
) -> tuple[str, dict[str, TensorStream]]:
    """Return the weights of the bundle, and which matrices are equal, as `model.tie_embeddings` has it."""
    reader = WeightReader(model.tensors, prefix="", family="OpenNMT's Transformer")
    source_name, target_name = "src_emb.embeddings.weight", "tgt_emb.embeddings.weight"
    encoder = reader.get(source_name)
    decoder = reader.get(target_name, *([source_name] if model.shares_embeddings else []))
    output = reader.get("generator.weight", *([target_name, source_name] if model.shares_output else []))
    tie_embeddings = "none"
    if reader.are_equal(decoder, output):
        is_shared = source_order == target_order and reader.are_equal(encoder, decoder)
        tie_embeddings = "all" if is_shared else "decoder"
    weights = {"output": reader.read_vocabulary_matrix(output, target_order)}
    if tie_embeddings != "all":
        weights["encoder.embedding.weight"] = reader.read_vocabulary_matrix(encoder, source_order)
    if tie_embeddings == "none":
        weights["decoder.embedding.weight"] = reader.read_vocabulary_matrix(decoder, target_order)
    weights["output_bias"] = _build_output_bias(reader, target_order, output.dtype)
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
    if bias.shape != (1 + max(row for row in order.rows if row is not None),):
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
    if not model.segmenters.source:
        notes.append(PIECES_NOTE)
    others = [name for name in model.transforms if name not in (*TRAINING_TRANSFORMS, *TOKENIZER_TRANSFORMS)]
    if others:
        notes.append(f"The bundle does not apply these transforms of the text: {', '.join(others)[:200]}.")
    if not has_languages:
        notes.append(LANGUAGES_NOTE)
    return notes
