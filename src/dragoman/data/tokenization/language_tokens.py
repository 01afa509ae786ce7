"""Language tokens of a converted model of many languages: one before each source, and possibly one before each output."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from dragoman.errors import DataError, RecipeError

MAX_LISTED_LANGUAGES = 20
"""Languages that an error message lists."""


class PieceTable(Protocol):
    """Part of `Vocabulary` that finds language tokens."""

    def __len__(self) -> int: ...
    def piece_to_id(self, piece: str) -> int | None: ...
    def ids_to_pieces(self, ids: Sequence[int]) -> list[str]: ...


@dataclass(frozen=True)
class LanguageTokens:
    """Languages of a model of many languages, and the tokens that stand for them.

    Attributes:
        pattern: pattern of a token, with {} for the language
        placement: `source`: each source begins with the token of the target language. `both`: it begins with that of the source
            language, and the decoder reads that of the target language before its output
        source_language, target_language: codes of the chosen languages; empty if none is chosen
    """

    pattern: str
    placement: Literal["source", "both"]
    source_language: str = ""
    target_language: str = ""

    def select(self, pieces: PieceTable, source_language: str | None, target_language: str | None) -> LanguageTokens:
        """Return the tokens of other languages; None or an empty code keeps the present one.

        Raises:
            RecipeError: the vocabulary has no token for a language.
        """
        languages = {"source_language": source_language, "target_language": target_language}
        for key, language in languages.items():
            is_used = key == "target_language" or self.placement == "both"
            if language and is_used and not self._has_token(pieces, language):
                raise RecipeError(
                    f"decoding.{key} = {language!r}: the model has no token {self.pattern.format(language)}; its languages are "
                    f"{self._list(pieces)}",
                    code="invalid-option",
                )
        return replace(
            self,
            source_language=source_language or self.source_language,
            target_language=target_language or self.target_language,
        )

    def split_source(self, pieces: PieceTable, text: str) -> tuple[str, str]:
        """Return the language token before a source and the text after it.

        A token at the start of the text wins over the chosen language, if the pattern has marks on both sides of the language.

        Raises:
            DataError: no language of the model is chosen, and the text names none.
        """
        if self.placement == "source" and (token := self.find_token(pieces, text)):
            return token, text[len(token) :]
        missing = [
            key
            for key, language in (("source_language", self.source_language), ("target_language", self.target_language))
            if (key == "target_language" or self.placement == "both") and not self._has_token(pieces, language)
        ]
        if missing:
            raise DataError(
                f"decoding.{missing[0]}: is not one of the model's languages; give one of {self._list(pieces)}",
                code="unsupported-language",
            )
        return self.pattern.format(self.target_language if self.placement == "source" else self.source_language), text

    def find_token(self, pieces: PieceTable, text: str) -> str:
        """Return the language token at the start of a text, or an empty text."""
        before, after = self.pattern.split("{}")
        if not before or not after:  # without marks, a language token may be a word
            return ""
        match = re.match(rf"{re.escape(before)}\S{{1,40}}?{re.escape(after)}", text)
        return match[0] if match is not None and pieces.piece_to_id(match[0]) is not None else ""

    def get_decoder_prompt(self, pieces: PieceTable) -> tuple[int, ...]:
        """Return the ids that the decoder reads before its output, after its start token."""
        token = pieces.piece_to_id(self.pattern.format(self.target_language))
        return () if self.placement == "source" or token is None else (token,)

    def _has_token(self, pieces: PieceTable, language: str) -> bool:
        return bool(language) and pieces.piece_to_id(self.pattern.format(language)) is not None

    def _list(self, pieces: PieceTable) -> str:
        languages = list_languages(self.pattern, pieces)
        ending = ", …" if len(languages) > MAX_LISTED_LANGUAGES else ""
        return ", ".join(languages[:MAX_LISTED_LANGUAGES]) + ending if languages else "those of its model card"


def list_languages(pattern: str, pieces: PieceTable) -> list[str]:
    """Return the languages whose tokens a vocabulary has; none if the pattern has no marks, so that any piece fits it."""
    before, after = pattern.split("{}")
    if not before and not after:
        return []
    return [
        piece[len(before) : len(piece) - len(after)]
        for piece in pieces.ids_to_pieces(range(len(pieces)))
        if len(piece) > len(before) + len(after) and piece.startswith(before) and piece.endswith(after)
    ]
