"""Language tokens of a model of many languages: one before each source, and possibly one before each output."""

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

    pattern: pattern of a token, with {} for the language
    placement: `source`: each source begins with the token of the target language. `both`: it begins with that of the source
        language, and the decoder reads that of the target language before its output
    source_language, target_language: codes of the chosen languages; empty if none is chosen
    codes: codes of all languages; empty if they are not known, so that every piece of the pattern is a language
    pairs: pairs of languages that the model was trained on; empty if they are not known, so that it serves all
    text_may_choose: whether a token at the start of a text chooses the target language, as in OPUS-MT
    """

    pattern: str
    placement: Literal["source", "both"]
    source_language: str = ""
    target_language: str = ""
    codes: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    text_may_choose: bool = True

    def select(
        self, pieces: PieceTable, source_language: str | None, target_language: str | None, *, zero_shot: bool = False
    ) -> LanguageTokens:
        """Return the tokens of other languages; None or an empty code keeps the present one, or the only one that fits.

        zero_shot: whether a pair that the model was not trained on is accepted

        Raises RecipeError: the vocabulary has no token for a language, or the model does not serve the pair.
        """
        languages = {"source_language": source_language, "target_language": target_language}
        for key, language in languages.items():
            is_used = key == "target_language" or self.placement == "both"
            if language and is_used and not self._has_token(pieces, language):
                raise RecipeError(
                    f"decoding.{key} = {language[:40]!r}: is not a language of the model; its languages are "
                    f"{self._list(pieces, language)}",
                    code="invalid-option",
                )
        chosen = source_language or self.source_language, target_language or self.target_language
        if self.pairs and chosen not in self.pairs and not (zero_shot and all(chosen)):
            chosen = self._find_pair(source_language or "", target_language or "")
        return replace(self, source_language=chosen[0], target_language=chosen[1])

    def _find_pair(self, source_language: str, target_language: str) -> tuple[str, str]:
        """Return the pair with these languages; an empty code fits all. An open source language stays empty if none is read.

        Raises RecipeError: no pair fits, or several do.
        """
        fitting = [pair for pair in self.pairs if source_language in ("", pair[0]) and target_language in ("", pair[1])]
        targets = {target for _, target in fitting}
        if len(fitting) == 1:
            return fitting[0]
        if len(targets) == 1 and self.placement == "source":
            return source_language, target_language or targets.pop()
        if fitting:
            key = "source_language" if len(targets) == 1 else "target_language"
            problem = f"decoding.{key}: is needed, because several pairs fit; give one of the pairs"
        else:
            problem = (
                f"decoding.target_language: the model was not trained on {source_language or '?'} → {target_language or '?'}; "
                "pivot (--via), set zero_shot = true to try it, or give one of the pairs"
            )
        raise RecipeError(f"{problem} {format_pairs(fitting or self.pairs)}", code="unsupported-pair")

    def split_source(self, pieces: PieceTable, text: str) -> tuple[str, str]:
        """Return the language token before a source and the text after it.

        A token at the start of the text wins over the chosen language, if the pattern has marks on both sides of the language.

        Raises DataError: no language of the model is chosen, and the text names none.
        """
        if self.placement == "source" and (token := self.find_token(pieces, text)):
            return token, text[len(token) :]
        missing = [
            key
            for key, language in (("source_language", self.source_language), ("target_language", self.target_language))
            if (key == "target_language" or self.placement == "both") and not self._has_token(pieces, language)
        ]
        if missing and self.pairs:
            raise DataError(
                f"decoding.{missing[0]}: is needed, as in --to de or target_language = 'de'; give one of the pairs "
                f"{format_pairs(self.pairs)}",
                code="unsupported-language",
            )
        if missing:
            raise DataError(
                f"decoding.{missing[0]}: is not one of the model's languages; give one of {self._list(pieces)}",
                code="unsupported-language",
            )
        return self.pattern.format(self.target_language if self.placement == "source" else self.source_language), text

    def find_token(self, pieces: PieceTable, text: str) -> str:
        """Return the language token at the start of a text, or an empty text."""
        before, after = self.pattern.split("{}")
        if not self.text_may_choose or not before or not after:  # without marks, a language token may be a word
            return ""
        match = re.match(rf"{re.escape(before)}\S{{1,40}}?{re.escape(after)}", text)
        return match[0] if match is not None and pieces.piece_to_id(match[0]) is not None else ""

    def get_source_token(self, pieces: PieceTable) -> str | None:
        """Return the token that the encoder reads before each source; None if no language is chosen."""
        token = self.pattern.format(self.target_language if self.placement == "source" else self.source_language)
        return None if pieces.piece_to_id(token) is None else token

    def get_decoder_prompt(self, pieces: PieceTable) -> tuple[int, ...]:
        """Return the ids that the decoder reads before its output, after its start token."""
        token = pieces.piece_to_id(self.pattern.format(self.target_language))
        return () if self.placement == "source" or token is None else (token,)

    def _has_token(self, pieces: PieceTable, language: str) -> bool:
        is_known = not self.codes or language in self.codes
        return is_known and bool(language) and pieces.piece_to_id(self.pattern.format(language)) is not None

    def _list(self, pieces: PieceTable, language: str = "") -> str:
        """Return the languages for a message, those with the first two letters of `language` before all others."""
        languages = list(self.codes) or list_languages(self.pattern, pieces)
        if not languages:
            return "those of its model card"
        languages.sort(key=lambda code: code[:2] != language[:2].lower())
        ending = ", …" if len(languages) > MAX_LISTED_LANGUAGES else ""
        return ", ".join(languages[:MAX_LISTED_LANGUAGES]) + ending


def format_pairs(pairs: Sequence[tuple[str, str]]) -> str:
    ending = ", …" if len(pairs) > MAX_LISTED_LANGUAGES else ""
    return ", ".join(f"{source or '?'} → {target or '?'}" for source, target in pairs[:MAX_LISTED_LANGUAGES]) + ending


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
