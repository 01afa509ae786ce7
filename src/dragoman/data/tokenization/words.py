"""Word level: each word between spaces is a token, as in fairseq and JoeyNMT without subwords."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from dragoman.data.tokenization.special_tokens import METASPACE, SPECIAL_PIECES, UNKNOWN_ID


class WordScheme:
    """Scheme of word level. Any run of white space separates words, and the decoded text has single spaces."""

    kind: ClassVar[str] = "word"
    has_word_tokens: ClassVar[bool] = True
    unknown_piece: ClassVar[str] = METASPACE + SPECIAL_PIECES[UNKNOWN_ID]

    def split(self, text: str) -> list[str]:
        return text.split()

    def join(self, tokens: Sequence[str]) -> str:
        return " ".join(tokens)

    def to_piece(self, token: str) -> str:
        return METASPACE + token
