"""M2M-100 and NLLB folders of Hugging Face: one architecture with two tokenizers.

- `config.json` and `generation_config.json` describe the architecture and the search.
- `model.safetensors` or `pytorch_model.bin` has the weights, possibly in several files with an index.
- `sentencepiece.bpe.model` splits the text. Without it, the merges of `tokenizer.json` split the text of NLLB.
- `vocab.json` numbers the pieces of M2M-100, and `tokenizer.json` those of NLLB. Without it, NLLB has the numbers of
  SentencePiece, moved by one as in fairseq.
- Added tokens and languages have the ids that the files of the tokenizer state. If no file states the languages, they follow
  the pieces in a fixed order.
- `tokenizer_config.json` names the default languages, and `README.md` the license.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from dragoman.bundle import ModelOrigin
from dragoman.conversion.checkpoint_reader import damaged
from dragoman.conversion.generation_options import convert_generation_options, read_generation_settings
from dragoman.conversion.language_codes import M2M100_LANGUAGES, NLLB_LANGUAGES, WMT21_LANGUAGES
from dragoman.conversion.model_card import read_front_matter
from dragoman.conversion.model_section import build_model_section
from dragoman.conversion.original_tokenizer import check_token_ids, open_tokenizer_json, open_transformers_tokenizer
from dragoman.conversion.padding_rows import are_padding_rows, describe_padding
from dragoman.conversion.source_files import ModelSettings, SourceFiles
from dragoman.conversion.stated_tokens import TOKENIZER_JSON, TokenTable, list_stated_texts, read_token_table
from dragoman.conversion.target import ConversionOptions, ConvertedModel, build_recipe
from dragoman.conversion.tokenizer_json import build_sentencepiece_model, get_split_rules, read_vocabulary
from dragoman.conversion.vocabulary_order import VocabularyOrder
from dragoman.conversion.weight_reader import WeightReader
from dragoman.data.tokenization.added_tokens import SplitRules
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.piece_vocabulary import PieceVocabulary
from dragoman.data.tokenization.sentencepiece_proto import read_pieces
from dragoman.errors import BundleError
from dragoman.io.safetensors import TensorStream

NAME = "huggingface-m2m100"
CONFIG_FILE, TOKENIZER_FILE = "config.json", "tokenizer_config.json"
PIECES_MODEL, VOCABULARY = "sentencepiece.bpe.model", "vocab.json"
M2M100_TOKEN, NLLB_TOKEN = "__{}__", "{}"  # patterns of language tokens

EMBEDDING = (
    "model.shared.weight", "model.decoder.embed_tokens.weight", "model.encoder.embed_tokens.weight", "lm_head.weight"
)  # fmt: skip
"""Names of the one embedding, any of which a file may have."""
MASK = "<mask>"
LANGUAGE_CODE = r"[a-z]{2,4}_[A-Z][a-z]{3}"
"""Codes of NLLB, such as deu_Latn."""
MADE_UP_WORDS = 8
"""Rows without a token at the end of an embedding: fairseq adds words such as madeupword0000 to fill its dictionary."""

SPECIAL_TOKENS = {"bos_token_id": "<s>", "pad_token_id": "<pad>", "eos_token_id": "</s>"}
NLLB_FIRST_PIECES = ("<s>", "<pad>", "</s>", "<unk>")
"""Tokens before the pieces of SentencePiece, which are those of fairseq's dictionary."""
SENTENCEPIECE_FIRST_PIECES = ["<unk>", "<s>", "</s>"]
"""First pieces of NLLB's SentencePiece model, which its vocabulary replaces."""


def detect(files: SourceFiles) -> bool:
    """Return whether a folder holds an M2M-100 or NLLB model."""
    return CONFIG_FILE in files and files.read_json_object(CONFIG_FILE).get("model_type") == "m2m_100"


def read(files: SourceFiles, options: ConversionOptions) -> ConvertedModel:
    """Return the model of a folder.

    Raises:
        DataError: a file is missing or damaged.
        BundleError: the model has a feature that dragoman does not have.
    """
    settings = ModelSettings(files.read_json_object(CONFIG_FILE), files.folder / CONFIG_FILE)
    settings.require("tie_word_embeddings", True, True)
    names = files.read_json_object(TOKENIZER_FILE) if TOKENIZER_FILE in files else {}
    tokenizer_settings = ModelSettings(names, files.folder / TOKENIZER_FILE)
    is_nllb = _is_nllb(files, tokenizer_settings)
    pattern = NLLB_TOKEN if is_nllb else M2M100_TOKEN
    table, model, rules = _read_tokens(files, settings, tokenizer_settings, is_nllb)
    order = _build_order(settings, table)
    languages = _list_languages(table, tokenizer_settings, is_nllb)
    weights = _build_weights(files, settings, order)
    vocabulary = PieceVocabulary(model, table.reorder(order, rules), name=str(files.folder / PIECES_MODEL))
    if not is_nllb:
        check_token_ids(vocabulary, order, open_transformers_tokenizer(files.folder, "M2M100Tokenizer"), files.folder)
    elif TOKENIZER_JSON in files:
        check_token_ids(vocabulary, order, open_tokenizer_json(files.path(TOKENIZER_JSON)), files.folder)
    source_language, target_language = _choose_languages(
        files, settings, tokenizer_settings, options, languages, order, vocabulary, pattern
    )
    card = read_front_matter(files.read_text("README.md")) if "README.md" in files else {}
    document = {
        "name": options.name,
        "task": {"source_language": source_language, "target_language": target_language},
        "tokenizer": {
            "joint": True,
            "vocab_size": len(order),
            "byte_fallback": False,
            "language_token": pattern,
            "language_token_placement": "both",
        },
        "model": build_model_section(settings, is_pre_norm=True, tie_embeddings="all", attention_dropout=0.1),
        "decoding": convert_generation_options(files, settings, order, allowed=["forced_bos_token_id"], num_prompt_tokens=1),
    }
    recipe = build_recipe(document, settings.path)
    return ConvertedModel(
        recipe=recipe,
        tokenizer=PairTokenizer(vocabulary, vocabulary, append_source_eos=True),
        weights=weights,
        origin=ModelOrigin(
            format=NAME,
            name=options.name,
            license=next(iter(card.get("license", [])), None),
            source_languages=list(languages),
            target_languages=list(languages),
        ),
        notes=describe_padding(order),
    )


