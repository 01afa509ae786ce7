"""MarianMT folders of Hugging Face, such as the OPUS-MT models.

- `config.json` describes the architecture. `generation_config.json` has the search options, or `config.json` in older folders.
- `model.safetensors` or `pytorch_model.bin` has the weights.
- `source.spm` and `target.spm` are the SentencePiece models that split the text.
- `vocab.json` numbers the pieces, and `tokenizer_config.json` or `added_tokens.json` the added tokens.
- `target_vocab.json` exists only if the sides have vocabularies of their own.
- `tokenizer_config.json` names the languages, and `README.md` the license.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from dragoman.bundle import ModelOrigin
from dragoman.conversion.generation_options import convert_generation_options
from dragoman.conversion.mapped_arrays import damaged
from dragoman.conversion.model_card import read_license
from dragoman.conversion.model_section import ACTIVATIONS, build_model_section
from dragoman.conversion.original_tokenizer import check_token_ids, open_transformers_tokenizer
from dragoman.conversion.padding_rows import are_padding_rows, describe_padding
from dragoman.conversion.source_files import ModelSettings, SourceFiles, SourceTensors
from dragoman.conversion.stated_tokens import read_token_table
from dragoman.conversion.target import ConversionOptions, ConvertedModel, build_model, check_language
from dragoman.conversion.vocabulary_order import VocabularyOrder
from dragoman.conversion.weight_reader import EMBEDDING, WeightReader
from dragoman.data.tokenization.language_tokens import list_languages
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.piece_vocabulary import PieceList, PieceVocabulary
from dragoman.data.tokenization.special_tokens import SPECIAL_PIECES
from dragoman.io.safetensors import TensorStream

NAME = "huggingface-marian"
CONFIG_FILE, TOKENIZER_FILE = "config.json", "tokenizer_config.json"
SOURCE_MODEL, TARGET_MODEL = "source.spm", "target.spm"
VOCABULARY, TARGET_VOCABULARY = "vocab.json", "target_vocab.json"
LANGUAGE_TOKEN = ">>{}<<"
ENCODER_EMBEDDING, DECODER_EMBEDDING = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"

# Settings of the BART family with the value that MarianMT has.
FIXED_SETTINGS = {
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
}


def detect(files: SourceFiles) -> bool:
    """Return whether a folder holds a MarianMT model."""
    return files.model_type == "marian"


def read(files: SourceFiles, options: ConversionOptions) -> ConvertedModel:
    """Return the model of a folder."""
    settings = files.read_settings(CONFIG_FILE)
    for name, value in FIXED_SETTINGS.items():
        settings.require(name, value, value)
    is_shared = settings.boolean("share_encoder_decoder_embeddings", True)
    vocab_size = settings.integer("vocab_size")
    target_size = vocab_size if settings.get("decoder_vocab_size") is None else settings.integer("decoder_vocab_size")
    if is_shared and vocab_size != target_size:
        raise damaged(settings.path, f"decoder_vocab_size = {target_size}, but the vocabulary of {vocab_size} is shared")
    source_names = EMBEDDING if is_shared else (ENCODER_EMBEDDING,)
    source_order, source_pieces = _read_vocabulary(files, settings, VOCABULARY, vocab_size, source_names)
    target_order, target_pieces = source_order, source_pieces
    if not is_shared:
        target_order, target_pieces = _read_vocabulary(files, settings, TARGET_VOCABULARY, target_size, (DECODER_EMBEDDING,))
    tensors = files.open_tensors()
    weights = _build_weights(tensors, settings, source_order, None if is_shared else target_order)
    source = PieceVocabulary(files.read_bytes(SOURCE_MODEL), source_pieces, name=str(files.folder / SOURCE_MODEL))
    check_token_ids(source, source_order, open_transformers_tokenizer(files.folder, "MarianTokenizer"), files.folder)
    tokenizer = PairTokenizer(
        source,
        PieceVocabulary(files.read_bytes(TARGET_MODEL), target_pieces, name=str(files.folder / TARGET_MODEL)),
        append_source_eos=True,
    )
    languages = list_languages(LANGUAGE_TOKEN, tokenizer.source)
    is_multilingual = len(languages) > 1
    return build_model(
        ModelOrigin(
            format=NAME,
            name=options.name,
            license=read_license(files),
            target_languages=languages if is_multilingual else None,
        ),
        settings.path,
        _read_languages(files, options, languages),
        {
            "tokenizer": {
                **({"language_token": LANGUAGE_TOKEN} if is_multilingual else {}),
                **({} if is_shared else {"joint": False, "target_vocab_size": len(target_order)}),
            },
            "model": _convert_settings(settings, is_shared=is_shared, has_own_output=_has_own_output(settings)),
            "decoding": convert_generation_options(files, settings, target_order),
        },
        tokenizer,
        weights,
        notes=describe_padding(source_order, target_order),
    )


def _read_vocabulary(
    files: SourceFiles, settings: ModelSettings, file_name: str, vocab_size: int, embedding: Sequence[str]
) -> tuple[VocabularyOrder, PieceList]:
    """Return the order of one vocabulary, which begins the decoder with `decoder_start_token_id`, and its file."""
    document = files.read_json_object(file_name)
    settings.check_vocab_size(vocab_size, len(document))
    table = read_token_table(
        files,
        document,
        vocabulary_file=file_name,
        num_rows=vocab_size,
        always_special=("</s>", "<unk>", "<pad>"),
        is_second=file_name == TARGET_VOCABULARY,
        is_padding=partial(are_padding_rows, files, embedding),
    )
    order = replace(_build_order(files, settings, file_name, table.pieces), num_padding_rows=table.num_padding_rows)
    return order, table.reorder(order, "marian")


def _build_order(files: SourceFiles, settings: ModelSettings, file_name: str, pieces: Sequence[str]) -> VocabularyOrder:
    """Return the order of one vocabulary."""
    ids = {piece: index for index, piece in enumerate(pieces)}
    missing = [piece for piece in ("<unk>", "</s>") if piece not in ids]
    if missing:
        raise damaged(files.folder / file_name, f"has no piece {missing[0]}")
    padding, start = settings.integer("pad_token_id"), settings.integer("decoder_start_token_id")
    special_ids = {"pad_token_id": padding, "decoder_start_token_id": start}
    for name, index in special_ids.items():
        if index >= len(pieces) or (index in (ids["<unk>"], ids["</s>"]) and name == "pad_token_id"):
            raise damaged(settings.path, f"{name} = {index} is not the id of a token of its own in {file_name}")
    if start == padding or start == ids["</s>"]:
        return VocabularyOrder.build(pieces, padding=None, unknown=ids["<unk>"], begin=padding, end=ids["</s>"])
    if start == ids["<unk>"]:
        raise settings.refuse("decoder_start_token_id", "dragoman never starts with the unknown token")
    return VocabularyOrder.build(
        pieces,
        padding=padding,
        unknown=ids["<unk>"],
        begin=start,
        end=ids["</s>"],
        begin_is_text=pieces[start] not in SPECIAL_PIECES,
    )


def _has_own_output(settings: ModelSettings) -> bool:
    """Return whether the output matrix is not the decoder's embedding."""
    return not settings.boolean("tie_word_embeddings", True)


