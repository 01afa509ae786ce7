"""M2M-100, NLLB and mBART-50 folders of Hugging Face: models of many languages with a token of the language on both sides.

- `config.json` and `generation_config.json` describe the architecture and the search.
- `model.safetensors` or `pytorch_model.bin` has the weights, possibly in several files with an index.
- `sentencepiece.bpe.model` splits the text. Without it, `tokenizer.json` splits the text of NLLB and mBART-50.
- `vocab.json` numbers the pieces of M2M-100, and `tokenizer.json` those of the others. Without it, they have the numbers of
  SentencePiece, moved by one as in fairseq.
- Added tokens and languages have the ids that the files of the tokenizer state. If no file states the languages, they follow
  the pieces in a fixed order.
- `tokenizer_config.json` names the default languages, and `README.md` the license.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from dragoman.bundle import ModelOrigin
from dragoman.conversion.generation_options import convert_generation_options, read_generation_settings
from dragoman.conversion.language_codes import (
    M2M100_LANGUAGES,
    MBART50_LANGUAGES,
    NLLB_LANGUAGES,
    WMT21_LANGUAGES,
)
from dragoman.conversion.mapped_arrays import damaged
from dragoman.conversion.model_card import read_license
from dragoman.conversion.model_section import build_model_section, describe_bart, describe_start
from dragoman.conversion.original_tokenizer import check_token_ids, open_tokenizer_json, open_transformers_tokenizer
from dragoman.conversion.padding_rows import are_padding_rows, describe_padding
from dragoman.conversion.source_files import ModelSettings, SourceFiles
from dragoman.conversion.stated_tokens import (
    TOKENIZER_JSON,
    TokenTable,
    build_fairseq_order,
    list_stated_texts,
    read_token_table,
)
from dragoman.conversion.target import ConversionOptions, ConvertedModel, build_model, check_language
from dragoman.conversion.tokenizer_json import build_sentencepiece_model, get_split_rules, read_vocabulary
from dragoman.conversion.vocabulary_order import VocabularyOrder
from dragoman.conversion.weight_reader import EMBEDDING, WeightReader
from dragoman.data.tokenization.added_tokens import SplitRules
from dragoman.data.tokenization.pair_tokenizer import PairTokenizer
from dragoman.data.tokenization.piece_vocabulary import PieceVocabulary
from dragoman.data.tokenization.sentencepiece_proto import read_pieces
from dragoman.errors import BundleError
from dragoman.io.safetensors import TensorStream

NAME = "huggingface-m2m100"
Family = Literal["M2M-100", "NLLB", "mBART-50"]
MODEL_TYPES = ("m2m_100", "mbart")
TOKENIZERS: dict[str, Family] = {
    "M2M100Tokenizer": "M2M-100",
    "NllbTokenizer": "NLLB",
    "NllbTokenizerFast": "NLLB",
    "MBart50Tokenizer": "mBART-50",
    "MBart50TokenizerFast": "mBART-50",
}
"""Families by the class of the tokenizer."""
GENERIC_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")
CONFIG_FILE, TOKENIZER_FILE = "config.json", "tokenizer_config.json"
PIECES_MODEL, VOCABULARY = "sentencepiece.bpe.model", "vocab.json"
M2M100_TOKEN, PLAIN_TOKEN = "__{}__", "{}"  # patterns of language tokens

MASK = "<mask>"
FAIRSEQ_LANGUAGES: dict[Family, tuple[str, ...]] = {"NLLB": NLLB_LANGUAGES, "mBART-50": MBART50_LANGUAGES}
"""Languages behind the pieces of SentencePiece, in the order of their tokens."""
LANGUAGE_CODE = r"[a-z]{2,4}_([A-Z][a-z]{3}|[A-Z]{2})"
"""Codes such as deu_Latn and de_DE."""
MADE_UP_WORDS = 8
"""Rows without a token at the end of an embedding of M2M-100: fairseq adds words such as madeupword0000."""
NLLB_ROWS, NLLB_MADE_UP_WORDS = 256_206, 2
"""Rows of the published embeddings of NLLB, and how many of them have no token."""

FAIRSEQ_FIRST_PIECES = ("<s>", "<pad>", "</s>", "<unk>")
"""Tokens before the pieces of SentencePiece, which are those of fairseq's dictionary."""
SENTENCEPIECE_FIRST_PIECES = ["<unk>", "<s>", "</s>"]
"""First pieces of a SentencePiece model, which the vocabulary replaces."""


def detect(files: SourceFiles) -> bool:
    """Return whether a folder holds an M2M-100, NLLB or mBART model."""
    return files.model_type in MODEL_TYPES


