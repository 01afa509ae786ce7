"""Detection of the language of a text, among the languages that the server translates."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from dragoman.errors import MissingDependencyError
from dragoman.languages import get_language
from dragoman.text.language_identifier import make_identifier

MAX_CHARACTERS = 2000
"""Characters at the start of a text that the identifier reads."""


@dataclass(frozen=True)
class DetectedLanguage:
    """Language of a text. confidence: probability in percent, among the languages that the server translates"""

    language: str
    confidence: float


class LanguageDetector:
    """Language identifier py3langid, restricted to some languages. The first use loads its model, which takes a second."""

    def __init__(self, languages: Collection[str]) -> None:
        self._languages = tuple(sorted(languages))

    def detect(self, text: str) -> list[DetectedLanguage]:
        """Return the languages of a text, likeliest first; the first one with confidence 0 for a text without letters.

        Raises MissingDependencyError without py3langid.
        """
        identifier = _load_identifier(self._languages)
        if identifier is None or not any(map(str.isalpha, text)):
            return [DetectedLanguage(language, 0.0) for language in self._languages[:1]]
        ranked = identifier.rank(text[:MAX_CHARACTERS])
        return [DetectedLanguage(get_language(code), round(100 * float(p), 1)) for code, p in ranked if np.isfinite(p)]


@cache
def _load_identifier(languages: tuple[str, ...]) -> Any:
    """Return the identifier for these languages, or None if it knows none of them."""
    try:
        identifier = make_identifier(languages, norm_probs=True)
    except ImportError as error:
        raise MissingDependencyError("py3langid", "serve", "source = auto") from error
    return identifier if identifier.labels else None
