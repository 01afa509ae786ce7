"""Character level: each character of the text is a token."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from dragoman.data.tokenization.byte_pieces import join_bytes
from dragoman.data.tokenization.special_tokens import METASPACE, SPECIAL_PIECES, UNKNOWN_ID


class CharacterScheme:
    """Scheme of character level. A run of spaces is one token ▁; spaces at the ends are removed, as in SentencePiece."""

    kind: ClassVar[str] = "char"
    has_word_tokens: ClassVar[bool] = False
    unknown_piece: ClassVar[str] = SPECIAL_PIECES[UNKNOWN_ID]

    def split(self, text: str) -> list[str]:
        return list(re.sub(f"[ {METASPACE}]+", METASPACE, text).strip(METASPACE))

    def join(self, tokens: Sequence[str]) -> str:
        """Return the text of characters and byte tokens."""
        return join_bytes(tokens).replace(METASPACE, " ")

    def to_piece(self, token: str) -> str:
        return token
