"""Export of a bundle to Hugging Face: a T5 folder, which `T5ForConditionalGeneration` and `AutoTokenizer` open.

    config.json, generation_config.json    architecture and search options
    model.safetensors                      weights
    tokenizer.json                         unigram model, and the tokens by id; ByT5 needs none
    tokenizer_config.json                  class and special tokens of the tokenizer
    README.md                              model card
    manifest.json                          size and SHA-256 of each file

T5 has one token for padding and for the start of the decoder. dragoman has two, of which no output contains either, and it
never embeds padding. The export leaves out the row of padding, and its ids are those of T5: start, end, unknown, and the rest.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.bundle import Bundle
from dragoman.config import ModelConfig
from dragoman.data.tokenization.added_tokens import AddedToken
from dragoman.data.tokenization.byte_pieces import BYTE_TOKENS
from dragoman.data.tokenization.piece_vocabulary import PieceVocabulary
from dragoman.data.tokenization.sentencepiece import SentencePieceTokenizer
from dragoman.data.tokenization.sentencepiece_proto import read_charsmap, read_model_type, read_pieces
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, METASPACE, PADDING_ID, SPECIAL_IDS, UNKNOWN_ID
from dragoman.data.tokenization.token_list import TokenListTokenizer
from dragoman.data.tokenization.vocabulary import Vocabulary
from dragoman.export.result import check_is_translator, check_unique_pieces, unsupported
from dragoman.export.weight_streams import iter_rows, stream_weight
from dragoman.io.safetensors import StoredTensor, TensorStream
from dragoman.io.storage import write_json
from dragoman.model_weights import ModelWeights

ENGINE = "T5"
SPECIAL_PIECES = ("<pad>", "</s>", "<unk>")
NUM_SPECIAL = len(SPECIAL_PIECES)
START_ID, NEW_END_ID, NEW_UNKNOWN_ID = range(NUM_SPECIAL)
UNREACHABLE_LOGIT = -1e4
"""Output bias below which a token is in no output."""
ACTIVATIONS = {"relu": "relu", "silu": "silu", "gelu": "gelu", "geglu": "gated-gelu", "swiglu": "gated-silu"}
"""Activations: name in the recipe → `feed_forward_proj` of config.json."""
PROJECTIONS = {"query": "q", "key": "k", "value": "v", "output": "o"}
COLLAPSE_SPACES = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
STRIP = {"type": "Strip", "strip_left": False, "strip_right": True}
USAGE = """```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("PATH")
model = AutoModelForSeq2SeqLM.from_pretrained("PATH")
batch = tokenizer(["{sentence}"], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))
```

