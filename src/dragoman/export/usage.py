"""Python code of the card of an export: how text becomes the tokens of the model, and how its output becomes text.

The code needs the tokenizer's own library and the files of the export only. `dragoman.json` has what differs between models
(`text_tokens`): the tokens that stay whole, and those that are no text.
"""

from __future__ import annotations

import re
from typing import Any

from dragoman.bundle import Bundle
from dragoman.data.tokenization.added_tokens import AddedToken
from dragoman.data.tokenization.byte_pieces import BYTE_TOKENS, UNKNOWN_TEXT
from dragoman.data.tokenization.characters import CharacterScheme
from dragoman.data.tokenization.pair_tokenizer import (
    SOURCE_MODEL_FILE,
    SOURCE_TOKENS_FILE,
    TARGET_MODEL_FILE,
    TARGET_TOKENS_FILE,
)
from dragoman.data.tokenization.piece_vocabulary import PieceVocabulary
from dragoman.data.tokenization.special_tokens import SPECIAL_IDS, UNKNOWN_ID
from dragoman.data.tokenization.subword_nmt import SubwordNmtScheme
from dragoman.data.tokenization.token_list import TokenListTokenizer
from dragoman.data.tokenization.vocabulary import Vocabulary
from dragoman.data.tokenization.words import WordScheme

IMPORTS = {
    "ctranslate2": "import json, re\nfrom pathlib import Path\nimport ctranslate2, sentencepiece",
    "onnx": "import json, re\nfrom pathlib import Path\nimport numpy as np\nimport onnxruntime, sentencepiece",
}
START = """folder = Path("PATH")
info = json.loads((folder / "dragoman.json").read_text(encoding="utf-8"))
tokens = info["text_tokens"]
"""
SENTENCEPIECE_CODE = """
source = sentencepiece.SentencePieceProcessor(str(folder / "{source}"))
target = sentencepiece.SentencePieceProcessor(str(folder / "{target}"))


def encode(text):
    pieces = []
    for index, part in enumerate(re.split(tokens["pattern"], {text})):
        is_token = index % 2
        pieces += [tokens["whole"].get(part.strip(), part)] if is_token else source.encode(part, out_type=str){last}
    return pieces


def decode(pieces):
    texts = [tokens["texts"].get(piece, piece) for piece in pieces if piece not in tokens["silent"]]
    return target.decode_pieces(texts).replace("▁", " ").strip()
"""
LAST_SPACE = ' + ["▁"] * part[-1:].isspace()'
"""Code that adds the piece of a space at the end of a part, which SentencePiece drops."""
SUBWORD_CODE = """
codes = json.loads((folder / "{source}").read_text(encoding="utf-8"))
ranks = {{tuple(merge.split(" ")): rank for rank, merge in reversed(list(enumerate(codes["merges"] or [])))}}
END = "</w>"


def split_word(word):
    symbols = [*word[:-1], word[-1] + END] if not codes["end_is_separate"] else [*word, END]
    while len(word) > 1 and (pairs := [pair for pair in zip(symbols, symbols[1:]) if pair in ranks]):
        best, merged = min(pairs, key=ranks.get), []
        for symbol in symbols:
            if merged and (merged[-1], symbol) == best:
                merged[-1] = best[0] + best[1] + " "  # the space hides it from another merge in this round
            else:
                merged.append(symbol)
        symbols = [symbol.rstrip(" ") for symbol in merged]
    symbols = [symbol.removesuffix(END) for symbol in symbols if symbol != END]
    return [*(symbol + "@@" for symbol in symbols[:-1]), symbols[-1]]


def encode(text):
    words = re.findall("[^ ]+", {text})
    return words if codes["merges"] is None else [token for word in words for token in split_word(word)]


def decode(pieces):
    texts = [tokens["texts"].get(piece, piece) for piece in pieces if piece not in tokens["silent"]]
    return re.sub("@@( +|$)", "", " ".join(texts))
"""
WORD_CODE = """
def encode(text):
    return {text}.split()


def decode(pieces):
    return " ".join(tokens["texts"].get(piece, piece) for piece in pieces if piece not in tokens["silent"])
"""
CHARACTER_CODE = """
def encode(text):
    return list(re.sub("[ ▁]+", "▁", {text}).strip("▁"))


def decode(pieces):
    texts = [tokens["texts"].get(piece, piece) for piece in pieces if piece not in tokens["silent"]]
    return "".join(texts).replace("▁", " ")
"""

PATH_NOTE = "`PATH` is this folder."


