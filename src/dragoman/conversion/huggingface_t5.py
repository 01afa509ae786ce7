"""T5 folders of Hugging Face: T5, T5 v1.1, FLAN-T5, mT5, ByT5 and MADLAD-400.

- `config.json` and `generation_config.json` describe the architecture and the search.
- `model.safetensors` or `pytorch_model.bin` has the weights, possibly in several files with an index.
- `spiece.model` splits the text, or the unigram model of `tokenizer.json`. ByT5 has neither: its pieces are bytes.
- The files of the tokenizer state added tokens. T5's `<extra_id_0>` to `<extra_id_99>` follow the pieces, the last one first.

Two differences to the paper's model are in the weights of the bundle. T5 does not divide its scores by √d_k, so the queries are
multiplied by it. With a tied output matrix, T5 multiplies the decoder's output by 1/√d_model, and so the last normalization is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dragoman.bundle import ModelOrigin
from dragoman.conversion.generation_options import convert_generation_options
from dragoman.conversion.mapped_arrays import damaged
from dragoman.conversion.model_card import read_license
from dragoman.conversion.original_tokenizer import (
    EncodeRows,
    check_token_ids,
    open_tokenizer_json,
    open_transformers_tokenizer,
)
from dragoman.conversion.padding_rows import are_padding_rows, describe_padding
from dragoman.conversion.source_files import ModelSettings, SourceFiles
from dragoman.conversion.stated_tokens import TOKENIZER_JSON, TokenTable, list_stated_texts, read_token_table
from dragoman.conversion.target import ConversionOptions, ConvertedModel, build_model
from dragoman.conversion.tokenizer_json import (
    build_sentencepiece_model,
    check_charsmap,
    get_split_rules,
    has_whitespace_split,
    read_vocabulary,
)
from dragoman.conversion.vocabulary_order import UNREACHABLE_LOGIT, VocabularyOrder
from dragoman.conversion.weight_reader import WeightReader
from dragoman.data.tokenization.added_tokens import SplitRules
from dragoman.data.tokenization.byte_pieces import BYTE_TOKENS
from dragoman.data.tokenization.language_tokens import list_languages
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.piece_vocabulary import PieceVocabulary
from dragoman.data.tokenization.sentencepiece_proto import UNKNOWN, build_byte_model, read_pieces
from dragoman.data.tokenization.special_tokens import BEGIN_ID, UNKNOWN_ID
from dragoman.io.bfloat16 import widen
from dragoman.io.safetensors import TensorStream

NAME = "huggingface-t5"
CONFIG_FILE, TOKENIZER_FILE, PIECES_MODEL = "config.json", "tokenizer_config.json", "spiece.model"
MODEL_TYPES = ("t5", "mt5")
LANGUAGE_TOKEN = "<2{}>"
"""Pattern of MADLAD-400's tokens, which text may hold."""
BYTE_TOKENIZER, NUM_SPECIAL_BYTES = "ByT5Tokenizer", 3
"""Class of ByT5's tokenizer, and its tokens before the 256 bytes: `<pad>`, `</s>` and `<unk>`."""
NUM_EXTRA_IDS, NUM_EXTRA_BYTE_IDS = 100, 125
ROW_MULTIPLE = 128
"""The published tables are the next multiple of this number."""
MAX_PREFIX_LENGTH = 1000

EMBEDDING = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
"""Names of the one embedding of both sides, any of which a file may have."""
OUTPUT = "lm_head.weight"
ACTIVATIONS = {"relu": "relu", "silu": "silu", "gelu": "gelu", "gated-gelu": "geglu", "gated-silu": "swiglu"}
UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
"""Table in old files that T5 does not read."""
PROJECTIONS = {"q": "query", "k": "key", "v": "value", "o": "output"}


def detect(files: SourceFiles) -> bool:
    """Return whether a folder holds a model of T5's family."""
    return files.model_type in MODEL_TYPES