def read(files: SourceFiles, options: ConversionOptions) -> ConvertedModel:
    """Return the model of a folder."""
    settings = files.read_settings(CONFIG_FILE)
    settings.require("tie_word_embeddings", True, True)
    tokenizer_settings = files.find_settings(TOKENIZER_FILE)
    is_mbart = settings["model_type"] == "mbart"
    family = _find_family(files, tokenizer_settings, is_mbart=is_mbart)
    pattern = M2M100_TOKEN if family == "M2M-100" else PLAIN_TOKEN
    table, model, rules = _read_tokens(files, settings, tokenizer_settings, family)
    order = build_fairseq_order(settings, table, files.folder / VOCABULARY)
    languages = _list_languages(table, tokenizer_settings, family)
    weights = _build_weights(files, settings, order, family)
    vocabulary = PieceVocabulary(model, table.reorder(order, rules), name=str(files.folder / PIECES_MODEL))
    if family == "M2M-100":
        check_token_ids(vocabulary, order, open_transformers_tokenizer(files.folder, "M2M100Tokenizer"), files.folder)
    elif TOKENIZER_JSON in files:
        check_token_ids(vocabulary, order, open_tokenizer_json(files.path(TOKENIZER_JSON)), files.folder)
    chosen_languages = _choose_languages(files, settings, tokenizer_settings, options, languages, order, vocabulary, pattern)
    model_section = build_model_section(
        settings, is_pre_norm=True, tie_embeddings="all", attention_dropout=0.0 if is_mbart else 0.1
    )
    model_section |= describe_start(settings)
    if is_mbart:
        model_section |= describe_bart(settings, weights)
    origin = ModelOrigin(
        format=NAME,
        name=options.name,
        license=read_license(files),
        source_languages=list(languages),
        target_languages=list(languages),
    )
    return build_model(
        origin,
        settings.path,
        chosen_languages,
        {
            "tokenizer": {"language_token": pattern, "language_token_placement": "both"},
            "model": model_section,
            "decoding": convert_generation_options(
                files, settings, order, allowed=["forced_bos_token_id"], num_prompt_tokens=1
            ),
        },
        PairTokenizer(vocabulary, vocabulary, append_source_eos=True),
        weights,
        notes=describe_padding(order, num_made_up=table.num_made_up_rows),
    )


def _find_family(files: SourceFiles, tokenizer_settings: ModelSettings, *, is_mbart: bool) -> Family:
    """Return the family of the tokenizer. Raise BundleError for a tokenizer of another model."""
    default = "M2M100Tokenizer" if VOCABULARY in files else "NllbTokenizer"
    name = tokenizer_settings.get("tokenizer_class") or ("" if is_mbart else default)
    family = TOKENIZERS.get(name)
    if name in GENERIC_TOKENIZERS and TOKENIZER_JSON in files and not is_mbart:
        family = "NLLB"
    if family is None or (family == "mBART-50") != is_mbart:
        known = [name for name, family in TOKENIZERS.items() if (family == "mBART-50") == is_mbart]
        raise tokenizer_settings.refuse("tokenizer_class", f"dragoman has {', '.join(known)} for this model")
    if tokenizer_settings.boolean("legacy_behaviour", False):
        raise tokenizer_settings.refuse(
            "legacy_behaviour", "dragoman writes the source language before the text, as NLLB was trained; set it to false"
        )
    return family


def _get_m2m100_languages(tokenizer_settings: ModelSettings) -> tuple[str, ...]:
    language_codes = tokenizer_settings.get("language_codes") or "m2m100"
    if language_codes not in ("m2m100", "wmt21"):
        raise tokenizer_settings.refuse("language_codes", "dragoman has m2m100 and wmt21")
    return M2M100_LANGUAGES if language_codes == "m2m100" else WMT21_LANGUAGES


def _read_tokens(
    files: SourceFiles, settings: ModelSettings, tokenizer_settings: ModelSettings, family: Family
) -> tuple[TokenTable, bytes, SplitRules]:
    """Return the tokens by id, the SentencePiece model that splits text, and the rules of the added tokens."""
    vocab_size = settings.integer("vocab_size")
    has_document = family != "M2M-100" and TOKENIZER_JSON in files
    document = files.read_json_object(TOKENIZER_JSON) if has_document else None
    ids, vocabulary_file = _read_piece_ids(files, document, family)
    rules: SplitRules = "transformers"
    if document is not None:
        rules = get_split_rules(document)
    try:
        model = (
            build_sentencepiece_model(document, files.folder / TOKENIZER_JSON) if document else files.read_bytes(PIECES_MODEL)
        )
    except BundleError:  # the merges have no SentencePiece model of their own
        if PIECES_MODEL not in files or _list_fairseq_ids(files) != ids:
            raise
        model = files.read_bytes(PIECES_MODEL)
    settings.check_vocab_size(vocab_size, len(ids))
    languages = _list_unstated_languages(files, ids, tokenizer_settings, family)
    ids |= {token: index for index, token in enumerate(languages, start=len(ids))}
    table = read_token_table(
        files,
        ids,
        vocabulary_file=vocabulary_file,
        num_rows=vocab_size,
        always_special=FAIRSEQ_FIRST_PIECES,
        published_rows=_count_published_rows(len({*ids, *list_stated_texts(files)}), len(ids), tokenizer_settings, family),
        is_padding=partial(are_padding_rows, files, EMBEDDING),
    )
    return table, model, rules