def describe_token_files(bundle: Bundle) -> str:
    """Return the text of a card whose model has a tokenizer that no library reads."""
    kind = bundle.recipe.tokenizer.model_type
    return f"The files `*.tokens.json` hold the tokens of the text, which dragoman splits by the kind `{kind}`."


def has_usage(bundle: Bundle) -> bool:
    """Return whether the code of a card can split the text of a model.

    It can by SentencePiece and by codes of subwords, and by words and characters without normalization and bytes.
    """
    return all(map(_has_code, (bundle.tokenizer.source, bundle.tokenizer.target)))


def _has_code(vocabulary: Vocabulary) -> bool:
    if not isinstance(vocabulary, TokenListTokenizer) or isinstance(vocabulary.scheme, SubwordNmtScheme):
        return True
    is_plain = vocabulary.normalization == "identity" and BYTE_TOKENS[0] not in vocabulary.tokens
    return is_plain and isinstance(vocabulary.scheme, WordScheme | CharacterScheme)


def write_text_code(bundle: Bundle) -> str:
    """Return the code of the functions `encode`, from a text to pieces, and `decode`, from pieces to a text."""
    tokenizer = bundle.tokenizer
    text = f"({tokenizer.source_prefix!r} + text)" if tokenizer.source_prefix else "text"
    text += ".lower()" if bundle.recipe.tokenizer.lowercase else ""
    if isinstance(tokenizer.source, TokenListTokenizer):
        if isinstance(tokenizer.source.scheme, WordScheme):
            return START + WORD_CODE.format(text=text)
        if isinstance(tokenizer.source.scheme, CharacterScheme):
            return START + CHARACTER_CODE.format(text=text)
        target = SOURCE_TOKENS_FILE if tokenizer.is_joint else TARGET_TOKENS_FILE
        return START + SUBWORD_CODE.format(source=SOURCE_TOKENS_FILE, target=target, text=text)
    target = SOURCE_MODEL_FILE if tokenizer.is_joint else TARGET_MODEL_FILE
    keeps_space = isinstance(tokenizer.source, PieceVocabulary) and tokenizer.source.piece_list.rules == "tokenizers"
    return START + SENTENCEPIECE_CODE.format(
        source=SOURCE_MODEL_FILE, target=target, text=text, last=LAST_SPACE if keeps_space else ""
    )


def describe_text_tokens(bundle: Bundle) -> dict[str, Any]:
    """Return the entry `text_tokens` of `dragoman.json`.

    `pattern` finds the tokens that stay whole in a source, and `whole` has the piece of each. `silent` are the pieces of the
    target that are no text, and `texts` has the text of a piece that differs from its name.
    """
    source, target = bundle.tokenizer.source, bundle.tokenizer.target
    added = _list_added(source)
    patterns = [_build_pattern(token) for token in sorted(added, key=lambda token: -len(token.text))]
    names = list_tokens(source)
    whole = {token.text: names[token.id] for token in added}
    if isinstance(source, PieceVocabulary) and source.piece_list.rules == "marian":
        patterns.append("^(?s:>>.*?<<)")  # a code that the vocabulary does not have is unknown
    target_names = list_tokens(target)
    silent = {*SPECIAL_IDS, *(token.id for token in _list_added(target) if token.special)} - {UNKNOWN_ID}
    texts = {target_names[token.id]: token.text for token in _list_added(target) if token.id not in SPECIAL_IDS}
    if isinstance(target, TokenListTokenizer):
        silent |= set(target.reserved_ids)
        texts[target_names[UNKNOWN_ID]] = UNKNOWN_TEXT
    return {
        "pattern": f"({'|'.join(patterns) or '(?!)'})",
        "whole": whole,
        "silent": [target_names[index] for index in sorted(silent)],
        "texts": {piece: text for piece, text in texts.items() if piece != text},
    }


def list_tokens(vocabulary: Vocabulary) -> list[str]:
    """Return the tokens that the caller of an engine gives: pieces of SentencePiece, or tokens such as `foo@@`."""
    if isinstance(vocabulary, TokenListTokenizer):
        return list(vocabulary.tokens)
    return vocabulary.ids_to_pieces(range(len(vocabulary)))


def _list_added(vocabulary: Vocabulary) -> tuple[AddedToken, ...]:
    return vocabulary.piece_list.added if isinstance(vocabulary, PieceVocabulary) else ()


def _build_pattern(token: AddedToken) -> str:
    pattern = re.escape(token.text)
    if token.single_word:
        pattern = rf"(?<!\S){pattern}(?!\S)"
    return (r"\s*" if token.lstrip else "") + pattern + (r"\s*" if token.rstrip else "")
