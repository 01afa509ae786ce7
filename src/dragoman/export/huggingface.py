"""Export of a bundle to Hugging Face: a MarianMT folder, which `transformers` opens. `huggingface_t5` has T5's folders.

    config.json, generation_config.json    architecture and search options
    model.safetensors                      weights
    source.spm, target.spm                 SentencePiece models that split the text
    vocab.json, target_vocab.json          numbers of the pieces; the second only for separate vocabularies
    tokenizer_config.json                  languages and limits of the tokenizer
    README.md                              model card
    manifest.json                          size and SHA-256 of each file

MarianMT computes its positions as [sin …, cos …]. The paper interleaves sines and cosines. Both tables have the same columns
in another order, so the export moves the columns of every weight that reads or writes a vector of width d_model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.bundle import Bundle
from dragoman.config import DecodingConfig, ModelConfig
from dragoman.data.tokenization.added_tokens import AddedToken
from dragoman.data.tokenization.language_tokens import list_languages
from dragoman.data.tokenization.piece_vocabulary import PieceVocabulary
from dragoman.data.tokenization.sentencepiece import SentencePieceTokenizer
from dragoman.data.tokenization.special_tokens import BEGIN_ID, END_ID, PADDING_ID, SPECIAL_IDS, SPECIAL_PIECES, UNKNOWN_ID
from dragoman.data.tokenization.vocabulary import Vocabulary
from dragoman.export import huggingface_t5
from dragoman.export.card_writer import build_model_card
from dragoman.export.result import (
    ExportResult,
    check_is_translator,
    check_layers,
    check_unique_pieces,
    describe_text_format,
    unsupported,
)
from dragoman.export.weight_streams import stream_weight
from dragoman.io.safetensors import StoredTensor, TensorStream, save_tensors
from dragoman.io.storage import atomic_dir, write_json
from dragoman.model_weights import ModelWeights
from dragoman.tasks.inference_model import get_decoder_start_id

ENGINE = "MarianMT"
NORM_EPSILON = 1e-5
"""ε of layer normalization in MarianMT, which no setting changes."""
UNKNOWN_NOTE = "transformers leaves an unknown token out of the text, for which dragoman writes ⁇"
LANGUAGE_TOKEN = ">>{}<<"
SUPPRESSED_LOGIT = -3e4
"""Output bias of a token that no output contains: its probability is 0 in every precision, float16 included."""

ACTIVATIONS = {"relu": "relu", "silu": "swish", "gelu": "gelu"}
"""Activations: name in the recipe → name in config.json."""
# Parts of a layer: name in dragoman → name in MarianMT. They read vectors of width d_model, write them, or do both.
READERS = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "cross_attention.query": "encoder_attn.q_proj",
    "cross_attention.key": "encoder_attn.k_proj",
    "cross_attention.value": "encoder_attn.v_proj",
    "feed_forward.inner": "fc1",
}
WRITERS = {
    "attention.output": "self_attn.out_proj",
    "cross_attention.output": "encoder_attn.out_proj",
    "feed_forward.outer": "fc2",
}
NORMS = {
    "attention_residual.norm": "self_attn_layer_norm",
    "cross_attention_residual.norm": "encoder_attn_layer_norm",
    "feed_forward_residual.norm": "final_layer_norm",
}
USAGE = """```python
from transformers import MarianMTModel, MarianTokenizer

tokenizer = MarianTokenizer.from_pretrained("PATH")
model = MarianMTModel.from_pretrained("PATH")
batch = tokenizer(["{sentence}"], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))
```

