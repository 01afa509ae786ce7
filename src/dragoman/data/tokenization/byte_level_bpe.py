"""Byte-level BPE of GPT-2, RoBERTa and BART: merges of bytes inside of words, which begin with their space.

A token is written in an alphabet with one printable character for each byte, as in `vocab.json`: the space is Ġ.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

from dragoman.data.tokenization.byte_pieces import BYTE_TOKENS
from dragoman.data.tokenization.special_tokens import METASPACE, SPECIAL_PIECES, UNKNOWN_ID
from dragoman.data.tokenization.subword_nmt import Merge, apply_merges
from dragoman.data.tokenization.subword_sampling import MAX_CACHED_WORD_LENGTH


def _build_alphabet() -> tuple[str, ...]:
    """Return the character of each byte: that of Latin-1 if it is printable and no space, else the next one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


BYTE_ALPHABET = _build_alphabet()
_BYTES = {character: byte for byte, character in enumerate(BYTE_ALPHABET)}
_FROM_LATIN_1 = dict(enumerate(BYTE_ALPHABET))
# Classes of characters: letters (those of the endings as they are, all others L), numbers N, spaces, and other spaces W; all
# others are O, except for the apostrophe.
_ENDING_LETTERS = "strevmld"
_WORD = re.compile(rf"'(?:s|t|re|ve|m|ll|d)| ?[L{_ENDING_LETTERS}]+| ?N+| ?['O]+|[ W]+(?=[ W]|$)|[ W]")


class _CharacterClasses(dict[int, str]):
    """Table for `str.translate` from a character to its class, filled when a character first occurs."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)[0]
        if character in f"{_ENDING_LETTERS}' ":
            name = character
        elif category in "LN":
            name = category
        else:
            name = "W" if category == "Z" or character in "\t\n\v\f\r\x85" else "O"
        self[code] = name
        return name


_CLASSES = _CharacterClasses()


class ByteLevelBpeScheme:
    """Scheme of byte-level BPE, which loses nothing: joining the tokens of a text gives the text.

    merges: pairs of tokens, the first merge first
    """

    kind: ClassVar[str] = "byte-level-bpe"
    unknown_piece: ClassVar[str] = SPECIAL_PIECES[UNKNOWN_ID]
    has_word_tokens: ClassVar[bool] = False

    def __init__(self, merges: Sequence[Merge]) -> None:
        self.merges = tuple(merges)
        self._ranks: dict[Merge, int] = {}
        for rank, merge in enumerate(self.merges):
            self._ranks.setdefault(merge, rank)
        self._cached_split = lru_cache(maxsize=2**16)(self._split_word)

    def __reduce__(self) -> tuple[object, ...]:
        """Return the arguments of a copy, because a cache cannot be sent to another process."""
        return ByteLevelBpeScheme, (self.merges,)

    def split(self, text: str) -> list[str]:
        """Return the tokens of the words, by the pattern of GPT-2: endings such as 's, letters, numbers, others, and spaces."""
        tokens: list[str] = []
        for match in _WORD.finditer(text.translate(_CLASSES)):
            word = text[match.start() : match.end()]
            tokens += (self._cached_split if len(word) <= MAX_CACHED_WORD_LENGTH else self._split_word)(word)
        return tokens

    def _split_word(self, word: str) -> list[str]:
        return apply_merges(list(word.encode().decode("latin-1").translate(_FROM_LATIN_1)), self._ranks, waits=False)

    def join(self, tokens: Sequence[str]) -> str:
        """Return the text of bytes; U+FFFD for bytes that are not UTF-8."""
        return b"".join(map(_to_bytes, tokens)).decode(errors="replace")

    def to_piece(self, token: str) -> str:
        """Return the text of a token with ▁ for a space, or the names of bytes that are no text."""
        data = _to_bytes(token)
        try:
            return data.decode().replace(" ", METASPACE)
        except UnicodeDecodeError:
            return "".join(BYTE_TOKENS[byte] if byte != ord(" ") else METASPACE for byte in data)


def _to_bytes(token: str) -> bytes:
    """Return the bytes of a token, or the UTF-8 of a text that is none, such as that of the unknown token."""
    return bytes(_BYTES[character] for character in token) if all(map(_BYTES.__contains__, token)) else token.encode()