def _is_nllb(files: SourceFiles, tokenizer_settings: ModelSettings) -> bool:
    """Return whether the tokenizer is that of NLLB. Raise BundleError for a tokenizer of another model."""
    name = tokenizer_settings.get("tokenizer_class") or ("M2M100Tokenizer" if VOCABULARY in files else "NllbTokenizer")
    is_generic = name in ("TokenizersBackend", "PreTrainedTokenizerFast") and TOKENIZER_JSON in files
    if name not in ("M2M100Tokenizer", "NllbTokenizer", "NllbTokenizerFast") and not is_generic:
        raise tokenizer_settings.refuse("tokenizer_class", "dragoman has M2M100Tokenizer and NllbTokenizer")
    if tokenizer_settings.boolean("legacy_behaviour", False):
        raise tokenizer_settings.refuse(
            "legacy_behaviour", "dragoman writes the source language before the text, as NLLB was trained; set it to false"
        )
    return name != "M2M100Tokenizer"


def _get_m2m100_languages(tokenizer_settings: ModelSettings) -> tuple[str, ...]:
    language_codes = tokenizer_settings.get("language_codes") or "m2m100"
    if language_codes not in ("m2m100", "wmt21"):
        raise tokenizer_settings.refuse("language_codes", "dragoman has m2m100 and wmt21")
    return M2M100_LANGUAGES if language_codes == "m2m100" else WMT21_LANGUAGES


def _read_tokens(
    files: SourceFiles, settings: ModelSettings, tokenizer_settings: ModelSettings, is_nllb: bool
) -> tuple[TokenTable, bytes, SplitRules]:
    """Return the tokens by id, the SentencePiece model that splits text, and the rules of the added tokens."""
    vocab_size = settings.integer("vocab_size")
    document = files.read_json_object(TOKENIZER_JSON) if is_nllb and TOKENIZER_JSON in files else None
    ids, vocabulary_file = _read_piece_ids(files, document, is_nllb)
    rules: SplitRules = "transformers"
    if document is not None:
        rules = get_split_rules(document)
    try:
        model = (
            build_sentencepiece_model(document, files.folder / TOKENIZER_JSON) if document else files.read_bytes(PIECES_MODEL)
        )
    except BundleError:  # the merges have no SentencePiece model of their own
        if PIECES_MODEL not in files or _list_nllb_ids(files) != ids:
            raise
        model = files.read_bytes(PIECES_MODEL)
    settings.check_vocab_size(vocab_size, len(ids))
    languages = _list_unstated_languages(files, tokenizer_settings, is_nllb)
    ids |= {token: index for index, token in enumerate(languages, start=len(ids))}
    table = read_token_table(
        files,
        ids,
        vocabulary_file=vocabulary_file,
        num_rows=vocab_size,
        always_special=NLLB_FIRST_PIECES,
        num_made_up=max(MADE_UP_WORDS, tokenizer_settings.integer("num_madeup_words", MADE_UP_WORDS)),
        is_padding=partial(are_padding_rows, files, EMBEDDING),
    )
    return table, model, rules


def _read_piece_ids(files: SourceFiles, document: Mapping[str, Any] | None, is_nllb: bool) -> tuple[dict[str, int], str]:
    """Return the ids of the pieces, and the file that states them."""
    if document is not None:
        return dict(read_vocabulary(document, files.folder / TOKENIZER_JSON)), TOKENIZER_JSON
    if is_nllb:
        return _list_nllb_ids(files), PIECES_MODEL
    ids = files.read_json_object(VOCABULARY)
    if not all(type(index) is int for index in ids.values()) or sorted(ids.values()) != list(range(len(ids))):
        raise damaged(files.folder / VOCABULARY, f"the ids of its {len(ids)} pieces are not 0, 1, 2, …")
    return ids, VOCABULARY


