"""Characters of a text that a tokenizer cannot write: it replaces them by others, or has no piece for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dragoman.data.tokenization.normalization import normalize
from dragoman.data.tokenization.token_list import TokenListTokenizer
from dragoman.data.tokenization.vocabulary import Vocabulary

_WHITE_SPACE = frozenset(" \t\n\v\f\r")
"""White space that no tokenizer keeps as it is; a line has single spaces."""


class WrittenCharacters:
    """Test of single characters, each once."""

    def __init__(self, tokenizer: Vocabulary) -> None:
        self.tokenizer = tokenizer
        self._answers: dict[str, bool] = {}
        # A word is known or unknown as a whole, so a character of a list of words is known if a word has it.
        self._word_characters: frozenset[str] | None = None
        if isinstance(tokenizer, TokenListTokenizer) and tokenizer.scheme.has_word_tokens:
            self._word_characters = frozenset("".join(tokenizer.tokens))

    def can_write(self, character: str) -> bool:
        """Return whether the decoded ids of a text keep this character."""
        if (answer := self._answers.get(character)) is None:
            answer = self._answers[character] = self._test(character)
        return answer

    def _test(self, character: str) -> bool:
        if character in _WHITE_SPACE:
            return True
        if self._word_characters is None:
            return character in self.tokenizer.decode(self.tokenizer.encode(f"a{character}a"))
        assert isinstance(self.tokenizer, TokenListTokenizer)
        lowercase, normalization = self.tokenizer.lowercase, self.tokenizer.normalization
        kept = normalize(character.lower() if lowercase else character, normalization) == character
        return kept and character in self._word_characters

    def count_unwritten(self, texts: Sequence[str]) -> dict[str, int]:
        """Return the characters of texts that the tokenizer cannot write, with their counts."""
        code_points = np.frombuffer("".join(texts).encode("utf-32-le", "replace"), dtype="<u4")
        counts = np.bincount(code_points) if len(code_points) else np.zeros(0, dtype=np.int64)
        characters = {chr(code_point): int(counts[code_point]) for code_point in np.flatnonzero(counts).tolist()}
        return {character: count for character, count in characters.items() if not self.can_write(character)}
