"""Tokenizer over a list of tokens: words, characters, bytes, or the subwords of byte-level BPE, subword-nmt and fastBPE.

A scheme splits a text into tokens and joins tokens to a text; it has one file for each kind. The list numbers the tokens.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from dragoman.config import Normalization, TokenizerConfig
from dragoman.data.tokenization.added_tokens import AddedToken, AddedTokenSplitter, read_added_tokens
from dragoman.data.tokenization.byte_level_bpe import ByteLevelBpeScheme
from dragoman.data.tokenization.byte_pieces import BYTE_TOKENS, UNKNOWN_TEXT, ByteScheme
from dragoman.data.tokenization.characters import CharacterScheme
from dragoman.data.tokenization.normalization import normalize
from dragoman.data.tokenization.sentencepiece import encode_utf8
from dragoman.data.tokenization.special_tokens import METASPACE, SPECIAL_IDS, SPECIAL_PIECES, UNKNOWN_ID
from dragoman.data.tokenization.subword_nmt import SubwordNmtScheme, read_codes
from dragoman.data.tokenization.vocabulary import NotifyFn
from dragoman.data.tokenization.vocabulary_file import read_vocabulary_file
from dragoman.data.tokenization.words import WordScheme
from dragoman.errors import BundleError, DataError, RecipeError

Side = Literal["source", "target"]


class TokenScheme(Protocol):
    """Way to split text into tokens and to join them.

    kind: name of the scheme in recipes
    has_word_tokens: whether a token may have several characters
    unknown_piece: piece of the unknown token
    """

    @property
    def kind(self) -> str: ...

    @property
    def has_word_tokens(self) -> bool: ...
    @property
    def unknown_piece(self) -> str: ...
    def split(self, text: str) -> list[str]: ...
    def join(self, tokens: Sequence[str]) -> str: ...
    def to_piece(self, token: str) -> str: ...


class TokenListTokenizer:
    """Tokenizer over a list of tokens; `SentencePieceTokenizer` documents the methods.

    A token that is not in the list becomes its bytes if the list holds all byte tokens, else `<unk>`.

    scheme: splits and joins
    tokens: the tokens by id, behind the reserved ones; the first four ids are padding, unknown, begin and end
    reserved: the tokens from id 4 on that no text is encoded to
    normalization: Unicode normalization before the text is split
    lowercase: lowercase the text before that
    added: tokens that are found before the scheme splits the rest, by the rules of the library tokenizers
    name: the file that error messages name

    Raises BundleError: a token occurs twice.
    """

    def __init__(
        self,
        scheme: TokenScheme,
        tokens: Sequence[str],
        *,
        reserved: Sequence[str] = (),
        normalization: Normalization = "identity",
        lowercase: bool = False,
        added: Sequence[AddedToken] = (),
        name: str = "tokenizer",
    ) -> None:
        self.scheme = scheme
        self.added = tuple(added)
        self.tokens = (*SPECIAL_PIECES, *reserved, *tokens)
        self.reserved_ids = tuple(range(len(SPECIAL_IDS), len(SPECIAL_IDS) + len(reserved)))
        self.normalization = normalization
        self.lowercase = lowercase
        first_id = len(SPECIAL_IDS) + len(reserved)
        self._ids = {token: index for index, token in enumerate(tokens, start=first_id)}
        if len(self._ids) < len(tokens):
            raise BundleError(f"{name}: a token occurs twice; copy the file again", code="tokenizer-damaged")
        if any(not 0 <= token.id < len(self.tokens) for token in self.added):
            raise BundleError(f"{name}: an added token has no id of the list; copy the file again", code="tokenizer-damaged")
        self._byte_ids = [self._ids[token] for token in BYTE_TOKENS] if self._has_byte_tokens(scheme) else None

    def _has_byte_tokens(self, scheme: TokenScheme) -> bool:
        return isinstance(scheme, ByteScheme | CharacterScheme) and all(token in self._ids for token in BYTE_TOKENS)

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str) -> list[int]:
        if not self.added:
            return self._encode_part(text)
        encode_utf8(text, lowercase=False)
        ids: list[int] = []
        for part in self._splitter.split(text):
            ids += [part.id] if isinstance(part, AddedToken) else self._encode_part(part)
        return ids

    @cached_property
    def _splitter(self) -> AddedTokenSplitter:
        return AddedTokenSplitter(self.added, "tokenizers-spaces", lambda text: normalize(text, self.normalization))

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the splitter, which another process builds itself."""
        return {name: value for name, value in self.__dict__.items() if name != "_splitter"}

    def _encode_part(self, text: str) -> list[int]:
        """Return the ids of a text between two added tokens."""
        ids: list[int] = []
        for token in self._split(text):
            if (token_id := self._ids.get(token)) is not None:
                ids.append(token_id)
            elif self._byte_ids is not None:
                ids += [self._byte_ids[byte] for byte in token.encode()]
            else:
                ids.append(UNKNOWN_ID)
        return ids

    def encode_continuation(self, text: str) -> list[int]:
        """Return `encode(text)`, because no token marks the space before it except a word, which has one always."""
        return self.encode(text)

    def _split(self, text: str) -> list[str]:
        return self.scheme.split(normalize(encode_utf8(text, lowercase=self.lowercase).decode(), self.normalization))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def sample_encode(self, text: str, *, alpha: float, seed: int) -> list[int]:
        """Return `encode(text)` for `alpha` = 0. Raise ValueError for any other value."""
        if alpha:
            raise ValueError(f"sampling needs a BPE or unigram model, and this one is of the type {self.scheme.kind}")
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        texts: list[str] = []
        parts = groupby((index for index in ids if index not in self._silent_ids), key=self._added_texts.get)
        for added_text, group in parts:
            if added_text is not None:
                texts += [added_text for _ in group]
            else:
                texts.append(self.scheme.join([UNKNOWN_TEXT if index == UNKNOWN_ID else self.tokens[index] for index in group]))
        return re.sub(r"[\r\n]", " ", "".join(texts))

    @cached_property
    def _silent_ids(self) -> set[int]:
        """Ids that decode to no text. The unknown token is none of them."""
        return {*SPECIAL_IDS, *self.reserved_ids, *(token.id for token in self.added if token.special)} - {UNKNOWN_ID}

    @cached_property
    def _added_texts(self) -> dict[int, str]:
        return {token.id: token.text for token in self.added if token.id not in SPECIAL_IDS}

    def piece_to_id(self, piece: str) -> int | None:
        return UNKNOWN_ID if piece == SPECIAL_PIECES[UNKNOWN_ID] else self._ids_by_piece.get(piece)

    @cached_property
    def _ids_by_piece(self) -> dict[str, int]:
        return {piece: index for index, piece in enumerate(self._pieces) if index == UNKNOWN_ID or index not in SPECIAL_IDS}

    @cached_property
    def _pieces(self) -> list[str]:
        special_pieces = list(SPECIAL_PIECES)
        special_pieces[UNKNOWN_ID] = self.scheme.unknown_piece
        pieces = special_pieces + self._reserved_tokens + [self.scheme.to_piece(token) for token in self._text_tokens]
        return [self._added_texts.get(index, piece) for index, piece in enumerate(pieces)]

    @property
    def _reserved_tokens(self) -> list[str]:
        return [self.tokens[index] for index in self.reserved_ids]

    @property
    def _text_tokens(self) -> tuple[str, ...]:
        return self.tokens[len(SPECIAL_IDS) + len(self.reserved_ids) :]

    def reserve(self, tokens: Sequence[str]) -> TokenListTokenizer:
        if known := next((token for token in tokens if self.piece_to_id(token) is not None), None):
            raise ValueError(f"it has a piece {known} already")
        return self._copy([*tokens, *self._reserved_tokens], self.normalization)

    def with_normalization(self, normalization: Normalization) -> TokenListTokenizer:
        return self._copy(self._reserved_tokens, normalization)

    def _copy(self, reserved: Sequence[str], normalization: Normalization) -> TokenListTokenizer:
        num_new = len(reserved) - len(self.reserved_ids)
        added = [token if token.id in SPECIAL_IDS else replace(token, id=token.id + num_new) for token in self.added]
        options: dict[str, Any] = {"normalization": normalization, "lowercase": self.lowercase, "added": added}
        return TokenListTokenizer(self.scheme, self._text_tokens, reserved=reserved, **options)

    def ids_to_pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._pieces[index] for index in ids]

    @cached_property
    def word_start_mask(self) -> npt.NDArray[np.bool_]:
        return np.array([piece.startswith(METASPACE) for piece in self._pieces])

    @cached_property
    def serialized_model(self) -> bytes:
        """Bytes of the tokenizer's file: JSON, from which `read_token_list` returns the same tokenizer."""
        document: dict[str, Any] = {
            "kind": self.scheme.kind,
            "normalization": self.normalization,
            "tokens": self._text_tokens,
            "reserved": self._reserved_tokens,
        }
        if isinstance(self.scheme, SubwordNmtScheme):
            document["end_is_separate"] = self.scheme.end_is_separate
        if isinstance(self.scheme, SubwordNmtScheme | ByteLevelBpeScheme):
            document["merges"] = None if self.scheme.merges is None else [" ".join(merge) for merge in self.scheme.merges]
        if self.added:
            document["added_tokens"] = [token.to_dict() for token in self.added]
        return (json.dumps(document, indent=0, ensure_ascii=False) + "\n").encode()