`PATH` is this folder, or its name on a hub."""


def is_t5(config: ModelConfig) -> bool:
    """Return whether T5 is the format that is nearest to a model."""
    return config.position_encoding == "relative"


def check_exportable(bundle: Bundle) -> None:
    """Raise BundleError for a model that T5 cannot express. The message names the feature."""
    check_is_translator(bundle, ENGINE)
    config, tokenizer = bundle.recipe.model, bundle.tokenizer
    if unusual := config.find_unusual_layers():
        raise unsupported(unusual[0], f"{ENGINE} has the layers of the Transformer only; translate with dragoman")
    for key, value, problem in (
        ("norm", "pre", "normalizes before each sub-layer"),
        ("norm_type", "rms", "has RMSNorm"),
        ("has_final_norm", True, "ends each stack with a normalization"),
        ("attention_bias", False, "has no biases"),
        ("feed_forward_bias", False, "has no biases"),
        ("value_width", config.key_width, "has one width of keys and values"),
        ("scale_embeddings", False, "has no factor of the embeddings"),
        ("embedding_norm", False, "has no normalization of the embedding"),
        ("shares_input_embeddings", True, "has one embedding of source and target"),
        ("append_source_eos", True, "ends each source with the end token"),
        ("decoder_start_token", "bos", "starts the decoder with a token of its own"),
        ("target_space_embedding", False, "has no such vector"),
        ("attention_window", None, "has no local attention"),
    ):
        if getattr(config, key) != value:
            keys = {"has_final_norm": "final_norm", "value_width": "d_v", "shares_input_embeddings": "tie_embeddings"}
            key = keys.get(key, key)
            raise unsupported(f"model.{key} = {getattr(config, key)!r}", f"{ENGINE} {problem}; export to onnx or ctranslate2")
    if not tokenizer.shares_vocabulary:
        raise unsupported("tokenizer.joint = False", f"{ENGINE} has one vocabulary; export to onnx or ctranslate2")
    if not _has_bytes(tokenizer.source) and not _is_unigram(tokenizer.source):
        raise unsupported(
            f"tokenizer.model_type = {bundle.recipe.tokenizer.model_type!r}",
            f"{ENGINE} has unigram models, or the bytes of ByT5; export to onnx",
        )
    if bundle.recipe.tokenizer.language_token is not None and bundle.recipe.tokenizer.language_token_placement != "source":
        raise unsupported(
            "tokenizer.language_token_placement = 'both'",
            f"{ENGINE} has tokens at the start of the source only; export to ctranslate2",
        )
    assert bundle.weights is not None
    bias_V = bundle.weights.output_bias
    if bias_V is not None and ((bias_V != 0.0) & (bias_V > UNREACHABLE_LOGIT)).any():
        raise unsupported("model.output_bias = True", f"{ENGINE} has no output bias; export to onnx or ctranslate2")
    check_unique_pieces(ENGINE, _list_pieces(tokenizer.source))


def _has_bytes(vocabulary: Vocabulary) -> bool:
    """Return whether the tokens are those of ByT5: bytes, and added tokens behind them."""
    tokens: Sequence[str] = ()
    if isinstance(vocabulary, TokenListTokenizer) and vocabulary.normalization == "identity" and not vocabulary.lowercase:
        tokens = vocabulary.tokens
    elif isinstance(vocabulary, PieceVocabulary) and read_model_type(vocabulary.serialized_model) == "char":
        tokens = vocabulary.pieces
    return tuple(tokens[len(SPECIAL_IDS) : len(SPECIAL_IDS) + len(BYTE_TOKENS)]) == BYTE_TOKENS


def _is_unigram(vocabulary: Vocabulary) -> bool:
    is_sentencepiece = isinstance(vocabulary, SentencePieceTokenizer | PieceVocabulary)
    return is_sentencepiece and read_model_type(vocabulary.serialized_model) == "unigram"


def _list_pieces(vocabulary: Vocabulary) -> list[str]:
    """Return the pieces by the ids of the export."""
    return [*SPECIAL_PIECES, *vocabulary.ids_to_pieces(range(len(SPECIAL_IDS), len(vocabulary)))]


def get_new_id(index: int) -> int:
    """Return the id in the export of an id of the bundle."""
    special = {PADDING_ID: START_ID, BEGIN_ID: START_ID, END_ID: NEW_END_ID, UNKNOWN_ID: NEW_UNKNOWN_ID}
    return special.get(index, index - len(SPECIAL_IDS) + NUM_SPECIAL)


def stream_weights(model: ModelWeights) -> dict[str, StoredTensor]:
    """Return the weights under the names of T5, each shared matrix once."""
    config, arrays = model.config, model.arrays
    rows_V = np.array([BEGIN_ID, END_ID, UNKNOWN_ID, *range(len(SPECIAL_IDS), len(model.output))])
    weights: dict[str, StoredTensor] = {
        "shared.weight": stream_weight(model.get_embedding("encoder"), model.release, rows=rows_V)
    }
    if config.tie_embeddings != "all":
        weights["lm_head.weight"] = stream_weight(model.output, model.release, rows=rows_V)
    parts = {"gate": "wi_0", "inner": "wi_1", "outer": "wo"} if config.is_gated else {"inner": "wi", "outer": "wo"}
    for stack, num_layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        sublayers = [("attention", "SelfAttention", PROJECTIONS), ("feed_forward", "DenseReluDense", parts)]
        if stack == "decoder":
            sublayers.insert(1, ("cross_attention", "EncDecAttention", PROJECTIONS))
        for layer in range(num_layers):
            for index, (part, t5_part, matrices) in enumerate(sublayers):
                source, target = f"{stack}.layers.{layer}.{part}", f"{stack}.block.{layer}.layer.{index}"
                for name, t5_name in matrices.items():
                    # T5 does not divide its scores by √d_k, so the queries hold the factor.
                    scale = config.key_width**-0.5 if name == "query" else 1.0
                    weights[f"{target}.{t5_part}.{t5_name}.weight"] = _scale(arrays[f"{source}.{name}.weight"], model, scale)
                weights[f"{target}.layer_norm.weight"] = arrays[f"{source}_residual.norm.weight"]
        bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        weights[bias] = arrays[f"{stack}.relative_positions.weight"]
        # With a tied output matrix, T5 multiplies the output of the decoder by 1/√d_model.
        scale = math.sqrt(config.d_model) if stack == "decoder" and config.tie_embeddings == "all" else 1.0
        weights[f"{stack}.final_layer_norm.weight"] = arrays[f"{stack}.norm.weight"] * np.float32(scale)
    return weights


def _scale(weight: NDArray[np.float32], model: ModelWeights, scale: float) -> TensorStream:
    """Return the stream of a weight, multiplied by a number."""
    if scale == 1.0:
        return stream_weight(weight, model.release)

    def iter_chunks() -> Iterator[NDArray[np.float32]]:
        return (chunk * np.float32(scale) for _, chunk in iter_rows(weight))

    return TensorStream(weight.shape, weight.dtype, iter_chunks, model.release)


def convert_options(options: dict[str, Any], reserved_ids: Sequence[int]) -> dict[str, Any]:
    """Return the content of generation_config.json with the ids of T5, for that with the ids of dragoman."""
    excluded = {get_new_id(index) for index in (*(ids[0] for ids in options["bad_words_ids"]), *reserved_ids)}
    ids = {"pad_token_id": START_ID, "eos_token_id": NEW_END_ID, "decoder_start_token_id": START_ID}
    options = {name: value for name, value in options.items() if name != "bos_token_id"}
    return options | ids | {"bad_words_ids": [[index] for index in sorted(excluded)]}


def build_config(bundle: Bundle) -> dict[str, Any]:
    """Return the content of config.json."""
    config = bundle.recipe.model
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "vocab_size": len(bundle.tokenizer.source) - len(SPECIAL_IDS) + NUM_SPECIAL,
        "d_model": config.d_model,
        "d_kv": config.key_width,
        "d_ff": config.d_ff,
        "num_layers": config.encoder_layers,
        "num_decoder_layers": config.decoder_layers,
        "num_heads": config.num_heads,
        "relative_attention_num_buckets": config.relative_attention_num_buckets,
        "relative_attention_max_distance": config.relative_attention_max_distance,
        "feed_forward_proj": ACTIVATIONS[config.activation],
        "tie_word_embeddings": config.tie_embeddings == "all",
        "layer_norm_epsilon": config.norm_epsilon,
        "dropout_rate": config.residual_dropout,
        "n_positions": bundle.recipe.decoding.max_source_tokens,
        "is_encoder_decoder": True,
        "pad_token_id": START_ID,
        "eos_token_id": NEW_END_ID,
        "decoder_start_token_id": START_ID,
        "prefix": bundle.recipe.tokenizer.source_prefix,
        "torch_dtype": "float32",
    }


def write_tokenizer(folder: Path, bundle: Bundle) -> None:
    """Write the files of the tokenizer."""
    vocabulary = bundle.tokenizer.source
    has_bytes = _has_bytes(vocabulary)
    has_words = isinstance(vocabulary, PieceVocabulary) and vocabulary.piece_list.rules == "tokenizers-words"
    added = _list_added_tokens(vocabulary)
    document: dict[str, Any] = {
        "tokenizer_class": "ByT5Tokenizer" if has_bytes else "T5Tokenizer" if has_words else "PreTrainedTokenizerFast",
        **dict(zip(("pad_token", "eos_token", "unk_token"), SPECIAL_PIECES, strict=True)),
        "extra_ids": 0,
        "additional_special_tokens": [],
        "model_max_length": bundle.recipe.decoding.max_source_tokens,
        "clean_up_tokenization_spaces": False,
    }
    if has_bytes:
        names = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
        document["added_tokens_decoder"] = {str(token.id): {name: _describe(token)[name] for name in names} for token in added}
    else:
        write_json(folder / "tokenizer.json", _build_tokenizer_json(vocabulary, added))
    write_json(folder / "tokenizer_config.json", document)


def _describe(token: AddedToken) -> dict[str, Any]:
    """Return an added token as `tokenizers` saves it."""
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"id": token.id, "content": token.text, **{flag: getattr(token, flag) for flag in flags}}


def _list_added_tokens(vocabulary: Vocabulary) -> list[AddedToken]:
    """Return the tokens that are found in a text before it is split, with the ids of the export."""
    pieces = _list_pieces(vocabulary)
    tokens = {index: AddedToken(text, index, special=True) for index, text in enumerate(SPECIAL_PIECES)}
    if isinstance(vocabulary, PieceVocabulary):
        added = [(get_new_id(token.id), token) for token in vocabulary.added]
        tokens |= {
            index: AddedToken(
                pieces[index], index, token.special, token.lstrip, token.rstrip, token.single_word, token.normalized
            )
            for index, token in added
        }
    if isinstance(vocabulary, PieceVocabulary) and not _has_bytes(vocabulary):
        # tokenizers numbers added tokens that are no pieces one after the other.
        known = {piece.text for piece in read_pieces(vocabulary.serialized_model)}
        last = max(tokens)
        gaps = [index for index in range(NUM_SPECIAL, last) if index not in tokens and pieces[index] not in known]
        tokens |= {index: AddedToken(pieces[index], index, special=True) for index in gaps}
    return [tokens[index] for index in sorted(tokens)]


def _build_tokenizer_json(vocabulary: Vocabulary, added: Sequence[AddedToken]) -> dict[str, Any]:
    """Return the content of tokenizer.json for a unigram model. User-defined pieces have the score 0, above all others."""
    model = {piece.text: piece.score for piece in read_pieces(vocabulary.serialized_model)}
    pieces = _list_pieces(vocabulary)
    size = 1 + max(index for index, text in enumerate(pieces) if text in model or index < NUM_SPECIAL)
    charsmap = read_charsmap(vocabulary.serialized_model)
    normalizers: list[dict[str, Any]] = []
    if charsmap:
        normalizers.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()})
    space = {"type": "Metaspace", "replacement": METASPACE, "prepend_scheme": "always", "split": True}
    splitter: dict[str, Any] = space
    rules = vocabulary.piece_list.rules if isinstance(vocabulary, PieceVocabulary) else "tokenizers-strip"
    match rules:
        case "tokenizers-words":
            splitter = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, space]}
        case "tokenizers-strip":
            normalizers += [STRIP, COLLAPSE_SPACES | {"content": METASPACE}]
        case "tokenizers":
            normalizers.append(COLLAPSE_SPACES)
    has_fallback = all(text in model for text in BYTE_TOKENS)
    end = SPECIAL_PIECES[NEW_END_ID]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_describe(token) for token in added],
        "normalizer": {"type": "Sequence", "normalizers": normalizers} if normalizers else None,
        "pre_tokenizer": splitter,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": end, "type_id": 0}}],
            "pair": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": end, "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 0}},
                {"SpecialToken": {"id": end, "type_id": 0}},
            ],
            "special_tokens": {end: {"id": end, "ids": [NEW_END_ID], "tokens": [end]}},
        },
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, space]} if has_fallback else space,
        "model": {
            "type": "Unigram",
            "unk_id": NEW_UNKNOWN_ID,
            "vocab": [[text, model.get(text, 0.0)] for text in pieces[:size]],
            "byte_fallback": has_fallback,
        },
    }