`PATH` is this folder, or its name on a hub."""


def export_huggingface(
    bundle: Bundle, path: Path, *, scores: dict[str, float] | None = None, overwrite: bool = False
) -> ExportResult:
    """Write a folder of MarianMT, or of T5 for relative positions, completely or not at all, in float32.

    Args:
        bundle: the model
        path: the new folder
        scores: scores on a test set by the name of the metric, for the model card
        overwrite: replace the folder of an earlier export

    Raises:
        BundleError: the model has a feature that MarianMT, or T5, does not have.
        OutputError: the path exists or cannot be written.
    """
    if huggingface_t5.is_t5(bundle.recipe.model):
        return _export_t5(bundle, path, scores=scores, overwrite=overwrite)
    check_exportable(bundle)
    assert bundle.weights is not None  # a model with other layers has no export
    recipe, tokenizer = bundle.recipe, bundle.tokenizer
    source, target = list_pieces(tokenizer.source), list_pieces(tokenizer.target)
    check_unique_pieces(ENGINE, source, target)
    is_shared = recipe.model.tie_embeddings == "all"
    weights = stream_weights(bundle.weights.with_full_heads())
    max_positions = recipe.decoding.max_source_tokens + recipe.decoding.max_extra_tokens
    options, notes = convert_decoding_options(recipe.decoding, target, max_positions=max_positions)
    # transformers reads the start token here; without it, an output starts with bos_token_id.
    options["decoder_start_token_id"] = get_decoder_start_id(recipe.model)
    options["bad_words_ids"] += [[index] for index in tokenizer.target.reserved_ids]
    notes = [*describe_text_format(bundle), *_describe_differences(bundle), *notes]
    size = sum(weight.nbytes for weight in weights.values())
    with atomic_dir(path, overwrite=overwrite, size=size) as folder:
        write_json(folder / "config.json", _build_config(bundle, max_positions))
        write_json(folder / "generation_config.json", options)
        save_tensors(folder / "model.safetensors", weights, metadata={"format": "pt"})
        for name, side in (("source.spm", tokenizer.source), ("target.spm", tokenizer.target)):
            (folder / name).write_bytes(side.serialized_model)
        vocabularies = {"vocab.json": source} if is_shared else {"vocab.json": source, "target_vocab.json": target}
        for name, pieces in vocabularies.items():
            ids = {piece: index for index, piece in enumerate(pieces)}
            (folder / name).write_text(json.dumps(ids, indent=0, ensure_ascii=False), encoding="utf-8")
        write_json(folder / "tokenizer_config.json", _build_tokenizer_config(bundle, is_shared=is_shared))
        usage, tags = USAGE.format(sentence=_get_example(bundle)), ("translation", "marian")
        card = build_model_card(bundle, usage=usage, scores=scores, notes=notes, tags=tags, library="transformers")
        (folder / "README.md").write_text(card, encoding="utf-8")
    return ExportResult.of_folder(path, max_positions, options, notes)


def _export_t5(bundle: Bundle, path: Path, *, scores: dict[str, float] | None, overwrite: bool) -> ExportResult:
    """Write a folder that `T5ForConditionalGeneration` opens; see `export_huggingface`."""
    huggingface_t5.check_exportable(bundle)
    assert bundle.weights is not None
    weights, target = huggingface_t5.stream_weights(bundle.weights.with_full_heads()), bundle.tokenizer.target
    decoding = bundle.recipe.decoding
    max_positions = decoding.max_source_tokens + decoding.max_extra_tokens
    options, notes = convert_decoding_options(decoding, list_pieces(target), max_positions=max_positions)
    options = huggingface_t5.convert_options(options, target.reserved_ids)
    notes = [*describe_text_format(bundle), UNKNOWN_NOTE, *notes]
    size = sum(weight.nbytes for weight in weights.values())
    with atomic_dir(path, overwrite=overwrite, size=size) as folder:
        write_json(folder / "config.json", huggingface_t5.build_config(bundle))
        write_json(folder / "generation_config.json", options)
        save_tensors(folder / "model.safetensors", weights, metadata={"format": "pt"})
        huggingface_t5.write_tokenizer(folder, bundle)
        usage = huggingface_t5.USAGE.format(sentence=bundle.recipe.tokenizer.source_prefix + _get_example(bundle))
        tags = ("translation", "t5")
        card = build_model_card(bundle, usage=usage, scores=scores, notes=notes, tags=tags, library="transformers")
        (folder / "README.md").write_text(card, encoding="utf-8")
    return ExportResult.of_folder(path, max_positions, options, notes)


def check_exportable(bundle: Bundle) -> None:
    """Raise BundleError for a model that MarianMT cannot express. The message names the feature."""
    check_is_translator(bundle, ENGINE)
    check_model(bundle.recipe.model)
    tokenizer = bundle.recipe.tokenizer
    for side in (bundle.tokenizer.source, bundle.tokenizer.target):
        if not isinstance(side, SentencePieceTokenizer | PieceVocabulary):
            raise unsupported(
                f"tokenizer.model_type = {tokenizer.model_type!r}", f"{ENGINE} has SentencePiece models only; export to onnx"
            )
    if tokenizer.language_token is not None and (
        tokenizer.language_token != LANGUAGE_TOKEN or tokenizer.language_token_placement != "source"
    ):
        raise unsupported(
            f"tokenizer.language_token = {tokenizer.language_token!r}",
            f"{ENGINE} has tokens such as >>deu<< at the start of the source only; translate with dragoman",
        )


def check_model(config: ModelConfig) -> None:
    """Raise BundleError for layers that MarianMT cannot express."""
    check_layers(config, ENGINE)
    head_width = config.d_model / config.num_heads
    is_post_norm = config.norm == "post" and not config.final_norm
    for is_supported, key, problem in (
        (
            is_post_norm,
            "norm" if config.norm != "post" else "final_norm",
            "normalizes after each residual sum, and nowhere else",
        ),
        (config.norm_epsilon <= NORM_EPSILON, "norm_epsilon", f"has {NORM_EPSILON:g}"),
        (config.position_encoding in ("interleaved", "halves"), "position_encoding", "has the sinusoids of the paper only"),
        (config.position_offset == 0, "position_offset", "counts positions from 0"),
        (config.key_width == head_width, "d_k", f"has heads of width d_model / num_heads = {head_width:g}"),
        (config.value_width == head_width, "d_v", f"has heads of width d_model / num_heads = {head_width:g}"),
        (config.append_source_eos, "append_source_eos", "ends each source with the end token"),
        (not config.embedding_norm, "embedding_norm", "has no normalization of the embedding"),
        (not config.target_space_embedding, "target_space_embedding", "has no such vector"),
        (config.attention_window is None, "attention_window", "has no local attention"),
    ):
        if not is_supported:
            value = getattr(config, key)
            raise unsupported(f"model.{key} = {value!r}", f"{ENGINE} {problem}; export to onnx or ctranslate2")


def list_pieces(vocabulary: Vocabulary) -> list[str]:
    """Return the pieces by id. The special tokens have the names that MarianTokenizer looks up."""
    return [*SPECIAL_PIECES, *vocabulary.ids_to_pieces(range(len(SPECIAL_IDS), len(vocabulary)))]


def get_dimension_order(config: ModelConfig) -> NDArray[np.intp]:
    """Return the dimension of dragoman's vectors that each dimension of MarianMT's vectors has. → (D,)"""
    dimensions = np.arange(config.d_model)
    if config.position_encoding == "halves":
        return dimensions
    return np.concatenate([dimensions[0::2], dimensions[1::2]])


def stream_weights(model: ModelWeights) -> dict[str, StoredTensor]:
    """Return the weights under the names of MarianMT, each shared matrix once."""
    config, arrays = model.config, model.arrays
    order_D = get_dimension_order(config)
    bias_V = np.zeros(len(model.output), np.float32) if model.output_bias is None else model.output_bias.copy()
    starts_with_zero = config.decoder_start_token == "zero"  # the vector of padding, which is zero in MarianMT too
    if starts_with_zero and config.tie_embeddings != "none":
        bias_V[PADDING_ID] = SUPPRESSED_LOGIT

    def stream(matrix_VD: NDArray[np.float32], *, has_zero: bool = False) -> TensorStream:
        zero_row = PADDING_ID if has_zero and starts_with_zero else None
        return stream_weight(matrix_VD, model.release, columns=order_D, zero_row=zero_row)

    weights: dict[str, StoredTensor] = {"final_logits_bias": bias_V[None]}
    if config.tie_embeddings == "all":
        weights["model.shared.weight"] = stream(model.output, has_zero=True)
    else:
        weights["model.encoder.embed_tokens.weight"] = stream(model.get_embedding("encoder"))
        weights["model.decoder.embed_tokens.weight"] = stream(model.get_embedding("decoder"), has_zero=True)
    if config.tie_embeddings == "none":
        weights["lm_head.weight"] = stream(model.output)
    for stack, num_layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        for index in range(num_layers):
            layer = f"{stack}.layers.{index}"
            for name, marian_name in (READERS | WRITERS | NORMS).items():
                if f"{layer}.{name}.weight" not in arrays:  # cross-attention in the encoder
                    continue
                weight, bias = arrays[f"{layer}.{name}.weight"], arrays.get(f"{layer}.{name}.bias")
                bias = np.zeros(len(weight), np.float32) if bias is None else bias
                rows, columns = (None, order_D) if name in READERS else (order_D, None)
                target = f"model.{layer}.{marian_name}"
                weights[f"{target}.weight"] = stream_weight(weight, model.release, rows=rows, columns=columns)
                weights[f"{target}.bias"] = stream_weight(bias, model.release, rows=rows)
    return weights


def convert_decoding_options(
    decoding: DecodingConfig, target_pieces: list[str], *, max_positions: int
) -> tuple[dict[str, Any], list[str]]:
    """Return the content of generation_config.json that is nearest to these settings, and notes on the differences.

    target_pieces: pieces of the target by id
    max_positions: most tokens of an output, the start token included
    """
    alpha = 0.0 if decoding.length_penalty == "none" else decoding.alpha
    excluded = [PADDING_ID, BEGIN_ID, *(target_pieces.index(piece) for piece in decoding.suppress_tokens)]
    options: dict[str, Any] = {
        "pad_token_id": PADDING_ID,
        "bos_token_id": BEGIN_ID,
        "eos_token_id": END_ID,
        "forced_eos_token_id": None,
        "bad_words_ids": [[index] for index in excluded],
        "max_length": max_positions,
        "no_repeat_ngram_size": decoding.no_repeat_ngram_size,
        "do_sample": decoding.method == "sample",
        "num_beams": decoding.beam_size if decoding.method == "beam" else 1,
        "num_return_sequences": decoding.nbest,
    }
    if decoding.min_length:
        options["min_length"] = decoding.min_length + 1  # transformers counts the start token
    notes = [
        f"transformers truncates an output at {max_positions} tokens (max_length); dragoman truncates it at the source's "
        f"length + {decoding.max_extra_tokens}"
    ]
    if decoding.method == "sample":
        options |= {"temperature": decoding.temperature, "top_k": decoding.top_k, "top_p": decoding.top_p}
        notes.append("transformers samples with another random generator, so no seed gives the samples of dragoman")
    if decoding.method != "beam" or decoding.beam_size == 1:
        return options, notes
    early_stopping: dict[str, bool | str] = {"beam_full": True, "heuristic": False}
    options |= {"length_penalty": alpha, "early_stopping": early_stopping.get(decoding.early_stopping, "never")}
    if decoding.length_penalty == "gnmt" and alpha:
        notes.append(
            f"transformers divides scores by |Y|^α, so length_penalty = {alpha:g} differs from the recipe's ((5+|Y|)/6)^α"
        )
    return options, notes


def _describe_differences(bundle: Bundle) -> list[str]:
    config = bundle.recipe.model
    notes = [UNKNOWN_NOTE]
    if config.norm_epsilon != NORM_EPSILON:
        notes.append(
            f"MarianMT normalizes layers with ε = {NORM_EPSILON:g} instead of {config.norm_epsilon:g}, which changes logits "
            "in the fifth digit"
        )
    if bundle.recipe.tokenizer.language_token is not None:
        notes.append("begin each source with the token of its target language, such as >>deu<<; transformers does not add it")
    return notes


def _build_config(bundle: Bundle, max_positions: int) -> dict[str, Any]:
    """Return the content of config.json."""
    config, tokenizer = bundle.recipe.model, bundle.tokenizer
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "vocab_size": len(tokenizer.source),
        "decoder_vocab_size": len(tokenizer.target),
        "share_encoder_decoder_embeddings": config.tie_embeddings == "all",
        "tie_word_embeddings": config.tie_embeddings != "none",
        "d_model": config.d_model,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "encoder_ffn_dim": config.d_ff,
        "decoder_ffn_dim": config.d_ff,
        "encoder_attention_heads": config.num_heads,
        "decoder_attention_heads": config.num_heads,
        "activation_function": ACTIVATIONS[config.activation],
        "scale_embedding": config.scale_embeddings,
        "static_position_embeddings": True,
        "normalize_before": False,
        "normalize_embedding": False,
        "add_final_layer_norm": False,
        "max_position_embeddings": max_positions,
        "dropout": config.residual_dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "is_encoder_decoder": True,
        "pad_token_id": PADDING_ID,
        "bos_token_id": BEGIN_ID,
        "eos_token_id": END_ID,
        "forced_eos_token_id": None,
        "decoder_start_token_id": get_decoder_start_id(config),
        "torch_dtype": "float32",
    }


def _get_example(bundle: Bundle) -> str:
    """Return the source of the model card, with a language token if the model has some."""
    pattern = bundle.recipe.tokenizer.language_token
    if pattern is None:
        return "A sentence."
    languages = list_languages(pattern, bundle.tokenizer.source)
    chosen = bundle.recipe.task.target_language
    return f"{pattern.format(chosen if chosen in languages else next(iter(languages), 'deu'))} A sentence."


def _build_tokenizer_config(bundle: Bundle, *, is_shared: bool) -> dict[str, Any]:
    """Return the content of tokenizer_config.json."""
    task = bundle.recipe.task
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": task.source_language,
        "target_lang": task.target_language,
        "separate_vocabs": not is_shared,
        "model_max_length": bundle.recipe.decoding.max_source_tokens,
        "unk_token": SPECIAL_PIECES[UNKNOWN_ID],
        "bos_token": SPECIAL_PIECES[BEGIN_ID],  # starts most outputs, and a special token is no part of the text
        "eos_token": SPECIAL_PIECES[END_ID],
        "pad_token": SPECIAL_PIECES[PADDING_ID],
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": _describe_added_tokens(bundle),
    }


def _describe_added_tokens(bundle: Bundle) -> dict[str, dict[str, Any]]:
    """Return the special and the added tokens by id, as transformers saves them."""
    tokens = [AddedToken(text, index, special=True) for index, text in enumerate(SPECIAL_PIECES)]
    for side in (bundle.tokenizer.target, bundle.tokenizer.source):
        if isinstance(side, PieceVocabulary):
            tokens += [token for token in side.piece_list.added if token.id >= len(SPECIAL_PIECES)]
    flags = ("lstrip", "normalized", "rstrip", "single_word", "special")
    return {str(token.id): {"content": token.text, **{flag: getattr(token, flag) for flag in flags}} for token in tokens}