def read(files: SourceFiles, options: ConversionOptions) -> ConvertedModel:
    """Return the model of a folder."""
    settings = files.read_settings(CONFIG_FILE)
    settings.require("is_encoder_decoder", True, True)
    table, model, rules, unknown = _read_tokens(files, settings)
    order = _build_order(settings, table, unknown)
    vocabulary = PieceVocabulary(model, table.reorder(order, rules), name=str(files.folder / PIECES_MODEL))
    check_token_ids(vocabulary, order, _open_original_tokenizer(files, settings), files.folder)
    languages = list_languages(LANGUAGE_TOKEN, vocabulary)
    has_languages = len(languages) > 1
    chosen_languages = options.choose_languages()
    weights, is_tied = _build_weights(files, settings, order)
    num_positions = settings.integer("n_positions", 512)
    language_token = {"language_token": LANGUAGE_TOKEN}
    return build_model(
        ModelOrigin(
            format=NAME,
            name=options.name,
            license=read_license(files),
            target_languages=languages if has_languages else None,
        ),
        settings.path,
        chosen_languages,
        {
            "tokenizer": language_token if has_languages else {"source_prefix": _find_prefix(settings, *chosen_languages)},
            "model": _convert_settings(settings, is_tied=is_tied),
            "decoding": convert_generation_options(files, settings, order)
            | {"max_source_tokens": num_positions, "max_extra_tokens": num_positions},
        },
        PairTokenizer(vocabulary, vocabulary, append_source_eos=True),
        weights,
        notes=describe_padding(order, num_made_up=table.num_made_up_rows),
    )


def _has_bytes(files: SourceFiles, settings: ModelSettings) -> bool:
    """Return whether the pieces are bytes."""
    return BYTE_TOKENIZER in (files.find_json_object(TOKENIZER_FILE).get("tokenizer_class"), settings.get("tokenizer_class"))