def read_token_list(serialized_model: bytes, *, lowercase: bool, name: str) -> TokenListTokenizer:
    """Return the tokenizer of a file. Raise BundleError if it holds none."""
    try:
        document = json.loads(serialized_model)
        kind, normalization = document["kind"], document["normalization"]
        tokens, reserved = document["tokens"], document["reserved"]
        if normalization not in get_args(Normalization) or not _are_texts(tokens) or not _are_texts(reserved):
            raise ValueError
        "".join([*tokens, *reserved]).encode()  # raises an error for half of a surrogate pair
        scheme = _build_scheme(kind, document)
        added = read_added_tokens(document.get("added_tokens", []))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BundleError(
            f"{name}: is not a list of tokens, or is damaged; copy the file again", code="tokenizer-damaged"
        ) from None
    options: dict[str, Any] = {"normalization": normalization, "lowercase": lowercase, "added": added}
    return TokenListTokenizer(scheme, tokens, reserved=reserved, name=name, **options)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _build_scheme(kind: str, document: dict[str, Any]) -> TokenScheme:
    match kind:
        case "word" | "char" | "byte":
            return _PLAIN_SCHEMES[kind]()
        case "subword-nmt":
            lines, end_is_separate = document["merges"], document["end_is_separate"]
            if not isinstance(end_is_separate, bool) or not (lines is None or _are_texts(lines)):
                raise ValueError
            return SubwordNmtScheme(None if lines is None else _parse_merges(lines), end_is_separate=end_is_separate)
        case "byte-level-bpe":
            if not _are_texts(document["merges"]):
                raise ValueError
            return ByteLevelBpeScheme(_parse_merges(document["merges"]))
    raise ValueError


