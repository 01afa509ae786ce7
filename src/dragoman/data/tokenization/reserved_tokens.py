"""Reserved tokens of a new vocabulary: one id each for placeholders and language tags, which no text is ever encoded to.

Their ids follow those of the special tokens. The free ones come first, the language tokens of the recipe last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self, TypeVar

from dragoman.config import TokenizerConfig
from dragoman.errors import RecipeError
from dragoman.text.term_annotation import PLACEHOLDER_MARKS, TERM_MARKS

TokenizerT = TypeVar("TokenizerT", bound="ReservingTokenizer")
FREE_TOKEN = "<reserved {}>"
"""Pattern of a free reserved token. No piece of a text has its name, because pieces hold no spaces."""
MARKS = {FREE_TOKEN.format(number): mark for number, mark in enumerate((*PLACEHOLDER_MARKS, *TERM_MARKS))}
"""Free reserved tokens that have a mark in text: those of placeholders, then those of terms."""


class ReservingTokenizer(Protocol):
    """Tokenizer that can get reserved tokens."""

    def piece_to_id(self, piece: str) -> int | None: ...
    def reserve(self, tokens: Sequence[str]) -> Self: ...


def add_language_tokens(tokenizer: TokenizerT, config: TokenizerConfig, languages: Sequence[str]) -> TokenizerT:
    """Return an imported tokenizer with tokens of those languages that it has no token for."""
    tokens = [config.format_language_token(language) for language in languages]
    missing = [token for token in tokens if tokenizer.piece_to_id(token) is None]
    return tokenizer.reserve(missing) if missing else tokenizer


def add_reserved_tokens(tokenizer: TokenizerT, config: TokenizerConfig, languages: Sequence[str]) -> TokenizerT:
    """Return a new tokenizer with its reserved tokens.

    Raises RecipeError: there are more languages than reserved tokens, or a piece of the text has the name of a language token.
    """
    tokens = list_reserved_tokens(config, languages)
    try:
        return tokenizer.reserve(tokens) if tokens else tokenizer
    except ValueError as error:
        raise RecipeError(
            f"tokenizer.language_token = {config.language_token!r}: the vocabulary cannot hold these tokens, because {error}; "
            "change the pattern",
            code="tokenizer-mismatch",
        ) from None


def list_reserved_tokens(config: TokenizerConfig, languages: Sequence[str]) -> list[str]:
    """Return the reserved tokens of a new vocabulary by id: the free ones, then those of the languages.

    Raises RecipeError: there are more languages than reserved tokens.
    """
    tokens = [config.format_language_token(language) for language in languages]
    if len(tokens) > config.reserved_tokens:
        raise RecipeError(
            f"tokenizer.reserved_tokens = {config.reserved_tokens}: has no room for {len(tokens)} language tokens; raise it",
            code="tokenizer-mismatch",
        )
    return [FREE_TOKEN.format(number) for number in range(config.reserved_tokens - len(tokens))] + tokens