def _list_nllb_ids(files: SourceFiles) -> dict[str, int]:
    """Return the ids of the pieces before the languages: fairseq's four special tokens, then those of SentencePiece."""
    try:
        pieces = [piece.text for piece in read_pieces(files.read_bytes(PIECES_MODEL))]
    except ValueError:
        raise damaged(files.folder / PIECES_MODEL, "is not a SentencePiece model") from None
    if pieces[:3] != SENTENCEPIECE_FIRST_PIECES:
        raise damaged(files.folder / PIECES_MODEL, f"its first pieces are {pieces[:3]}, not those of NLLB's model")
    return {piece: index for index, piece in enumerate([*NLLB_FIRST_PIECES, *pieces[3:]])}


def _list_unstated_languages(files: SourceFiles, tokenizer_settings: ModelSettings, is_nllb: bool) -> list[str]:
    """Return the tokens behind the pieces that no file states: those of the family's languages, and NLLB's `<mask>`."""
    if not is_nllb:
        return [M2M100_TOKEN.format(language) for language in _get_m2m100_languages(tokenizer_settings)]
    stated = list_stated_texts(files)
    return [] if any(language in stated for language in NLLB_LANGUAGES) else [*NLLB_LANGUAGES, MASK]


def _build_order(settings: ModelSettings, table: TokenTable) -> VocabularyOrder:
    """Return the order of the vocabulary."""
    ids = {piece: index for index, piece in reversed(list(enumerate(table.pieces)))}
    for name, token in SPECIAL_TOKENS.items():
        if ids.get(token) != settings.integer(name):
            raise damaged(settings.path, f"{name} = {settings[name]}, but {token} has the id {ids.get(token)}")
    if "<unk>" not in ids:
        raise damaged(settings.path.parent / VOCABULARY, "has no piece <unk>")
    return VocabularyOrder.build(
        table.pieces,
        padding=ids["<pad>"],
        unknown=ids["<unk>"],
        begin=ids["<s>"],
        end=ids["</s>"],
        num_padding_rows=table.num_padding_rows,
    )


def _list_languages(table: TokenTable, tokenizer_settings: ModelSettings, is_nllb: bool) -> tuple[str, ...]:
    """Return the languages by the ids of their tokens. A special token of NLLB that looks like a word is a language."""
    if not is_nllb:
        before, after = M2M100_TOKEN.split("{}")
        tokens = [*_get_m2m100_languages(tokenizer_settings)]
        added = [token.text for token in table.added]
        new = [text[2:-2] for text in added if re.fullmatch(rf"{before}[A-Za-z][\w-]{{0,20}}{after}", text)]
        return tuple(dict.fromkeys([*tokens, *new]))
    stated = {tokenizer_settings.get("src_lang"), tokenizer_settings.get("tgt_lang")}
    added_texts = {
        token.text
        for token in table.added
        if token.text in stated or re.fullmatch(LANGUAGE_CODE, token.text) or (token.special and token.text.isidentifier())
    }
    return tuple(piece for piece in table.pieces if piece in added_texts or piece in NLLB_LANGUAGES)


def _choose_languages(
    files: SourceFiles,
    settings: ModelSettings,
    tokenizer_settings: ModelSettings,
    options: ConversionOptions,
    languages: tuple[str, ...],
    order: VocabularyOrder,
    vocabulary: PieceVocabulary,
    pattern: str,
) -> tuple[str, str]:
    """Return the default languages: those of the caller, else those of the source, else an empty text."""
    forced_id = read_generation_settings(files, settings).get("forced_bos_token_id")
    tokens = {language: vocabulary.piece_to_id(pattern.format(language)) for language in languages}
    forced = [language for language, token in tokens.items() if token is not None and order.rows[token] == forced_id]
    if forced_id is not None and not forced:
        raise settings.refuse("forced_bos_token_id", "dragoman begins an output with the token of its language only")
    defaults = {
        "source": options.source_language or tokenizer_settings.get("src_lang"),
        "target": options.target_language or next(iter(forced), tokenizer_settings.get("tgt_lang")),
    }
    for side, language in defaults.items():
        if language and language not in languages:
            raise BundleError(
                f"{files.folder}: has no token for the {side} language {str(language)[:40]!r}; its languages are "
                f"{', '.join(languages[:20])}, …",
                code="conversion-unsupported",
            )
    return defaults["source"] or "", defaults["target"] or ""


def _build_weights(files: SourceFiles, settings: ModelSettings, order: VocabularyOrder) -> dict[str, TensorStream]:
    """Return the weights of the bundle."""
    reader = WeightReader(files.open_tensors(), prefix="model.", family="M2M-100")
    weights = {"output": reader.read_vocabulary_matrix(reader.get(*EMBEDDING), order)}
    for stack in ("encoder", "decoder"):
        weights |= reader.read_layers(stack, settings.integer(f"{stack}_layers"))
        weights |= reader.read_norm(stack)
        for name in ("weights", "weight"):
            reader.skip_sinusoids(f"{stack}.embed_positions.{name}", settings.integer("pad_token_id") + 1)
    reader.check_all_used()
    return weights