def _parse_merges(lines: Sequence[str]) -> list[tuple[str, str]]:
    return [(left, right) for left, right in (line.split(" ") for line in lines)]


def build_token_list(
    texts: Iterable[str],
    config: TokenizerConfig,
    *,
    side: Side,
    normalization: Normalization,
    root: Path,
    vocab_size: int,
    notify: NotifyFn = lambda _: None,
) -> TokenListTokenizer:
    """Return the tokenizer of one side, or of both: with the tokens of the recipe's vocabulary file, or those of the text.

    texts: lines of text, which are read only if no file gives the tokens
    side: the side whose files the recipe names; the source also for a joint tokenizer
    normalization: Unicode normalization of the tokenizer
    root: the folder that the files of the recipe are relative to
    vocab_size: most tokens, the special tokens and those of bytes included; the rarest are left out
    notify: receives the number of tokens

    Raises DataError: a file cannot be used, or there is no text.
    """
    scheme = _choose_scheme(config, side, root)
    options: dict[str, Any] = {"normalization": normalization, "lowercase": config.lowercase}
    byte_tokens = list(BYTE_TOKENS) if config.byte_fallback else []
    if isinstance(scheme, ByteScheme):
        return TokenListTokenizer(scheme, BYTE_TOKENS, **options)
    key = "vocab_file" if side == "source" else "target_vocab_file"
    if (vocab_file := getattr(config, key)) is not None:
        tokens = read_vocabulary_file(root / vocab_file, key)
        return TokenListTokenizer(scheme, tokens + [token for token in byte_tokens if token not in tokens], **options)
    splitter = TokenListTokenizer(scheme, [], **options)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(splitter._split(text))
    for token in SPECIAL_PIECES:  # in text, they are ordinary words, which no vocabulary can hold
        del counts[token]
    if not counts:
        raise DataError("training corpus: is empty, no line holds text; check data.train", code="empty-data")
    tokens = _select_tokens(counts, max(vocab_size - len(SPECIAL_IDS) - len(byte_tokens), 1), config.character_coverage)
    coverage = sum(counts[token] for token in tokens) / counts.total()
    notify(
        f"the {side} vocabulary has {len(tokens):,} of the text's {len(counts):,} {_NOUNS[scheme.kind]}, "
        f"which cover {100 * coverage:.2f} % of it"
    )
    return TokenListTokenizer(scheme, tokens + byte_tokens, **options)


_PLAIN_SCHEMES: dict[str, Callable[[], TokenScheme]] = {"word": WordScheme, "char": CharacterScheme, "byte": ByteScheme}
_NOUNS = {"word": "words", "char": "characters", "subword-nmt": "subwords"}


def _choose_scheme(config: TokenizerConfig, side: Side, root: Path) -> TokenScheme:
    match config.model_type:
        case "word" | "char" | "byte" as kind:
            return _PLAIN_SCHEMES[kind]()
        case "byte-level-bpe":
            raise RecipeError(
                "tokenizer.model_type = 'byte-level-bpe': is for bundles that are converted; train from one by "
                "training.init_from, or set bpe",
                code="invalid-option",
            )
        case _:
            key = "target_codes_file" if side == "target" and config.target_codes_file is not None else "codes_file"
            codes_file = getattr(config, key)
            return SubwordNmtScheme(None) if codes_file is None else read_codes(root / codes_file, key)


def _select_tokens(counts: Counter[str], limit: int, coverage: float) -> list[str]:
    """Return at most `limit` tokens, the most frequent first, until they cover this share of the text."""
    tokens: list[str] = []
    covered, needed = 0, coverage * counts.total()
    for token in sorted(counts, key=lambda token: (-counts[token], token)):
        if len(tokens) == limit or covered >= needed:
            break
        tokens.append(token)
        covered += counts[token]
    return tokens
