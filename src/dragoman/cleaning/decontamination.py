"""What a model will be scored on, as digests, to be kept out of what it learns from."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Self

from dragoman.formats.pair import Pair


@dataclass(frozen=True)
class EvaluationTexts:
    """The sources and targets of data.valid and data.test, however short: small, and the same in every process.

    Of each text 64 bits are kept, of its letters, marks and digits without their case. Among 36 million pairs and ten thousand
    texts, one pair is taken for one of these by chance with a probability of 4 in a hundred million.
    """

    digests: frozenset[int]

    @classmethod
    def from_pairs(cls, pairs: Iterable[Pair]) -> Self:
        digests = (_compute_digest(text) for pair in pairs for text in (pair.source, pair.target))
        return cls(frozenset(digest for digest in digests if digest is not None))

    def contains_side(self, source: str, target: str) -> bool:
        """One of the two stands here, as a source or as a target, whatever its case, punctuation and spaces."""
        return _compute_digest(source) in self.digests or _compute_digest(target) in self.digests


def _compute_digest(text: str) -> int | None:
    """64 bits of a text's key; None where it has neither letter nor digit."""
    key = normalize_for_matching(text)
    return int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()) if key else None


class _CharacterMap(dict[int, str | None]):
    """What becomes of a code point: letters, digits and marks stay. Asked as it comes up, since there are a million of them."""

    def __missing__(self, code_point: int) -> str | None:
        character = chr(code_point)
        self[code_point] = character.lower() if unicodedata.category(character)[0] in "LNM" else None
        return self[code_point]


_CHARACTER_MAP = _CharacterMap()


def normalize_for_matching(text: str) -> str:
    """What stays of a text without its case, punctuation, symbols and white space, after Unicode's NFKC."""
    if text.isascii():
        return text.translate(_CHARACTER_MAP)
    # Twice: folding may take a composed letter apart, and what is put together again may fold further.
    for _ in range(2):
        text = unicodedata.normalize("NFKC", text).casefold()
    # A mark stands beside the letter before it once nothing is between them.
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).translate(_CHARACTER_MAP))
