"""Translation memory: translations of texts that were translated before, for equal and for similar texts.

The similarity of two texts is 1 minus their Levenshtein distance over the length of the longer one, in characters.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import DataError, RecipeError
from dragoman.text.edit_distance import compute_distance
from dragoman.text.projection import split_units

MIN_SIMILARITY = 0.5
"""Lowest similarity that may be asked for; texts that are less similar have little in common."""
MAX_COMPARED_CHARACTERS = 2000
"""Longest text with a similar one; to compare two texts takes time that grows with the product of their lengths."""
NUM_RARE_WORDS = 8
"""Rarest words of a text, by which similar texts are looked for."""
MAX_CANDIDATES = 50
"""Texts that are compared with a text: those that share most of its rarest words."""

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class MemoryMatch:
    """Translation from a memory. source: its source in the memory. similarity: that of the sources, 1 if they are equal"""

    source: str
    text: str
    similarity: float = 1.0

    @property
    def is_exact(self) -> bool:
        """Return whether the sources are equal, so that the translation is one of the same text."""
        return self.similarity == 1.0

    @property
    def percent(self) -> int:
        """Similarity in percent, rounded down; 100 for equal sources only."""
        return int(100 * self.similarity)


class TranslationMemory:
    """Translations by their sources.

    min_similarity: lowest similarity of a match; at 1, only equal texts match

    Raises RecipeError for a similarity outside of `MIN_SIMILARITY` to 1.
    """

    def __init__(self, translations: Mapping[str, str], min_similarity: float = 1.0) -> None:
        if not MIN_SIMILARITY <= min_similarity <= 1:
            raise RecipeError(
                f"the lowest similarity of a match is {min_similarity:g}; give {MIN_SIMILARITY:g} to 1", code="invalid-option"
            )
        self._translations = translations
        self._min_similarity = min_similarity
        self._sources = list(translations) if min_similarity < 1 else []
        self._by_word: dict[str, list[int]] = defaultdict(list)
        for index, source in enumerate(self._sources):
            for word in _list_words(source):
                self._by_word[word].append(index)

    def __len__(self) -> int:
        return len(self._translations)

    def find(self, text: str) -> MemoryMatch | None:
        """Return the translation of the most similar text, or None if no text is similar enough."""
        if (translation := self._translations.get(text)) is not None:
            return MemoryMatch(text, translation)
        if self._min_similarity == 1 or len(text) > MAX_COMPARED_CHARACTERS:
            return None
        best, similarity = "", self._min_similarity
        for source in self._list_candidates(text):
            longer = max(len(source), len(text))
            # The difference of the lengths is the least that the distance can be.
            if 1 - abs(len(source) - len(text)) / longer < similarity:
                continue
            distance = compute_distance(source, text)
            if distance and 1 - distance / longer >= similarity and (not best or 1 - distance / longer > similarity):
                best, similarity = source, 1 - distance / longer
        if not best:
            return None
        return MemoryMatch(best, replace_numbers(text, best, self._translations[best]), similarity)

    def _list_candidates(self, text: str) -> list[str]:
        """Return the sources that share most of the rarest words of a text, best first."""
        words = sorted((word for word in _list_words(text) if word in self._by_word), key=lambda word: len(self._by_word[word]))
        shared: Counter[int] = Counter()
        for word in words[:NUM_RARE_WORDS]:
            shared.update(self._by_word[word])
        return [self._sources[index] for index, _ in shared.most_common(MAX_CANDIDATES)]


def _list_words(text: str) -> list[str]:
    """Return the words of a text, each once; numbers count as one word."""
    return list(dict.fromkeys(_NUMBER.sub("0", text[start:end]).casefold() for start, end in split_units(text)))


def replace_numbers(text: str, source: str, translation: str) -> str:
    """Return the translation of `source` with the numbers of `text`, if that is safe; otherwise the translation.

    It is safe if the texts differ in whole numbers only. Each number of the source stands once in it and once in the
    translation, which has no other number. A change from or to 1 is not safe, because words change with it.
    """
    old, new = _NUMBER.findall(source), _NUMBER.findall(text)
    if _NUMBER.sub("0", source) != _NUMBER.sub("0", text) or len(set(old)) < len(old):
        return translation
    if sorted(old) != sorted(_NUMBER.findall(translation)) or re.search(r"\d[.,'’\u00a0\u202f]\d", source + translation):
        return translation
    replaced = dict(zip(old, new, strict=True))
    if any(before != after and "1" in (before, after) for before, after in replaced.items()):
        return translation
    return _NUMBER.sub(lambda match: replaced[match[0]], translation)


def read_translations(path: Path, source_language: str, target_language: str) -> dict[str, str]:
    """Return the translations of a TMX or TSV file by their sources. The first translation of a source counts.

    Raises DataError for a file of another format, and for one that cannot be read.
    """
    from dragoman.formats.tmx import read_tmx
    from dragoman.formats.tsv import read_tsv

    match path.suffix.lower():
        case ".tmx":
            pairs = read_tmx(path, source_language=source_language, target_language=target_language)
        case ".tsv" | ".txt":
            pairs = read_tsv(path)
        case suffix:
            raise DataError(f"{path}: a translation memory is a .tmx or .tsv file, not {suffix!r}", code="unknown-format")
    translations: dict[str, str] = {}
    for pair in pairs:
        if pair.source and pair.target:
            translations.setdefault(pair.source, pair.target)
    return translations
