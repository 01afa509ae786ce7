"""Byte level: each byte of the text in UTF-8 is a token (Xue et al. 2022, ByT5)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from dragoman.data.tokenization.special_tokens import METASPACE, SPECIAL_PIECES, UNKNOWN_ID

BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
"""Tokens of all bytes, with SentencePiece's names."""
UNKNOWN_TEXT = "⁇"
"""Text of the unknown token, as SentencePiece writes it."""
_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")


class ByteScheme:
    """Scheme of byte level, which loses nothing: joining the tokens of a text gives the text."""

    kind: ClassVar[str] = "byte"
    has_word_tokens: ClassVar[bool] = False
    unknown_piece: ClassVar[str] = SPECIAL_PIECES[UNKNOWN_ID]

    def split(self, text: str) -> list[str]:
        return [BYTE_TOKENS[byte] for byte in text.encode()]

    def join(self, tokens: Sequence[str]) -> str:
        """Return the text of bytes; U+FFFD for bytes that are not UTF-8."""
        return join_bytes(tokens)

    def to_piece(self, token: str) -> str:
        """Return ▁ for the space, the character of another printable ASCII byte, and the token of any other byte."""
        match = _BYTE_TOKEN.fullmatch(token)
        character = chr(int(match[1], 16)) if match is not None else ""
        if character == " ":
            return METASPACE
        return character if character.isascii() and character.isprintable() and character else token


def join_bytes(tokens: Sequence[str]) -> str:
    """Return the text of tokens, some of which stand for bytes; U+FFFD for bytes that are not UTF-8."""
    if not any(token.startswith("<0x") for token in tokens):
        return "".join(tokens)
    encoded = (
        bytes([int(match[1], 16)]) if (match := _BYTE_TOKEN.fullmatch(token)) is not None else token.encode()
        for token in tokens
    )
    return b"".join(encoded).decode(errors="replace")
