"""Languages that office documents state for each kind of script: one for Latin and its like, one for Asian, one for complex.

The characters of a text select its kind, so a Japanese text in a file with `en-US` and `ja-JP` is Japanese.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_ASIAN = re.compile(r"[\u1100-\u11ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc\U00020000-\U0003ffff]")
_COMPLEX = re.compile(r"[\u0590-\u109f\u1780-\u17ff\ufb1d-\ufdff\ufe70-\ufefc\U0001e900-\U0001e95f]")

_ASCII_SIGNS = bytes(character for character in range(128) if not chr(character).isalpha())


def count_letters(text: str) -> int:
    """Return the number of letters of a text."""
    return len(text.encode().translate(None, _ASCII_SIGNS)) if text.isascii() else sum(map(str.isalpha, text))


class ScriptLanguages(NamedTuple):
    """Codes of the languages of texts in Latin and other simple scripts, in Asian and in complex scripts; empty if unknown."""

    simple: str = ""
    asian: str = ""
    complex: str = ""

    def select(self, text: str) -> str:
        """Return the code for the script of most letters of a text."""
        if text.isascii():
            return self.simple
        counts = ScriptCounts()
        counts.count(text)
        return counts.select(self)


class ScriptCounts:
    """Numbers of the letters of texts by the kind of their script."""

    def __init__(self) -> None:
        self._num_letters = self._num_asian = self._num_complex = 0

    def count(self, text: str) -> None:
        """Add a text."""
        self._num_letters += count_letters(text)
        if not text.isascii():
            self._num_asian += len(_ASIAN.findall(text))
            self._num_complex += len(_COMPLEX.findall(text))

    def select(self, languages: ScriptLanguages) -> str:
        """Return the code for the script of most letters."""
        num_simple = self._num_letters - self._num_asian - self._num_complex
        if self._num_asian > max(num_simple, self._num_complex):
            return languages.asian
        return languages.complex if self._num_complex > max(num_simple, self._num_asian) else languages.simple


NO_LANGUAGES = ScriptLanguages()
"""Languages of a part that states none."""