def _read_tokens(files: SourceFiles, settings: ModelSettings) -> tuple[TokenTable, bytes, SplitRules, int]:
    """Return the tokens by id, the SentencePiece model that splits text, the rules of added tokens, and the unknown id."""
    rules: SplitRules = "tokenizers-words"
    document = files.read_json_object(TOKENIZER_JSON) if TOKENIZER_JSON in files else None
    if document is not None and not has_whitespace_split(document):
        rules = get_split_rules(document)
    vocabulary_file = PIECES_MODEL if PIECES_MODEL in files or document is None else TOKENIZER_JSON
    num_extra_ids = NUM_EXTRA_IDS
    if _has_bytes(files, settings):
        model, rules, vocabulary_file, num_extra_ids = build_byte_model(), "transformers", TOKENIZER_FILE, NUM_EXTRA_BYTE_IDS
        pieces, unknown = ["<pad>", "</s>", "<unk>", *BYTE_TOKENS], 2
    elif vocabulary_file == TOKENIZER_JSON and document is not None:
        if _has_false_unknown(files, settings):
            raise damaged(
                files.folder / TOKENIZER_JSON,
                f"its unknown piece is the end token, as transformers 5 saves MADLAD; add {PIECES_MODEL} of the original",
            )
        pieces = list(read_vocabulary(document, files.folder / TOKENIZER_JSON))
        model, unknown = build_sentencepiece_model(document, files.folder / TOKENIZER_JSON), document["model"].get("unk_id")
    else:
        model = files.read_bytes(PIECES_MODEL)
        try:
            parsed = read_pieces(model)
            check_charsmap(model, files.folder / PIECES_MODEL)
        except ValueError:
            raise damaged(files.folder / PIECES_MODEL, "is not a SentencePiece model") from None
        pieces = [piece.text for piece in parsed]
        unknown = next((index for index, piece in enumerate(parsed) if piece.piece_type == UNKNOWN), -1)
    ids = {piece: index for index, piece in enumerate(pieces)}
    if len(ids) < len(pieces) or type(unknown) is not int or unknown < 0:
        raise damaged(files.folder / vocabulary_file, "has a piece twice, or no unknown piece")
    vocab_size = settings.integer("vocab_size")
    settings.check_vocab_size(vocab_size, len(ids))
    special = [pieces[index] for index in (settings.integer("pad_token_id", 0), settings.integer("eos_token_id", 1), unknown)
               if index < len(pieces)]  # fmt: skip
    extra_ids = _list_extra_ids(files, num_extra_ids, len(ids), vocab_size)
    table = read_token_table(
        files,
        ids | extra_ids,
        vocabulary_file=vocabulary_file,
        num_rows=vocab_size,
        always_special=(*special, *extra_ids),
        published_rows=-(-len(ids | extra_ids) // ROW_MULTIPLE) * ROW_MULTIPLE,
        is_padding=partial(are_padding_rows, files, EMBEDDING),
    )
    if _has_bytes(files, settings):  # its special tokens take the spaces beside them
        bare = {*special} - list_stated_texts(files)
        added = (replace(token, lstrip=True, rstrip=True) if token.text in bare else token for token in table.added)
        table = replace(table, added=tuple(added))
    return table, model, rules, unknown


def _list_extra_ids(files: SourceFiles, count: int, num_pieces: int, vocab_size: int) -> dict[str, int]:
    """Return the ids of T5's tokens for gaps, if no file states them and the embedding has rows for them."""
    count = files.find_settings(TOKENIZER_FILE).integer("extra_ids", count)
    if num_pieces + count > vocab_size or any(text.startswith("<extra_id_") for text in list_stated_texts(files)):
        return {}
    indices = range(count) if count == NUM_EXTRA_BYTE_IDS else reversed(range(count))
    return {f"<extra_id_{index}>": row for row, index in enumerate(indices, start=num_pieces)}


def _build_order(settings: ModelSettings, table: TokenTable, unknown: int) -> VocabularyOrder:
    """Return the order of the vocabulary, which begins the decoder with `decoder_start_token_id`."""
    padding, end = settings.integer("pad_token_id", 0), settings.integer("eos_token_id", 1)
    start = settings.integer("decoder_start_token_id", padding)
    if len({padding, end, unknown}) < 3 or max(padding, end) >= len(table.pieces):
        raise damaged(settings.path, f"pad_token_id = {padding} or eos_token_id = {end} is not the id of a token of its own")
    if start not in (padding, unknown):
        raise settings.refuse("decoder_start_token_id", "dragoman starts with the padding or the unknown token of T5")
    return VocabularyOrder.build(
        table.pieces,
        padding=None if start == padding else padding,
        unknown=unknown,
        begin=start,
        end=end,
        num_padding_rows=table.num_padding_rows,
    )


def _open_original_tokenizer(files: SourceFiles, settings: ModelSettings) -> EncodeRows | None:
    """Return the tokenizer of the folder; None if it cannot be run."""
    if TOKENIZER_JSON in files:
        return None if _has_false_unknown(files, settings) else open_tokenizer_json(files.path(TOKENIZER_JSON))
    return open_transformers_tokenizer(files.folder, BYTE_TOKENIZER if _has_bytes(files, settings) else "T5Tokenizer")


def _has_false_unknown(files: SourceFiles, settings: ModelSettings) -> bool:
    """Return whether unknown characters are end tokens, as in MADLAD's `tokenizer.json` that transformers 5 saves."""
    model = files.read_json_object(TOKENIZER_JSON).get("model")
    return isinstance(model, dict) and model.get("unk_id") == settings.integer("eos_token_id", 1)


def _find_prefix(settings: ModelSettings, source_language: str, target_language: str) -> str:
    """Return the text before each source: that of the task of these languages, or that of all tasks."""
    tasks = settings.get("task_specific_params")
    task = tasks.get(f"translation_{source_language}_to_{target_language}") if isinstance(tasks, dict) else None
    prefix = (task if isinstance(task, dict) else settings).get("prefix") or ""
    if not isinstance(prefix, str) or len(prefix) > MAX_PREFIX_LENGTH:
        raise damaged(settings.path, f"prefix = {prefix!r:.60} is not a text of at most {MAX_PREFIX_LENGTH} characters")
    return prefix


def _convert_settings(settings: ModelSettings, *, is_tied: bool) -> dict[str, Any]:
    """Return the recipe section `model`. Raise BundleError for an architecture that dragoman does not have."""
    dropout = settings.number("dropout_rate", 0.1)
    return {
        "encoder_layers": settings.integer("num_layers"),
        "decoder_layers": settings.integer("num_decoder_layers", settings.integer("num_layers")),
        "d_model": settings.integer("d_model"),
        "d_ff": settings.integer("d_ff"),
        "num_heads": settings.integer("num_heads"),
        "d_k": settings.integer("d_kv"),
        "d_v": settings.integer("d_kv"),
        "norm": "pre",
        "norm_type": "rms",
        "norm_epsilon": settings.number("layer_norm_epsilon", 1e-6),
        "attention_bias": False,
        "feed_forward_bias": False,
        "activation": settings.choice("feed_forward_proj", ACTIVATIONS, "relu"),
        "position_encoding": "relative",
        "relative_attention_num_buckets": settings.integer("relative_attention_num_buckets", 32),
        "relative_attention_max_distance": settings.integer("relative_attention_max_distance", 128),
        "tie_embeddings": "all" if is_tied else "inputs",
        "output_bias": True,
        "scale_embeddings": False,
        "residual_dropout": dropout,
        "embedding_dropout": dropout,
        "attention_dropout": dropout,
        "activation_dropout": dropout,
        "decoder_start_token": "bos",
        "append_source_eos": True,
    }


def _build_weights(
    files: SourceFiles, settings: ModelSettings, order: VocabularyOrder
) -> tuple[Mapping[str, TensorStream], bool]:
    """Return the weights of the bundle, and whether the output matrix is the embedding."""
    tensors = files.open_tensors()
    reader = WeightReader(tensors, prefix="", family="T5")
    embedding, is_tied = reader.get(*EMBEDDING), OUTPUT not in tensors
    output = embedding if is_tied else reader.get(OUTPUT)
    is_tied = is_tied or reader.are_equal(embedding, output)
    weights = {"output": reader.read_vocabulary_matrix(output, order), "output_bias": _build_output_bias(order)}
    if not is_tied:
        weights["encoder.embedding.weight"] = reader.read_vocabulary_matrix(embedding, order)
    has_gate = settings.choice("feed_forward_proj", ACTIVATIONS, "relu") in ("geglu", "swiglu")
    linears = {"wi_0": "gate", "wi_1": "inner", "wo": "outer"} if has_gate else {"wi": "inner", "wo": "outer"}
    scales = {"q": math.sqrt(settings.integer("d_kv"))}
    num_layers = settings.integer("num_layers")
    for stack, count in (("encoder", num_layers), ("decoder", settings.integer("num_decoder_layers", num_layers))):
        sublayers = [("SelfAttention", "attention", PROJECTIONS), ("DenseReluDense", "feed_forward", linears)]
        if stack == "decoder":
            sublayers.insert(1, ("EncDecAttention", "cross_attention", PROJECTIONS))
        for layer in range(count):
            for index, (source_part, part, matrices) in enumerate(sublayers):
                source, target = f"{stack}.block.{layer}.layer.{index}", f"{stack}.layers.{layer}.{part}"
                for name, matrix in matrices.items():
                    tensor = reader.get(f"{source}.{source_part}.{name}.weight")
                    weights[f"{target}.{matrix}.weight"] = reader.builder.concat([tensor], scale=scales.get(name, 1.0))
                weights[f"{target}_residual.norm.weight"] = reader.read(f"{source}.layer_norm.weight")
        bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        weights[f"{stack}.relative_positions.weight"] = reader.read(bias)
        weights[f"{stack}.norm.weight"] = reader.read(f"{stack}.final_layer_norm.weight")
    is_scaled = settings.boolean("scale_decoder_outputs", settings.boolean("tie_word_embeddings", True))
    if is_scaled:
        norm_D = widen(tensors["decoder.final_layer_norm.weight"]) * np.float32(max(settings.integer("d_model"), 1) ** -0.5)
        weights["decoder.norm.weight"] = reader.builder.concat([norm_D])
    tensors.used.add(UNUSED)
    reader.check_all_used()
    return weights, is_tied


def _build_output_bias(order: VocabularyOrder) -> TensorStream:
    """Return the output bias: `UNREACHABLE_LOGIT` for padding that the source lacks, and for a start token that is `<unk>`."""
    bias_V = np.zeros(len(order), np.float32)
    for index, row in enumerate(order.rows):
        if row is None or (index == BEGIN_ID and row == order.rows[UNKNOWN_ID]):
            bias_V[index] = UNREACHABLE_LOGIT
    return TensorStream(bias_V.shape, bias_V.dtype, lambda: iter([bias_V]), lambda: None)