def _convert_settings(settings: ModelSettings, *, is_shared: bool, has_own_output: bool) -> dict[str, Any]:
    """Return the recipe section `model`. Raise BundleError for an architecture that dragoman does not have."""
    if is_shared and has_own_output:
        raise settings.refuse("tie_word_embeddings", "dragoman has no shared embeddings with an output matrix of its own")
    starts_with_end = settings.integer("decoder_start_token_id") == settings.integer("eos_token_id", 0)
    tying = "all" if is_shared else "none" if has_own_output else "decoder"
    return build_model_section(settings, is_pre_norm=False, tie_embeddings=tying) | {
        "activation": settings.choice("activation_function", ACTIVATIONS, "gelu"),
        "position_encoding": "halves",
        "position_offset": 0,
        "output_bias": True,
        "scale_embeddings": settings.boolean("scale_embedding", False),
        "decoder_start_token": "eos" if starts_with_end else "bos",
    }


def _read_languages(files: SourceFiles, options: ConversionOptions, languages: list[str]) -> tuple[str, str]:
    """Return the language codes of both sides; empty for a side that is unknown or a choice of the caller."""
    names = files.find_json_object(TOKENIZER_FILE)
    target = names.get("target_lang")
    if len(languages) > 1:
        check_language(files.folder, "target", options.target_language or "", languages)
        target = target if target in languages else ""  # not a group of languages, such as `roa`
    return options.choose_languages(names.get("source_lang"), target)


def _build_weights(
    tensors: SourceTensors, settings: ModelSettings, source_order: VocabularyOrder, target_order: VocabularyOrder | None
) -> dict[str, TensorStream]:
    """Return the weights of the bundle. target_order: None if both sides share the embeddings"""
    reader = WeightReader(tensors, prefix="model.", family="MarianMT")
    order = target_order or source_order
    weights: dict[str, TensorStream] = {}
    if target_order is None:
        weights["output"] = reader.read_vocabulary_matrix(reader.get(*EMBEDDING), order)
    else:
        has_own_output = _has_own_output(settings)
        output = reader.get("lm_head.weight") if has_own_output else reader.get(DECODER_EMBEDDING, "lm_head.weight")
        weights["output"] = reader.read_vocabulary_matrix(output, order)
        weights["encoder.embedding.weight"] = reader.read_vocabulary_matrix(reader.get(ENCODER_EMBEDDING), source_order)
        if has_own_output:
            weights["decoder.embedding.weight"] = reader.read_vocabulary_matrix(reader.get(DECODER_EMBEDDING), order)
    weights["output_bias"] = reader.read_output_bias(order, weights["output"].dtype)
    for stack in ("encoder", "decoder"):
        weights |= reader.read_layers(stack, settings.integer(f"{stack}_layers"))
        reader.skip_sinusoids(f"{stack}.embed_positions.weight", layout="halves")
    reader.check_all_used()
    return weights
