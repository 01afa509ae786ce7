"""Normalization of the library `tokenizers` by SentencePiece's table, which differs from that of SentencePiece itself.

SentencePiece replaces the longest sequence that the table has. `tokenizers` looks up each grapheme of less than six bytes and
replaces it by the entry of its first characters, so marks behind them vanish. It looks up the characters of all others one
by one, so it composes neither Hangul nor most accents of Indic scripts. Source: `Precompiled` of `tokenizers`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache

import numpy as np

MAX_GRAPHEME_BYTES = 5
"""Longest grapheme that is looked up as a whole, in bytes of UTF-8."""
MAX_ENTRIES = 2**14
"""Graphemes whose entries are kept. Texts have few different ones, but those of a stranger may have millions."""
# Classes of Unicode Standard Annex 29 that `unicodedata` does not have, as ranges of a regular expression.
_LEADING, _VOWELS, _TRAILING, _SYLLABLES = (
    "\u1100-\u115f\ua960-\ua97c", "\u1160-\u11a7\ud7b0-\ud7c6", "\u11a8-\u11ff\ud7cb-\ud7fb", "\uac00-\ud7a3"
)  # fmt: skip
_PREPENDED = "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\u0d4e\U000110bd\U000110cd"
_OTHER_MARKS = "\u200c\u200d\u0e33\u0eb3\uff9e\uff9f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f"
_NO_MARKS = (
    "\u102b\u102c\u1038\u1062-\u1064\u1067-\u106d\u1083\u1087-\u108c\u108f\u109a-\u109c\u1a61\u1a63\u1a64\uaa7b\uaa7d"
    "\U00011720\U00011721"
)


class GraphemeNormalizer:
    """Normalization of texts.

    charsmap: SentencePiece's compiled table: the number of bytes of a double-array trie, the trie, and texts that end in 0
    normalize: SentencePiece's normalization by the same table, which gives the same for texts of single characters

    Raises ValueError: the table is damaged.
    """

    def __init__(self, charsmap: bytes, normalize: Callable[[str], str]) -> None:
        size = int.from_bytes(charsmap[:4], "little")
        if size % 4 or not 0 < size <= len(charsmap) - 4:
            raise ValueError("the table of the normalization is damaged")
        self._units: list[int] = np.frombuffer(charsmap, dtype="<u4", count=size // 4, offset=4).tolist()
        self._texts = charsmap[4 + size :]
        self._normalize = normalize
        self._look_up = lru_cache(maxsize=MAX_ENTRIES)(self._search)

    def normalize(self, text: str) -> str:
        graphemes, joining = _compile_graphemes()
        if joining.search(text) is None:
            return self._normalize(text)
        return graphemes.sub(lambda match: self._replace(match[0]), text)

    def _replace(self, grapheme: str) -> str:
        if len(grapheme.encode()) <= MAX_GRAPHEME_BYTES and (entry := self._look_up(grapheme)) is not None:
            return entry
        entries = ((character, self._look_up(character)) for character in grapheme)
        return "".join(character if entry is None else entry for character, entry in entries)

    def _search(self, key: str) -> str | None:
        """Return the entry of the shortest prefix of a key; None if the table has none.

        The table is a double array of darts-clone, whose units hold a label, an offset, a flag for a leaf, or a value.
        """
        position = _get_offset(self._units[0])
        for byte in key.encode():
            position ^= byte
            if position >= len(self._units):
                return None
            unit = self._units[position]
            if unit & 0x800000FF != byte:
                return None
            position ^= _get_offset(unit)
            if unit >> 8 & 1 and position < len(self._units):
                start = self._units[position] & 0x7FFFFFFF
                return self._texts[start : max(self._texts.find(b"\0", start), start)].decode("utf-8", "replace")
        return None


def _get_offset(unit: int) -> int:
    return unit >> 10 << ((unit & 0x200) >> 6)


@lru_cache(maxsize=1)
def _compile_graphemes() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the patterns of a grapheme, and of a character that is not always a grapheme of its own."""
    categories: dict[str, list[str]] = {"marks": [_OTHER_MARKS], "controls": []}
    others = re.compile(f"[{_NO_MARKS}{_OTHER_MARKS}{_PREPENDED}]")
    for code_point in (*range(0x20000), *range(0xE0000, 0xE0200)):  # no other plane has marks
        character = chr(code_point)
        category = unicodedata.category(character)
        if category in ("Mn", "Me", "Mc", "Cc", "Cf", "Zl", "Zp", "Cs") and not others.match(character):
            categories["marks" if category[0] == "M" else "controls"].append(character)
    marks = f"[{''.join(categories['marks'])}]"
    hangul = f"[{_LEADING}]*(?:[{_SYLLABLES}][{_VOWELS}]*|[{_VOWELS}]+)[{_TRAILING}]*|[{_LEADING}]+|[{_TRAILING}]+"
    controls = re.escape("".join(categories["controls"]))
    grapheme = rf"\r\n|[{controls}]|[{_PREPENDED}]*(?:{hangul}|[^{controls}]){marks}*"
    joining = rf"\r\n|[{_LEADING}{_VOWELS}{_TRAILING}{_PREPENDED}]|{marks}"
    return re.compile(grapheme, re.DOTALL), re.compile(joining)