def _count_published_rows(num_tokens: int, num_own: int, tokenizer_settings: ModelSettings, family: Family) -> int:
    """Return the rows of the published embedding, the last of which have no token; 0 if the tokens are others.

    num_tokens, num_own: tokens with and without those that files of the tokenizer add
    """
    if family == "M2M-100":
        return num_own + tokenizer_settings.integer("num_madeup_words", MADE_UP_WORDS)
    return NLLB_ROWS if family == "NLLB" and 0 < NLLB_ROWS - num_tokens <= NLLB_MADE_UP_WORDS else 0


def _read_piece_ids(files: SourceFiles, document: Mapping[str, Any] | None, family: Family) -> tuple[dict[str, int], str]:
    """Return the ids of the pieces, and the file that states them."""
    if document is not None:
        return dict(read_vocabulary(document, files.folder / TOKENIZER_JSON)), TOKENIZER_JSON
    if family != "M2M-100":
        return _list_fairseq_ids(files), PIECES_MODEL
    ids = files.read_json_object(VOCABULARY)
    if not all(type(index) is int for index in ids.values()) or sorted(ids.values()) != list(range(len(ids))):
        raise damaged(files.folder / VOCABULARY, f"the ids of its {len(ids)} pieces are not 0, 1, 2, …")
    return ids, VOCABULARY


def _list_fairseq_ids(files: SourceFiles) -> dict[str, int]:
    """Return the ids of the pieces before the languages: fairseq's four special tokens, then those of SentencePiece."""
    try:
        pieces = [piece.text for piece in read_pieces(files.read_bytes(PIECES_MODEL))]
    except ValueError:
        raise damaged(files.folder / PIECES_MODEL, "is not a SentencePiece model") from None
    if pieces[:3] != SENTENCEPIECE_FIRST_PIECES:
        raise damaged(files.folder / PIECES_MODEL, f"its first pieces are {pieces[:3]}, not those of fairseq's models")
    return {piece: index for index, piece in enumerate([*FAIRSEQ_FIRST_PIECES, *pieces[3:]])}


def _list_unstated_languages(
    files: SourceFiles, ids: Mapping[str, int], tokenizer_settings: ModelSettings, family: Family
) -> list[str]:
    """Return the tokens behind the pieces that no file states: those of the family's languages, and fairseq's `<mask>`."""
    if family == "M2M-100":
        return [M2M100_TOKEN.format(language) for language in _get_m2m100_languages(tokenizer_settings)]
    stated = {*list_stated_texts(files), *ids}
    languages = FAIRSEQ_LANGUAGES[family]
    return [] if any(language in stated for language in languages) else [*languages, MASK]


def _list_languages(table: TokenTable, tokenizer_settings: ModelSettings, family: Family) -> tuple[str, ...]:
    """Return the languages by the ids of their tokens. A special token that looks like a word is a language."""
    if family == "M2M-100":
        before, after = M2M100_TOKEN.split("{}")
        tokens = [*_get_m2m100_languages(tokenizer_settings)]
        added = [token.text for token in table.added]
        new = [text[2:-2] for text in added if re.fullmatch(rf"{before}[A-Za-z][\w-]{{0,20}}{after}", text)]
        return tuple(dict.fromkeys([*tokens, *new]))
    stated = [tokenizer_settings.get("src_lang"), tokenizer_settings.get("tgt_lang")]
    added_texts = {
        token.text
        for token in table.added
        if token.text in stated or re.fullmatch(LANGUAGE_CODE, token.text) or (token.special and token.text.isidentifier())
    }
    return tuple(piece for piece in table.pieces if piece in added_texts or piece in FAIRSEQ_LANGUAGES[family])


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
        check_language(files.folder, side, language or "", languages)
    return defaults["source"] or "", defaults["target"] or ""


def _build_weights(
    files: SourceFiles, settings: ModelSettings, order: VocabularyOrder, family: Family
) -> dict[str, TensorStream]:
    """Return the weights of the bundle."""
    reader = WeightReader(files.open_tensors(), prefix="model.", family=family)
    weights = {"output": reader.read_vocabulary_matrix(reader.get(*EMBEDDING), order)}
    for stack in ("encoder", "decoder"):
        weights |= reader.read_layers(stack, settings.integer(f"{stack}_layers"))
        weights |= reader.read_norm(stack)
        if family != "mBART-50":
            for name in ("weights", "weight"):
                reader.skip_sinusoids(f"{stack}.embed_positions.{name}", settings.integer("pad_token_id") + 1)
    if family == "mBART-50":
        weights |= reader.read_bart_embeddings(order, weights["output"].dtype)
    reader.check_all_used()
    return weights
