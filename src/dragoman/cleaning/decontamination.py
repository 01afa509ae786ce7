"""Digests of the validation and test texts, for the filter `eval-overlap`."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Self

from dragoman.formats.pair import Pair
from dragoman.text.unicode_forms import normalize_form


@dataclass(frozen=True)
class EvaluationTexts:
    """Digests of the sources and targets of data.valid and data.test.

    A digest has 64 bits and covers letters, marks and digits without their case. Among 36 million training pairs and ten
    thousand texts, the probability that a pair matches by chance is about 4 in a hundred million.
    """

    digests: frozenset[int]

    @classmethod
    def from_pairs(cls, pairs: Iterable[Pair]) -> Self:
        digests = (_compute_digest(text) for pair in pairs for text in (pair.source, pair.target))
        return cls(frozenset(digest for digest in digests if digest is not None))

    def contains_side(self, source: str, target: str) -> bool:
        """Return whether one of the sides is an evaluation text of either side, ignoring case, punctuation and spaces."""
        return _compute_digest(source) in self.digests or _compute_digest(target) in self.digests


def _compute_digest(text: str) -> int | None:
    """Return 64 bits of a text's key, or None if it has neither a letter nor a digit."""
    key = normalize_for_matching(text)
    return int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()) if key else None


class _CharacterMap(dict[int, str | None]):
    """Map of code points for str.translate: letters, digits and marks stay. It fills on demand, for there are a million."""

    def __missing__(self, code_point: int) -> str | None:
        character = chr(code_point)
        self[code_point] = character.lower() if unicodedata.category(character)[0] in "LNM" else None
        return self[code_point]


_CHARACTER_MAP = _CharacterMap()


def normalize_for_matching(text: str) -> str:
    """Return a text without case, punctuation, symbols and white space, in Unicode's NFKC."""
    if text.isascii():
        return text.translate(_CHARACTER_MAP)
    # Twice, since case folding may split a composed letter, and the recomposed letter may fold further.
    for _ in range(2):
        text = normalize_form("NFKC", text).casefold()
    # Once punctuation is gone, a mark follows its letter directly and may compose with it.
    return normalize_form("NFKC", normalize_form("NFKC", text).translate(_CHARACTER_MAP))
